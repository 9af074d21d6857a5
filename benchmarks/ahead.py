"""Measure how long an engine is idle between two steps, with totals read at once and later.

    python benchmarks/ahead.py [--trainers 1 2 4] [--rounds 3] [--pixels 32] [--json]

Each trainer trains one of several equal small CNNs, whose samples are cropped and flipped anew in
every epoch. Totals are read either after each step (`immediate`) or once the next step has begun
(`deferred`, the default of FLEET); both take turns. The engine is idle from the end of a step until
it receives the next one. `idle` is the share of idle time in the time of steps, without the first
quarter of them. `samples/s` is the rate of all trainers together, without first epochs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from fleet.api import mpirun
from fleet.commands.output import print_json
from fleet.domain.events import EpochEnded
from fleet.storage.event_log import events_of
from fleet.storage.paths import RunPaths
from fleet.terminal import print_table

ROOT = Path(__file__).parents[1]

# A rank of a launch that records its steps.
RANK = """
import atexit, dataclasses, json, os, sys, time
from fleet.runtime.training import steps
from fleet.runtime.training.network import Training
recorded = []
if sys.argv.pop(1) == "immediate":
    of = Training.capabilities.fget
    Training.capabilities = property(
        lambda training: dataclasses.replace(of(training), can_overlap=False)
    )
begin = steps.Steps._begin
def begin_recorded(self, stride, stop):
    before = self._ended
    end = begin(self, stride, stop)
    began = time.perf_counter()
    def finish(is_idle):
        before = self._ended
        totals = end(is_idle)
        if before > 0:
            recorded.append((max(0.0, began - before), self._ended - before))
        return totals
    return finish
steps.Steps._begin = begin_recorded
def write_times():
    later = recorded[len(recorded) // 4:]
    if later:
        with open(f"{os.environ['RECORDS']}/{os.getpid()}", "w") as file:
            json.dump([sum(idle for idle, _ in later), sum(step for _, step in later), len(later)],
                      file)
atexit.register(write_times)
from fleet.run import main
raise SystemExit(main())
"""


def measure(trainers: int, mode: str, args: argparse.Namespace) -> tuple[float, float]:
    """Train; return the share of idle time, and samples/s of all trainers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "records").mkdir()
        (folder / "rank.py").write_text(RANK)
        (folder / "spec.yaml").write_text(
            yaml.safe_dump(
                {
                    "name": "ahead",
                    "output": str(folder / "run"),
                    "data": {
                        "source": "builtin:noise",
                        "options": {"samples": args.samples, "size": args.pixels},
                        "validation": None,
                        "cache": args.cache,
                        "transforms": [
                            {"random_crop": {"size": [args.pixels - 4, args.pixels - 4]}},
                            {"flip": {"horizontal": True}},
                            {"scale": {"mean": 0.5, "std": 0.5}},
                        ],
                    },
                    "models": [
                        {
                            "family": "cnn",
                            "name": f"n{index}",
                            "args": {"filters": args.filters, "dense": [16]},
                        }
                        for index in range(trainers)
                    ],
                    "train": {
                        "batch": {"size": args.batch},
                        "stopping": {"monitor": "loss", "max_epochs": args.epochs},
                    },
                    "resources": {"preprocessors": 1},
                }
            )
        )
        subprocess.run(
            [
                *mpirun(trainers + 1),
                str(folder / "rank.py"),
                mode,
                str(folder / "spec.yaml"),
                "--plain",
            ],
            cwd=ROOT,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ
            | {
                "RECORDS": str(folder / "records"),
                "PYTHONPATH": str(ROOT),
                "XDG_CACHE_HOME": str(folder / "cache"),
            },
        )
        recorded: list[list[float]] = [
            json.loads(path.read_text()) for path in (folder / "records").iterdir()
        ]
        epochs = [event.record for event in events_of(RunPaths(folder / "run").events, EpochEnded)]
        later = [record for record in epochs if record.epoch > 1]
        rate = trainers * statistics.mean(record.samples / record.seconds for record in later)
        return sum(idle for idle, *_ in recorded) / sum(step_s for _, step_s, _ in recorded), rate


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trainers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--pixels", type=int, default=32)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--filters", type=int, nargs="+", default=[8])
    parser.add_argument("--cache", choices=["memory", "none"], default="memory")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for trainers in args.trainers:
        results: dict[str, list[tuple[float, float]]] = {"immediate": [], "deferred": []}
        for _ in range(args.rounds):
            for mode, measured in results.items():
                measured.append(measure(trainers, mode, args))
                print(f"  {trainers} trainers, {mode}: {measured[-1]}", file=sys.stderr, flush=True)
        rows += [
            {
                "trainers": trainers,
                "mode": mode,
                "idle": statistics.median(idle for idle, _ in measured),
                "samples_per_s": statistics.median(rate for _, rate in measured),
            }
            for mode, measured in results.items()
        ]
    if args.json:
        print_json(rows)
    else:
        print_table(
            ["trainers", "totals are read", "idle, %", "samples/s"],
            [
                [row["trainers"], row["mode"], 100 * row["idle"], row["samples_per_s"]]
                for row in rows
            ],
            title=f"medians of {args.rounds}",
        )


if __name__ == "__main__":
    main()
