"""Compare the throughput of K = 1, 2, 4 and 8 networks on one device; the goal is a factor of 3.

    python benchmarks/sharing.py [--slots 1 2 4 8] [--rounds 3] [--epochs 4] [--engine keras]

Equal small CNNs, as many as the largest K, train on one device that K trainers share
(`resources.networks_per_gpu: K`), fed by one preprocessor that caches decoded samples. The device
is the first visible GPU; if NVIDIA's Multi-Process Service is installed, the run uses it. Without a
GPU all ranks share one core: that tests the script, and says nothing about GPUs.

All K take turns; the numbers are medians of the rounds. *Samples/s* is the total throughput while K
networks train and all are beyond their first epochs, in which they are traced. *Networks/min*
counts from the first group's start to the last one's end, builds and traces included. Let nothing
else run meanwhile: K processes get a larger share of a busy machine than one does.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from fleet.api import mpirun
from fleet.commands.output import print_json
from fleet.domain.events import EpochEnded, GroupStarted, GroupStopped, LaunchStarted
from fleet.domain.network import EpochRecord
from fleet.domain.timeline import LoggedEvent
from fleet.storage.event_log import read_events
from fleet.storage.paths import RunPaths
from fleet.terminal import print_table
from launch.devices import visible_gpus
from launch.mps import CONTROL

ROOT = Path(__file__).parents[1]
GOAL = 3.0  # throughput of the best K on a GPU, as a multiple of one network's
_LEAST_S = 1.0


@dataclass(frozen=True)
class Throughput:
    """One launch: samples/s of all networks on the device together, and networks/min."""

    samples_per_s: float
    networks_per_min: float


def spec(
    slots: int, networks: int, gpu: str | None, folder: Path, args: argparse.Namespace
) -> dict[str, Any]:
    """Return the spec of a run of equal networks on one device."""
    resources = {"engine": args.engine, "networks_per_gpu": slots, "preprocessors": 1}
    if gpu is not None:
        resources["gpus_per_node"] = 1
    return {
        "name": "sharing",
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
                "family": "cnn",
                "name": f"cnn-{number}",
                "args": {"filters": args.filters, "dense": [64]},
            }
            for number in range(networks)
        ],
        "train": {
            "batch": {"size": args.batch},
            "stopping": {"monitor": "loss", "max_epochs": args.epochs},
            "optimizer": {"name": "sgd", "learning_rate": 0.01, "momentum": 0.9},
        },
        "resources": resources,
    }


def measure(slots: int, networks: int, gpu: str | None, args: argparse.Namespace) -> Throughput:
    """Train all networks with a number of slots, with no cached rates."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "sharing.yaml"
        path.write_text(yaml.safe_dump(spec(slots, networks, gpu, folder, args)))
        bound = [] if gpu is not None else ["taskset", "-c", str(min(os.sched_getaffinity(0)))]
        process = subprocess.run(
            [*bound, *mpirun(slots + 1), "-m", "fleet.run", str(path), "--plain"],
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
            env=os.environ | {"XDG_CACHE_HOME": str(folder / "cache")},
        )
        if process.returncode:
            raise RuntimeError(f"{slots} slots: {process.stdout[-2000:]}\n{process.stderr[-2000:]}")
        return read_throughput(list(read_events(RunPaths(folder / "run").events)), slots)


def read_throughput(log: Sequence[LoggedEvent], slots: int) -> Throughput:
    """Return the throughput that the log of a launch shows.

    Raises:
        RuntimeError: The device never trained ``slots`` networks at the same time.
    """
    started = min(at for at, event in log if isinstance(event, GroupStarted))
    ended = max(at for at, event in log if isinstance(event, GroupStopped))
    running, maximum = 0, 0
    for _, event in log:
        running += isinstance(event, GroupStarted) - isinstance(event, GroupStopped)
        maximum = max(maximum, running)
    start = next(event for _, event in log if isinstance(event, LaunchStarted))
    if (maximum, start.cluster.whole_gpus) != (slots, 1):
        raise RuntimeError(
            f"found {maximum} networks on {start.cluster.whole_gpus} devices instead of {slots} on "
            "one"
        )
    epochs = [(at, event.record) for at, event in log if isinstance(event, EpochEnded)]
    networks = len({event.network for _, event in log if isinstance(event, EpochEnded)})
    return Throughput(samples_per_s(epochs, slots), 60 * networks / (ended - started))


