"""The ``fleet`` command: ``python -m fleet COMMAND ...``.

A command is a module with two functions: ``configure(parser)`` declares its
arguments, ``run(args)`` does the work and returns an exit status, if that is not 0. Only the
module of the command that was asked for is imported, so that ``fleet --help``
and the commands that need neither MPI nor TensorFlow start at once.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module

from fleet import __version__
from fleet.arguments import Parser
from fleet.errors import ExitStatus, FleetError, UserError, shortened, status_of
from fleet.terminal import print_any_name
from launch.environment import is_first

# name -> (module, one line of help); a name may have two words.
COMMANDS: dict[str, tuple[str, str]] = {
    "check": ("fleet.commands.check", "check a spec and list its networks"),
    "schema": ("fleet.commands.schema", "print the JSON Schema of a spec, for editors"),
    "rehearse": ("fleet.commands.dry_run", "try a spec on this machine, with training emulated"),
    "report": (
        "fleet.commands.report",
        "show the results of a run: a table, numbers, and one HTML file",
    ),
    "export": (
        "fleet.commands.export",
        "write the results of a run for pandas, MLflow, W&B and Optuna",
    ),
    "watch": ("fleet.commands.live.watch", "watch a run that is going on, or see it again"),
    "add": ("fleet.commands.live.add", "add networks to a run that is going on"),
    "stop": ("fleet.commands.live.network_command", "drop a network of a run that is going on"),
    "pause": ("fleet.commands.live.network_command", "pause a network of a run that is going on"),
    "resume": ("fleet.commands.live.network_command", "let a paused network go on"),
    "skip": ("fleet.commands.live.skip", "leave networks out of the next launches of a run"),
    "yield": (
        "fleet.commands.live.release_nodes",
        "have a run that is going on give nodes back, and train on",
    ),
    "predict": (
        "fleet.commands.predict",
        "predict with the best networks of a run, alone or together",
    ),
    "plan": ("fleet.commands.plan", "show which networks train first, on which GPUs"),
    "ensemble": ("fleet.commands.simulate.draw", "draw or convert an ensemble to simulate"),
    "simulate ensemble": (
        "fleet.commands.simulate.ensemble",
        "simulate how long an ensemble trains under a policy",
    ),
    "simulate idle-nodes": (
        "fleet.commands.simulate.idle_nodes",
        "simulate trainers on nodes that come and go",
    ),
    "simulate autoscale": (
        "fleet.commands.simulate.autoscale",
        "simulate elastic jobs that arrive over time",
    ),
    "simulate batch-queue": (
        "fleet.commands.simulate.batch_queue",
        "simulate jobs whose walltime may not be enough",
    ),
    "simulate eviction": (
        "fleet.commands.simulate.eviction",
        "simulate an on-demand job on a full machine",
    ),
    "evict": (
        "fleet.commands.evict",
        "plan which running jobs to stop so that nodes are free in time",
    ),
    "reserve": ("fleet.commands.reserve", "find the walltime requests that cost least"),
    "doctor": (
        "fleet.commands.doctor",
        "find what would go wrong; start it like the run, by mpirun",
    ),
    "submit": ("fleet.commands.submit", "hand an ensemble to a batch system"),
    "harvest": (
        "fleet.commands.harvest",
        "train on idle nodes: jobs that come and go share the networks of runs",
    ),
    "job": ("fleet.commands.job", "keep one job of a chain; job scripts end in it"),
    "pack": ("fleet.commands.convert", "write an image folder into one HDF5 file"),
}


def main(argv: list[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the words after ``fleet``; ``sys.argv[1:]`` by default.

    Returns:
        The exit status (:class:`fleet.errors.ExitStatus`).
    """
    print_any_name()
    words = list(sys.argv[1:] if argv is None else argv)
    name, rest = _split(words)
    if name is None:
        return _no_command(words)
    if (
        rest.count("--") > 1 and rest[-1] == "--"
    ):  # argparse would make an empty list of it, whatever is wanted there
        return _complain(f"fleet {name}: nothing follows the -- at the end", ExitStatus.BAD_INPUT)
    module = import_module(COMMANDS[name][0])
    parser = Parser(
        prog=f"fleet {name}",
        description=module.__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.configure(parser)
    try:
        if getattr(module, "INTERMIXED", False):
            parse = parser.parse_intermixed_args
        else:
            parse = parser.parse_args
        args = parse(rest)
        args.command_line = shlex.join(["fleet", *words])  # for those who tell how to begin again
    except UserError as error:  # all ranks of a launch are told the same, and one of them says so
        return _complain(
            f"fleet {name}: {error}" if is_first(os.environ) else "", ExitStatus.BAD_INPUT
        )
    try:
        with _json_alone() if getattr(args, "json", False) else nullcontext():
            return int(module.run(args) or ExitStatus.OK)
    except (FleetError, ValueError) as error:
        status = status_of(error)
        if status is None:
            raise
        return _complain(f"fleet {name}: {error}", status)
    except BrokenPipeError:  # the reader (head, less) has seen enough
        sys.stderr.close()
        return ExitStatus.OK
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _json_alone() -> AbstractContextManager[None]:
    from fleet.commands.output import json_alone  # which other commands need not import

    return json_alone()


def _split(words: list[str]) -> tuple[str | None, list[str]]:
    for length in (2, 1):
        name = " ".join(words[:length])
        if len(words) >= length and name in COMMANDS:
            return name, words[length:]
    return None, words


def _no_command(words: list[str]) -> int:
    if words == ["--version"]:
        print(f"fleet {__version__}")
        return ExitStatus.OK
    if not words or words[0] in ("-h", "--help"):
        print(_usage())
        return ExitStatus.OK
    word = words[0]
    family = [name for name in COMMANDS if name.split()[0] == word]
    if family:
        what = f"fleet {word} needs one of: " + ", ".join(n.split()[1] for n in family)
    else:
        what = f"unknown command {word!r}; there are: " + ", ".join(COMMANDS)
    return _complain(f"fleet: {what}", ExitStatus.BAD_INPUT)


def _usage() -> str:
    width = max(map(len, COMMANDS), default=0)
    lines = [f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: fleet COMMAND ...     (fleet COMMAND --help says more)",
            "",
            "The main job:  mpirun -n N python -m fleet.run SPEC",
            "",
            *lines,
        ]
    )


def _complain(message: str, status: ExitStatus) -> int:
    if message:
        print(shortened(message), file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
