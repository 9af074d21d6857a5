"""How fast consumers went, from the moments at which they had each batch; the standard library alone, so that it
works in any environment.

All processes of a machine have one monotonic clock: their records can be compared. A measurement is the time after a
warm-up in which all consumers were at work.
"""

from __future__ import annotations

import statistics
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence

WARM_UP_S = 1.0


def record(batches: Iterable[object], seconds: float) -> list[float]:
    """Take batches for so long after the first, and the warm-up; returns when each was there."""
    times: list[float] = []
    for _ in batches:
        times.append(time.monotonic())
        if times[-1] - times[0] > WARM_UP_S + seconds:
            break
    return times


def span_of(records: Sequence[Sequence[float]]) -> tuple[float, float]:
    """From when to when all consumers were at work, after the warm-up."""
    begin, end = max(times[0] for times in records) + WARM_UP_S, min(times[-1] for times in records)
    if end <= begin:
        raise RuntimeError(
            "the consumers were not at work at the same time: give them more seconds"
        )
    return begin, end


def value_at(time_s: float, times: Sequence[float], values: Sequence[float]) -> float:
    """A value that was noted now and then, at any moment; straight lines in between."""
    after = min(max(bisect_right(times, time_s), 1), len(times) - 1)
    weight = (time_s - times[after - 1]) / (times[after] - times[after - 1])
    return values[after - 1] + weight * (values[after] - values[after - 1])


def growth(
    times: Sequence[float], values: Sequence[float]
) -> Callable[[tuple[float, float]], float]:
    """By how much a value that was noted now and then grew in a span."""
    return lambda span: value_at(span[1], times, values) - value_at(span[0], times, values)


def each_consumer(records: Sequence[Sequence[float]], batch: int) -> float:
    """Samples/s that each consumer had, on average over them."""
    span = span_of(records)
    return statistics.mean(batch * growth(times, range(len(times)))(span) for times in records) / (
        span[1] - span[0]
    )
