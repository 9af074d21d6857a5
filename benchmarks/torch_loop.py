"""Compare the engine torch with handwritten loops: samples/s of FLEET divided by theirs.

    python benchmarks/torch_loop.py [--json] [--pairs 9]
        [--what small "own step" middle "two ranks" "ten networks"]

- small, middle: steps of a CNN on one rank and of the same module in a loop, on the same uint8
  batches and with the same threads, in turns.
- own step: small, with a step of the user (train.step) instead of a named loss.
- two ranks: the same on two ranks, with MPI and with DistributedDataParallel over gloo.
- ten networks: a whole run on two trainers, from the command to the prompt, and a script that
  trains the same ten networks one after another.

FLEET is imported in functions, because that script must not import it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
TARGETS = {"small": 0.97, "own step": 0.97, "middle": 0.97, "two ranks": 0.95, "ten networks": 0.9}
RATE, WARM_UP_STEPS = 0.02, 20
# filters, dense, side of images, batch per rank, steps per turn
SIZES = {
    "small": ([16, 32], [64], 28, 64, 60),
    "own step": ([16, 32], [64], 28, 64, 60),
    "middle": ([32, 64], [128], 32, 64, 10),
    "two ranks": ([16, 32], [64], 28, 64, 40),
}
TEN_EPOCHS, TEN_SAMPLES = 8, 4096


def build_module(
    filters: Sequence[int], dense: Sequence[int], side: int, channels: int = 3, classes: int = 10
) -> Any:
    """Build a CNN with the architecture of the family ``cnn``."""
    from torch import nn

    layers: list[Any] = []
    for width in filters:
        layers += [
            nn.Conv2d(channels, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        channels, side = width, side // 2
    layers.append(nn.Flatten())
    features = channels * side * side
    for units in dense:
        layers += [nn.Linear(features, units), nn.ReLU()]
        features = units
    return nn.Sequential(*layers, nn.Linear(features, classes))


def make_loop_step(module: Any, rate: float = RATE) -> Callable[[np.ndarray, np.ndarray], float]:
    """Return a step of a handwritten loop; it reads the loss and the hits, like FLEET."""
    import torch
    from torch.nn.functional import cross_entropy

    optimizer = torch.optim.SGD(module.parameters(), lr=rate, momentum=0.9)
    module.train()

    def step(images: np.ndarray, labels: np.ndarray) -> float:
        inputs = (
            torch.from_numpy(images).permute(0, 3, 1, 2).float().div_(127.5).sub_(1).contiguous()
        )
        target = torch.from_numpy(labels)
        optimizer.zero_grad()
        outputs = module(inputs)
        loss = cross_entropy(outputs, target)
        loss.backward()
        optimizer.step()
        return loss.item() + (outputs.argmax(1) == target).sum().item()

    return step


def own_step(model: Any, batch: dict[str, Any], training: bool) -> dict[str, Any]:
    """Compute the same losses and hits as the loop, as a step of the user."""
    from torch.nn.functional import cross_entropy

    outputs = model(batch["input"])
    return {
        "loss": cross_entropy(outputs, batch["target"], reduction="none"),
        "accuracy": outputs.argmax(1) == batch["target"],
    }


def make_fleet_step(
    settings: str, group: Any, exchange: str = "mpi"
) -> Callable[[np.ndarray, np.ndarray], Any]:
    """Return a step of the engine on this rank of a group."""
    from fleet.engines.registry import make_engine
    from fleet.engines.steps import StepBatches
    from fleet.spec import parse
    from preprocess.sample import Affine, ArraySpec, SampleSpec

    filters, dense, side, batch, _ = SIZES[settings]
    spec = parse(
        {
            "models": [{"family": "cnn", "args": {"filters": filters, "dense": dense}}],
            "resources": {"engine": "torch", "exchange": exchange},
            "train": {
                "batch": {"size": batch * group.size},
                "optimizer": {"name": "sgd", "learning_rate": RATE, "momentum": 0.9},
                **({"step": "torch_loop:own_step"} if settings == "own step" else {}),
            },
        }
    )
    sample = SampleSpec(ArraySpec((side, side, 3), "uint8"), 10, Affine(0.5, 0.5))
    network = make_engine(spec, sample, None, 0, group.size).build(spec.networks[0], group)

    def step(images: np.ndarray, labels: np.ndarray) -> Any:
        batches = StepBatches((images, labels), [batch * group.size], [len(labels)])
        return network.begin_steps(batches)()

    return step


def make_batches(settings: str, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return some batches of a rank: images (batch, side, side, 3) uint8, and labels (batch,)."""
    _, _, side, batch, _ = SIZES[settings]
    random = np.random.default_rng(seed)
    return [
        (
            random.integers(0, 256, (batch, side, side, 3)).astype(np.uint8),
            random.integers(0, 10, batch),
        )
        for _ in range(8)
    ]


def compare(
    title: str,
    steps: Sequence[Callable[..., Any]],
    pairs: int,
    barrier: Callable[[], None] = lambda: None,
) -> list[float]:
    """Return the ratio of each pair of turns: seconds of the second step / seconds of the first."""
    batches, count = make_batches(title), SIZES[title][-1]
    results = []
    for step in steps:
        for index in range(WARM_UP_STEPS):
            step(*batches[index % len(batches)])
    for pair in range(pairs):
        seconds = [0.0, 0.0]
        for side in ((0, 1), (1, 0))[pair % 2]:
            barrier()
            began = time.perf_counter()
            for index in range(count):
                steps[side](*batches[index % len(batches)])
            seconds[side] = time.perf_counter() - began
        results.append(seconds[1] / seconds[0])
    return results


