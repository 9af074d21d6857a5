"""How groups start: who builds a network, since when, and how long it takes until it trains (pure).

A function of a user's may never come back. A trainer interrupts what takes too long by itself, as far as Python can be
interrupted there. One that has not said anything some seconds after that, or after the launch was to end, is deaf:
nobody waits for it any longer.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fleet.control.effects import Outbox
from fleet.domain.events import FirstStep
from fleet.spec import NetworkSpec

DEAF_S = 10.0  # for a trainer to say that it has interrupted itself, or to come back before the launch ends


@dataclass(frozen=True)
class Building:
    """Some devices that build a network together.

    Attributes:
        until_s: when building may take no longer, on the clock of the ensemble.
        is_recruit: whether it is one device alone, which is to join a group that trains.
    """

    network: NetworkSpec
    devices: tuple[int, ...]
    until_s: float
    is_recruit: bool


class Buildings:
    """All that is being built."""

    def __init__(self) -> None:
        self._by_device: dict[int, Building] = {}  # of the first of its devices
        self._devices_of: defaultdict[str, set[int]] = defaultdict(set)  # network -> these devices
        self._until: list[
            tuple[float, int]
        ] = []  # a heap of when each is late, and that device; some are over

    def begin(
        self, network: NetworkSpec, devices: Sequence[int], now_s: float, is_recruit: bool = False
    ) -> None:
        """Devices have been told to build a network."""
        until_s = now_s + network.train.build_timeout
        self.end_of(devices[0])
        self._by_device[devices[0]] = Building(network, tuple(devices), until_s, is_recruit)
        self._devices_of[network.name].add(devices[0])
        heapq.heappush(self._until, (until_s, devices[0]))

    def end_of(self, device: int) -> None:
        """The first of some devices has said that all of them have built the network."""
        building = self._by_device.pop(device, None)
        if building is not None:
            self._devices_of[building.network.name].discard(device)

    def end(self, network: str, gpus: int | None = None) -> None:
        """A network's group, or one that measures it on so many devices, is past building it."""
        for device in list(self._devices_of.get(network, ())):
            building = self._by_device[device]
            if not building.is_recruit and gpus in (None, len(building.devices)):
                self.end_of(device)

    def lose(self, devices: Iterable[int]) -> None:
        """Some devices are no more: those that built with them are dealt with otherwise."""
        lost = set(devices)
        for device, building in list(self._by_device.items()):
            if lost.intersection(building.devices):
                self.end_of(device)

    def deaf(self, now_s: float, ends_s: float) -> list[Building]:
        """Those that nobody waits for any longer.

        Args:
            ends_s: when the launch was to end; infinity if it goes on.
        """
        if now_s < self.wakes_s(ends_s):
            return []
        return [
            building
            for building in self._by_device.values()
            if now_s >= min(building.until_s, ends_s) + DEAF_S
        ]

    def wakes_s(self, ends_s: float) -> float:
        """When the next of them is deaf; infinity where nothing is built."""
        while self._until and not self._is_due(*self._until[0]):
            heapq.heappop(self._until)
        if self._until:
            return min(self._until[0][0], ends_s) + DEAF_S
        return float("inf")

    def _is_due(self, until_s: float, device: int) -> bool:
        """Whether what a device builds is late at this time."""
        building = self._by_device.get(device)
        return building is not None and building.until_s == until_s


class StartupTimes:
    """How long groups of this launch took to start, and whether another one still can.

    A group that is interrupted saves wherever it is in an epoch, so all that it needs to have come further is to
    be built and to take a step. How long that takes is learned from the groups of this launch: the longest it
    took any of them to tell of training. Before one has, it is never too late: the next launch has no more time
    than this one, so a network that waits for it may wait for ever.

    Args:
        ends_s: when the walltime will be a reason to stop; None where it never is. All times are seconds of one clock.
        outbox: takes what is to be said.
    """

    def __init__(self, ends_s: float | None, outbox: Outbox) -> None:
        self._ends_s = ends_s
        self._outbox = outbox
        self._has_stepped = False
        self._started: dict[str, float] = {}  # the networks of which nothing has been heard since
        self._builds: dict[
            str, float
        ] = {}  # how long it took the latest group of each network until it was built
        self.longest_s: float | None = None

    def started(self, network: str, now_s: float) -> None:
        """A group was told to start."""
        self._started[network] = now_s

    def is_awaited(self, network: str) -> bool:
        """Whether a group that was told to start has told of no training yet."""
        return network in self._started

    def built(self, network: str, now_s: float) -> None:
        """A group has built its network."""
        began = self._started.get(network)
        if began is not None:
            self._builds[network] = now_s - began

    def trained(self, network: str, now_s: float) -> None:
        """A group told of training, or that there is nothing left to train."""
        began = self._started.pop(network, None)
        if began is not None:
            self.longest_s = max(self.longest_s or 0.0, now_s - began)

    def stepped(self, network: str, now_s: float) -> None:
        """A group told of training; the first to do so tells how long it took until it was built."""
        self.trained(network, now_s)
        if not self._has_stepped:
            self._has_stepped = True
            self._outbox.note(FirstStep(network, self._builds.get(network, 0.0)))

    def left_s(self, now_s: float) -> float | None:
        """Seconds until the walltime is a reason to stop; None where it never is."""
        if self._ends_s is None:
            return None
        return max(0.0, self._ends_s - now_s)

    def is_too_late(self, now_s: float) -> bool:
        """Whether a group that starts now would hardly come to train."""
        left = self.left_s(now_s)
        return left is not None and self.longest_s is not None and left < self.longest_s
