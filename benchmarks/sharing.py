"""What K networks on one device train together beside one alone: K = 1, 2, 4, 8. The goal is three times as much.

    python benchmarks/sharing.py [--slots 1 2 4 8] [--rounds 3] [--epochs 4] [--engine keras]

Equal small CNNs, as many as the largest K, train on one device that K trainers share (`resources.networks_per_gpu: K`), fed
by one preprocessor that keeps the decoded samples. The device is the first GPU that this process is shown; where
NVIDIA's Multi-Process Service is installed, the run uses it. Where there is no GPU, all ranks share one core; that
tries the script, and says nothing about GPUs.

All K take turns; the numbers are medians of the rounds. *Samples/s* is what all networks on the device train together
while there are K of them, and all beyond their first epochs: in these they are traced, and slow down the others.
*Networks/min* counts from the first group's start to the last one's end, builds and traces included. Let nothing else
run meanwhile: K processes get a larger part of a busy machine than one does.
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
from fleet.storage.event_log import LoggedEvent, read_events
from fleet.storage.paths import RunPaths
from fleet.terminal import print_table
from launch.devices import visible_gpus
from launch.mps import CONTROL

ROOT = Path(__file__).parents[1]
GOAL = 3.0  # times what one network trains alone, by the best K on a GPU
_LEAST_S = 1.0


@dataclass(frozen=True)
class Measured:
    """One launch: what all networks on the device train together, in samples/s and in networks/min."""

    together: float
    finished: float


def spec(
    slots: int, networks: int, gpu: str | None, folder: Path, args: argparse.Namespace
) -> dict[str, Any]:
    """A run of so many equal networks on one device."""
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
        "resources": {"engine": args.engine, "networks_per_gpu": slots, "preprocessors": 1}
        | ({} if gpu is None else {"gpus_per_node": 1}),
    }


def measure(slots: int, networks: int, gpu: str | None, args: argparse.Namespace) -> Measured:
    """Train them all with so many slots, with an empty cache of rates."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "sharing.yaml"
        path.write_text(yaml.safe_dump(spec(slots, networks, gpu, folder, args)))
        bound = [] if gpu is not None else ["taskset", "-c", str(min(os.sched_getaffinity(0)))]
        done = subprocess.run(
            [*bound, *mpirun(slots + 1), "-m", "fleet.run", str(path), "--plain"],
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
            env=os.environ | {"XDG_CACHE_HOME": str(folder / "cache")},
        )
        if done.returncode:
            raise RuntimeError(f"{slots} slots: {done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return told(list(read_events(RunPaths(folder / "run").events)), slots)


def told(log: Sequence[LoggedEvent], slots: int) -> Measured:
    """What the log of a launch says.

    Raises:
        RuntimeError: there were never so many networks on one device.
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
            f"{maximum} networks were on {start.cluster.whole_gpus} devices, instead of {slots} on one"
        )
    epochs = [(at, event.record) for at, event in log if isinstance(event, EpochEnded)]
    networks = len({event.network for _, event in log if isinstance(event, EpochEnded)})
    return Measured(together(epochs, slots), 60 * networks / (ended - started))


def together(epochs: Sequence[tuple[float, EpochRecord]], slots: int) -> float:
    """Samples/s of all networks while so many of them train, and all beyond their first epochs.

    Args:
        epochs: of all networks: when each ended, and its record.

    Raises:
        RuntimeError: that was for less than a second.
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
            f"{slots} networks were beyond their first epochs at once for {seconds:.2f} s only: give "
            "more --samples or --epochs"
        )
    return samples / seconds


def main() -> None:
    """Measure and print."""
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
            "--epochs: at least 2; the first is not counted, because networks are traced in it"
        )
    gpu = next(iter(visible_gpus(os.environ, os.listdir("/dev"))), None)
    if gpu is None:
        print(
            "No GPU is at hand: all ranks share one core, which says nothing about GPUs.",
            file=sys.stderr,
        )
    measured: dict[int, list[Measured]] = {slots: [] for slots in args.slots}
    for turn in range(args.rounds):
        for slots in args.slots[turn % len(args.slots) :] + args.slots[: turn % len(args.slots)]:
            measured[slots].append(measure(slots, max(args.slots), gpu, args))
            print(
                f"  round {turn + 1}, {slots} on the device: {measured[slots][-1]}",
                file=sys.stderr,
                flush=True,
            )
    mps = "with MPS" if shutil.which(CONTROL) else "without MPS"
    show(measured, "a core" if gpu is None else f"GPU {gpu} {mps}", args)


def show(measured: dict[int, list[Measured]], device: str, args: argparse.Namespace) -> None:
    """A table of the medians, each beside that of the fewest networks on the device; and how far the goal is."""
    if args.json:
        print_json({"device": device, "goal": GOAL, "rounds": measured})
        return
    trained = {
        slots: statistics.median(row.together for row in rounds)
        for slots, rounds in measured.items()
    }
    finished = {
        slots: statistics.median(row.finished for row in rounds)
        for slots, rounds in measured.items()
    }
    first = min(measured)
    print_table(
        ["networks on it", "samples/s", f"over {first}", "networks/min", f"over {first}"],
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
        f"{best} on the device train most: {gain:.2f} times as much as {first}, {gain / GOAL:.2f} of the goal of "
        f"{GOAL:g}"
    )


if __name__ == "__main__":
    main()
