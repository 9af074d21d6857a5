"""Export the results of a run for other tools: as tables, ONNX, or in the stores of trackers.

  fleet export runs/digits --csv             runs/digits/export/results.csv and history.csv
  fleet export runs/digits --parquet tables  the same as Parquet, in another folder
  fleet export runs/digits --mlflow mlflow --wandb wandb --optuna studies.log
  fleet export runs/digits cnn-1 --onnx      runs/digits/models/cnn-1/best.onnx

The run may be running. A repeated export adds only new results to the store of a tracker. No server
is contacted. Install the libraries of trackers with pip install 'fleet-ensemble[track]'.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fleet.arguments import add_run
from fleet.commands.output import show
from fleet.engines.registry import write_onnx
from fleet.errors import UserError
from fleet.export.files import FORMATS, write_tables
from fleet.export.tracked_run import read_tracked_run
from fleet.export.trackers import TRACKERS, write
from fleet.storage.files import storage_errors
from fleet.storage.paths import RunPaths
from fleet.storage.run_spec import load_run_spec
from fleet.units import listed


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_run(parser)
    parser.add_argument("name", metavar="NAME", nargs="?", help="finished network, for --onnx")
    parser.add_argument(
        "--onnx",
        nargs="?",
        const=False,
        type=Path,
        metavar="FILE",
        help="write the network as ONNX, for inputs as the run prepares them, to this file "
        "(RUN/models/NAME/best.onnx)",
    )
    for kind in FORMATS:
        parser.add_argument(
            f"--{kind}",
            nargs="?",
            const=False,
            type=Path,
            metavar="DIR",
            help=f"write results.{kind}, with a row per network, and history.{kind}, with a row "
            "per network and epoch, to this folder (RUN/export)",
        )
    for tracker in TRACKERS.values():
        parser.add_argument(
            f"--{tracker.name}",
            type=Path,
            metavar="FILE" if tracker.is_file else "DIR",
            help=tracker.help,
        )


def run(args: argparse.Namespace) -> None:
    """Write the requested files and stores."""
    options = vars(args)
    kinds = {kind: options[kind] for kind in FORMATS if options[kind] is not None}
    trackers = {name: options[name] for name in TRACKERS if options[name] is not None}
    if not kinds and not trackers and args.onnx is None:
        exports = ", ".join(f"--{name}" for name in (*FORMATS, "onnx", *TRACKERS))
        raise UserError(f"choose what to export: {exports}")
    if (args.name is None) != (args.onnx is None):
        raise UserError(
            "--onnx and NAME, the name of a network, go together: fleet export RUN NAME --onnx"
        )
    paths = RunPaths(args.run)
    files: list[Path] = []
    if args.onnx is not None:
        files.append(_write_onnx(paths, args.name, args.onnx))
    for kind, folder in kinds.items():
        files += write_tables(args.run, folder or paths.exports, kind)
    if trackers:
        tracked = read_tracked_run(paths)
        for name, path in trackers.items():
            with storage_errors(path):
                write(name, tracked, path)
    commands = {name: TRACKERS[name].command(path) for name, path in trackers.items()}
    show(
        args,
        lambda: {
            "files": list(map(str, files)),
            "stores": {
                name: {"path": str(path), "command": commands[name]}
                for name, path in trackers.items()
            },
        },
        lambda: print(
            *files, *(f"{path}: {commands[name]}" for name, path in trackers.items()), sep="\n"
        ),
    )


def _write_onnx(paths: RunPaths, name: str, path: Path | bool) -> Path:
    engine = load_run_spec(paths).engine
    file = paths.exported(name, engine.suffix)
    if not file.is_file():
        exported = sorted(
            path_.parent.name for path_ in paths.models.glob(f"*/best{engine.suffix}")
        )
        hint = f"; exported networks: {listed(exported)}" if exported else ""
        raise UserError(f"{name} was not exported{hint}")
    path = paths.exported(name, ".onnx") if isinstance(path, bool) else path
    write_onnx(engine, file, path)
    return path
