"""The ``fleet`` command: ``python -m fleet COMMAND ...``.

A command is a module with two functions: ``configure(parser)`` declares its arguments;
``run(args)`` does the work and returns the exit status, or None for 0. ``FORMER_OPTIONS`` of the
module maps former options to the current ones. A command takes ``--json`` unless its module says
``HAS_JSON = False``. Only the module of the given command is imported, so that ``fleet --help`` and
the commands that need neither MPI nor TensorFlow start quickly.
"""

from __future__ import annotations

import os
import signal
import sys


def _end_early(number: int, frame: object) -> None:
    """End upon Ctrl-C during the imports: without a traceback, and a run can be resumed."""
    os.write(2, b"\nfleet: stopped before it began; nothing has changed\n")
    os._exit(75 if sys.argv[1:2] == ["run"] else 128 + number)


if __name__ == "__main__" or os.path.basename(sys.argv[0]) == "fleet":
    signal.signal(signal.SIGINT, _end_early)

import argparse
import shlex
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from difflib import get_close_matches
from importlib import import_module

from fleet import __version__
from fleet.arguments import Parser, print_renaming, with_current_names
from fleet.errors import ExitStatus, FleetError, UserError, shortened, status_of
from fleet.gc_pause import paused_collection
from fleet.hooks import is_installed
from fleet.terminal import print_any_name
from launch.environment import is_first

_HELP = ("-h", "--help")

# Heading -> name of a command, of one or two words -> (module, help in one line).
GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Prepare a run": {
        "new": ("fleet.commands.new", "write a spec for your data, to begin with"),
        "check": ("fleet.commands.check", "check a spec and list its networks"),
        "schema": ("fleet.commands.schema", "print the JSON Schema of a spec, for editors"),
        "import": (
            "fleet.commands.import_sweep",
            "write the spec of a search of W&B, Optuna, Determined or Keras Tuner",
        ),
        "convert": ("fleet.commands.convert", "write a data set into one HDF5 file"),
        "dry-run": ("fleet.commands.dry_run", "run a spec on this machine with emulated training"),
        "doctor": (
            "fleet.commands.doctor",
            "check the environment; start it with mpirun, as you start the run",
        ),
    },
    "Run (on a cluster, start it with mpirun -n N python -m fleet.run SPEC)": {
        "run": ("fleet.commands.run", "train the networks of a spec on this machine"),
        "add": ("fleet.commands.live.add", "add networks to a running run"),
        "clone": ("fleet.commands.live.clone", "add a network like another to a run"),
        "stop": ("fleet.commands.live.network_command", "stop a network of a running run"),
        "pause": ("fleet.commands.live.network_command", "pause a network of a running run"),
        "resume": ("fleet.commands.live.network_command", "resume a paused network"),
        "skip": ("fleet.commands.live.skip", "exclude networks from the next launches of a run"),
    },
    "Look at a run": {
        "watch": ("fleet.commands.live.watch", "follow a running run, or replay a finished one"),
        "report": (
            "fleet.commands.report",
            "show the results of a run as a table, JSON or one HTML file",
        ),
    },
    "After a run": {
        "predict": ("fleet.commands.predict", "predict with the best network, or with several"),
        "export": (
            "fleet.commands.export",
            "export results for pandas, MLflow, W&B and Optuna, or a network as ONNX",
        ),
    },
    "Use a cluster": {
        "submit": ("fleet.companions.chains.command", "submit a run to a batch system"),
        "harvest": ("fleet.companions.harvest.command", "train on idle nodes in preemptible jobs"),
        "release-nodes": (
            "fleet.companions.node_release.command",
            "release nodes of a running run, and go on training on the others",
        ),
        "evict": (
            "fleet.companions.eviction.command",
            "plan which running jobs to stop to free nodes in time",
        ),
    },
    "Plan and simulate": {
        "plan": ("fleet.commands.plan", "show which networks train first, and on which GPUs"),
        "reserve": (
            "fleet.companions.walltimes.command",
            "find the walltime requests that cost the least",
        ),
        "simulate draw": (
            "fleet.commands.simulate.draw",
            "draw or convert an ensemble to simulate",
        ),
        "simulate ensemble": (
            "fleet.commands.simulate.ensemble",
            "simulate how long an ensemble trains under a policy",
        ),
        "simulate idle-nodes": (
            "fleet.commands.simulate.idle_nodes",
            "simulate trainers on nodes that join and leave",
        ),
        "simulate autoscale": (
            "fleet.commands.simulate.autoscale",
            "simulate elastic jobs that arrive over time",
        ),
        "simulate batch-queue": (
            "fleet.commands.simulate.batch_queue",
            "simulate jobs that may exceed their walltime",
        ),
        "simulate eviction": (
            "fleet.commands.simulate.eviction",
            "simulate an on-demand job on a full machine",
        ),
    },
}
HIDDEN = {
    "job": ("fleet.companions.batch_jobs.command", "run one job of a chain; job scripts call it")
}
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()} | HIDDEN

# Former names, which work in this release.
FORMER_NAMES = {
    "rehearse": "dry-run",
    "yield": "release-nodes",
    "pack": "convert",
    "ensemble": "simulate draw",
}

