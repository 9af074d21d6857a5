"""Read command lines: types of arguments, and a parser that reports mistakes in one line.

A type is a function of a text that raises ``argparse.ArgumentTypeError``; functions such as
:func:`integer` return a type with bounds.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from fleet.errors import UserError
from fleet.units import parse_delta, parse_duration, parse_share, parse_stream, renaming_notice
from launch.environment import is_first

T = TypeVar("T")
Type = Callable[[str], T]

# Stricter than float(), which also reads 1_000, nan and digits of other scripts.
_NUMBER = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_WHOLE = "[+-]?[0-9]{1,400}"
AUTO = "auto"
_YEAR_S = 366 * 86400.0
_MAX_SHOWN = 40  # characters of an invalid text that messages quote


class Parser(argparse.ArgumentParser):
    """A parser that raises :class:`~fleet.errors.UserError` instead of printing and exiting."""

    def error(self, message: str) -> NoReturn:
        """Refuse the command line, in a message of one line; argparse calls this too."""
        text = " ".join(message.removeprefix("argument ").split())
        name = text.partition(":")[0].split("/")[-1]
        action = self._option_string_actions.get(name)
        # argparse also says so for a value that begins with a dash, such as -5min.
        if action is not None and action.metavar and text.endswith("expected one argument"):
            text += f", as in {name} {action.metavar}"
        raise UserError(text)


def written_as(parse: Callable[[str], T]) -> Type[T]:
    """Return a type from a parser whose ``ValueError`` says how a text should be written."""

    def read(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise _wrong(text, str(error)) from None

    return read


def integer(minimum: int = 0, maximum: int = 10**15) -> Type[int]:
    """Return the type of whole numbers within bounds."""

    def read(text: str) -> int:
        value = int(text) if re.fullmatch(_WHOLE, text) else None
        if value is None or not minimum <= value <= maximum:
            raise _wrong(text, f"should be a whole number{_bounds(minimum, maximum)}")
        return value

    return read


def number(minimum: float = -math.inf, maximum: float = 1e300) -> Type[float]:
    """Return the type of numbers within bounds."""

    def read(text: str) -> float:
        value = exact_number(text)
        if not minimum <= value <= maximum:
            raise _wrong(text, f"should be a number{_bounds(minimum, maximum)}")
        return float(value)

    return read


def positive(text: str) -> float:
    """Read a number above 0."""
    value = exact_number(text)
    if value <= 0:
        raise _wrong(text, "should be a number above 0")
    return float(value)


def exact_number(text: str) -> int | float:
    """Read a number that prints as it was written: integers stay integers."""
    if re.fullmatch(_WHOLE, text):
        value: float = int(text)
    elif re.fullmatch(_NUMBER, text):
        value = float(text)
    else:
        value = math.nan
    if not abs(value) <= sys.float_info.max:
        raise _wrong(text, "should be a number")
    return value


def share(text: str) -> float:
    """Read a share, such as ``15%`` or 0.15."""
    value = written_as(parse_share)(text)
    if value > 1:
        raise _wrong(text, "should be a share, at most 100%")
    return value


def new_file(text: str) -> Path:
    """Read the path of a file to write; a folder is refused."""
    path = Path(text)
    if not path.name or path.is_dir():
        raise _wrong(text, "is a folder; name a file")
    return path


def duration(text: str) -> float:
    """Read a duration above 0 and of at most a year, such as ``10min``; in seconds."""
    value = written_as(parse_duration)(text)
    if not 0 < value <= _YEAR_S:
        raise _wrong(text, "should be above 0 and at most a year")
    return value


def moment(text: str) -> float:
    """Read a time since the start of a run, such as ``350s``; in seconds."""
    return written_as(parse_duration)(text)


def duration_or_auto(text: str) -> float | str:
    """Read a duration, in seconds, or the word ``auto``."""
    if text == AUTO:
        return text
    return duration(text)


count = integer(1)
seed = integer(0, 2**64 - 1)
delta = written_as(parse_delta)
stream = written_as(parse_stream)


def _bounds(minimum: float, maximum: float) -> str:
    return (f" from {minimum:g}" if math.isfinite(minimum) else "") + (
        f" to {maximum:g}" if maximum < 10**15 else ""
    )


def _wrong(text: str, problem: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"{text[:_MAX_SHOWN]!r} {problem}")


def with_current_names(
    command: str, words: Sequence[str], former_options: Mapping[str, str]
) -> list[str]:
    """Replace former names of options, with a notice; the words after ``--`` stay as they are.

    Args:
        command: the name of the command, for notices.
        words: the words of its command line.
        former_options: former name -> current name.
    """
    end = words.index("--") if "--" in words else len(words)
    current = list(words)
    for index, word in enumerate(words[:end]):
        option, equals, value = word.partition("=")
        if option in former_options:
            current[index] = former_options[option] + equals + value
            print_renaming(command, option, former_options[option])
    return current


def print_renaming(command: str, old: str, new: str) -> None:
    """Print that an old name still works; of the ranks of a launch, only one does."""
    if is_first(os.environ):
        print(f"{command}: {renaming_notice(old, new)}", file=sys.stderr)


def add_run(parser: argparse.ArgumentParser) -> None:
    """Declare the run that a command works on."""
    parser.add_argument("run", metavar="RUN", type=Path, help="folder of the run")


def add_changes(parser: argparse.ArgumentParser) -> None:
    """Declare the options for data, networks and rates that changed since earlier launches."""
    parser.add_argument(
        "--fresh-network",
        metavar="NAME",
        action="append",
        default=[],
        help="delete the checkpoints of this network and train it from the beginning; repeat the "
        "option for several networks",
    )
    parser.add_argument(
        "--accept-changes",
        action="store_true",
        help="resume from the checkpoints although the data, or the build: function or args of a "
        "network, have changed",
    )
    parser.add_argument(
        "--remeasure",
        action="store_true",
        help="measure all rates again, and replace the cached rates of earlier runs",
    )
