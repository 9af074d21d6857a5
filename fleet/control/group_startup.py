"""How groups start: pending builds, their deadlines, and startup times (pure).

A user's function may never return. A trainer interrupts it after a while, if Python can. A trainer
that sends no message some seconds after that, or after the launch was to end, is unresponsive, and
its build is abandoned.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fleet.control.effects import Outbox
from fleet.domain.events import FirstStep
from fleet.spec import NetworkSpec

# time for a trainer to report that it has interrupted itself, or to return before the launch ends
UNRESPONSIVE_S = 10.0


@dataclass(frozen=True)
class PendingBuild:
    """Devices that build a network together.

    Attributes:
        network: the network.
        devices: the devices, the master's first.
        deadline_s: when building must have ended, on the clock of the controller.
        is_recruit: whether it is a single device that will join a group in training.
    """

    network: NetworkSpec
    devices: tuple[int, ...]
    deadline_s: float
    is_recruit: bool


class PendingBuilds:
    """All pending builds, indexed: each message of thousands of devices asks about them."""

    def __init__(self) -> None:
        self._by_device: dict[int, PendingBuild] = {}  # by the first of its devices
        self._devices_of: defaultdict[str, set[int]] = defaultdict(set)  # network -> these devices
        self._until: list[tuple[float, int]] = []  # heap of deadlines and devices; some have ended

    def start(
        self, network: NetworkSpec, devices: Sequence[int], now_s: float, is_recruit: bool = False
    ) -> None:
        """Add a build.

        Args:
            network: the network.
            devices: the devices that build it.
            now_s: the time.
            is_recruit: whether it is a single device that will join a group in training.
        """
        until_s = now_s + network.train.build_timeout
        self.end_device(devices[0])
        self._by_device[devices[0]] = PendingBuild(network, tuple(devices), until_s, is_recruit)
        self._devices_of[network.name].add(devices[0])
        heapq.heappush(self._until, (until_s, devices[0]))

    def end_device(self, device: int) -> None:
        """End the build whose first device is this one, if there is one."""
        build = self._by_device.pop(device, None)
        if build is not None:
            self._devices_of[build.network.name].discard(device)

    def end(self, network: str, gpus: int | None = None) -> None:
        """End the build of a network's group, or of its measurement on some number of GPUs.

        Args:
            network: its name.
            gpus: size of the group; None for any.
        """
        for device in list(self._devices_of.get(network, ())):
            build = self._by_device[device]
            if not build.is_recruit and gpus in (None, len(build.devices)):
                self.end_device(device)

    def drop_devices(self, devices: Iterable[int]) -> None:
        """Drop the builds of devices that were removed."""
        removed = set(devices)
        for device, build in list(self._by_device.items()):
            if removed.intersection(build.devices):
                self.end_device(device)

    def find_overdue(self, now_s: float, ends_s: float) -> list[PendingBuild]:
        """Return the builds that are overdue.

        Args:
            now_s: the time.
            ends_s: when the launch was to end; infinity if it continues.
        """
        if now_s < self.next_deadline_s(ends_s):
            return []
        return [
            build
            for build in self._by_device.values()
            if now_s >= min(build.deadline_s, ends_s) + UNRESPONSIVE_S
        ]

    def next_deadline_s(self, ends_s: float) -> float:
        """Return when the next build is overdue; infinity if nothing is being built."""
        while self._until and not self._is_due(*self._until[0]):
            heapq.heappop(self._until)
        if self._until:
            return min(self._until[0][0], ends_s) + UNRESPONSIVE_S
        return float("inf")

    def _is_due(self, until_s: float, device: int) -> bool:
        """Return True if the device's current build has this deadline."""
        build = self._by_device.get(device)
        return build is not None and build.deadline_s == until_s


class StartupTimes:
    """How long groups of this launch took to start, and whether another one still can.

    An interrupted group saves anywhere in an epoch, so a group makes progress if it is built and
    takes one step. The slowest start of this launch is the estimate for the next one. Before any
    group has trained it is never too late: the next launch has no more time than this one.

    Args:
        ends_s: when the walltime ends, in seconds of the same clock; infinity without a walltime.
        outbox: collects effects, and holds the time.

    Attributes:
        longest_s: the slowest start so far.
    """

    def __init__(self, ends_s: float, outbox: Outbox) -> None:
        self._ends_s = ends_s
        self._outbox = outbox
        self._has_stepped = False
        self._started: dict[str, float] = {}  # networks whose groups have not reported training
        self._builds: dict[str, float] = {}  # network -> build time of its latest group
        self.longest_s = 0.0

    def begin_group(self, network: str) -> None:
        """Record the start of a group."""
        self._started[network] = self._outbox.now_s

    def is_awaited(self, network: str) -> bool:
        """Return True if a group was started and has not reported training yet."""
        return network in self._started

    def record_build(self, network: str) -> None:
        """Record that a group has built its network."""
        began = self._started.get(network)
        if began is not None:
            self._builds[network] = self._outbox.now_s - began

    def record_training(self, network: str) -> None:
        """Record that a group reported training, or that there is nothing left to train."""
        began = self._started.pop(network, None)
        if began is not None:
            self.longest_s = max(self.longest_s, self._outbox.now_s - began)

    def record_step(self, network: str) -> None:
        """Record that a group reported training; log the first step of the launch."""
        self.record_training(network)
        if not self._has_stepped:
            self._has_stepped = True
            self._outbox.log(FirstStep(network, self._builds.get(network, 0.0)))

    @property
    def time_left_s(self) -> float:
        """The seconds until the walltime ends; infinity without a walltime."""
        return max(0.0, self._ends_s - self._outbox.now_s)

    @property
    def is_too_late(self) -> bool:
        """Whether a group that starts now would hardly train before the walltime ends."""
        return self.time_left_s < self.longest_s
