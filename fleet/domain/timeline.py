"""Put the launches of a run on one clock, and return the state of the run at any time (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import chain, count, pairwise, takewhile
from typing import NamedTuple

from fleet.domain.events import Event, GroupChanged, GroupStarted, LaunchEnded, LaunchStarted
from fleet.domain.run import LaunchKilled, RunState
from fleet.domain.run_launch import RunLaunch
from fleet.spec import Spec

# Apparent overlap of consecutive launches, in seconds and as a share of their time: the clock of a
# launch and that of the file server, which dates it, never quite agree.
_JITTER_S = 1.0
_DRIFT = 1e-3
_UNSEEN_S = 5.0  # a launch may hold no network for this time, so that others do not see it


class LoggedEvent(NamedTuple):
    """An event of a log, and when it was written, in seconds since its launch began."""

    t_s: float
    event: Event


def split_launches(log: Iterable[LoggedEvent]) -> list[tuple[float, list[LoggedEvent]]]:
    """Split a log into launches with their dates; events before the first start are one, too."""
    launches: list[tuple[float, list[LoggedEvent]]] = []
    for logged in log:
        if isinstance(logged.event, LaunchStarted) or not launches:
            date = logged.event.date if isinstance(logged.event, LaunchStarted) else 0.0
            launches.append((max(date, launches[-1][0] if launches else 0.0), []))
        launches[-1][1].append(logged)
    return launches


def merge_logs(logs: Iterable[Iterable[LoggedEvent]]) -> Iterator[LoggedEvent]:
    """Return the events of several logs launch by launch, in the order of their dates."""
    launches = [launch for log in logs for launch in split_launches(log)]
    return chain.from_iterable(
        events for _, events in sorted(launches, key=lambda launch: launch[0])
    )


@dataclass(frozen=True)
class PlacedLaunch:
    """A launch on the clock of the run, which leaves out the time without a launch.

    Attributes:
        start: its start.
        lines: its log, beginning with its start.
        offset_s: seconds that are added to its own clock.
        devices: their numbers among those of all concurrent launches, if they differ from its own.
    """

    start: LaunchStarted
    lines: Sequence[LoggedEvent]
    offset_s: float
    devices: dict[int, int]

    @property
    def began_s(self) -> float:
        """The time of its start."""
        return self.offset_s + self.lines[0].t_s

    @property
    def ended_s(self) -> float:
        """The time of its last line."""
        return self.offset_s + self.lines[-1].t_s

    def dated_events(self) -> Iterator[tuple[float, Event]]:
        """Yield the events with their times."""
        for t_s, event in self.lines:
            yield self.offset_s + t_s, self._numbered(event) if self.devices else event

    def _numbered(self, event: Event) -> Event:
        match event:
            case GroupStarted() | LaunchStarted():
                return replace(event, devices=self._renumber(event.devices))
            case GroupChanged():
                return replace(
                    event,
                    devices=self._renumber(event.devices),
                    before=self._renumber(event.before),
                )
        return event

    def _renumber(self, devices: Iterable[int]) -> tuple[int, ...]:
        return tuple(self.devices[device] for device in devices)


def place_launches(log: Iterable[LoggedEvent]) -> list[PlacedLaunch]:
    """Return the launches of a run; an incomplete launch at the beginning of the log is skipped.

    They follow each other. Concurrent launches are placed by their dates, and each launch gets node
    numbers that no other launch used at the time.

    Args:
        log: the logs of all launches, in the order of their dates.
    """
    launches: list[PlacedLaunch] = []
    # Of the latest launch and all launches concurrent with it.
    date = 0.0
    ends_date = 0.0
    began_s = 0.0
    for _, lines in split_launches(log):
        if not isinstance(start := lines[0].event, LaunchStarted):
            continue
        own_s = lines[-1].t_s - lines[0].t_s
        first_s = lines[0].t_s
        overlaps = 0 < start.date < ends_date - _JITTER_S - _DRIFT * (ends_date - date)
        if start.beside is None:  # a launch that runs alone, or an older log
            is_beside = overlaps
        else:
            is_beside = start.beside or _is_unseen(launches, start.date)
        if launches and is_beside:
            at_s = began_s + (start.date - date)
            used_devices = {
                device
                for launch in launches
                if launch.ended_s > at_s
                for device in _devices(launch)
            }
            lines[0] = LoggedEvent(first_s, replace(start, beside=True))
            launches.append(
                PlacedLaunch(start, lines, at_s - first_s, _renumbered(start, used_devices))
            )
        else:
            by_s = max((launch.ended_s for launch in launches), default=0.0)
            launches.append(PlacedLaunch(start, lines, by_s, {}))
            date = start.date
            ends_date = 0.0
            began_s = by_s + first_s
        ends_date = max(ends_date, start.date + own_s)
    return launches


def _is_unseen(launches: Sequence[PlacedLaunch], date: float) -> bool:
    """Return True if a launch that had just started was active at a date, unseen by others.

    This depends only on what was logged by then, so that a truncated log gives the same result.
    """
    just_begun = takewhile(lambda launch: date - launch.start.date < _UNSEEN_S, reversed(launches))
    return any(
        not isinstance(launch.lines[-1].event, LaunchEnded)
        or launch.start.date + launch.lines[-1].t_s - launch.lines[0].t_s > date
        for launch in just_begun
    )


def are_concurrent(launches: Sequence[PlacedLaunch | RunLaunch]) -> bool:
    """Return True if some launches were active at the same time."""
    return any(later.began_s < launch.ended_s for launch, later in pairwise(launches))


def _devices(launch: PlacedLaunch) -> Iterable[int]:
    return launch.devices.values() or launch.start.devices


def _renumbered(start: LaunchStarted, used_devices: AbstractSet[int]) -> dict[int, int]:
    """Map the devices of a launch to nodes that are not in use; empty if it keeps its own."""
    if not used_devices:
        return {}
    size = start.gpus_per_node
    free = (
        node for node in count() if used_devices.isdisjoint(range(node * size, (node + 1) * size))
    )
    nodes = dict(zip(sorted({device // size for device in start.devices}), free, strict=False))
    return {device: nodes[device // size] * size + device % size for device in start.devices}


def log_until(log: Iterable[LoggedEvent], t_s: float) -> list[LoggedEvent]:
    """Return what a run had logged by a time of its clock."""
    return [
        logged
        for launch in place_launches(log)
        for logged in launch.lines
        if launch.offset_s + logged.t_s <= t_s
    ]


def dated_events(log: Iterable[LoggedEvent]) -> list[tuple[float, Event | LaunchKilled, int]]:
    """Return the events of a run with their times and launches, in the order of time.

    A launch that another one followed has ended, and so have its groups, whether logged or not.
    """
    launches = place_launches(log)
    moments: list[tuple[float, Event | LaunchKilled, int]] = []
    for index, launch in enumerate(launches):
        moments += [(t_s, event, index) for t_s, event in launch.dated_events()]
        if index < len(launches) - 1:
            moments.append((launch.ended_s, LaunchKilled(), index))
    if are_concurrent(launches):
        moments.sort(key=lambda moment: moment[0])
    return moments


def replay_log(log: Iterable[LoggedEvent], spec: Spec | None = None) -> RunState:
    """Return the state of a run from its log."""
    state = RunState(spec)
    for t_s, event, launch in dated_events(log):
        state.apply(t_s, event, launch)
    return state
