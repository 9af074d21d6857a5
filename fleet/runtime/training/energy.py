"""The energy that a trainer's networks use.

A GPU may have several ranks, and all ranks of a node share its processors. So each rank notes the
time of its steps in shared memory. About once a second it reads the counters, and takes its share:
the time of its own steps, divided by that of the steps of all ranks that share the counter.

A rank with several trainers (:mod:`fleet.comm.trainer_threads`) divides each share among their
networks, again by the time of their steps. It reads the counters once for all of them, and whenever
a network begins or ends, so that the parts of a share add up to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

import numpy as np

from launch.energy import Counter

_EVERY_S = 1.0  # between two readings of the counters
_REPORT_EVERY_S = 60.0  # so that a death loses no more


class Meter(Protocol):
    """Measures the energy of the network that this rank trains."""

    def begin(self) -> None:
        """Begin with another network; what was used before belongs to none."""

    def add_step(self, seconds: float) -> None:
        """Count a step, or several."""

    def is_due(self) -> bool:
        """Return True if the energy should be reported within an epoch."""

    def take(self, is_end: bool = False) -> float:
        """Return the joules since the last call.

        Args:
            is_end: whether the network ends here.
        """


class NoMeter:
    """Where no counter can be read."""

    def begin(self) -> None:
        """See :class:`Meter`."""

    def add_step(self, seconds: float) -> None:
        """See :class:`Meter`."""

    def is_due(self) -> bool:
        """See :class:`Meter`."""
        return False

    def take(self, is_end: bool = False) -> float:
        """See :class:`Meter`."""
        return 0.0


class EnergyMeter:
    """Shares what the counters of a node count.

    Args:
        counters: the counters that this rank reads.
        sharers: of each counter, the indices of the ranks of the node that share it.
        busy: (trainers of the node,) float64, in shared memory: the seconds of the ranks' steps.
        index: index of this rank.
        now: the clock, in seconds.
    """

    def __init__(
        self,
        counters: Sequence[Counter],
        sharers: Sequence[Sequence[int]],
        busy: np.ndarray,
        index: int,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._counters = counters
        self._sharers = [list(indices) for indices in sharers]
        self._busy = busy
        self._index = index
        self._now = now
        self._networks: list[NetworkMeter] = []  # those in training
        self._read_at = now()
        self._values: list[float | None] = [None for _ in counters]
        self._busy_before = busy.copy()

    def make_network_meter(self) -> NetworkMeter:
        """Return the meter of a trainer of this rank."""
        return NetworkMeter(self, self._now)

    def begin(self, network: NetworkMeter) -> None:
        """Let a network have a part from now on."""
        self.end(network)
        if not self._networks:
            self._restart()
        self._networks.append(network)

    def end(self, network: NetworkMeter) -> None:
        """Divide what has been used, and let a network have no part from now on."""
        if self._networks:
            self.read(is_change=True)
        if network in self._networks:
            self._networks.remove(network)

    def add_step(self, network: NetworkMeter, seconds: float) -> None:
        """Count a step of a network, or several."""
        # Before it is counted: networks that step as one have then counted equally many steps.
        if self._now() - self._read_at >= _EVERY_S:
            self.read()
        self._busy[self._index] += seconds
        network.step_s += seconds

    def read(self, is_change: bool = False) -> None:
        """Divide what was used since the last reading.

        If none of the ranks has taken a step meanwhile, as during a long evaluation, the next
        reading includes the time.

        Args:
            is_change: whether a network begins or ends; then each rank takes an equal share even
                without steps, and each of its networks an equal part of it.
        """
        self._read_at = self._now()
        steps = self._busy - self._busy_before
        self._busy_before += steps
        parts = self._divide_steps()
        for number, (counter, sharers) in enumerate(
            zip(self._counters, self._sharers, strict=True)
        ):
            total = steps[sharers].sum()
            if not total and not is_change:
                continue
            before, value = self._values[number], _value(counter)
            if before is not None and value is not None:
                share = steps[self._index] / total if total else 1 / len(sharers)
                joules = share * counter.between(before, value)
                for network, part in zip(self._networks, parts, strict=True):
                    network.joules += part * joules
            self._values[number] = value

    def _divide_steps(self) -> list[float]:
        """Return the part of each network in the steps since the last reading; equal without any.

        The networks count their steps from 0 again.
        """
        seconds = [network.step_s for network in self._networks]
        for network in self._networks:
            network.step_s = 0.0
        total = sum(seconds)
        if not total:
            return [1 / len(seconds) for _ in seconds]
        return [duration / total for duration in seconds]

    def _restart(self) -> None:
        """Leave out what has been used, since no network has trained."""
        self._read_at = self._now()
        self._values = [_value(counter) for counter in self._counters]
        self._busy_before = self._busy.copy()


class NetworkMeter:
    """Measures the energy of a network's part in the share of a rank; see :class:`Meter`.

    Args:
        rank: the meter of the rank.
        now: the clock, in seconds.

    Attributes:
        step_s: seconds of its steps since the rank has read the counters.
        joules: its part that has not been taken yet.
    """

    def __init__(self, rank: EnergyMeter, now: Callable[[], float]) -> None:
        self._rank = rank
        self._now = now
        self._reported_at = now()
        self.step_s = 0.0
        self.joules = 0.0

    def begin(self) -> None:  # noqa: D102 - see Meter
        self._rank.begin(self)
        self._reported_at = self._now()
        self.step_s = 0.0
        self.joules = 0.0

    def add_step(self, seconds: float) -> None:  # noqa: D102
        self._rank.add_step(self, seconds)

    def is_due(self) -> bool:  # noqa: D102
        return self._now() - self._reported_at >= _REPORT_EVERY_S

    def take(self, is_end: bool = False) -> float:  # noqa: D102
        if is_end:
            self._rank.end(self)
        else:
            self._rank.read()
        self._reported_at = self._now()
        joules, self.joules = self.joules, 0.0
        return joules


def _value(counter: Counter) -> float | None:
    """Return the value of a counter; None if it cannot be read, as while a driver is restarted."""
    with suppress(Exception):  # each library has its own errors
        return counter.read()
    return None
