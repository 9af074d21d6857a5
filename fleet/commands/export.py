"""Write what a run has come to for other tools: tables, and the stores of trackers. The run may go on.

  fleet export runs/digits --csv                 runs/digits/export/results.csv and history.csv
  fleet export runs/digits --parquet tables      the same as Parquet, in another folder
  fleet export runs/digits --mlflow mlflow --wandb wandb --optuna studies.log

Given again, it adds to the store of a tracker what has come since, and nothing twice. No server is spoken to. The
libraries of trackers are those of pip install 'fleet-ensemble[track]'.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fleet.errors import UserError
from fleet.export.files import FORMATS, write_tables
from fleet.export.tracked import track
from fleet.export.trackers import TRACKERS, write
from fleet.storage.files import storing
from fleet.storage.paths import RunPaths


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run", metavar="RUN", type=Path, help="folder of the run")
    for kind in FORMATS:
        parser.add_argument(f"--{kind}", nargs="?", const=False, type=Path, metavar="DIR", help=(
            f"write results.{kind}, a row per network, and history.{kind}, a row per epoch of each, into this folder "
            "(RUN/export)"))
    for tracker in TRACKERS.values():
        parser.add_argument(f"--{tracker.name}", type=Path, metavar="FILE" if tracker.is_file else "DIR",
                            help=tracker.help)


def run(args: argparse.Namespace) -> None:
    """Write what was asked for."""
    wanted = vars(args)
    kinds = {kind: wanted[kind] for kind in FORMATS if wanted[kind] is not None}
    trackers = {name: wanted[name] for name in TRACKERS if wanted[name] is not None}
    if not kinds and not trackers:
        raise UserError(f"say what to write: {', '.join(f'--{name}' for name in (*FORMATS, *TRACKERS))}")
    for kind, folder in kinds.items():
        for path in write_tables(args.run, folder or RunPaths(args.run).exports, kind):
            print(path)
    if trackers:
        tracked = track(RunPaths(args.run))
        for name, path in trackers.items():
            with storing(path):
                write(name, tracked, path)
            print(f"{path}: {TRACKERS[name].shown.format(path=path)}")
