"""The event log: every decision and every epoch of a run, a JSON object a line.

It is written by the coordinator alone, is only ever appended to, and says enough to replay the run in
the simulator and to draw the report. A run that is resumed goes on in the same file. Where several launches work on a
run at a time, each has a log of its own; :func:`read_run` reads all of them as one, and :class:`RunTail` goes on
reading while they grow.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fleet.domain.events import Ended, Event, Started, event_from_json
from fleet.domain.json_record import Kind, is_finite, to_json
from fleet.errors import ExitStatus
from fleet.storage.files import storage_errors
from fleet.storage.json_lines import add_line, open_lines, parse_json_object, read_lines
from fleet.storage.paths import RunPaths

E = TypeVar("E", bound=Kind)


class EventLog:
    """Appends to a run's event log.

    Args:
        path: of the file.
        clock: seconds, from any origin; a test may give its own.
    """

    def __init__(self, path: Path, clock: Any = time.monotonic) -> None:
        self._path = path
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open_lines(path)
        self._clock = clock
        self._start = clock()

    def add(self, event: Event) -> None:
        """Append one event; ``t_s`` is seconds since this launch began; NaN becomes null.

        Raises:
            StorageError: the disk is full, ...
        """
        add_line(self._file, self._path, {"t_s": round(self.now(), 6), **to_json(event)})

    def close(self) -> None:
        """The run is over."""
        self._file.close()

    def now(self) -> float:
        """Seconds since this launch began."""
        return self._clock() - self._start

    def date(self) -> float:
        """What time it is, in seconds since 1970, by the clock of the file system: those of nodes may differ.

        Raises:
            StorageError: the log cannot be touched.
        """
        with storage_errors(self._path):
            os.utime(self._path)
            return self._path.stat().st_mtime


class LoggedEvent(NamedTuple):
    """An event of a log, and when it was written, in seconds since its launch began."""

    t_s: float
    event: Event


class DatedEvent(NamedTuple):
    """An event of a launch.

    Attributes:
        at: when it happened, in seconds since 1970 by the clock of the file system.
        t_s: seconds since the launch began.
        log: in which it stands.
    """

    at: float
    event: Event
    t_s: float
    log: Path


def read_events(
    path: Path, start: int = 0, kinds: Collection[type[Kind]] = ()
) -> Iterator[LoggedEvent]:
    """The events of a run, in order.

    Lines that a killed run left half written, damaged lines and unknown kinds are passed over.

    Args:
        path: of the log; one that is not there has none.
        start: bytes to leave out: its size at some earlier time.
        kinds: that are wanted; all where none are named. Of long logs the others are passed over much faster than read.
    """
    records = map(_logged, read_lines(path, start, [kind.word for kind in kinds]))
    return (
        logged
        for logged in records
        if logged is not None and (not kinds or type(logged.event) in kinds)
    )


def _logged(record: Any) -> LoggedEvent | None:
    """The event that a value of JSON tells of; None where it tells of none."""
    event = event_from_json(record)
    if event is None or not is_finite(t_s := record.get("t_s", 0.0)):
        return None
    return LoggedEvent(float(t_s), event)


def read_run(paths: RunPaths, kinds: Sequence[type[Kind]] = ()) -> Iterator[LoggedEvent]:
    """The events of all launches of a run, whichever log they are in: launch by launch, in the order of their dates.

    Launches of one log keep their order, whatever their dates are. A launch whose start has no date, as FLEET 0.1.0
    wrote it, is as old as the one before it.

    Args:
        kinds: that are wanted beside starts; all where none are named.
    """
    return merge_logs(
        read_events(path, kinds=kinds and (Started, *kinds)) for path in paths.event_logs()
    )


def merge_logs(logs: Iterable[Iterable[LoggedEvent]]) -> Iterator[LoggedEvent]:
    """The events of several logs, as :func:`read_run` has them."""
    launches = [launch for log in logs for launch in split_launches(log)]
    return chain.from_iterable(
        events for _, events in sorted(launches, key=lambda launch: launch[0])
    )


def split_launches(log: Iterable[LoggedEvent]) -> list[tuple[float, list[LoggedEvent]]]:
    """The launches of a log, each with its date; what comes before the first start is one as well."""
    launches: list[tuple[float, list[LoggedEvent]]] = []
    for logged in log:
        if isinstance(logged.event, Started) or not launches:
            date = logged.event.date if isinstance(logged.event, Started) else 0.0
            launches.append((max(date, launches[-1][0] if launches else 0.0), []))
        launches[-1][1].append(logged)
    return launches


@dataclass
class _ReadPosition:
    """How far a log has been read.

    Attributes:
        size: bytes.
        began: when its launch began, so that its events can be dated.
        newest: the date of its newest event.
    """

    size: int = 0
    began: float = 0.0
    newest: float = 0.0


class RunTail:
    """Reads what is new in the logs of all launches of a run, whichever they are by then.

    A look costs a listing, the size of each log, and what is new; only whole lines are read.

    Args:
        paths: of the run.
        from_end: pass over what is there now.
        starts: log -> bytes to pass over.
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
        """The events since the last look, each with its date; those of a log in their order.

        Raises:
            OSError: the file system does not answer; nothing was read, so the next look misses nothing.
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
        lines = lines[: lines.rfind(b"\n") + 1]
        log.size += len(lines)
        for line in lines.splitlines():
            logged = _logged(parse_json_object(line))
            if logged is None:
                continue
            if isinstance(logged.event, Started):
                log.began = max(logged.event.date - logged.t_s, log.newest)
            log.newest = max(log.newest, log.began + logged.t_s)
            yield DatedEvent(log.newest, logged.event, logged.t_s, path)


def _launch_start(lines: bytes) -> float:
    """When the last launch began of which some lines tell."""
    starts = (
        _logged(parse_json_object(line))
        for line in reversed(lines.splitlines())
        if b'"start"' in line
    )
    logged = next((start for start in starts if start and isinstance(start.event, Started)), None)
    if logged and isinstance(logged.event, Started):
        return logged.event.date - logged.t_s
    return 0.0


def events_of(path: Path, kind: type[E]) -> list[E]:
    """The events of one kind, in order."""
    return [event for _, event in read_events(path, kinds=(kind,))]  # type: ignore[misc]


def log_position(path: Path) -> tuple[int, int]:
    """When a log was last written (nanoseconds), and its size in bytes; they differ once it is written again."""
    if not path.exists():
        return 0, 0
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size


def first_line(path: Path) -> bytes:
    """Of a log; empty where there is none. No two logs have the same: it has the date of the launch."""
    try:
        with open(path, "rb") as file:
            return file.readline()
    except FileNotFoundError:
        return b""


def launch_status(status: int, path: Path, before: tuple[int, int]) -> int:
    """How a launch ended: as it says itself in the log, and otherwise it broke off.

    The launcher's word is not enough: Open MPI's mpirun ends with 0 when it loses a node.

    Args:
        status: of the launcher.
        path: of the run's event log.
        before: its mark from before the launch.
    """
    after = log_position(path)
    # A log that has become smaller is another one, of a run that was started over.
    if after == before:
        new = []
    else:
        new = list(read_events(path, before[1] if after[1] > before[1] else 0))
    if new and isinstance(last := new[-1].event, Ended):
        return last.status
    claimed = (ExitStatus.OK, ExitStatus.NETWORK_FAILED, ExitStatus.RESUMABLE)
    if status in claimed:
        return int(ExitStatus.INFRASTRUCTURE)
    return status
