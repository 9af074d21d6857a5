"""The search for an optimum: a climb along the concave hulls of all jobs, and departures from where it ends.

The climb solves the relaxation in which a job may have any mixture of counts. Where it leaves GPUs over, few jobs can
have another count than it gave them in any optimum, and a dynamic programme decides among those.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from scheduler.elastic.curves import Array, Pieces
from scheduler.elastic.tables import HEAD, Heads, Jobs, Tables

FEW = 16  # departures from the climb that are tried first
SORTED_AT_ONCE = 512  # steps along hulls: with more of them, most are decided without being sorted


@dataclass(frozen=True, eq=False)
class Climb:
    """Where steps along the hulls led: GPUs beyond the least, of each job.

    ``left`` GPUs were too few for the next step, which gains ``price`` per GPU (0: there is none). ``gain`` is what
    each job has gained in how many ``steps``.
    """

    steps: NDArray[np.int64]
    given: NDArray[np.int64]
    gain: Array
    left: int
    price: float

    @property
    def rounding(self) -> float:
        """Differences of worth that mean nothing."""
        return 1e-9 * max(1.0, self.price * float(self.given.max()), float(self.gain.max()))


def climb(tables: Tables, jobs: Jobs, first: Heads, spare: int) -> Climb:
    """Steps along the hulls, the steepest first, the earlier job first where they are equal.

    Few jobs go far along their hull, so the first steps of each are tried, and all if one took all of those.
    """
    places = np.flatnonzero(first.slopes > 0)
    steps = Pieces(places // HEAD, first.lengths.reshape(-1)[places], first.slopes.reshape(-1)[places])
    taken, price = _steepest(steps.value, steps.gpus, spare)
    if (np.bincount(steps.owner[taken], minlength=len(first.least))[first.steps > HEAD] == HEAD).any():
        steps = tables.steps(jobs)
        taken, price = _steepest(steps.value, steps.gpus, spare)
    owner, length, slope = (column[taken] for column in steps)
    given = np.bincount(owner, length, len(first.least)).astype(np.int64)
    gain = np.bincount(owner, length * slope, len(first.least)).astype(np.float64)
    return Climb(np.bincount(owner, minlength=len(first.least)), given, gain, spare - int(given.sum()), price)


def _steepest(slopes: Array, lengths: Array, left: int) -> tuple[NDArray[np.bool_], float]:
    """Which steps are taken while they fit, the steepest first; and the slope of the first that does not fit.

    A sample tells about where the last one lies, so that nearly all are decided by two comparisons.
    """
    taken = np.zeros(len(slopes), np.bool_)
    open_: slice | NDArray[np.int64] = slice(None)  # steps of which it is open whether they are taken
    own, need = slopes, lengths
    while len(own) > SORTED_AT_ONCE:
        low, high = _about(own, need, left)
        above, below = own > high, own < low
        for part in (above, ~(above | below), below):
            part_needs = int(np.dot(part, need))
            if part_needs > left:
                break
            taken[open_] |= part
            left -= part_needs
        else:  # all fit
            return taken, 0.0
        chosen = np.flatnonzero(part)
        if len(chosen) == len(own):  # they are alike
            break
        open_ = chosen if isinstance(open_, slice) else open_[chosen]
        own, need = own[chosen], need[chosen]
    order = np.argsort(-own, kind="stable")
    fit = int(np.searchsorted(np.cumsum(need[order]), left, side="right"))
    taken[np.arange(len(slopes))[open_][order[:fit]]] = True
    return taken, float(own[order[fit]]) if fit < len(own) else float(slopes[~taken].max(initial=0.0))


def _about(slopes: Array, lengths: Array, left: int) -> tuple[float, float]:
    """Two slopes between which the first step lies that does not fit, most likely; by a sample of some hundred."""
    every = len(slopes) // SORTED_AT_ONCE | 1  # odd, so that it meets first steps of jobs and later ones alike
    order = np.argsort(-slopes[::every])
    sample = slopes[::every][order]
    last = int(np.searchsorted(np.cumsum(lengths[::every][order]) * every, left))
    last, about = min(last, len(sample) - 1), len(sample) // 16
    return float(sample[min(last + about, len(sample) - 1)]), float(sample[max(last - about, 0)])


@dataclass(frozen=True)
class Departures:
    """Ways in which one job may have other GPUs than the climb gave it; a row for each.

    Args:
        job: which.
        more: GPUs beyond those of the climb, not 0.
        better: what they add to the factor.
        loss: by how much that is less than they are worth at the climb's price.
        left: GPUs that the climb left.
        rounding: losses that differ by less are taken for equal.
    """

    job: NDArray[np.int64]
    more: NDArray[np.int64]
    better: Array
    loss: Array
    left: int
    rounding: float

    @classmethod
    def along(cls, first: Heads, climb: Climb) -> Departures:
        """The ``FEW`` of least loss among the next step of each job along its hull, and its last step taken back."""
        jobs, parts = np.arange(len(climb.steps)), []
        for sign, place in ((1, climb.steps), (-1, climb.steps - 1)):
            own = jobs[(place >= 0) & (place < np.minimum(first.steps, HEAD))]
            length, slope = first.lengths[own, place[own]], sign * first.slopes[own, place[own]]
            parts.append((own, sign * length.astype(np.int64), length * slope, length * (sign * climb.price - slope)))
        job, more, better, loss = map(np.concatenate, zip(*parts, strict=True))
        found = cls(job, more, better, loss, climb.left, climb.rounding)
        return found.take(np.argpartition(found.loss, FEW)[:FEW]) if len(found.loss) > FEW else found

    @classmethod
    def within(cls, tables: Tables, jobs: Jobs, climb: Climb, gap: float) -> Departures:
        """Those that lose no more than the relaxation of the problem is above an allocation: by ``gap``."""
        worst = gap + climb.rounding + (climb.price * climb.given - climb.gain)
        found = tables.choices(jobs, climb.price, worst)
        more = found.gpus.astype(np.int64) - climb.given[found.owner]
        better = found.value - climb.gain[found.owner]
        loss = climb.price * more - better
        return cls(found.owner, more, better, loss, climb.left, climb.rounding).take(np.flatnonzero(more))

    def cut(self, worth: float) -> Departures:
        """Without those that lose more than an optimum can, as the cheapest of them show, tried some at a time.

        Args:
            worth: of the GPUs that the climb left, at its price.
        """
        left, tried = self.take(np.argsort(self.loss, kind="stable")), FEW
        while len(left.loss) > tried:
            gap = worth - left.take(np.arange(tried)).best()[1]
            kept = int(np.searchsorted(left.loss, gap + self.rounding, side="right"))
            left, tried = left.take(np.arange(kept)), 4 * tried
        return left

    def take(self, rows: NDArray[np.int64]) -> Departures:
        """Some of them."""
        return replace(self, job=self.job[rows], more=self.more[rows], better=self.better[rows], loss=self.loss[rows])

    def few_of_a_kind(self) -> Departures:
        """Of the departures by as many GPUs only as many of the least loss as can be of use together.

        Those of an optimum sum to 0 up to what the climb left, so in a good order their partial sums stay within
        one departure of that range; and no sum comes twice, for what lies between would be a loss for nothing. So
        there are fewer departures than such sums, and one that is not among so many of its kind can be replaced.
        """
        sums = self.left + 1 + 2 * int(np.abs(self.more).max(initial=0))
        kinds = self.take(np.lexsort((self.loss, self.more)))
        return kinds.take(np.flatnonzero(np.arange(len(kinds.more)) - np.searchsorted(kinds.more, kinds.more) < sums))

    def best(self) -> tuple[dict[int, int], float]:
        """The best choice of at most one for each job within the GPUs left: GPUs by job, and what they add."""
        if not len(self.job):
            return {}, 0.0
        rows = self.few_of_a_kind()
        rows = rows.take(np.lexsort((rows.more, rows.job)))
        jobs, starts = np.unique(rows.job, return_index=True)
        ends = [*starts[1:].tolist(), len(rows.job)]
        more, better = rows.more.tolist(), rows.better.tolist()
        options = [(more[start:end], better[start:end]) for start, end in zip(starts.tolist(), ends, strict=True)]
        chosen = _departing(options, self.left)
        gained = [better[counts.index(count)] for (counts, better), count in zip(options, chosen, strict=True) if count]
        return dict(zip(jobs.tolist(), chosen, strict=True)), math.fsum(gained)


def _departing(options: Sequence[tuple[list[int], list[float]]], left: int) -> list[int]:
    """The best choice of at most one departure for each job with no more than ``left`` GPUs in all; 0 for none.

    The dynamic programme over jobs and the GPUs that those so far have beyond the fewest that they may have.

    Args:
        options: of each job, GPUs more or fewer (not 0), and what they add.
    """
    fewest = [min(0, *counts) for counts, _ in options]
    size = left - sum(fewest)
    table = np.full(size + 1, -math.inf)
    table[0] = 0.0
    tables = [table]
    for (counts, gains), least in zip(options, fewest, strict=True):
        before, table = table, np.full(size + 1, -math.inf)
        for count, gain in ((0, 0.0), *zip(counts, gains, strict=True)):
            if count - least <= size:
                np.maximum(table[count - least:], before[:size + 1 + least - count] + gain, out=table[count - least:])
        tables.append(table)
    place, chosen = int(table.argmax()), []
    for (counts, gains), least, before, after in zip(options[::-1], fewest[::-1], tables[-2::-1], tables[::-1],
                                                     strict=False):
        chosen.append(next(count for count, gain in ((0, 0.0), *zip(counts, gains, strict=True))
                           if count - least <= place and before[place + least - count] + gain == after[place]))
        place += least - chosen[-1]
    return chosen[::-1]
