"""Compute the throughput of consumers from the times at which they received their batches.

Uses only the standard library, so that it works in any environment. All processes of a machine
share one monotonic clock: their records can be compared. A measurement is the time after a warm-up
in which all consumers were active.
"""

from __future__ import annotations

import statistics
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence

WARM_UP_S = 1.0


def record(batches: Iterable[object], seconds: float) -> list[float]:
    """Take batches for ``seconds`` after the first one and the warm-up; return arrival times."""
    times: list[float] = []
    for _ in batches:
        times.append(time.monotonic())
        if times[-1] - times[0] > WARM_UP_S + seconds:
            break
    return times


def span_of(records: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the begin and the end of the time when all consumers were active, without warm-up."""
    begin, end = max(times[0] for times in records) + WARM_UP_S, min(times[-1] for times in records)
    if end <= begin:
        raise RuntimeError("the consumers were not active at the same time: increase --seconds")
    return begin, end


def value_at(time_s: float, times: Sequence[float], values: Sequence[float]) -> float:
    """Interpolate a value that was sampled at some times, linearly."""
    after = min(max(bisect_right(times, time_s), 1), len(times) - 1)
    weight = (time_s - times[after - 1]) / (times[after] - times[after - 1])
    return values[after - 1] + weight * (values[after] - values[after - 1])


def growth(
    times: Sequence[float], values: Sequence[float]
) -> Callable[[tuple[float, float]], float]:
    """Return a function of the increase of a sampled value in a span."""
    return lambda span: value_at(span[1], times, values) - value_at(span[0], times, values)


def each_consumer(records: Sequence[Sequence[float]], batch: int) -> float:
    """Return the samples/s of a consumer, averaged over all consumers."""
    span = span_of(records)
    return statistics.mean(batch * growth(times, range(len(times)))(span) for times in records) / (
        span[1] - span[0]
    )
