"""Share units among takers so that the total gain is largest, such as GPUs among jobs.

Let g_j(n) be the gain of taker j on n units. The best counts solve

    maximize    sum_j g_j(n_j)      subject to    sum_j n_j <= N

a multiple-choice knapsack. :func:`climb` solves the relaxation in which a taker may mix counts. If
that uses all units, it is an optimum of the problem itself. Otherwise few counts can be in an
optimum (:func:`optimal_counts`), and a dynamic program (:func:`dynamic_program`) decides among
them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler.hulls import concave_hulls

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class Steps(NamedTuple):
    """The steps along the least concave function above a taker's gains.

    Attributes:
        first: the fewest units that a taker may have, where the steps begin.
        length: units of each.
        slope: gain per unit of each, descending.
    """

    first: int
    length: IntArray
    slope: FloatArray


class Gains:
    """The gains of one taker.

    Args:
        values: gain on 0, 1, ... units, shape (counts,); minus infinity for impossible counts.

    Attributes:
        steps: the steps along their hull, once :func:`climb` has needed them.
    """

    def __init__(self, values: FloatArray) -> None:
        self.values = values
        self.steps: Steps | None = None

    @cached_property
    def best(self) -> int:
        """The fewest units with the largest gain."""
        return int(self.values.argmax())

    def up_to(self, units: int) -> Gains:
        """Return the gains limited to a number of units."""
        if len(self.values) <= units + 1:
            return self
        return Gains(self.values[: units + 1])


class Climb(NamedTuple):
    """The result of :func:`climb`.

    Attributes:
        counts: units of each taker.
        price: gain per unit of the first step that did not fit; 0 if all did.
        unused: units that were too few for it; negative if not all takers can have their minimum.
    """

    counts: IntArray
    price: float
    unused: int


def climb(gains: Sequence[Gains], units: int) -> Climb:
    """Take steps along the hulls while they fit, steepest first; ties go to the earlier taker.

    >>> climb([Gains(np.array([0.0, 3, 5])), Gains(np.array([0.0, 1, 6]))], units=3)
    Climb(counts=array([1, 2]), price=2.0, unused=0)
    """
    new = [gain for gain in gains if gain.steps is None]
    if new:
        _find_steps(new)
    steps: list[Any] = [gain.steps for gain in gains]
    first = np.array([gain.first for gain in steps], np.int64)
    spare = units - int(first.sum())
    owner = np.repeat(np.arange(len(steps)), [len(gain.length) for gain in steps])
    length = np.concatenate([gain.length for gain in steps])
    slope = np.concatenate([gain.slope for gain in steps])
    steep = np.arange(len(slope))
    if 0 <= spare < len(slope) - 1:  # no more of them than units can be taken
        steep = np.flatnonzero(slope >= np.partition(slope, -spare - 1)[-spare - 1])
    order = steep[np.argsort(-slope[steep], kind="stable")]
    chosen = order[: int(np.searchsorted(np.cumsum(length[order]), spare, side="right"))]
    counts = first + np.bincount(owner[chosen], length[chosen], len(steps)).astype(np.int64)
    price = float(slope[order[len(chosen)]]) if len(chosen) < len(order) else 0.0
    return Climb(counts, price, units - int(counts.sum()))


def _find_steps(gains: Sequence[Gains]) -> None:
    row, count, gain = _possible(gains)
    first = count[np.searchsorted(row, np.arange(len(gains)))].tolist()
    corner = concave_hulls(row, count, gain)
    row = row[corner]
    length = np.diff(count[corner])
    rise = np.diff(gain[corner])
    rising = np.flatnonzero((row[1:] == row[:-1]) & (rise > 0))
    length, slope = length[rising], rise[rising] / length[rising]
    ends = [0, *np.searchsorted(row[1:][rising], np.arange(1, len(gains) + 1)).tolist()]
    for index, taker in enumerate(gains):
        span = slice(ends[index], ends[index + 1])
        taker.steps = Steps(first[index], length[span], slope[span])


def _possible(gains: Sequence[Gains]) -> tuple[IntArray, IntArray, FloatArray]:
    """Return the taker, the count and the gain of every possible count, taker after taker."""
    sizes = [len(taker.values) for taker in gains]
    row = np.repeat(np.arange(len(gains)), sizes)
    gain = np.concatenate([taker.values for taker in gains])
    count = np.arange(len(gain)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    possible = np.flatnonzero(np.isfinite(gain))
    return row[possible], count[possible], gain[possible]


def optimal_counts(gains: Sequence[Gains], reached: Climb) -> list[int]:
    """Return an optimum, starting from a climb; ties are broken as in :func:`dynamic_program`.

    The slope of the step that did not fit is a price per unit. If the gain of a count minus its
    price is below the taker's best by more than the relaxation exceeds some allocation, the count
    is in no optimum (Dantzig 1957; reduced-cost fixing). Few counts remain, including all ties.
    """
    row, count, gain = _possible(gains)
    more = count - reached.counts[row]
    better = gain - gain[more == 0][row]
    loss = reached.price * more - better
    rounding = 1e-9 * max(1.0, float(np.abs(gain).max()))
    is_candidate = (
        loss <= reached.price * reached.unused - better[more <= reached.unused].max() + rounding
    )
    row = row[is_candidate]
    count = count[is_candidate]
    gain = gain[is_candidate]
    starts = np.searchsorted(row, np.arange(len(gains)))
    low = count[starts]
    high = count[np.append(starts[1:], len(row)) - 1]
    offsets = np.cumsum(high - low + 1) - (high - low + 1)
    dense = np.full(int((high - low + 1).sum()), -math.inf)
    dense[offsets[row] + count - low[row]] = gain
    open_ = np.flatnonzero(high > low)
    parts = [
        dense[offsets[index] : offsets[index] + high[index] - low[index] + 1] for index in open_
    ]
    spare = int(reached.counts.sum() - low.sum()) + reached.unused
    low[open_] += np.array(dynamic_program(parts, spare), np.int64)
    return low.tolist()


class _Window(NamedTuple):
    """F of the earlier takers on the budgets first, first + 1, ... that a taker may leave them."""

    first: int
    values: FloatArray


def dynamic_program(gains: Sequence[FloatArray], units: int) -> list[int]:
    """Return the best counts by dynamic programming; ties give later takers the fewest units.

    Let F_j(v) be the most that the first j takers gain on at most v units. Then F_0 = 0 and

        F_j(v) = max over n <= v of  g_j(n) + F_{j-1}(v - n),

    a max-plus convolution of F_{j-1} with g_j; going back from F_J(N) gives the counts. F_j is
    constant from n_max_1 + ... + n_max_j on, and at most n_max_{j+1} + ... + n_max_J units can go
    to the takers after j, so only budgets v between those two bounds are computed. Time O(J N
    n_max) at most, in J numpy operations.

    Args:
        gains: ``gains[j][n]`` is g_j(n).
    """
    gains = [gain[: units + 1] for gain in gains]
    later = sum(len(gain) - 1 for gain in gains)  # units that the remaining takers can use
    units = min(units, later)
    # best[v - low] = F(v); beyond its end F stays as it is
    low = 0
    best = np.zeros(1)
    windows = []
    for gain in gains:
        max_units = len(gain) - 1
        later -= max_units
        first = max(0, units - later)
        last = min(units, low + len(best) - 1 + max_units)
        windows.append(_Window(first - max_units, _reach(best, low, first - max_units, last)))
        low = first
        best = _convolve(windows[-1].values, gain)
    return _trace_back(gains, windows, units)


def _reach(best: FloatArray, low: int, first: int, last: int) -> FloatArray:
    """Return F on the budgets first..last from its values on low, low + 1, ...; constant beyond."""
    values = np.empty(last - first + 1)
    start = low - first
    end = low - first + len(best)
    values[:start] = -math.inf
    values[start:end] = best[: last - low + 1]
    values[end:] = best[-1]
    return values


def _convolve(values: FloatArray, gain: FloatArray) -> FloatArray:
    """Return max over n of gain[n] + values[v - n] for each v that has all the values."""
    shifts = len(gain)
    budgets = len(values) - len(gain) + 1
    step = values.itemsize
    # Row i starts at i.
    rows: FloatArray = np.ndarray((shifts, budgets), buffer=values, strides=(step, step))
    return np.maximum.reduce(rows + gain[::-1, None])


def _trace_back(gains: Sequence[FloatArray], windows: Sequence[_Window], units: int) -> list[int]:
    counts: list[int] = []
    budget = units
    for gain, (first, values) in zip(reversed(gains), reversed(windows), strict=True):
        budget = min(budget, first + len(values) - 1)
        end = budget - first + 1
        count = int((gain + values[end - len(gain) : end][::-1]).argmax())
        counts.append(count)
        budget -= count
    return counts[::-1]
