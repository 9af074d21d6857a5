"""Train the networks of a spec on this machine.

  fleet run digits.yaml -n 5

The command starts the mpirun of this Python environment, prints the command line that it uses, and
ends with its status. Ctrl-C saves everything, and the same command resumes the run. On a cluster,
use the launcher of the machine: mpirun -n N python -m fleet.run SPEC, or fleet submit.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from fleet import local_launch
from fleet.arguments import Parser, integer
from fleet.run import FORMER_OPTIONS as FORMER_OPTIONS
from fleet.run import add_arguments
from launch.binding import process_cores
from launch.devices import visible_gpus

HAS_JSON = False


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_arguments(parser)
    _add_ranks(parser)


def _add_ranks(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n",
        "--ranks",
        type=integer(1),
        metavar="N",
        help="number of processes: one prepares samples, and the others train (default: one more "
        "than this machine has GPUs, or cores if it has none)",
    )


def run(args: argparse.Namespace) -> int:
    """Start the launch, wait for it, and return its status."""
    ranks = Parser(add_help=False, allow_abbrev=False)
    _add_ranks(ranks)
    _, arguments = ranks.parse_known_args(shlex.split(args.command_line)[2:])
    status, _ = local_launch.run(
        arguments,
        args.ranks or _default_ranks(),
        on_start=lambda command: print(
            f"fleet run: {_as_typed(command)}", file=sys.stderr, flush=True
        ),
    )
    return status


def _default_ranks() -> int:
    gpus = len(visible_gpus(os.environ, os.listdir("/dev")))
    return 1 + (gpus or len(process_cores().usable))


def _as_typed(command: Sequence[str]) -> str:
    """Return a command as a user would type it in this environment."""
    settings = [
        f"{name}={shlex.quote(value)}" for name, value in local_launch.settings(os.environ).items()
    ]
    words = [Path(word).name if shutil.which(Path(word).name) == word else word for word in command]
    return " ".join([*settings, shlex.join(words)])
