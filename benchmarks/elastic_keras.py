"""Batches that follow the GPUs, trained by TensorFlow beside fixed ones, and trained again.

    python benchmarks/elastic_keras.py [--trainers 3] [--epochs 6 12 18 24] [--batch 64]

A convolutional network for each number of epochs trains on handwritten digits, under the policy `elastic`: with a range
of batches, from what a trainer is said to hold to what all together hold; with the least of them; and with the largest.
Times of steps and exchanges are made up, because a CPU holds any batch; all else is real. Every row of every history is
held against what it should be: the batch is at most what its trainers hold, and the learning rate is the spec's times
the ratio to the least batch. Then each network with a range is trained again on one trainer, with the batches of its
history, and the largest difference of a loss or an accuracy is shown. The networks have neither batch normalisation nor
dropout, so how a batch is split changes the order of sums alone.
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
from fleet.domain.events import EpochEnded, FirstStep
from fleet.domain.network import EpochRecord
from fleet.runtime.replay import largest_difference
from fleet.storage.checkpoint import read_state
from fleet.storage.event_log import read_events
from fleet.storage.files import write_json
from fleet.storage.paths import RunPaths
from fleet.storage.results import read_results

LEARNING_RATE = 0.01  # with the least batch


def rates(args: argparse.Namespace) -> dict[str, Any]:
    """What a rates file says: steps of up to the least batch on a trainer, and exchanges that take a tenth of them."""
    steps = [{"batch": args.batch // 2, "seconds": 0.02}, {"batch": args.batch, "seconds": 0.035}]
    return {
        "samples_per_epoch": 1442,
        "gpus_per_node": args.trainers,
        "models": [
            {
                "name": f"cnn-{epochs}",
                "rates": [args.batch / 0.035],
                "params_mb": 0.15,
                "step_s": steps,
            }
            for epochs in args.epochs
        ],
        "comm_s": [
            {"params_mb": 0.15, "gpus": gpus, "seconds": 0.0035}
            for gpus in range(2, args.trainers + 1)
        ],
    }


def spec(folder: Path, args: argparse.Namespace, batch: list[int]) -> dict[str, Any]:
    """Networks that differ in their epochs alone."""
    return {
        "name": "elastic",
        "seed": 3,
        "output": str(folder / "run"),
        "data": {
            "source": "builtin:digits",
            "transforms": [
                {"decode": {"mode": "L"}},
                {"resize": {"size": [16, 16]}},
                {"scale": {"mean": 0.5, "std": 0.5}},
            ],
        },
        "models": [
            {
                "family": "cnn",
                "name": f"cnn-{epochs}",
                "train": {"stopping": {"max_epochs": epochs}},
                "args": {"filters": [16, 32], "dense": [64], "norm": "none"},
            }
            for epochs in args.epochs
        ],
        "train": {
            "batch": {"size": batch},
            "optimizer": {"name": "sgd", "learning_rate": LEARNING_RATE, "momentum": 0.5},
            "deterministic": True,
        },
        "schedule": {"policy": "elastic", "rates": str(folder / "rates.json")},
        "resources": {"preprocessors": 1},
    }


def histories(root: Path, args: argparse.Namespace) -> dict[str, Sequence[EpochRecord]]:
    """Of all networks of a run."""
    return {
        f"cnn-{epochs}": read_state(RunPaths(root).last(f"cnn-{epochs}"), with_arrays=False).history
        for epochs in args.epochs
    }


def check(args: argparse.Namespace, histories: dict[str, Sequence[EpochRecord]]) -> int:
    """Hold every row against what it should be; returns how many changes of a batch there were.

    Raises:
        SystemExit: a row is otherwise.
    """
    changes = 0
    for name, rows in histories.items():
        for row in rows:
            if row.batch > args.batch * row.gpus or row.batch % args.batch:
                raise SystemExit(f"{name}, epoch {row.epoch}: a batch of {row.batch} on {row.gpus}")
            if (
                abs(row.learning_rate - LEARNING_RATE * row.batch / args.batch)
                > 1e-6 * row.learning_rate
            ):
                raise SystemExit(
                    f"{name}, epoch {row.epoch}: a learning rate of {row.learning_rate}"
                )
        changes += sum(before.batch != after.batch for before, after in pairwise(rows))
    return changes


def told(rows: Sequence[EpochRecord]) -> str:
    """A history in short: epochs x batch on GPUs."""
    log_lines = groupby(rows, key=lambda row: (row.batch, row.gpus))
    return ", ".join(
        f"{len(list(group))} x {batch} on {gpus}" for (batch, gpus), group in log_lines
    )


def trained(
    folder: Path, args: argparse.Namespace, batch: list[int]
) -> tuple[float, dict[str, float]]:
    """Train; returns seconds from the first step to the last epoch's end, and accuracies on samples held out."""
    write_json(folder / "rates.json", rates(args))
    write_spec(spec(folder, args, batch), folder / "spec.yaml")
    run(folder / "spec.yaml", args.trainers + 1, "--plain", "--fresh", log=sys.stderr)
    times = [
        t_s
        for t_s, event in read_events(RunPaths(folder / "run").events)
        if isinstance(event, FirstStep | EpochEnded)
    ]
    return times[-1] - times[0], {
        row.name: row.val_accuracy for row in read_results(folder / "run")
    }


def main() -> None:
    """Train thrice, train again, and print two tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trainers", type=int, default=3)
    parser.add_argument("--epochs", type=int, nargs="+", default=[6, 12, 18, 24])
    parser.add_argument("--batch", type=int, default=64, help="that a trainer holds")
    args = parser.parse_args()
    lines = []
    minimum, maximum = args.batch, args.batch * args.trainers
    for batch in ([minimum, maximum], [minimum, minimum], [maximum, maximum]):
        with tempfile.TemporaryDirectory() as folder:
            seconds, accuracies = trained(Path(folder), args, batch)
            named = " to ".join(map(str, sorted(set(batch))))
            lines.append(
                f"| {named} | {seconds:.1f} | {statistics.mean(accuracies.values()):.3f} |"
            )
            if batch == [minimum, maximum]:
                results = histories(Path(folder) / "run", args)
                changes = check(args, results)
                again = []
                for name, rows in results.items():
                    run(
                        Path(folder) / "spec.yaml",
                        1,
                        "--plain",
                        "--replay",
                        str(Path(folder) / "run"),
                        "--only",
                        name,
                        log=sys.stderr,
                    )
                    second = read_state(
                        RunPaths(RunPaths(Path(folder) / "run").replay(name)).last(name),
                        with_arrays=False,
                    ).history
                    learned = [row.learning_rate for row in rows]
                    again.append(
                        f"| {name} | {told(rows)} | {min(learned):g} to {max(learned):g} | "
                        f"{largest_difference(rows, second):.1e} |"
                    )
    print(
        "| network | epochs x batch on trainers | learning rate | replay differs by |\n| --- | --- | --- | --- |"
    )
    print("\n".join(again))
    print(f"\n{changes} changes of a batch; {args.trainers} trainers\n")
    print(
        "| batch | from the first step to the last epoch, s | accuracy held out, mean of the best epochs |\n"
        "| --- | ---: | ---: |"
    )
    print("\n".join(lines))
    print(f"The load of the machine was {os.getloadavg()[2]:.1f} in the end.")


if __name__ == "__main__":
    main()
