"""Write and read the event log: every decision and every epoch of a run, one JSON object per line.

Only the coordinator writes it, and only by appending. It suffices to replay the run in the
simulator and to draw the report. A resumed run continues the same file. If several launches work on
a run at a time, each has its own log; :func:`read_run` reads all of them as one, and
:class:`RunTail` follows them while they grow.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fleet.domain.events import (
    CommandReceived,
    Event,
    LaunchEnded,
    LaunchStarted,
    NetworkAdded,
    RankDied,
    event_from_json,
)
from fleet.domain.json_record import JsonRecord, to_json
from fleet.domain.run import RunState
from fleet.domain.timeline import LoggedEvent, merge_logs, replay_log
from fleet.errors import ExitStatus
from fleet.storage.files import storage_errors, sync_names, with_retries
from fleet.storage.json_lines import (
    add_line,
    complete_line,
    open_lines,
    parse_json_object,
    read_lines,
)
from fleet.storage.paths import RunPaths
from scheduler.base import is_number

E = TypeVar("E", bound=JsonRecord)


_UNDERIVABLE = (CommandReceived, NetworkAdded)


class EventLog:
    """Appends to a run's event log.

    Args:
        path: path of the file.
        clock: seconds from any origin.
    """

    def __init__(self, path: Path, clock: Any = time.monotonic) -> None:
        self._path = path
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open_lines(path)
        self._is_synced = True
        self._is_unfinished = False
        self._is_named = False  # whether its name is on the disk, too
        self._clock = clock
        self._start = clock()

    def add(self, event: Event, t_s: float | None = None) -> None:
        """Append an event; NaN becomes null.

        Args:
            event: what happened.
            t_s: its time, in seconds since this launch began; now by default.

        Raises:
            StorageError: the disk is full, ...
        """
        t_s = round(self.now() if t_s is None else t_s, 6)
        if self._is_unfinished:
            with_retries(self._complete_line)
        self._is_unfinished = True  # a full disk may accept a part of the line
        add_line(self._file, self._path, {"t_s": t_s, **to_json(event)})
        self._is_unfinished = False
        self._is_synced = self._is_synced and not isinstance(event, _UNDERIVABLE)
        if isinstance(event, CommandReceived):  # whose answer follows
            self.sync()

    def _complete_line(self) -> None:
        with storage_errors(self._path):
            complete_line(self._file)

    def sync(self) -> None:
        """Write events to the disk that later launches cannot derive from checkpoints.

        Call it before such an event has consequences. If a crash lost the event that adds a
        network, the next launch would take the network's checkpoint for that of another one.

        Raises:
            StorageError: the disk is full, ...
        """
        if not self._is_synced:
            self.sync_all()

    def sync_all(self) -> None:
        """Write all events to the disk.

        Raises:
            StorageError: the disk is full, ...
        """
        with_retries(self._sync)
        self._is_synced = True

    def _sync(self) -> None:
        with storage_errors(self._path):
            os.fsync(self._file.fileno())
        if not self._is_named:
            sync_names(self._path.parent)
            self._is_named = True

    def close(self, is_in_use: bool = False) -> None:
        """Write the log to the disk and close it.

        Args:
            is_in_use: True to leave it open, because another thread may be writing to it.
        """
        with suppress(OSError):  # the launch has ended, and its checkpoints are on the disk
            os.fsync(self._file.fileno())
        if not is_in_use:
            self._file.close()

    def now(self) -> float:
        """Return the seconds since this launch began."""
        return self._clock() - self._start

    def date(self) -> float:
        """Return the time in seconds since 1970, by the clock of the file system.

        Clocks of nodes may differ.

        Raises:
            StorageError: the log cannot be touched.
        """
        with storage_errors(self._path):
            os.utime(self._path)
            return self._path.stat().st_mtime


class DatedEvent(NamedTuple):
    """An event of a launch.

    Attributes:
        at: time of the event, in seconds since 1970 by the clock of the file system.
        t_s: seconds since the launch began.
        log: path of the log.
    """

    at: float
    event: Event
    t_s: float
    log: Path


def read_events(
    path: Path, start: int = 0, kinds: Collection[type[JsonRecord]] = ()
) -> Iterator[LoggedEvent]:
    """Return the events of a log, in order.

    Incomplete or damaged lines and unknown kinds are skipped.

    Args:
        path: path of the log; a missing file has no events.
        start: number of bytes to skip: its size at an earlier time.
        kinds: kinds to return; empty for all. In long logs other kinds are skipped much faster than
            parsed.
    """
    records = map(_logged, read_lines(path, start, [kind.word for kind in kinds]))
    return (
        logged
        for logged in records
        if logged is not None and (not kinds or type(logged.event) in kinds)
    )


def _logged(record: Any) -> LoggedEvent | None:
    """Return the event in a JSON value; None if there is none."""
    event = event_from_json(record)
    if event is None or not is_number(t_s := record.get("t_s", 0.0)):
        return None
    return LoggedEvent(float(t_s), event)


def read_run(paths: RunPaths, kinds: Sequence[type[JsonRecord]] = ()) -> Iterator[LoggedEvent]:
    """Return the events of all launches of a run, launch by launch, in the order of their dates.

    Launches of one log keep their order regardless of dates. A launch whose start has no date, as
    FLEET 0.1.0 wrote it, is as old as the one before it.

    Args:
        paths: files of the run.
        kinds: kinds to return besides starts; empty for all.
    """
    return merge_logs(
        read_events(path, kinds=kinds and (LaunchStarted, *kinds)) for path in paths.event_logs()
    )


def read_run_state(paths: RunPaths, kinds: Sequence[type[JsonRecord]] = ()) -> RunState:
    """Return the state of a run from its logs.

    Args:
        paths: files of the run.
        kinds: kinds of events to apply besides starts; empty for all.
    """
    return replay_log(read_run(paths, kinds))


@dataclass
class _ReadPosition:
    """How far a log has been read.

    Attributes:
        size: size in bytes.
        began: when its launch began, to date its events.
        newest: date of its newest event.
    """

    size: int = 0
    began: float = 0.0
    newest: float = 0.0


class RunTail:
    """Reads new events in the logs of all launches of a run.

    Polling costs a listing, the size of each log, and reading what is new. A line that is still
    being written is read once all of its JSON is there, as :func:`read_events` does.

    Args:
        paths: files of the run.
        from_end: True to skip existing events.
        starts: log -> number of bytes to skip.
    """

    def __init__(
        self, paths: RunPaths, from_end: bool = False, starts: Mapping[Path, int] | None = None
    ) -> None:
        self._paths = paths
        if from_end:
            sizes = {path: path.stat().st_size for path in paths.event_logs()}
        else:
            sizes = {}
        self._logs = {
            path: _ReadPosition(size) for path, size in {**sizes, **(starts or {})}.items()
        }

    def poll(self) -> list[DatedEvent]:
        """Return the events since the last call, each with its date, in the order of each log.

        Raises:
            OSError: the file system does not answer; nothing was read, so the next call returns all
                events.
        """
        events: list[DatedEvent] = []
        for path in self._paths.event_logs():
            try:
                events += self._new_of(path)
            except OSError:
                if not events:
                    raise
                break
        return events

    def _new_of(self, path: Path) -> Iterator[DatedEvent]:
        log = self._logs.setdefault(path, _ReadPosition())
        if path.stat().st_size == log.size:
            return
        with open(path, "rb") as file:
            if log.size and not log.began:
                log.began = _launch_start(file.read(log.size))
            file.seek(log.size)
            lines = file.read()
        end = lines.rfind(b"\n") + 1
        # A full disk may have refused only the end of the line of a launch that has ended.
        if parse_json_object(lines[end:]) is None:
            lines = lines[:end]
        log.size += len(lines)
        for line in lines.splitlines():
            logged = _logged(parse_json_object(line))
            if logged is None:
                continue
            if isinstance(logged.event, LaunchStarted):
                log.began = max(logged.event.date - logged.t_s, log.newest)
            log.newest = max(log.newest, log.began + logged.t_s)
            yield DatedEvent(log.newest, logged.event, logged.t_s, path)


def _launch_start(lines: bytes) -> float:
    """Return when the last launch in some lines began."""
    for line in reversed(lines.splitlines()):
        logged = _logged(parse_json_object(line)) if b'"start"' in line else None
        if logged and isinstance(logged.event, LaunchStarted):
            return logged.event.date - logged.t_s
    return 0.0


def events_of(path: Path, kind: type[E]) -> list[E]:
    """Return the events of one kind, in order."""
    return [event for _, event in read_events(path, kinds=(kind,))]  # type: ignore[misc]


def log_position(path: Path) -> tuple[int, int]:
    """Return when a log was last written (nanoseconds), and its size in bytes."""
    if not path.exists():
        return 0, 0
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size


def first_line(path: Path) -> bytes:
    """Return the first line of a log, which is unique because it has a date; empty if missing."""
    try:
        with open(path, "rb") as file:
            return file.readline()
    except FileNotFoundError:
        return b""


def launch_status(status: int, path: Path, before: tuple[int, int]) -> int:
    """Return the exit status of a launch: from its log, or that it ended abnormally.

    The launcher's status does not suffice: Open MPI's mpirun ends with 0 when it loses a node, and
    with another status when the other ranks have survived the death of one. Nor does the log: rank
    0 may crash after its last event, while it writes the results.

    Args:
        status: status of the launcher.
        path: path of the run's event log.
        before: position of the log before the launch.
    """
    after = log_position(path)
    # A log that has shrunk is a new one, of a run that was started over.
    if after == before:
        new = []
    else:
        new = list(read_events(path, before[1] if after[1] > before[1] else 0))
    if new and isinstance(last := new[-1].event, LaunchEnded):
        has_crashed = last.status != ExitStatus.RESUMABLE and status not in (0, last.status)
        if has_crashed and not any(isinstance(logged.event, RankDied) for logged in new):
            return status
        return last.status
    claimed = (ExitStatus.OK, ExitStatus.NETWORK_FAILED, ExitStatus.RESUMABLE)
    if status in claimed:
        return int(ExitStatus.INFRASTRUCTURE)
    return status
