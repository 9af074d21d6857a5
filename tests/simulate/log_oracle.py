"""The event logs are a prefix of what launches have logged, and their fold is their state."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fleet.domain.network import NetworkStatus
from fleet.domain.timeline import merge_logs, replay_log
from fleet.storage.event_log import _logged
from tests.simulate import disk as d
from tests.simulate import kernel as k


@dataclass(eq=False)
class _Line:
    """A line that a launch has begun to write.

    Attributes:
        text: the line without its end; after a crash what is left of it.
        is_written: whether the write has returned.
        is_synced: whether a later sync has returned.
        is_torn: whether a crash or an error has left a part of it.
        is_late: whether others were written while its writer was suspended, before or after it.
    """

    process: k.Process
    text: bytes
    is_written: bool = False
    is_synced: bool = False
    is_torn: bool = False
    is_late: bool = False


@dataclass(eq=False)
class _Log:
    """A log: its lines in the order in which they were written.

    Attributes:
        pending: lines that are being written.
        states: launch -> the newest line when it last had decided, and the statuses of all
            networks then.
    """

    lines: list[_Line] = field(default_factory=list)
    pending: list[_Line] = field(default_factory=list)
    states: dict[str, tuple[_Line, Mapping[str, NetworkStatus]]] = field(default_factory=dict)

    def settle(self) -> None:
        """Keep the lines of dead writers in their order: no later one comes before them."""
        dead = [line for line in self.pending if not line.process.is_alive]
        self.lines += dead
        self.pending = [line for line in self.pending if line not in dead]


class LogOracle:
    """Watches the event logs of a run.

    Args:
        object_to: is called with what is wrong.
    """

    def __init__(self, object_to: Callable[[str], None]) -> None:
        self._object_to = object_to
        self._logs: dict[Path, _Log] = {}

    # ---- what rank 0 reports ----

    def begins_line(self, process: k.Process, path: Path, record: Any) -> _Line:
        """A launch writes a line; returns it."""
        line = _Line(process, json.dumps(record, allow_nan=False).encode())
        log = self._logs.setdefault(path, _Log())
        log.settle()
        for suspended in log.pending:
            suspended.is_late = True
        log.pending.append(line)
        return line

    def ends_line(self, path: Path, line: _Line, is_written: bool) -> None:
        """A line was written, or the disk has refused it or a part of it."""
        log = self._logs[path]
        if line in log.pending:
            log.pending.remove(line)
            log.lines.append(line)
        line.is_written = is_written

    def synced(self, process: k.Process, path: Path) -> None:
        """What a launch had written is on the disk."""
        for line in self._logs.get(path, _Log()).lines:
            line.is_synced |= line.process is process

    def decided(self, process: k.Process, path: Path, statuses: Mapping[str, Any]) -> None:
        """A launch has carried out a decision, so its log has all that its state has."""
        log = self._logs.get(path)
        if log is not None and log.lines:
            log.states[process.label] = log.lines[-1], dict(statuses)

    # ---- checks ----

    def check(self, has_crashed: bool) -> None:
        """Compare the logs with what was logged; right after a crash, lines may be missing."""
        for path, log in self._logs.items():
            self._check_log(path, log, has_crashed)

    def _check_log(self, path: Path, log: _Log, has_crashed: bool) -> None:
        log.settle()
        content = b""
        if os.path.exists(path):
            with d.real_open(path, "rb") as file:
                content = file.read()
        on_disk = content.split(b"\n")
        present: list[_Line] = []
        remaining = [*log.lines, *log.pending]
        while remaining:
            index = len(present)
            text = on_disk[index] if index < len(on_disk) else b""
            line = remaining[0]
            if text != line.text:
                late = [
                    begun for begun in remaining if begun.is_late and begun.text.startswith(text)
                ]
                line = late[0] if text and late else line
            remaining.remove(line)
            may_tear = line.is_late or not line.is_written or (has_crashed and not line.is_synced)
            if text == line.text:
                present.append(line)
            elif may_tear and text and line.text.startswith(text):
                if line not in log.pending:  # else its writer goes on
                    if line.is_late:  # its writer may have gone on after others
                        end = line.text.removeprefix(text)
                        remaining.append(_Line(line.process, end, is_torn=True, is_late=True))
                    line.text, line.is_torn = text, True
                present.append(line)
            elif not may_tear:
                self._object_to(
                    f"{path.name}, line {index + 1} is {text!r} instead of {line.text!r} of "
                    f"{line.process}"
                )
                return
        if any(on_disk[len(present) :]):
            self._object_to(
                f"{path.name} has lines that no launch wrote: {on_disk[len(present) :]}"
            )
        log.lines = [line for line in present if line not in log.pending]

    def check_fold(self, path: Path, label: str) -> None:
        """Check that the fold of a log gives the state that a launch had when it last decided."""
        log = self._logs.get(path)
        if log is None or label not in log.states:
            return
        last, statuses = log.states[label]
        if last not in log.lines or last.is_torn:  # a crash has lost it
            return
        lines = [line for line in log.lines[: log.lines.index(last) + 1] if not line.is_torn]
        events = [_logged(json.loads(line.text)) for line in lines]
        if None in events:
            self._object_to(f"{path.name} cannot be read: {lines[events.index(None)].text!r}")
            return
        # as a resumed launch, a report and a monitor read it
        folded = replay_log(merge_logs([events])).statuses
        for name, live in statuses.items():
            by_log = folded.get(name, live)
            if live.is_skipped:  # no log has what skipped.json says
                by_log = replace(by_log, outcome=live.outcome, is_paused=live.is_paused)
            if repr(_without_deaths(by_log)) != repr(_without_deaths(live)):
                self._object_to(f"{name} is {by_log} by {path.name}, but {label} had {live}")


def _without_deaths(status: NetworkStatus) -> NetworkStatus:
    """Return a status without the number of deaths, which only the launch has that counts them."""
    if status.outcome is None:
        return status
    return replace(status, outcome=replace(status.outcome, deaths=0))