def samples_per_s(epochs: Sequence[tuple[float, EpochRecord]], slots: int) -> float:
    """Return samples/s of all networks while all slots train and are beyond their first epochs.

    Args:
        epochs: The time of the end of each epoch of all networks, and its record.
        slots: Number of networks that train at the same time.

    Raises:
        RuntimeError: That lasted less than a second.
    """
    spans = [(at - record.seconds, at, record) for at, record in epochs]
    seconds = samples = 0.0
    for begin, end in pairwise(sorted({moment for span in spans for moment in span[:2]})):
        now = [record for began, ended, record in spans if began <= begin and end <= ended]
        if len(now) == slots and all(record.epoch > 1 for record in now):
            seconds += end - begin
            samples += (end - begin) * sum(record.samples / record.seconds for record in now)
    if seconds < _LEAST_S:
        raise RuntimeError(
            f"{slots} networks were beyond their first epochs for only {seconds:.2f} s: increase "
            "--samples or --epochs"
        )
    return samples / seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--pixels", type=int, default=32)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--filters", type=int, nargs="+", default=[16, 32])
    parser.add_argument("--engine", default="keras")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.epochs < 2:
        parser.error(
            f"--epochs is {args.epochs}; it must be at least 2, because the first does not count"
        )
    gpu = next(iter(visible_gpus(os.environ)), None)
    if gpu is None:
        print(
            "No GPU found: all ranks share one core, which says nothing about GPUs.",
            file=sys.stderr,
        )
    measured: dict[int, list[Throughput]] = {slots: [] for slots in args.slots}
    for turn in range(args.rounds):
        for slots in args.slots[turn % len(args.slots) :] + args.slots[: turn % len(args.slots)]:
            measured[slots].append(measure(slots, max(args.slots), gpu, args))
            print(
                f"  round {turn + 1}, {slots} on the device: {measured[slots][-1]}",
                file=sys.stderr,
                flush=True,
            )
    device = "a core"
    if gpu is not None:
        device = f"GPU {gpu} {'with' if shutil.which(CONTROL) else 'without'} MPS"
    show(measured, device, args)


def show(measured: dict[int, list[Throughput]], device: str, args: argparse.Namespace) -> None:
    """Print the medians, relative to the fewest networks on the device, and the gap to the goal."""
    if args.json:
        print_json({"device": device, "goal": GOAL, "rounds": measured})
        return
    trained = {
        slots: statistics.median(row.samples_per_s for row in rounds)
        for slots, rounds in measured.items()
    }
    finished = {
        slots: statistics.median(row.networks_per_min for row in rounds)
        for slots, rounds in measured.items()
    }
    first = min(measured)
    print_table(
        ["networks on it", "samples/s", f"ratio to {first}", "networks/min", f"ratio to {first}"],
        [
            [
                slots,
                round(trained[slots]),
                trained[slots] / trained[first],
                finished[slots],
                finished[slots] / finished[first],
            ]
            for slots in sorted(measured)
        ],
        title=f"{max(measured)} networks on {device}, medians of {args.rounds}",
    )
    best = max(trained, key=lambda slots: trained[slots])
    gain = trained[best] / trained[first]
    print(
        f"The throughput is highest with {best} networks: {gain:.2f} times that of {first}, "
        f"{gain / GOAL:.2f} of the goal of {GOAL:g}."
    )


if __name__ == "__main__":
    main()
