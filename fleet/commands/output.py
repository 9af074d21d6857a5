"""Print the results of commands as JSON, text or tables, and draw figures.

Only this module imports matplotlib, and only to draw a figure.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fleet.errors import UserError
from fleet.terminal import bar, print_table
from scheduler.ensemble.policies import REFERENCE
from scheduler.simulation.ensemble import Simulated

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_outputs: list[IO[str]] = []  # the outputs for results while other output goes to stderr


@contextmanager
def only_results() -> Iterator[None]:
    """Print only results to stdout; other output, such as of custom modules, goes to stderr.

    That includes what libraries in C and child processes print, and what is printed at the end of
    the process.
    """
    output = sys.stdout
    if output is sys.__stdout__:
        output.flush()
        output = os.fdopen(os.dup(1), "w", encoding=output.encoding, errors=output.errors)
        os.dup2(2, 1)
    _outputs.append(output)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _outputs.pop()


def result_output() -> IO[str]:
    """Return the file to which results are printed."""
    return _outputs[-1] if _outputs else sys.stdout


def print_json(value: Any, indent: int | None = 1) -> None:
    """Print a dataclass, dict or list as JSON; NaN and infinity become null.

    Args:
        value: the value to print.
        indent: number of spaces per level; None for a single line.
    """
    from fleet.domain.plain_json import as_json  # other output starts sooner without pydantic

    text = json.dumps(as_json(value), indent=indent, allow_nan=False)
    print(text, file=result_output(), flush=True)


def show(args: argparse.Namespace, record: Callable[[], Any], text: Callable[[], object]) -> None:
    """Print the results of a command.

    Args:
        args: the arguments of the command.
        record: returns the results for ``--json``.
        text: prints the results as text.
    """
    if args.json:
        print_json(record())
    else:
        text()


def print_policies(outcomes: Sequence[Simulated], is_known: bool = True) -> None:
    """Print a comparison of policies.

    Args:
        outcomes: the simulation of each policy, including the reference.
        is_known: whether rates were measured; times with estimated rates are rounded.
    """

    def rounded(seconds: float) -> float:
        if is_known:
            return round(seconds)
        return float(f"{seconds:.2g}")

    reference = next(outcome for outcome in outcomes if outcome.policy == REFERENCE.name).makespan_s
    print_table(
        [
            "policy",
            "makespan, s",
            "x bound",
            "speed-up",
            "waiting/GPU, s",
            "checkpoints, s",
            "rounds",
            "",
        ],
        [
            [
                outcome.policy,
                rounded(outcome.makespan_s),
                outcome.makespan_s / outcome.lower_bound_s,
                reference / outcome.makespan_s,
                rounded(outcome.waiting_s_per_gpu),
                rounded(outcome.checkpoint_s),
                len(outcome.rounds),
                bar(reference / outcome.makespan_s, 4.0, 20),
            ]
            for outcome in outcomes
        ],
    )
    print(
        f"No schedule can be faster than {rounded(outcomes[0].lower_bound_s):.0f} s"
        f"{'' if is_known else ' (with estimated rates)'}; speed-up is over {REFERENCE.name}."
    )


def add_plot(parser: argparse.ArgumentParser, subject: str) -> None:
    """Declare ``--plot``.

    Args:
        parser: the parser of the command.
        subject: what the figure shows.
    """
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help=f"draw {subject} (.png, .svg or .pdf)"
    )


@contextmanager
def figure_file(path: Path, width: float, height: float) -> Iterator[Figure]:
    """Provide a figure to draw on, and write it to a file at the end.

    Args:
        path: the file; its suffix determines the format.
        width, height: the size of the figure, in inches.

    Raises:
        UserError: matplotlib is not installed, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("--plot needs matplotlib: pip install 'fleet-ensemble[plots]'") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    yield figure
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:  # ValueError: an unknown format
        raise UserError(f"--plot: {path}: {error}") from None
