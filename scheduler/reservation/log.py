"""Past run times and tabulated laws, read from text files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from scheduler.base import MOST, InputError
from scheduler.reservation.laws import Array, Discrete


def read_runs(path: str | Path) -> Array:
    """Read a log of run times: one number a line; blank lines and ``#`` comments are passed over.

    Returns:
        The times in the order of the file, in its unit.

    Raises:
        InputError: the file cannot be read, holds no time, or a line is not a finite time above 0.
    """
    runs = [_number(place, text, "a run time", above_zero=True) for place, text in _lines(path)]
    if not runs:
        raise InputError(f"{path}: it has no run times; it must have one number per line")
    return np.array(runs)


def read_table(path: str | Path) -> Discrete:
    """Read a law: ``time,probability`` a line; blank lines and ``#`` comments are passed over.

    Raises:
        InputError: the file cannot be read, a line is wrong, or the probabilities do not sum to 1.
    """
    rows = []
    for place, text in _lines(path):
        cells = text.split(",")
        if len(cells) != 2:
            raise InputError(f"{place}: {text!r} is not a row 'time,probability'")
        rows.append((_number(place, cells[0], "a time"), _number(place, cells[1], "a probability")))
    try:
        return Discrete(np.array([row[0] for row in rows]), np.array([row[1] for row in rows]))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _lines(path: str | Path) -> Iterator[tuple[str, str]]:
    """Every line that says something, with its place in the file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    for number, line in enumerate(text.splitlines(), 1):
        content = line.partition("#")[0].strip()
        if content:
            yield f"{path}:{number}", content


def _number(place: str, text: str, what: str, *, above_zero: bool = False) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{place}: {text.strip()!r} is not a number; it must be {what}") from None
    if not 0 <= value <= MOST or (above_zero and value == 0):
        raise InputError(f"{place}: {text.strip()} is not {what}: "
                         f"it must be {'above' if above_zero else 'at least'} 0 and at most {MOST:g}")
    return value
