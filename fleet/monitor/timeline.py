"""The launches of a run on one clock: what happened when, and who trained when on which devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, pairwise, takewhile
from typing import TypeAlias

from fleet.domain.events import (
    EpochEnded,
    Event,
    GroupChanged,
    GroupStarted,
    GroupStopped,
    GroupStruck,
    NetworkFailed,
    NetworkRetried,
    Started,
)
from fleet.storage.event_log import Logged
from scheduler.simulation.as_it_ran import Record


@dataclass(frozen=True)
class Killed:
    """The launch that trained a network was killed; no log says so, for nobody was left to write it."""

    network: str


# What a launch may seem to overlap the next one, in seconds and as a share of its time: its own clock and that of the
# file server, which dates it, never quite agree.
_JITTER_S, _DRIFT = 1.0, 1e-3

LetGo: TypeAlias = GroupStopped | NetworkFailed | NetworkRetried | GroupStruck | Killed  # of a network, by its group


@dataclass(frozen=True)
class Moment:
    """Something that happened.

    Attributes:
        t_s: seconds since the first launch began; the time in which there was no launch is left out.
        is_late: whether it is an epoch that a killed launch had saved and only the next one logged.
    """

    t_s: float
    event: Event | Killed
    is_late: bool = False


@dataclass(frozen=True)
class Launch:
    """A launch, from its start to all that is known of it."""

    start: Started
    moments: tuple[Moment, ...]

    @property
    def ended_s(self) -> float:
        """When its last moment was, on the run's clock."""
        return self.moments[-1].t_s

    @cached_property
    def devices(self) -> frozenset[int]:
        """Where its trainers are."""
        return frozenset(self.start.devices)

    @cached_property
    def gpus(self) -> frozenset[int]:
        """Its GPUs, or what takes their place; one with several slots counts once."""
        return frozenset(map(self.gpu, self.devices))

    def gpu(self, device: int) -> int:
        """The GPU of a device, by the number of its first slot."""
        place = device % self.start.gpus_per_node
        return device - place + place % (self.start.gpus_per_node // self.start.slots)

    @property
    def gpu_seconds(self) -> float:
        """The time of all its GPUs."""
        return (self.ended_s - self.moments[0].t_s) * len(self.gpus)


def launches_of(log: Iterable[Logged]) -> list[Launch]:
    """The launches of a run; a log that begins in the middle of one begins with the next.

    They stand one behind the other. Those that were at work at the same time, by their dates, stand side by side, and
    the nodes of each are numbered after those that others had at the time.

    A launch that was killed says neither that its groups are gone nor which epochs it saved last. The next one begins
    by logging these epochs; here they stand where they happened, at the end of the launch before.
    """
    launches: list[Launch] = []
    for start, first, rest in _split(log):
        late = list(takewhile(lambda logged: isinstance(logged.event, EpochEnded), rest))
        now = launches[-1].ended_s if launches else 0.0
        moments = [Moment(now + logged.t_s, logged.event) for logged in (first, *rest[len(late):])]
        if launches:
            saved = [Moment(now, logged.event, is_late=True) for logged in late]
            launches[-1] = _killed(launches[-1], saved)
        else:  # the log of the launch before is gone
            moments[1:1] = [Moment(moments[0].t_s, logged.event, is_late=True) for logged in late]
        launches.append(Launch(start, tuple(moments)))
    return _side_by_side(launches)


def are_side_by_side(launches: Sequence[Launch]) -> bool:
    """Whether some were at work at the same time."""
    return any(later.moments[0].t_s < launch.ended_s for launch, later in pairwise(launches))


def _side_by_side(launches: Sequence[Launch]) -> list[Launch]:
    """Launches, moved to where they belong by their dates."""
    placed: list[Launch] = []
    date, ends_date, began_s, ends_s = 0.0, 0.0, 0.0, 0.0  # of all that are side by side with the latest
    behind_s = 0.0  # where the latest would end, one behind the other
    for launch in launches:
        first_s = launch.moments[0].t_s
        is_beside = 0 < launch.start.date < ends_date - _JITTER_S - _DRIFT * (ends_date - date)
        if not is_beside:
            date, ends_date, began_s = launch.start.date, 0.0, first_s + ends_s - behind_s
        at_s = began_s + (launch.start.date - date)  # a launch that stays where it is does so to the bit
        taken = {device for other in placed if other.ended_s > at_s for device in other.start.devices}
        placed.append(_moved(launch, at_s - first_s, taken if is_beside else set()))
        ends_date = max(ends_date, launch.start.date + launch.ended_s - first_s)
        ends_s, behind_s = max(ends_s, placed[-1].ended_s), launch.ended_s
    return placed


def _moved(launch: Launch, by_s: float, taken: AbstractSet[int]) -> Launch:
    """A launch at another time, on nodes of which no device is taken."""
    size = launch.start.gpus_per_node
    free = (node for node in count() if taken.isdisjoint(range(node * size, (node + 1) * size)))
    nodes = dict(zip(sorted({device // size for device in launch.start.devices}), free, strict=False))
    devices = {device: nodes[device // size] * size + device % size for device in launch.start.devices} if taken else {}

    def numbered(event: Event | Killed) -> Event | Killed:
        match event:
            case GroupStarted() | Started():
                return replace(event, devices=tuple(devices[device] for device in event.devices))
            case GroupChanged():
                return replace(event, devices=tuple(devices[device] for device in event.devices),
                               before=tuple(devices[device] for device in event.before))
        return event

    if not (by_s or devices):
        return launch
    moments = tuple(replace(moment, t_s=moment.t_s + by_s, event=numbered(moment.event) if devices else moment.event)
                    for moment in launch.moments)
    return Launch(replace(launch.start, devices=tuple(devices.values()) or launch.start.devices), moments)


def _split(log: Iterable[Logged]) -> Iterator[tuple[Started, Logged, list[Logged]]]:
    """Each launch's start, the line of it, and the lines that follow."""
    found: tuple[Started, Logged, list[Logged]] | None = None
    for logged in log:
        if isinstance(logged.event, Started):
            if found is not None:
                yield found
            found = logged.event, logged, []
        elif found is not None:
            found[2].append(logged)
    if found is not None:
        yield found


def _killed(launch: Launch, saved: Sequence[Moment]) -> Launch:
    """A launch after which another began, with what it had saved; its groups are gone, whether it said so or not."""
    gone = [Moment(launch.ended_s, Killed(network)) for network in _running(launch)]
    return Launch(launch.start, (*launch.moments, *saved, *gone))


def _running(launch: Launch) -> list[str]:
    """The networks that have devices at a launch's end."""
    running: dict[str, None] = {}
    for moment in launch.moments:
        if isinstance(moment.event, GroupStarted):
            running[moment.event.network] = None
        elif isinstance(moment.event, LetGo):
            running.pop(moment.event.network, None)
    return list(running)


def records_of(moments: Iterable[Moment]) -> list[Record]:
    """Who had which devices, and when epochs ended, as the simulator's replay wants it."""
    records: list[Record] = []
    running: set[str] = set()
    for moment in moments:
        match moment.event:
            case GroupStarted() | GroupChanged() as group:
                running.add(group.network)
                records.append(Record(moment.t_s, "group", group.network, group.devices))
            case EpochEnded(network=name) if name in running:
                records.append(Record(moment.t_s, "epoch", name))
            case (GroupStopped(network=name) | NetworkFailed(network=name) | NetworkRetried(network=name)
                  | GroupStruck(network=name) | Killed(network=name)) if name in running:
                running.remove(name)
                records.append(Record(moment.t_s, "stopped", name))
    return records
