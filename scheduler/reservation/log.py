"""Past run times and tabulated laws, read from text files."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from scheduler.base import MOST, InputError
from scheduler.reservation.laws import Array, Discrete

BLOCK = 1 << 24  # bytes that are read at once
_COMMENT = re.compile(rb"#[^\n]*")
_SAID = re.compile(rb"[^\s][^\n]*")


def read_runs(path: str | Path) -> Array:
    """Read a log of run times: one number a line; blank lines and ``#`` comments are passed over.

    Ten million lines take a few seconds: numpy reads a block of them at once, and only a block in which it finds
    something else than one number a line is read line by line.

    Returns:
        The times in the order of the file, in its unit.

    Raises:
        InputError: the file cannot be read, holds no time, or a line is not a finite time above 0.
    """
    read, line = [], 1
    for block in _blocks(path):
        runs = _numbers(block)
        if runs is None or not ((runs > 0) & (runs <= MOST)).all():
            runs = np.array([_number(place, text, "a run time", above_zero=True)
                             for place, text in _said(path, block, line)])
        read.append(runs)
        line += block.count(b"\n")
    runs = np.concatenate(read) if read else np.empty(0)
    if not runs.size:
        raise InputError(f"{path}: it has no run times; it must have one number per line")
    return runs


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
    line = 1
    for block in _blocks(path):
        yield from _said(path, block, line)
        line += block.count(b"\n")


def _blocks(path: str | Path) -> Iterator[bytes]:
    """The file in pieces of whole lines."""
    rest = b""
    try:
        with open(path, "rb") as file:
            while piece := file.read(BLOCK):
                end = piece.rfind(b"\n") + 1
                if end:
                    yield rest + piece[:end]
                    rest = b""
                rest += piece[end:]
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if rest:
        yield rest


def _numbers(block: bytes) -> Array | None:
    """The numbers of a block with one a line; None where there may be anything else."""
    block = _COMMENT.sub(b"", block) if b"#" in block else block
    block = block.replace(b"\r\n", b"\n")
    if block.translate(None, b"0123456789.eE+- \t\n"):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # how numpy says "not a number"
        try:
            numbers = np.fromstring(block, sep="\n") if block.strip() else np.empty(0)
        except (DeprecationWarning, ValueError):
            return None
    # Each line that says something has given at least one number, so as many of both are one each.
    return numbers if len(numbers) == _lines_said(block) else None


def _lines_said(block: bytes) -> int:
    if b" " in block or b"\t" in block or b"\n\n" in block or block.startswith(b"\n"):
        return len(_SAID.findall(block))
    return block.count(b"\n") + (not block.endswith(b"\n"))


def _said(path: str | Path, block: bytes, first: int) -> Iterator[tuple[str, str]]:
    """Every line of a block that says something, with its place."""
    try:
        text = block.decode("utf-8")
    except UnicodeDecodeError as error:
        line = first + block.count(b"\n", 0, error.start)
        raise InputError(f"{path}:{line}: cannot be read: it is not text in UTF-8") from None
    for number, words in enumerate(text.split("\n"), first):
        content = words.partition("#")[0].strip()
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
