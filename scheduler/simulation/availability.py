"""Track how many processors are free over time: the availability profile of a batch system."""

from __future__ import annotations

import math
from bisect import bisect_right


class Availability:
    """A step function of time: the processors that no run and no reservation holds.

    The last step lasts forever. Steps in the past are dropped as the simulation asks for later
    ones.

        >>> free = Availability(10)
        >>> free.reserve(0, 4, 6)
        >>> free.reserve(2, 3, 4)
        >>> free.free_until(0, 4), free.free_until(0, 5), free.earliest_start(5, 1, 0)
        (2.0, 0.0, 4.0)
    """

    def __init__(self, processors: int, start: float = 0.0) -> None:
        self._times = [float(start)]
        self._free = [processors]

    def reserve(self, start: float, end: float, processors: int) -> None:
        """Hold processors from ``start`` to ``end``."""
        self._add(start, end, -processors)

    def release(self, start: float, end: float, processors: int) -> None:
        """Give back processors that were held from ``start`` to ``end``."""
        self._add(start, end, processors)

    def at(self, time: float) -> int:
        """Return the free processors at a moment."""
        return self._free[self._index(time)]

    def free_until(self, time: float, processors: int) -> float:
        """Return the moment up to which so many stay free from ``time`` on."""
        for index in range(self._index(time), len(self._times)):
            if self._free[index] < processors:
                return max(self._times[index], float(time))
        return math.inf

    def min_free(self, start: float, end: float) -> int:
        """Return the fewest free processors from ``start`` to ``end``."""
        first = self._index(start)
        last = first + 1
        while last < len(self._times) and self._times[last] < end:
            last += 1
        return min(self._free[first:last])

    def earliest_start(self, processors: int, duration: float, after: float) -> float:
        """Return the first moment from ``after`` on at which so many are free for ``duration``."""
        times = self._times
        free = self._free
        index = self._index(after)
        steps = len(times)
        while True:
            while free[index] < processors:  # in the last step all are free
                index += 1
            start = max(times[index], float(after))
            end = start + duration
            while index < steps and times[index] < end and free[index] >= processors:
                index += 1
            if index == steps or times[index] >= end:
                return start

    def forget(self, before: float) -> None:
        """Drop the steps that ended before a moment."""
        past = self._index(before)
        del self._times[:past], self._free[:past]

    def _index(self, time: float) -> int:
        return max(bisect_right(self._times, time) - 1, 0)

    def _add(self, start: float, end: float, change: int) -> None:
        first = self._step_at(start)
        last = self._step_at(end)
        for index in range(first, last):
            self._free[index] += change
        for index in (last, first):  # a step that no longer differs from the one before is none
            if 0 < index < len(self._free) and self._free[index] == self._free[index - 1]:
                del self._times[index], self._free[index]

    def _step_at(self, time: float) -> int:
        """Return the index of the step that begins at ``time``; insert it if needed."""
        index = self._index(time)
        if self._times[index] < time:
            index += 1
            self._times.insert(index, float(time))
            self._free.insert(index, self._free[index - 1])
        return index
