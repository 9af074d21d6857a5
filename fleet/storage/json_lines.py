"""Append to and read files of JSON lines."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from fleet.domain.json_record import JsonRecord, read_record, to_json
from fleet.storage.files import storage_errors, with_retries

T = TypeVar("T")


def open_lines(path: Path) -> io.FileIO:
    """Open a file of JSON lines for appending, and complete an unfinished last line."""
    # Unbuffered: data that a full disk refused is not written again when the file is closed.
    file = open(path, "a+b", buffering=0)  # noqa: SIM115 - the caller closes it
    complete_line(file)
    return file


def complete_line(file: io.FileIO) -> None:
    """End an unfinished last line, so that the next one is not part of it."""
    if file.seek(0, os.SEEK_END):
        file.seek(-1, os.SEEK_END)
        if file.read() != b"\n":
            file.write(b"\n")


def add_line(file: io.FileIO, path: Path, record: Any) -> None:
    """Add a line.

    Args:
        file: the file to append to.
        path: path of the file, for messages.
        record: JSON values.

    Raises:
        StorageError: the disk is full, ...
    """
    line = (json.dumps(record, allow_nan=False) + "\n").encode()

    def write() -> None:
        nonlocal line
        with storage_errors(path, len(line)):
            while line:  # a full disk may accept a part before it refuses the remainder
                line = line[file.write(line) :]

    with_retries(write)


def add_dated_line(path: Path, record: JsonRecord) -> None:
    """Add a line with the time to a file shared by processes; creates its folder.

    Args:
        path: path of the file.
        record: the record to write.

    Raises:
        StorageError: the disk is full, ...
    """
    line = {"time": datetime.now().astimezone().isoformat(timespec="seconds"), **to_json(record)}
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_lines(path) as file:
            add_line(file, path, line)


def parse_json_object(text: str | bytes) -> dict[str, Any] | None:
    """Return the object in a JSON text; None if it is something else, or damaged."""
    with suppress(ValueError, RecursionError):
        if isinstance(value := json.loads(text), dict):
            return value
    return None


def read_json_object(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file; None if it is unreadable or something else."""
    with suppress(OSError):
        return parse_json_object(path.read_bytes())
    return None


def read_json_record(path: Path, kind: type[T]) -> T | None:
    """Return the dataclass in a JSON file; None if it is unreadable or something else."""
    with suppress(ValueError):
        return read_record(kind, read_json_object(path))
    return None


def read_lines(path: Path, start: int = 0, words: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file in order, skipping incomplete and damaged lines.

    Args:
        path: path of the file; a missing file has no lines.
        start: number of bytes to skip: its size at an earlier time.
        words: skip lines without any of these texts unparsed; empty to parse all.
    """
    quoted = [json.dumps(word) for word in words]
    with (
        suppress(FileNotFoundError, NotADirectoryError),
        open(path, encoding="utf-8", errors="replace") as file,
    ):
        file.seek(start)
        for line in file:
            is_wanted = not quoted or any(word in line for word in quoted)
            if is_wanted and (record := parse_json_object(line)) is not None:
                yield record