def compare_on_one_rank(settings: str, pairs: int) -> list[float]:
    """Compare FLEET and the loop on one rank."""
    from fleet.comm.single_rank import SingleRankGroup

    filters, dense, side, *_ = SIZES[settings]
    return compare(
        settings,
        [
            make_fleet_step(settings, SingleRankGroup()),
            make_loop_step(build_module(filters, dense, side)),
        ],
        pairs,
    )


def run_rank(pairs: int, folder: Path) -> None:
    """Run one of two ranks; both sides take turns."""
    import torch
    from torch import distributed

    from fleet.comm.mpi import start_mpi

    world = start_mpi()
    world.node_of()
    group = world.group((0, 1), 1)
    fleet_side = make_fleet_step("two ranks", group)
    distributed.init_process_group(
        "gloo", store=distributed.FileStore(str(folder / "store"), 2), rank=world.rank, world_size=2
    )
    filters, dense, side, *_ = SIZES["two ranks"]
    rival_side = make_loop_step(
        torch.nn.parallel.DistributedDataParallel(build_module(filters, dense, side))
    )
    results = compare("two ranks", [fleet_side, rival_side], pairs, group.barrier)
    if world.rank == 0:
        print(json.dumps(results), flush=True)
    distributed.destroy_process_group()
    world.finish()
    world.exit(0)


def compare_on_two_ranks(pairs: int) -> list[float]:
    """Compare FLEET and DistributedDataParallel on two ranks."""
    from fleet.api import mpirun

    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.run(
            [*mpirun(2), __file__, "--rank", folder, "--pairs", str(pairs)],
            cwd=ROOT,
            text=True,
            capture_output=True,
            check=True,
        )
    ratios: list[float] = json.loads(process.stdout.splitlines()[-1])
    return ratios


def ten_networks() -> Iterator[tuple[list[int], list[int], float]]:
    """Yield filters, dense layers and learning rate of each of ten networks."""
    for index in range(10):
        yield ([8, 16], [16, 32])[index % 2], ([32], [64])[index // 5], 0.01 * (1 + index)


def train_ten(folder: Path) -> None:
    """Train one network after another in one process, without FLEET."""
    import torch

    data = np.load(folder / "data.npz")
    images, labels, random = data["x"], data["y"], np.random.default_rng(0)
    for filters, dense, rate in ten_networks():
        torch.manual_seed(0)
        step = make_loop_step(build_module(filters, dense, 28, 1), rate)
        for _ in range(TEN_EPOCHS):
            order = random.permutation(len(images))
            for first in range(0, len(images), 64):
                step(images[order[first : first + 64]], labels[order[first : first + 64]])


def compare_ten_networks(pairs: int) -> list[float]:
    """Compare whole runs, from the command to the prompt."""
    import yaml

    from fleet.api import mpirun

    results = []
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        random = np.random.default_rng(0)
        np.savez(
            folder / "data.npz",
            x=random.integers(0, 256, (TEN_SAMPLES, 28, 28, 1)).astype(np.uint8),
            y=random.integers(0, 10, TEN_SAMPLES),
        )
        models = [
            {
                "family": "cnn",
                "name": f"n{index}",
                "args": {"filters": filters, "dense": dense},
                "train": {"optimizer": {"name": "sgd", "learning_rate": rate, "momentum": 0.9}},
            }
            for index, (filters, dense, rate) in enumerate(ten_networks())
        ]
        spec = {
            "data": {
                "source": "npz",
                "path": str(folder / "data.npz"),
                "transforms": [{"scale": {"mean": 0.5, "std": 0.5}}],
            },
            "models": models,
            "resources": {"engine": "torch"},
            "output": str(folder / "run"),
            "train": {
                "batch": {"size": 64},
                "stopping": {"max_epochs": TEN_EPOCHS, "monitor": "loss"},
            },
        }
        (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
        sides = [
            [*mpirun(3), "-m", "fleet.run", str(folder / "spec.yaml"), "--plain", "--fresh"],
            [sys.executable, __file__, "--ten", folder_name],
        ]
        for pair in range(pairs):
            seconds = [0.0, 0.0]
            for side in ((0, 1), (1, 0))[pair % 2]:
                began = time.perf_counter()
                subprocess.run(sides[side], cwd=ROOT, check=True, capture_output=True)
                seconds[side] = time.perf_counter() - began
            results.append(seconds[1] / seconds[0])
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--what", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument(
        "--pairs", type=int, default=9, help="pairs of turns; a third as many of whole runs"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--ten", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        run_rank(arguments.pairs, arguments.rank)
        return
    if arguments.ten is not None:
        train_ten(arguments.ten)
        return
    from fleet.commands.output import print_json
    from fleet.terminal import print_table

    rows = []
    for part in arguments.what:
        if part == "two ranks":
            results = compare_on_two_ranks(arguments.pairs)
        elif part == "ten networks":
            results = compare_ten_networks(-(-arguments.pairs // 3))
        else:
            results = compare_on_one_rank(part, arguments.pairs)
        rows.append({"comparison": part, "ratio": round(statistics.median(results), 3)})
    if arguments.json:
        print_json(rows)
        return
    print_table(
        ["comparison", "ratio", "target"],
        [[row["comparison"], row["ratio"], TARGETS[str(row["comparison"])]] for row in rows],
        title="samples/s of FLEET / samples/s of a handwritten loop",
    )


if __name__ == "__main__":
    main()
