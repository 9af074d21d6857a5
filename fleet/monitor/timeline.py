"""The launches of a run on one clock, and what the run was at any time of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import count, pairwise, takewhile

from fleet.domain.events import Event, GroupChanged, GroupStarted, LaunchEnded, LaunchStarted
from fleet.domain.run import LaunchKilled, RunLaunch, RunState
from fleet.spec import Spec
from fleet.storage.event_log import LoggedEvent, split_launches

# What a launch may seem to overlap the next one, in seconds and as a share of its time: its own clock and that of the
# file server, which dates it, never quite agree.
_JITTER_S = 1.0
_DRIFT = 1e-3
_UNSEEN_S = (
    5.0  # for which one that shares networks may hold none yet, so that others do not see it
)


@dataclass(frozen=True)
class PlacedLaunch:
    """A launch on the clock of the run, on which the time without a launch is left out.

    Attributes:
        lines: of its log, its start first.
        offset_s: what is added to its own seconds.
        devices: their numbers among those of all launches that are at work, where these differ from its own.
    """

    start: LaunchStarted
    lines: Sequence[LoggedEvent]
    offset_s: float
    devices: dict[int, int]

    @property
    def began_s(self) -> float:
        """When it began."""
        return self.offset_s + self.lines[0].t_s

    @property
    def ended_s(self) -> float:
        """When its last line was written."""
        return self.offset_s + self.lines[-1].t_s

    def dated_events(self) -> Iterator[tuple[float, Event]]:
        """What happened, and when."""
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
    """The launches of a run; a log that begins in the middle of one begins with the next.

    They stand one behind the other. Those that were at work at the same time stand side by side by their dates, and the
    nodes of each are numbered after those that others had at the time.

    Args:
        log: of all launches, one behind the other in the order of their dates.
    """
    found: list[PlacedLaunch] = []
    # of all that are side by side with the latest
    date = 0.0
    ends_date = 0.0
    began_s = 0.0
    for _, lines in split_launches(log):
        if not isinstance(start := lines[0].event, LaunchStarted):
            continue
        own_s = lines[-1].t_s - lines[0].t_s
        first_s = lines[0].t_s
        overlaps = 0 < start.date < ends_date - _JITTER_S - _DRIFT * (ends_date - date)
        is_beside = bool(found) and (
            overlaps
            if start.beside is None
            # it is alone, or the log is an older one
            else start.beside or _is_unseen(found, start.date)
        )
        if is_beside:
            at_s = began_s + (start.date - date)
            taken = {device for one in found if one.ended_s > at_s for device in _devices(one)}
            lines[0] = LoggedEvent(first_s, replace(start, beside=True))
            found.append(PlacedLaunch(start, lines, at_s - first_s, _renumbered(start, taken)))
        else:
            by_s = max((one.ended_s for one in found), default=0.0)
            found.append(PlacedLaunch(start, lines, by_s, {}))
            date = start.date
            ends_date = 0.0
            began_s = by_s + first_s
        ends_date = max(ends_date, start.date + own_s)
    return found


def _is_unseen(found: Sequence[PlacedLaunch], date: float) -> bool:
    """Whether one was at work on some date that nobody could have seen, since it had just begun.

    That follows from what was logged by then, so that a log which ends soon after says the same.
    """
    just_begun = takewhile(lambda one: date - one.start.date < _UNSEEN_S, reversed(found))
    return any(
        not isinstance(one.lines[-1].event, LaunchEnded)
        or one.start.date + one.lines[-1].t_s - one.lines[0].t_s > date
        for one in just_begun
    )


def are_concurrent(launches: Sequence[PlacedLaunch | RunLaunch]) -> bool:
    """Whether some were at work at the same time."""
    return any(later.began_s < launch.ended_s for launch, later in pairwise(launches))


def _devices(launch: PlacedLaunch) -> Iterable[int]:
    return launch.devices.values() or launch.start.devices


def _renumbered(start: LaunchStarted, taken: AbstractSet[int]) -> dict[int, int]:
    """The devices of a launch on nodes of which none is taken; nothing where it can keep its own."""
    if not taken:
        return {}
    size = start.gpus_per_node
    free = (node for node in count() if taken.isdisjoint(range(node * size, (node + 1) * size)))
    nodes = dict(zip(sorted({device // size for device in start.devices}), free, strict=False))
    return {device: nodes[device // size] * size + device % size for device in start.devices}


def log_until(log: Iterable[LoggedEvent], t_s: float) -> list[LoggedEvent]:
    """What a run had logged by some time of its clock."""
    return [
        logged
        for launch in place_launches(log)
        for logged in launch.lines
        if launch.offset_s + logged.t_s <= t_s
    ]


def dated_events(log: Iterable[LoggedEvent]) -> list[tuple[float, Event | LaunchKilled, int]]:
    """What happened in a run: when, and in which of its launches, in the order of time.

    A launch after which another began is over, and its groups are gone, whether it has said so or not.
    """
    launches = place_launches(log)
    moments: list[tuple[float, Event | LaunchKilled, int]] = []
    for place, launch in enumerate(launches):
        moments += [(t_s, event, place) for t_s, event in launch.dated_events()]
        if place < len(launches) - 1:
            moments.append((launch.ended_s, LaunchKilled(), place))
    if are_concurrent(launches):
        moments.sort(key=lambda moment: moment[0])
    return moments


def replay_log(log: Iterable[LoggedEvent], spec: Spec | None = None) -> RunState:
    """What a run is by its log."""
    state = RunState(spec)
    for t_s, event, launch in dated_events(log):
        state.apply(t_s, event, launch)
    return state
