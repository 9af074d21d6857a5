"""Read past run times and tabulated laws from text files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from launch.errors import InputError
from scheduler.base import MAX_VALUE
from scheduler.files import iter_line_blocks, parse_numbers
from scheduler.reservation.distributions import Array, Discrete


def read_runs(path: str | Path) -> Array:
    """Read a log of run times, one number per line; blank lines and ``#`` comments are skipped.

    Ten million lines take a few seconds: only a block that numpy cannot parse is read line by line.

    Returns:
        The times in the order of the file, in its unit.

    Raises:
        InputError: the file cannot be read, holds no time, or a line is not a finite time above 0.
    """
    read = []
    for line, block in iter_line_blocks(path):
        times = parse_numbers(block, 1)
        if times is None or not ((times > 0) & (times <= MAX_VALUE)).all():
            times = np.array(
                [
                    _number(location, text, "a run time", above_zero=True)
                    for location, text in _content_lines(path, line, block)
                ]
            )
        read.append(times.ravel())
    runs = np.concatenate(read) if read else np.empty(0)
    if not runs.size:
        raise InputError(f"{path}: it has no run times; it must have one number per line")
    return runs


def read_table(path: str | Path) -> Discrete:
    """Read a distribution, ``time,probability`` per line; skip blank lines and ``#`` comments.

    Raises:
        InputError: the file cannot be read, a line is wrong, or the probabilities do not sum to 1.
    """
    rows = []
    for location, text in (
        content
        for line, block in iter_line_blocks(path)
        for content in _content_lines(path, line, block)
    ):
        cells = text.split(",")
        if len(cells) != 2:
            raise InputError(f"{location}: {text!r} is not a row 'time,probability'")
        rows.append(
            (_number(location, cells[0], "a time"), _number(location, cells[1], "a probability"))
        )
    try:
        return Discrete(np.array([row[0] for row in rows]), np.array([row[1] for row in rows]))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _content_lines(path: str | Path, first: int, block: bytes) -> Iterator[tuple[str, str]]:
    """Yield the non-empty lines of a block with their locations."""
    try:
        text = block.decode("utf-8")
    except UnicodeDecodeError as error:
        line = first + block.count(b"\n", 0, error.start)
        raise InputError(f"{path}:{line}: cannot be read: it is not text in UTF-8") from None
    for number, words in enumerate(text.split("\n"), first):
        content = words.partition("#")[0].strip()
        if content:
            yield f"{path}:{number}", content


def _number(location: str, text: str, noun: str, *, above_zero: bool = False) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError(
            f"{location}: {text.strip()!r} is not a number; it must be {noun}"
        ) from None
    if not 0 <= value <= MAX_VALUE or (above_zero and value == 0):
        raise InputError(
            f"{location}: {text.strip()} is not {noun}: "
            f"it must be {'above' if above_zero else 'at least'} 0 and at most {MAX_VALUE:g}"
        )
    return value
