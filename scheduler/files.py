"""Read users' files of JSON or numbers, and report all mistakes in them."""

from __future__ import annotations

import gzip
import io
import json
import os
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from launch.errors import InputError
from scheduler.base import MAX_VALUE, MIN_VALUE, Network, is_number

MAX_MISTAKES = 8  # named in one line; the rest are counted
BLOCK = 1 << 24  # bytes per read

ProgressCallback = Callable[[int, int], object]  # called with the work done so far and the total


def read_json(path: str | Path) -> Any:
    """Read a JSON file.

    Raises:
        InputError: the file does not exist or is not JSON (with the line).
    """
    return parse_json(read_bytes(path), path)


def parse_json(text: str | bytes, path: str | Path) -> Any:
    """Parse the text of a JSON file.

    Raises:
        InputError: it is not JSON (with the line).
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}: not JSON: {error.msg}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not JSON: the file is not text") from None
    except (ValueError, RecursionError):
        raise InputError(
            f"{path}: not JSON: a number of thousands of digits, or too deep"
        ) from None


def read_bytes(path: str | Path) -> bytes:
    """Return the content of a file; decompressed if its name ends in ``.gz``.

    Raises:
        InputError: the file does not exist, or is not a complete gzip file.
    """
    with _opened(path) as file:
        return file.read()


@contextmanager
def _opened(path: str | Path) -> Iterator[IO[bytes]]:
    opening: Callable[..., Any] = gzip.open if str(path).endswith(".gz") else open
    try:
        with opening(path, "rb") as file:
            yield file
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path}: not a whole gzip file ({error})") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None


def iter_line_blocks(
    path: str | Path, on_progress: ProgressCallback = lambda done, total: None
) -> Iterator[tuple[int, bytes]]:
    """Yield blocks of whole lines of a file, each with the number of its first line.

    Files whose names end in ``.gz`` are decompressed.

    Args:
        on_progress: called after each block with the bytes read so far and the total.

    Raises:
        InputError: as of :func:`read_bytes`.
    """
    pending = b""
    line = 1
    with _opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        while piece := file.read(BLOCK):
            pending += piece
            end = pending.rfind(b"\n") + 1
            if end:
                yield line, pending[:end]
                line = line + pending.count(b"\n", 0, end)
                pending = pending[end:]
            on_progress(os.lseek(file.fileno(), 0, os.SEEK_CUR), size)
    if pending:
        yield line, pending + b"\n"


def parse_numbers(block: bytes, columns: int) -> NDArray[np.float64] | None:
    """Parse lines of comma-separated numbers into an array of shape (lines, columns).

    Blank lines and ``#`` comments are skipped.

    Returns:
        None if a line contains anything else.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of lines without any
        try:
            rows = np.loadtxt(io.BytesIO(block), delimiter=",", ndmin=2)
        except ValueError:
            return None
    if rows.shape[1] == columns or not rows.size:
        return rows
    return None


def check_record(
    value: Any, location: str, required: Iterable[str], optional: Iterable[str] = ()
) -> dict[str, Any]:
    """Return a record after checking that it has the right keys.

    Raises:
        InputError: it is not a record, or has other keys.
    """
    read = RecordReader()
    record = read.record(value, "", required, optional)
    read.raise_mistakes(location)
    return record


class RecordReader:
    """Reader of JSON values that collects all mistakes instead of stopping at the first.

    A wrong value is read as 1, so that reading continues to the next mistake.
    """

    def __init__(self) -> None:
        self.mistakes: list[str] = []

    def raise_mistakes(self, source: str) -> None:
        """Raise InputError with all mistakes on one line, if there are any."""
        if self.mistakes:
            more = len(self.mistakes) - MAX_MISTAKES
            raise InputError(
                f"{source}: "
                + "; ".join(self.mistakes[:MAX_MISTAKES])
                + (f"; and {more} more" if more > 0 else "")
            )

    def add_mistake(self, location: str, text: str) -> None:
        """Record a mistake at a location."""
        self.mistakes.append(f"{location} is {text}" if location else text)

    def record(
        self, value: Any, location: str, required: Iterable[str], optional: Iterable[str] = ()
    ) -> dict[str, Any]:
        """Return a record; unknown and missing keys are mistakes."""
        required, allowed = tuple(required), (*required, *optional)
        if not isinstance(value, dict):
            self.add_mistake(
                location or "the document",
                f"{_short(value)}, but must be an object with " + ", ".join(allowed),
            )
            return {}
        prefix = f"{location}." if location else ""
        for key in value:
            if key not in allowed:
                self.add_mistake(
                    prefix + str(key), "an unknown key; the keys are " + ", ".join(allowed)
                )
        for key in required:
            if key not in value:
                self.add_mistake(prefix + key, "missing")
        return value

    def check_unique_names(self, location: str, networks: Sequence[Network]) -> None:
        """Check that no two networks have the same name."""
        for name, count in sorted(Counter(network.name for network in networks).items()):
            if count > 1:
                self.add_mistake(
                    "", f"{location}: {count} networks are named {name!r}, but names must be unique"
                )

    def items(self, record: dict[str, Any], key: str, location: str) -> list[Any]:
        """Return the list of a key; an empty list if the key is missing."""
        value = record.get(key, [])
        if isinstance(value, list):
            return value
        self.add_mistake(location, f"{_short(value)}, but must be a list")
        return []

    def positive(self, value: Any, location: str, unit: str) -> float:
        """Return a positive number in the range of machines."""
        return self._number(
            value,
            location,
            lambda x: MIN_VALUE <= x <= MAX_VALUE,
            f"from {MIN_VALUE} to {MAX_VALUE} {unit}",
        )

    def not_negative(self, value: Any, location: str, unit: str) -> float:
        """Return 0 or a positive number."""
        return self._number(
            value,
            location,
            lambda x: x == 0 or MIN_VALUE <= x <= MAX_VALUE,
            f"0 or from {MIN_VALUE} to {MAX_VALUE} {unit}",
        )

    def count(self, record: dict[str, Any], key: str, location: str) -> int:
        """Return a whole number from 1 to 1e12."""
        if key not in record:
            return 1  # reported as missing already
        return int(
            self._number(
                record[key],
                location,
                lambda x: 1 <= x <= 1e12 and x == int(x),
                "a whole number from 1",
            )
        )

    def _number(
        self, value: Any, location: str, right: Callable[[float], bool], requirement: str
    ) -> float:
        if is_number(value) and right(value):
            return value
        self.add_mistake(location, f"{_short(value)}, but must be {requirement}")
        return 1.0


def _short(value: Any) -> str:
    text = json.dumps(value)
    if len(text) <= 40:
        return text
    return text[:37] + "..."
