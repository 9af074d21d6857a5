"""Command files by which other processes control a launch, and its answers.

There is no port and no server. A command is a file that is written atomically, under a name that
begins with the time. The launch reads the commands in the order of their names, and writes the
answer before it removes a command. If a launch is killed in between, the next one reads the command
again; the event log says whether it was carried out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from fleet.storage.files import remove, write_json
from fleet.storage.json_lines import read_json_object

_POLL_S = 0.2
_COMMAND = ".command.json"
_ANSWER = ".answer.json"


class Command(NamedTuple):
    """A command to a launch.

    Attributes:
        name: the command's name, unique in the run.
        content: None if the file is not a JSON object; the command is answered nevertheless.
    """

    name: str
    content: dict[str, Any] | None


class CommandQueue:
    """The commands to one run.

    Args:
        folder: the folder of the commands; created with the first command.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    # ---- in other processes ----

    def put(self, content: Mapping[str, Any]) -> str:
        """Write a command; returns its name.

        Raises:
            StorageError: the disk is full, ...
        """
        name = f"{time.time_ns():020d}-{os.uname().nodename}-{os.getpid()}"
        write_json(self._folder / f"{name}{_COMMAND}", content)
        return name

    def take_answer(self, name: str, timeout_s: float) -> dict[str, Any] | None:
        """Wait for an answer and remove it; returns None after the timeout."""
        until = time.monotonic() + timeout_s
        path = self._folder / f"{name}{_ANSWER}"
        while True:
            answer = read_json_object(path)
            if answer is not None:
                remove(path)
                return answer
            if time.monotonic() >= until:
                return None
            time.sleep(_POLL_S)

    def withdraw(self, name: str) -> bool:
        """Remove an unanswered command; returns False if it was answered already."""
        try:
            (self._folder / f"{name}{_COMMAND}").unlink()
        except FileNotFoundError:
            return False
        return True

    # ---- in the launch ----

    def commands(self) -> Iterator[Command]:
        """Yield waiting commands, oldest first; incomplete files are ignored."""
        with suppress(FileNotFoundError, NotADirectoryError):
            for path in sorted(self._folder.glob(f"*{_COMMAND}")):
                if not path.name.startswith("."):  # another process is still writing it
                    yield Command(path.name.removesuffix(_COMMAND), read_json_object(path))

    def answer(self, name: str, content: Mapping[str, Any]) -> None:
        """Write the answer to a command and remove the command.

        Raises:
            StorageError: the disk is full, ...
        """
        write_json(self._folder / f"{name}{_ANSWER}", content)
        remove(self._folder / f"{name}{_COMMAND}")
