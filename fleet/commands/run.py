"""Train the networks of a spec on this machine.

  fleet run digits.yaml -n 5

The command starts the mpirun of this Python environment, prints the command line that it uses, and
ends with its status. Ctrl-C saves everything, and the same command resumes the run; Ctrl-C twice
ends at once. On a cluster, use the launcher of the machine: mpirun -n N python -m fleet.run SPEC,
or fleet submit.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fleet import local_launch
from fleet.arguments import Parser, integer
from fleet.errors import ExitStatus, UserError
from fleet.monitor.report import best_rows
from fleet.run import FORMER_OPTIONS as FORMER_OPTIONS
from fleet.run import add_arguments, parse_arguments
from fleet.runtime.interrupt import INTERRUPTED
from fleet.runtime.resume_command import COMMAND_VARIABLE, resume_command
from fleet.spec import load
from fleet.storage.leaderboard import least_columns
from fleet.storage.paths import RunPaths
from fleet.storage.results import read_results
from fleet.terminal import print_table
from launch.binding import process_cores
from launch.devices import visible_gpus
from launch.mpirun_messages import Interrupts

HAS_JSON = False
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_arguments(parser)
    _add_ranks(parser)


def _add_ranks(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n",
        "-np",
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
    resume = resume_command(shlex.split(args.command_line))
    try:
        with Interrupts(_SIGNALS) as interrupts:
            status, _ = local_launch.run(
                arguments,
                args.ranks or _default_ranks(arguments),
                more={COMMAND_VARIABLE: resume},
                on_start=lambda command: _say(_as_typed(command)),
                interrupts=interrupts,
            )
    except local_launch.StoppedEarly:
        _show_earlier_results(local_launch.paths_of(arguments))
        _say(f"stopped before training began, so nothing is lost; {resume} resumes the run")
        return ExitStatus.RESUMABLE
    except KeyboardInterrupt:
        _say(
            "ended at once, without saving; all checkpoints so far are intact, and "
            f"{resume} resumes the run"
        )
        return INTERRUPTED
    return status


def _say(text: str) -> None:
    with suppress(OSError):  # the terminal has been closed
        print(f"fleet run: {text}", file=sys.stderr, flush=True)


def _show_earlier_results(paths: RunPaths) -> None:
    """Print the table of results of earlier launches."""
    with suppress(OSError, UserError):
        rows = read_results(paths.root)
        headers, lines, _ = best_rows(rows)
        print_table(headers, lines, "the best network first", least_columns(rows))


def _default_ranks(arguments: Sequence[str]) -> int:
    try:
        device = load(parse_arguments(arguments).spec).resources.device
    except UserError:  # the launch reports it
        device = "auto"
    gpus = len(visible_gpus(os.environ, device))
    return 1 + (gpus or len(process_cores().usable))


def _as_typed(command: Sequence[str]) -> str:
    """Return a command as a user would type it in this environment."""
    settings = [
        f"{name}={shlex.quote(value)}" for name, value in local_launch.settings(os.environ).items()
    ]
    words = [Path(word).name if shutil.which(Path(word).name) == word else word for word in command]
    return " ".join([*settings, shlex.join(words)])