# Commands of other tools, for hints.
_FOREIGN_NAMES = {
    "train": "run",
    "fit": "run",
    "start": "run",
    "tune": "run",
    "optimize": "run",
    "init": "new",
    "create": "new",
    "validate": "check",
    "results": "report",
    "show": "report",
    "status": "watch",
    "dashboard": "watch",
}


def main(argv: list[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The words after ``fleet``; ``sys.argv[1:]`` by default.

    Returns:
        The exit status (:class:`fleet.errors.ExitStatus`).
    """
    print_any_name()
    words = list(sys.argv[1:] if argv is None else argv)
    while words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    name, options = _split(words)
    if name is None:
        return _no_command(words)
    # argparse would read the last one as an empty list.
    if options.count("--") > 1 and options[-1] == "--":
        return _report_error(
            f"fleet {name}: nothing follows the -- at the end", ExitStatus.BAD_INPUT
        )
    if not is_installed(COMMANDS[name][0]):
        return _report_error(
            f"fleet {name}: this command is not installed ({COMMANDS[name][0]} is missing)",
            ExitStatus.BAD_INPUT,
        )
    with paused_collection():
        module = import_module(COMMANDS[name][0])
    if signal.getsignal(signal.SIGINT) is _end_early:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    parser = make_parser(name)
    former_options = getattr(module, "FORMER_OPTIONS", {})
    options = with_current_names(f"fleet {name}", options, former_options)
    try:
        if getattr(module, "INTERMIXED", False):
            parse = parser.parse_intermixed_args
        else:
            parse = parser.parse_args
        args = parse(options)
        # Messages quote it to say how to start again.
        args.command_line = shlex.join(["fleet", *name.split(), *options])
    except UserError as error:  # the same on all ranks of a launch; rank 0 reports it
        return _report_error(
            f"fleet {name}: {error}" if is_first(os.environ) else "", ExitStatus.BAD_INPUT
        )
    try:
        with _only_results() if getattr(args, "json", False) else nullcontext():
            return int(module.run(args) or ExitStatus.OK)
    except (FleetError, ValueError) as error:
        status = status_of(error)
        if status is None:
            raise
        return _report_error(f"fleet {name}: {error}", status)
    except BrokenPipeError:  # the reader (head, less) has closed the pipe
        sys.stderr.close()
        return ExitStatus.OK
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def make_parser(name: str) -> Parser:
    """Return the parser of a command's options."""
    module = import_module(COMMANDS[name][0])
    parser = Parser(
        prog=f"fleet {name}",
        description=module.__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.configure(parser)
    if getattr(module, "HAS_JSON", True):
        parser.add_argument(
            "--json", action="store_true", help="print one JSON object and nothing else"
        )
    return parser


def _only_results() -> AbstractContextManager[None]:
    from fleet.commands.output import only_results  # other commands need not import it

    return only_results()


def _split(words: list[str]) -> tuple[str | None, list[str]]:
    """Split a command line into the name of a command and its options."""
    for length in (2, 1):
        name = " ".join(words[:length])
        if len(words) >= length and name in COMMANDS:
            return name, words[length:]
    if words and words[0] in FORMER_NAMES:
        name = FORMER_NAMES[words[0]]
        print_renaming("fleet", f"fleet {words[0]}", f"fleet {name}")
        return name, words[1:]
    return None, words


def _no_command(words: list[str]) -> int:
    """Print the requested help, or refuse an unknown command."""
    if words == ["--version"]:
        print(f"fleet {__version__}")
        return ExitStatus.OK
    wants_help = not words or words[0] in _HELP
    subcommands = {name: COMMANDS[name] for name in COMMANDS if name.split()[0] in words[:1]}
    if wants_help or (subcommands and (len(words) == 1 or words[1] in _HELP)):
        print(_usage(GROUPS) if wants_help else _usage({"Commands": subcommands}, f" {words[0]}"))
        return ExitStatus.OK
    if subcommands:
        typed = words[1]
        names = {name.split()[1]: name for name in subcommands}
    else:
        typed = words[0]
        # The last word alone, such as `autoscale`, also finds a command.
        names = FORMER_NAMES | _FOREIGN_NAMES
        names |= {name.split()[-1]: name for name in COMMANDS if name not in HIDDEN}
        for name in list(names.values()):
            names |= {name: name, name.split()[0]: name.split()[0]}
    close = sorted((name for name in names if typed and name.startswith(typed)), key=len)
    close = close or get_close_matches(typed, names, n=1)
    hint = f"did you mean {names[close[0]]!r}?" if close else "fleet --help lists the commands"
    typed = f"{words[0]} {typed}" if subcommands else typed
    return _report_error(f"fleet: unknown command {typed!r}; {hint}", ExitStatus.BAD_INPUT)


def _usage(groups: Mapping[str, Mapping[str, tuple[str, str]]], family: str = "") -> str:
    """Return the help for some groups of commands.

    Args:
        groups: heading -> name -> (module, help).
        family: the first word of their names with a space before it, if they share one.
    """
    width = max(len(name) for group in groups.values() for name in group)
    lines = [f"usage: fleet{family} COMMAND ...     (fleet help{family} COMMAND describes one)"]
    for heading, group in groups.items():
        lines += ["", f"{heading}:"]
        lines += [f"  {name:<{width}}  {text}" for name, (_, text) in group.items()]
    return "\n".join(lines)


def _report_error(message: str, status: ExitStatus) -> int:
    if message:
        print(shortened(message), file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
