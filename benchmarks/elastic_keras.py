"""Batches that follow the GPUs, trained by TensorFlow beside fixed ones, and trained again.

    python benchmarks/elastic_keras.py [--trainers 3] [--epochs 3 6 9 12] [--batch 64 256]

A convolutional network for each number of epochs trains on handwritten digits, under the policy `elastic`: with a range
of batches; with its least batch; and with its largest. The analyzer measures first. Every row of every history is held
against what it should be: the batch is one that a plan named, the learning rate is the spec's times the ratio to the
least batch, and each change of the batch stands between two rows. Then each network with a range is trained again by
itself, with the batches of its history, and the largest difference of a loss or an accuracy is shown. The networks have
neither batch normalisation nor dropout, so how a batch is split changes the order of sums alone.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from fleet.api import run, write_spec
from fleet.runtime.replay import largest_difference
from fleet.storage.checkpoint import read_state
from fleet.storage.event_log import events_of, read_events
from fleet.storage.events import EpochEnded, FirstStep, Planned
from fleet.storage.paths import RunPaths
from fleet.storage.results import read_results
from fleet.storage.state import EpochRecord

LEARNING_RATE = 0.02  # with the least batch


def spec(folder: Path, args: argparse.Namespace, batch: int | list[int]) -> dict[str, Any]:
    """Networks that differ in their epochs alone."""
    return {"name": "elastic", "seed": 3, "output": str(folder / "run"),
            "data": {"source": "builtin:digits", "transforms": [
                {"decode": {"mode": "L"}}, {"resize": {"size": [16, 16]}}, {"scale": {"mean": 0.5, "std": 0.5}}]},
            "models": [{"family": "cnn", "name": f"cnn-{epochs}", "train": {"converge": {"max_epochs": epochs}},
                        "args": {"filters": [8, 16], "dense": [64], "norm": "none"}} for epochs in args.epochs],
            "train": {"batch": {"size": batch}, "optimizer": {
                "name": "sgd", "learning_rate": LEARNING_RATE, "momentum": 0.9}},
            "schedule": {"policy": "elastic"}, "resources": {"preprocessors": 1}}


def histories(root: Path, args: argparse.Namespace) -> dict[str, Sequence[EpochRecord]]:
    """Of all networks of a run."""
    return {f"cnn-{epochs}": read_state(RunPaths(root).last(f"cnn-{epochs}"), with_arrays=False).history
            for epochs in args.epochs}


def check(root: Path, args: argparse.Namespace, found: dict[str, Sequence[EpochRecord]]) -> int:
    """Hold every row against what it should be; returns how many changes of a batch there were.

    Raises:
        SystemExit: a row is otherwise.
    """
    least = args.batch[0]
    planned = {(member.name, member.batch) for plan in events_of(RunPaths(root).events, Planned)
               for member in plan.members}
    changes = 0
    for name, rows in found.items():
        for row in rows:
            if (name, row.batch) not in planned and row.batch % row.gpus:
                raise SystemExit(f"{name}, epoch {row.epoch}: no plan has a batch of {row.batch}")
            if abs(row.learning_rate - LEARNING_RATE * row.batch / least) > 1e-6 * row.learning_rate:
                raise SystemExit(f"{name}, epoch {row.epoch}: a learning rate of {row.learning_rate}")
        changes += sum(before.batch != after.batch for before, after in pairwise(rows))
    return changes


def told(rows: Sequence[EpochRecord]) -> str:
    """A history in short: epochs x batch on GPUs."""
    kept = groupby(rows, key=lambda row: (row.batch, row.gpus))
    return ", ".join(f"{len(list(group))} x {batch} on {gpus}" for (batch, gpus), group in kept)


def trained(folder: Path, args: argparse.Namespace, batch: int | list[int]) -> tuple[float, dict[str, float]]:
    """Train; returns seconds from the first step to the last epoch's end, and accuracies on samples held out."""
    write_spec(spec(folder, args, batch), folder / "spec.yaml")
    run(folder / "spec.yaml", args.trainers + 1, "--plain", "--fresh", log=sys.stderr)
    times = [t_s for t_s, event in read_events(RunPaths(folder / "run").events)
             if isinstance(event, FirstStep | EpochEnded)]
    return times[-1] - times[0], {row.name: row.best or 0.0 for row in read_results(folder / "run")}


def main() -> None:
    """Train thrice, train again, and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainers", type=int, default=3)
    parser.add_argument("--epochs", type=int, nargs="+", default=[3, 6, 9, 12])
    parser.add_argument("--batch", type=int, nargs=2, default=[64, 256], help="the least, and the largest")
    args = parser.parse_args()
    lines = []
    for batch in (args.batch, *args.batch):
        with tempfile.TemporaryDirectory() as folder:
            seconds, accuracies = trained(Path(folder), args, batch)
            named = " to ".join(map(str, batch)) if isinstance(batch, list) else str(batch)
            lines.append(f"| {named} | {seconds:.1f} | {statistics.mean(accuracies.values()):.3f} |")
            if isinstance(batch, list):
                found = histories(Path(folder) / "run", args)
                changes = check(Path(folder) / "run", args, found)
                again = []
                for name, rows in found.items():
                    run(Path(folder) / "spec.yaml", 1, "--plain", "--replay", str(Path(folder) / "run"), "--only", name,
                        log=sys.stderr)
                    second = read_state(RunPaths(RunPaths(Path(folder) / "run").replay(name)).last(name),
                                        with_arrays=False).history
                    rates = [row.learning_rate for row in rows]
                    again.append(f"| {name} | {told(rows)} | {min(rates):g} to {max(rates):g} | "
                                 f"{largest_difference(rows, second):.1e} |")
    print("| network | epochs x batch on trainers | learning rate | replay differs by |\n| --- | --- | --- | --- |")
    print("\n".join(again))
    print(f"\n{changes} changes of a batch; {args.trainers} trainers\n")
    print("| batch | from the first step to the last epoch, s | accuracy held out, mean of the best epochs |\n"
          "| --- | ---: | ---: |")
    print("\n".join(lines))
    print(f"The load of the machine was {os.getloadavg()[2]:.1f} in the end.")


if __name__ == "__main__":
    main()
