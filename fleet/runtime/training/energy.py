"""The energy that a trainer's networks use.

A GPU may have several trainers, and all trainers of a node share its processors. So each trainer
notes the time of its steps in shared memory. About once a second it reads the counters, and takes
its share: the time of its own steps, divided by that of the steps of all that share the counter.
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
    """Shares what the counters of a node count; see :class:`Meter`.

    Args:
        counters: the counters that this rank reads.
        sharers: of each counter, the indices of the trainers of the node that share it.
        busy: (trainers of the node,) float64, in shared memory: the seconds of their steps.
        index: index of this trainer.
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
        self.begin()

    def begin(self) -> None:  # noqa: D102 - see Meter
        self._joules = 0.0
        self._read_at = self._reported_at = self._now()
        self._values = [_value(counter) for counter in self._counters]
        self._busy_before = self._busy.copy()

    def add_step(self, seconds: float) -> None:  # noqa: D102
        self._busy[self._index] += seconds
        if self._now() - self._read_at >= _EVERY_S:
            self._read()

    def is_due(self) -> bool:  # noqa: D102
        return self._now() - self._reported_at >= _REPORT_EVERY_S

    def take(self, is_end: bool = False) -> float:  # noqa: D102
        self._read(is_end)
        self._reported_at = self._now()
        joules, self._joules = self._joules, 0.0
        return joules

    def _read(self, is_end: bool = False) -> None:
        """Add this trainer's share of what was used since the last reading.

        If none of the sharers has taken a step meanwhile, as during a long evaluation, the next
        reading includes the time; at the end of a network, each sharer takes an equal part.
        """
        self._read_at = self._now()
        steps = self._busy - self._busy_before
        self._busy_before += steps
        for number, (counter, sharers) in enumerate(
            zip(self._counters, self._sharers, strict=True)
        ):
            total = steps[sharers].sum()
            if not total and not is_end:
                continue
            before, value = self._values[number], _value(counter)
            if before is not None and value is not None:
                share = steps[self._index] / total if total else 1 / len(sharers)
                self._joules += share * counter.between(before, value)
            self._values[number] = value


def _value(counter: Counter) -> float | None:
    """Return the value of a counter; None if it cannot be read, as while a driver is restarted."""
    with suppress(Exception):  # each library has its own errors
        return counter.read()
    return None
