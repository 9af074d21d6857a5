"""Command files by which other processes control a launch, and its answers.

There is no port and no server. A command is a file that is written whole, under a name that begins
with its time; the launch reads the commands in the order of their names, and writes the answer
beside them before it takes a command away. So a launch that is killed in between finds the command
again, and whoever acts on it must know by its name whether it has acted (the event log says so).
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

_LOOK_S = 0.2  # between two looks for an answer
_COMMAND = ".command.json"
_ANSWER = ".answer.json"


class Command(NamedTuple):
    """A command to a launch.

    Attributes:
        name: no other command of the run has it.
        content: None where the file is no JSON object; it is answered all the same.
    """

    name: str
    content: dict[str, Any] | None


class CommandQueue:
    """The commands to one run.

    Args:
        folder: of the mailbox, in the run's folder; made when the first command is put into it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    # ---- who wants something ----

    def put(self, content: Mapping[str, Any]) -> str:
        """Write a command; returns its name.

        Raises:
            StorageError: the disk is full, ...
        """
        name = f"{time.time_ns():020d}-{os.uname().nodename}-{os.getpid()}"
        write_json(self._folder / f"{name}{_COMMAND}", content)
        return name

    def take_answer(self, name: str, timeout_s: float) -> dict[str, Any] | None:
        """Wait for an answer and remove it; None if there is none in time."""
        until = time.monotonic() + timeout_s
        path = self._folder / f"{name}{_ANSWER}"
        while True:
            answer = read_json_object(path)
            if answer is not None:
                remove(path)
                return answer
            if time.monotonic() >= until:
                return None
            time.sleep(_LOOK_S)

    def withdraw(self, name: str) -> bool:
        """Remove an unanswered command; returns whether it was still there."""
        try:
            (self._folder / f"{name}{_COMMAND}").unlink()
        except FileNotFoundError:
            return False
        return True

    # ---- the launch ----

    def commands(self) -> Iterator[Command]:
        """Yield waiting commands, oldest first; incomplete files are ignored."""
        with suppress(FileNotFoundError, NotADirectoryError):
            for path in sorted(self._folder.glob(f"*{_COMMAND}")):
                if not path.name.startswith("."):  # which another process is writing just now
                    yield Command(path.name.removesuffix(_COMMAND), read_json_object(path))

    def answer(self, name: str, content: Mapping[str, Any]) -> None:
        """Write the answer to a command and remove the command.

        Raises:
            StorageError: the disk is full, ...
        """
        write_json(self._folder / f"{name}{_ANSWER}", content)
        remove(self._folder / f"{name}{_COMMAND}")
