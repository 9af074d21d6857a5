"""Compare K networks trained as one program with one network, and with K networks on slots.

    python benchmarks/fused.py [--k 1 2 4 8 16] [--rounds 2] [--epochs 5] [--json]

Equal dense networks of PyTorch train on one device: by one trainer that fuses them
(`resources.fuse: K`), and by K trainers that share it (`resources.networks_per_gpu: K`). The device
is the first visible GPU, where slots use NVIDIA's Multi-Process Service if it is installed. Without
a GPU all ranks share one core.

*Samples/s* is the total throughput while K networks train and all are beyond their first epochs, in
which programs are recorded. For each K, one network trains right after the others: `of_one`
compares with it, `of_slots` with the K slots. Numbers are medians of the rounds. The aim is 3 times
one network at K = 8 on a CPU, and twice the slots on a GPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sharing
import yaml

from fleet.api import mpirun
from fleet.commands.output import print_json
from fleet.domain.events import EpochEnded
from fleet.storage.event_log import read_events
from fleet.storage.paths import RunPaths
from fleet.terminal import print_table
from launch.devices import visible_gpus

ROOT = Path(__file__).parents[1]
FUSED = "fused"
SLOTS = "slots"


@dataclass(frozen=True)
class Turn:
    """Launches one after another: samples/s of one network, and of K networks by mode."""

    count: int
    alone: float
    rates: Mapping[str, float]


def spec(
    mode: str, count: int, gpu: str | None, folder: Path, args: argparse.Namespace
) -> dict[str, Any]:
    """Return the spec of a run of equal networks with different learning rates on one device."""
    resources: dict[str, Any] = {"engine": "torch", "preprocessors": 1}
    resources |= {"fuse": count} if mode == FUSED else {"networks_per_gpu": count}
    if gpu is not None:
        resources["gpus_per_node"] = 1
    return {
        "name": "fused",
        "output": str(folder / "run"),
        "data": {
            "source": "builtin:noise",
            "options": {"samples": args.samples, "size": args.pixels},
            "validation": None,
            "cache": "memory",
            "transforms": [{"scale": {"mean": 0.5, "std": 0.5}}],
        },
        "models": [
            {
                "family": "mlp",
                "name": f"mlp-{number}",
                "args": {"hidden": args.hidden},
                "train": {"optimizer": {"learning_rate": 0.001 * (number + 1)}},
            }
            for number in range(count)
        ],
        "train": {
            "batch": {"size": args.batch},
            "stopping": {"monitor": "loss", "max_epochs": args.epochs},
            "optimizer": {"name": "sgd", "momentum": 0.9},
        },
        "resources": resources,
    }


def measure(mode: str, count: int, gpu: str | None, args: argparse.Namespace) -> float:
    """Return the samples/s of all networks of a launch, with no cached rates."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "fused.yaml"
        path.write_text(yaml.safe_dump(spec(mode, count, gpu, folder, args)))
        bound = [] if gpu is not None else ["taskset", "-c", str(min(os.sched_getaffinity(0)))]
        ranks = 2 if mode == FUSED else count + 1
        process = subprocess.run(
            [*bound, *mpirun(ranks), "-m", "fleet.run", str(path), "--plain"],
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
            env=os.environ | {"XDG_CACHE_HOME": str(folder / "cache")},
        )
        if process.returncode:
            raise RuntimeError(
                f"{count} {mode}: {process.stdout[-2000:]}\n{process.stderr[-2000:]}"
            )
        log = read_events(RunPaths(folder / "run").events)
        epochs = [(at, event.record) for at, event in log if isinstance(event, EpochEnded)]
        return sharing.samples_per_s(epochs, count)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--k", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--samples", type=int, default=16384)
    parser.add_argument("--pixels", type=int, default=8)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--hidden", type=int, nargs="+", default=[32])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.epochs < 3:
        parser.error(f"--epochs is {args.epochs}; it must be at least 3: the first does not count")
    gpu = next(iter(visible_gpus(os.environ)), None)
    measured: list[Turn] = []
    for number in range(args.rounds):
        for count in args.k:
            modes = (FUSED, SLOTS) if count > 1 else ()
            rates = {mode: measure(mode, count, gpu, args) for mode in modes}
            turn = Turn(count, measure(SLOTS, 1, gpu, args), rates)
            measured.append(turn)
            print(f"  round {number + 1}: {turn}", file=sys.stderr, flush=True)
    rows = make_rows(measured)
    if args.json:
        print_json(rows)
        return
    device = "a core" if gpu is None else f"GPU {gpu}"
    print_table(
        ["networks", "samples/s", "of one", "of slots"],
        [[f"{row['k']} {row['what']}", *(row[key] for key in list(row)[2:])] for row in rows],
        title=f"dense networks on {device}, medians of {args.rounds}",
    )


def make_rows(measured: Sequence[Turn]) -> list[dict[str, Any]]:
    """Return a row for each case: medians of its throughput, and of its ratios to others."""
    rows = []
    for mode in (FUSED, SLOTS):
        for count in sorted({turn.count for turn in measured}):
            turns = [turn for turn in measured if turn.count == count]
            rates = [turn.rates.get(mode, turn.alone) for turn in turns]
            slots = [turn.rates.get(SLOTS, turn.alone) for turn in turns]
            pairs = list(zip(turns, rates, slots, strict=True))
            rows.append(
                {
                    "what": mode,
                    "k": count,
                    "samples_per_s": round(statistics.median(rates)),
                    "of_one": round(
                        statistics.median(rate / turn.alone for turn, rate, _ in pairs), 3
                    ),
                    "of_slots": round(statistics.median(rate / slot for _, rate, slot in pairs), 3),
                }
            )
    return rows


if __name__ == "__main__":
    main()
