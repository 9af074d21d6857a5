"""Train networks whose batches follow the GPUs, compare them with fixed ones, and replay them.

    python benchmarks/elastic_keras.py [--trainers 3] [--epochs 6 12 18 24] [--batch 64]

A convolutional network per number of epochs trains on handwritten digits under the policy
`elastic`: with a range of batches, from the capacity of one trainer to that of all of them; with
the smallest; and with the largest. The rates file declares the times of steps and exchanges,
because a CPU holds any batch; everything else is real. The script checks every row of every
history: the batch is at most the capacity of its trainers, and the learning rate is the spec's
times the ratio to the smallest batch. It then replays each network with a range on one trainer,
with the batches of its history, and shows the largest difference of a loss or an accuracy. The
networks have neither batch normalization nor dropout, so splitting a batch only changes the order
of sums.
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

LEARNING_RATE = 0.01  # with the smallest batch


def rates(args: argparse.Namespace) -> dict[str, Any]:
    """Return a rates file: steps up to the smallest batch; exchanges a tenth as long."""
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
    """Return the spec of networks that differ only in their epochs."""
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
    """Return the histories of all networks of a run."""
    return {
        f"cnn-{epochs}": read_state(RunPaths(root).last(f"cnn-{epochs}"), with_arrays=False).history
        for epochs in args.epochs
    }


def check(args: argparse.Namespace, histories: dict[str, Sequence[EpochRecord]]) -> int:
    """Check every row; return the number of changes of a batch.

    Raises:
        SystemExit: A batch or a learning rate is wrong.
    """
    changes = 0
    for name, rows in histories.items():
        for row in rows:
            if row.batch > args.batch * row.gpus or row.batch % args.batch:
                raise SystemExit(
                    f"{name}, epoch {row.epoch}: the batch is {row.batch} on {row.gpus} trainers, "
                    f"which is no multiple of {args.batch} or more than {args.batch * row.gpus}"
                )
            expected = LEARNING_RATE * row.batch / args.batch
            if abs(row.learning_rate - expected) > 1e-6 * row.learning_rate:
                raise SystemExit(
                    f"{name}, epoch {row.epoch}: the learning rate is {row.learning_rate} instead "
                    f"of {expected}"
                )
        changes += sum(before.batch != after.batch for before, after in pairwise(rows))
    return changes


def summarize(rows: Sequence[EpochRecord]) -> str:
    """Summarize a history: epochs x batch on GPUs."""
    groups = groupby(rows, key=lambda row: (row.batch, row.gpus))
    return ", ".join(f"{len(list(group))} x {batch} on {gpus}" for (batch, gpus), group in groups)


def train(
    folder: Path, args: argparse.Namespace, batch: list[int]
) -> tuple[float, dict[str, float]]:
    """Train; return the seconds from the first step to the end, and the validation accuracies."""
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
    """Train three times, replay, and print two tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trainers", type=int, default=3)
    parser.add_argument("--epochs", type=int, nargs="+", default=[6, 12, 18, 24])
    parser.add_argument("--batch", type=int, default=64, help="capacity of a trainer")
    args = parser.parse_args()
    lines = []
    minimum, maximum = args.batch, args.batch * args.trainers
    for batch in ([minimum, maximum], [minimum, minimum], [maximum, maximum]):
        with tempfile.TemporaryDirectory() as folder:
            seconds, accuracies = train(Path(folder), args, batch)
            named = " to ".join(map(str, sorted(set(batch))))
            lines.append(
                f"| {named} | {seconds:.1f} | {statistics.mean(accuracies.values()):.3f} |"
            )
            if batch == [minimum, maximum]:
                results = histories(Path(folder) / "run", args)
                changes = check(args, results)
                replays = []
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
                    replayed = read_state(
                        RunPaths(RunPaths(Path(folder) / "run").replay(name)).last(name),
                        with_arrays=False,
                    ).history
                    learning_rates = [row.learning_rate for row in rows]
                    replays.append(
                        f"| {name} | {summarize(rows)} | {min(learning_rates):g} to "
                        f"{max(learning_rates):g} | {largest_difference(rows, replayed):.1e} |"
                    )
    print(
        "| network | epochs x batch on trainers | learning rate | replay differs by |\n"
        "| --- | --- | --- | --- |"
    )
    print("\n".join(replays))
    print(f"\n{changes} changes of a batch; {args.trainers} trainers\n")
    print(
        "| batch | from the first step to the last epoch, s | "
        "validation accuracy, mean of the best epochs |\n| --- | ---: | ---: |"
    )
    print("\n".join(lines))
    print(f"The load of the machine was {os.getloadavg()[2]:.1f} at the end.")


if __name__ == "__main__":
    main()
