"""Compute the best sequence of walltime requests for a job of uncertain run time.

A job that outlives its request is stopped and asks again for more. With run
time X, requests t_1 < t_2 < ..., t_r the first that is at least X, and S the
sum of those before it, the machine is busy for

    T = max(S + t_r, (S + X) / (1 - zeta))

where zeta (0 <= zeta < 1) is the rate at which other work arrives that can be
backfilled behind a request that was too long. The algorithms find the sequence
with the least expected T. Without backfill (zeta = 0) this is TOptimal, with it
ATOptimal: Gainaru et al., Speculative Scheduling for Stochastic HPC
Applications, ICPP 2019 ([SPEC]), section 4.1.

Only a value of the distribution is ever worth asking for (between two values the lower
one serves as well), and a sequence ends with the distribution's longest value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from launch.errors import InputError
from scheduler.reservation.blocks import cumulative_sums, solve_in_blocks
from scheduler.reservation.distributions import Array, Discrete, coarsen, empirical_law

MIN_RUNS = 5  # fewer past runs say too little about the longest future run
SAFETY = 2.0  # factor on the longest known time, with few past runs or after all requests failed
BLOCKS_FROM = 2000  # values from which working in blocks pays
MAX_EXACT = 4000  # values of a distribution; one with more values is reduced if jobs can backfill
COARSE = 42  # three times so many values, or an eighth, give the sequence that bounds the search
SWEEP_EVERY = 8  # values, after which labels are left out from which nothing more can be best
TIE = 1e-12  # relative difference of equal costs; fewer requests win


@dataclass(frozen=True)
class RequestSequence:
    """Walltimes to request, one after the other, and the expected time until the job succeeds.

    Attributes:
        requests: increasing.
        expected_makespan: the expected makespan of these requests.
        excess: how far it may exceed the minimum, relatively; 0 if the answer is exact.
    """

    requests: tuple[float, ...]
    expected_makespan: float
    excess: float = 0.0


def optimal_requests(
    law: Discrete, backfill_rate: float = 0.0, spent: float = 0.0
) -> RequestSequence:
    """Return the sequence of requests with the least expected makespan.

    With backfill the time grows with the square of the number of values. A distribution of more
    than ``MAX_EXACT`` is first reduced
    (:func:`scheduler.reservation.distributions.coarsen`), and the answer says what that may cost.

    Args:
        law: the distribution of the run time.
        backfill_rate: zeta, the work for backfilling that arrives per unit of machine time, in [0,
            1).
        spent: time that failed requests have already taken, in the unit of the distribution; part
            of the makespan.

    Raises:
        InputError: ``backfill_rate`` or ``spent`` is out of range.

    Half of the runs take 1, half take 10. Requesting 10 first costs 10, for 1
    and then 10 it costs (1 + 11) / 2 = 6:

    >>> optimal_requests(Discrete([1, 10], [0.5, 0.5]))
    RequestSequence(requests=(1.0, 10.0), expected_makespan=6.0, excess=0.0)
    """
    _check_rate(backfill_rate)
    if not 0 <= spent < math.inf:
        raise InputError(f"the time spent is {spent}; it must be finite and at least 0")
    if backfill_rate == 0:
        best = t_optimal(law)
        return RequestSequence(best.requests, best.expected_makespan + spent)
    if np.count_nonzero(law.probabilities) <= MAX_EXACT:
        return at_optimal(law, backfill_rate, spent)
    coarse, excess = coarsen(law, MAX_EXACT)
    requests = at_optimal(coarse, backfill_rate, spent).requests
    return RequestSequence(requests, expected_makespan(law, requests, backfill_rate, spent), excess)


def expected_makespan(
    law: Discrete, requests: Sequence[float], backfill_rate: float = 0.0, spent: float = 0.0
) -> float:
    """Compute the expected makespan of requests ([SPEC] Theorem 1, summed over the distribution).

    Args:
        law: the distribution of the run time.
        requests: increasing; the last is at least the distribution's longest value.
        backfill_rate: zeta, in [0, 1).
        spent: time that failed requests have already taken.

    Raises:
        InputError: the requests do not increase, or do not reach the longest value.

    >>> expected_makespan(Discrete([1, 10], [0.5, 0.5]), [10], backfill_rate=0.5)
    15.0
    """
    _check_rate(backfill_rate)
    times = np.asarray(requests, float)
    if not times.size or times[0] <= 0 or np.any(np.diff(times) <= 0):
        raise InputError("requests must be above 0 and increasing")
    if times[-1] < law.longest:
        raise InputError(
            f"the last request is {times[-1]:g}, below the longest run time {law.longest:g}"
        )
    values, mass = law.support
    served_by = np.searchsorted(times, values)
    failed = spent + np.concatenate(([0.0], np.cumsum(times)))[served_by]
    makespan = np.maximum(failed + times[served_by], (failed + values) / (1.0 - backfill_rate))
    return float(np.sum(mass * makespan) / np.sum(mass))


# ---------------------------------------------------------------- without backfill


def t_optimal(law: Discrete) -> RequestSequence:
    """Run TOptimal: the best sequence without backfill, in time linear in the number of values.

    With Q_j the probability that a run outlives the first j values, the least
    expected cost from there on is E_j = min over i >= j of v_i Q_j + E_{i+1}
    ([SPEC] Theorem 2 with zeta = 0, started before the first value so that its
    probability counts). For each i this is a line in Q_j; going down from the
    last j, slopes fall and Q_j grows, so the lower envelope of the lines is a
    queue that is only touched at its ends (the convex-hull trick). On large laws the same minima
    are found for whole blocks of j together (:mod:`scheduler.reservation.blocks`).

    One run in three takes 4: requesting 2 first costs 2 + 4/3, requesting 4 costs 4.

    >>> t_optimal(Discrete([1, 2, 4], [1/3, 1/3, 1/3])).requests
    (2.0, 4.0)
    """
    values, mass = law.support
    alive = cumulative_sums(mass[::-1])[::-1]
    following: Sequence[int] | NDArray[np.int64]
    if len(values) < BLOCKS_FROM:
        cost, following = _sweep(values.tolist(), alive.tolist())
    else:
        cost, following = solve_in_blocks(values, alive, TIE)
    requests = []
    at = 0
    while at < len(values):
        requests.append(float(values[following[at]]))
        at = int(following[at]) + 1
    return RequestSequence(tuple(requests), cost)


def _sweep(values: list[float], alive: list[float]) -> tuple[float, list[int]]:
    """Return the least expected cost E_0, and for each j the argmin i, from the last value down.

    The textbook's form: faster than :mod:`scheduler.reservation.blocks` on small laws, and its
    oracle.
    """
    size = len(values)
    cost = [0.0] * (size + 1)
    following = [0] * size
    envelope = [0] * size
    # the envelope's lines are envelope[first..last], steepest first
    first = 0
    last = -1
    for j in range(size - 1, -1, -1):
        slope = values[j]
        height = cost[j + 1]
        while last > first:
            a = envelope[last - 1]
            b = envelope[last]
            # the line b is nowhere lowest when a and the new one meet below it
            if (height - cost[a + 1]) * (values[a] - values[b]) <= (cost[b + 1] - cost[a + 1]) * (
                values[a] - slope
            ):
                last -= 1
            else:
                break
        last += 1
        envelope[last] = j
        x = alive[j]
        while first < last:
            a = envelope[first]
            b = envelope[first + 1]
            if values[b] * x + cost[b + 1] < (values[a] * x + cost[a + 1]) * (1 - TIE):
                first += 1
            else:
                break
        best = envelope[first]
        cost[j] = values[best] * x + cost[best + 1]
        following[j] = best
    return cost[0], following


# ---------------------------------------------------------------- with backfill


def at_optimal(law: Discrete, backfill_rate: float, spent: float = 0.0) -> RequestSequence:
    """Run ATOptimal: the best sequence with backfill, exactly, by non-dominated labels.

    A label is a way to have ruled out the first j values: its cost so far and
    its time spent S. [SPEC] Theorem 2 tabulates every possible S, O(n^4) in all;
    but of the labels that stand at one j few can still win. What is to come
    costs more the larger S is, by at least alive_j and at most
    alive_j / (1 - zeta) per unit of S (each T grows with a slope between 1 and
    1 / (1 - zeta)). So of two labels that differ by less than these slopes
    allow, one is dropped, and so is a label that cannot come below a sequence
    found on fewer values. In practice about one label a value is left, and the
    work is quadratic in the number of values.

    Args:
        law: the distribution of the run time.
        backfill_rate: zeta, in [0, 1).
        spent: time that failed requests have already taken.

    With zeta = 0.5 a run of 5 leaves just enough to backfill that asking for 10 loses nothing:

    >>> at_optimal(Discrete([5, 10], [0.5, 0.5]), 0.5)
    RequestSequence(requests=(10.0,), expected_makespan=15.0, excess=0.0)
    """
    _check_rate(backfill_rate)
    support = _Support.of(law)
    last = len(support.values) - 1
    labels = _LabelTable(spent)
    standing = labels.of(slice(1))
    bound = _Bound.of(law, support, backfill_rate, spent)
    for i in range(last):
        extended = _extend_labels(support, i, backfill_rate, standing)
        if bound is not None:
            if i % SWEEP_EVERY == 0:
                open_ = bound.can_extend(i, standing, extended)
                standing = standing.take(open_)
                extended = extended.take(open_)
            extended = extended.take(bound.is_promising(i + 1, extended))
        if extended.cost.size:
            new = labels.add(i + 1, _non_dominated(extended, support.alive[i + 1], backfill_rate))
            standing = standing.concatenate(new)
    done = _extend_labels(support, last, backfill_rate, standing)
    best = int(np.argmax(done.cost <= done.cost.min() * (1 + TIE)))  # the first
    indices = [last, *labels.asked_before(int(done.parent[best]))]
    return RequestSequence(tuple(support.values[indices[::-1]].tolist()), float(done.cost[best]))


def makespan_by_count(
    law: Discrete, backfill_rate: float = 0.0, max_requests: int = 8
) -> tuple[float, ...]:
    """Return the least expected makespan with exactly 1, 2, ... ``max_requests`` requests.

    The labels of :func:`at_optimal`, kept apart by their number of requests.

    >>> makespan_by_count(Discrete([1, 10], [0.5, 0.5]))
    (10.0, 6.0)
    """
    _check_rate(backfill_rate)
    support = _Support.of(law)
    last = len(support.values) - 1
    labels = _LabelTable(0.0)
    costs = []
    for count in range(1, min(max_requests, last + 1) + 1):
        costs.append(
            float(
                _extend_labels(
                    support, last, backfill_rate, labels.of(slice(labels.count))
                ).cost.min()
            )
        )
        longer = _LabelTable()
        for i in range(count - 1, last):
            shorter = int(np.searchsorted(labels.ruled_out[: labels.count], i, side="right"))
            longer.add(
                i + 1,
                _non_dominated(
                    _extend_labels(support, i, backfill_rate, labels.of(slice(shorter))),
                    support.alive[i + 1],
                    backfill_rate,
                ),
            )
        labels = longer
    return tuple(costs)


@dataclass(frozen=True)
class _Support:
    """The values of a distribution with positive probability, with sums for costs in O(1)."""

    values: Array
    reached: Array  # reached[j] = probability of the first j values
    moment: Array  # the same of value times probability
    alive: Array  # alive[j] = 1 - reached[j], summed from the far end so that small ones stay exact

    @classmethod
    def of(cls, law: Discrete) -> _Support:
        values, mass = law.support
        zero = [0.0]
        return cls(
            values,
            np.concatenate((zero, np.cumsum(mass))),
            np.concatenate((zero, np.cumsum(mass * values))),
            np.concatenate((np.cumsum(mass[::-1])[::-1], zero)),
        )


class _NewLabels(NamedTuple):
    """The labels that one more request makes of existing labels."""

    cost: Array
    spent: Array
    parent: NDArray[np.int64]

    def take(self, rows: Any) -> _NewLabels:
        return _NewLabels(*(column[rows] for column in self))


class _Labels(NamedTuple):
    """Labels that can be extended: cost, time spent, values ruled out, and number."""

    cost: Array
    spent: Array
    ruled_out: NDArray[np.int64]
    number: NDArray[np.int64]

    def take(self, rows: Any) -> _Labels:
        return _Labels(*(column[rows] for column in self))

    def concatenate(self, more: _Labels) -> _Labels:
        return _Labels(*map(np.append, self, more))


class _LabelTable:
    """A growing table of labels, in the order of the number of values that they rule out."""

    def __init__(self, spent: float | None = None) -> None:
        self.count = 0
        self.cost = np.empty(256)
        self.spent = np.empty(256)
        self.ruled_out = np.empty(256, np.int64)
        self.parent = np.empty(256, np.int64)
        if spent is not None:  # the label of a job that has asked for nothing yet
            self.add(0, _NewLabels(np.zeros(1), np.array([spent]), np.array([-1])))

    def of(self, rows: slice) -> _Labels:
        """Return the labels of some rows."""
        return _Labels(
            self.cost[rows],
            self.spent[rows],
            self.ruled_out[rows],
            np.arange(*rows.indices(self.count)),
        )

    def add(self, ruled_out: int, new: _NewLabels) -> _Labels:
        end = self.count + len(new.cost)
        if end > len(self.cost):
            for name in ("cost", "spent", "ruled_out", "parent"):
                setattr(self, name, np.resize(getattr(self, name), 2 * end))
        rows = slice(self.count, end)
        self.cost[rows], self.spent[rows], self.parent[rows] = new
        self.ruled_out[rows] = ruled_out
        self.count = end
        return self.of(rows)

    def asked_before(self, label: int) -> Iterator[int]:
        """Yield the indices of the values requested on the way to a label, last first."""
        while self.parent[label] >= 0:
            yield int(self.ruled_out[label]) - 1
            label = int(self.parent[label])


def _extend_labels(support: _Support, i: int, rate: float, labels: _Labels) -> _NewLabels:
    """Request value i after each label.

    Values up to (1 - zeta) v_i - zeta S leave room for all their backfill behind them and
    cost S + v_i; above that the backfill of (S + X) / (1 - zeta) decides ([SPEC] Equation 4).
    """
    cost, spent, j, number = labels
    value = support.values[i]
    reached = support.reached
    moment = support.moment
    room = np.searchsorted(support.values, (1.0 - rate) * value - rate * spent, side="right")
    room = np.minimum(np.maximum(room, j), i + 1)
    within = reached[room]
    total = (
        cost
        + (within - reached[j]) * (spent + value)
        + (moment[i + 1] - moment[room] + (reached[i + 1] - within) * spent) / (1.0 - rate)
    )
    return _NewLabels(total, spent + value, number)


@dataclass(frozen=True)
class _Bound:
    """A filter for labels that can still be the best, by the cost of a sequence on fewer values.

    Attributes:
        max_cost: the cost of that sequence.
        rate: zeta.
        alive: see :class:`_Support`.
        min_to_come: for each j a lower bound on what is to come beside alive_j S
            (:func:`_least_to_come`).
        remaining_mean: for each j the remaining mean run time.
    """

    max_cost: float
    rate: float
    alive: Array
    min_to_come: Array
    remaining_mean: Array

    @classmethod
    def of(cls, law: Discrete, support: _Support, rate: float, spent: float) -> _Bound | None:
        """Return the bound; None for a distribution of few values, where it does not pay off."""
        size = len(support.values)
        if size <= 4 * COARSE:
            return None
        sequence = at_optimal(_thin(support, max(COARSE, size // 24)), rate, spent)
        return cls(
            expected_makespan(law, sequence.requests, rate, spent) * (1 + TIE),
            rate,
            support.alive,
            _least_to_come(support, rate),
            support.moment[-1] - support.moment,
        )

    def is_promising(self, j: int, labels: _NewLabels) -> NDArray[np.bool_]:
        """Return which labels that have ruled out j values can still be the best.

        What is to come costs at least alive_j S + least_j, and at least (alive_j S + the rest of
        the mean) / (1 - zeta).
        """
        overhead = self.alive[j] * labels.spent
        to_come = np.maximum(
            overhead + self.min_to_come[j], (overhead + self.remaining_mean[j]) / (1.0 - self.rate)
        )
        return np.asarray(labels.cost + to_come <= self.max_cost)

    def can_extend(self, i: int, labels: _Labels, extended: _NewLabels) -> NDArray[np.bool_]:
        """Return from which labels it can be best to request value i or a larger one.

        Runs beyond v_i cost at least (S + X) / (1 - zeta). So what all runs cost then grows with
        v_i.
        """
        later_cost = (self.remaining_mean[i + 1] + self.alive[i + 1] * labels.spent) / (
            1.0 - self.rate
        )
        return np.asarray(extended.cost + later_cost <= self.max_cost)


def _thin(support: _Support, count: int) -> Discrete:
    """Reduce a distribution to 3 ``count`` values, even by index, probability, log survival."""
    last = len(support.values) - 1
    tail = -np.log(support.alive[:-1])
    picked = np.concatenate(
        (
            np.linspace(0, last, count),
            np.searchsorted(support.reached[1:], np.linspace(0, 1, count)),
            np.searchsorted(tail, np.linspace(0, tail[-1], count)),
        )
    )
    indices = np.unique(np.append(np.minimum(picked, last), last).astype(np.int64))
    mass = np.diff(support.reached[indices + 1], prepend=0.0)
    return Discrete(support.values[indices], mass / mass.sum())


def _least_to_come(support: _Support, rate: float) -> Array:
    """Return for each j a lower bound on the cost to come beside alive_j S."""
    values = support.values
    reached = support.reached
    moment = support.moment
    alive = support.alive
    size = len(values)
    bound = np.zeros(size + 1)
    room = np.searchsorted(values, (1.0 - rate) * values, side="right")
    for j in range(size - 1, -1, -1):
        to = np.maximum(room[j:], j)
        cost = (
            (reached[to] - reached[j]) * values[j:]
            + (moment[j + 1 :] - moment[to]) / (1.0 - rate)
            + alive[j + 1 :] * values[j:]
            + bound[j + 1 :]
        )
        bound[j] = cost.min()
    return bound


def _non_dominated(labels: _NewLabels, alive: float, rate: float) -> _NewLabels:
    """Drop each label that another label at the same value beats in every continuation."""
    flat = labels.cost + alive * labels.spent
    steep = labels.cost + alive / (1.0 - rate) * labels.spent
    best = np.argmin(flat)
    if best == np.argmin(steep):  # nearly always: it beats all the others
        return labels.take([best])
    # Labels that have spent more than the first lose to it; labels that have spent less than the
    # second lose to that one.
    between = (labels.spent <= labels.spent[best]) & (
        labels.spent >= labels.spent[np.argmin(steep)]
    )
    labels = labels.take(between)
    flat = flat[between]
    steep = steep[between]
    order = np.lexsort((labels.cost, labels.spent))
    # one that has spent less beats the label when it is not above it along the flat slope ...
    below = np.minimum.accumulate(flat[order])
    order = order[np.append(True, flat[order][1:] < below[:-1])]
    # ... and one that has spent more, along the steep one
    below = np.minimum.accumulate(steep[order][::-1])[::-1]
    order = order[np.append(steep[order][:-1] < below[1:], True)]
    return labels.take(order)


# ---------------------------------------------------------------- for a job that may have failed
# already


def requests_after(
    law: Discrete, failed: Sequence[float] = (), backfill_rate: float = 0.0
) -> RequestSequence:
    """Return the next requests after some requests have failed.

    The optimal sequence for the distribution beyond the longest failed request. A job
    that has outlived the whole law asks for twice the longest time known.

    Args:
        law: the distribution of the run time before the job started.
        failed: requests of this job that were too short.
        backfill_rate: zeta, in [0, 1).

    Returns:
        The requests still to make. The expected makespan counts the time of the failed ones; for a
        job that has outlived the distribution it takes the run to last as long as the request.

    Raises:
        InputError: a failed request is not finite and above 0, or the rate is out of range.

    >>> law = Discrete([1, 10], [0.5, 0.5])
    >>> requests_after(law, failed=[1])
    RequestSequence(requests=(10.0,), expected_makespan=11.0, excess=0.0)
    >>> requests_after(law, failed=[1, 10]).requests
    (20.0,)
    """
    outlived, spent = _failed_times(failed)
    remaining = law.longer_than(outlived)
    if remaining is None:
        return _single(SAFETY * max(law.longest, outlived), None, spent, backfill_rate)
    return optimal_requests(remaining, backfill_rate, spent)


def requests_from_runs(
    runs: ArrayLike, failed: Sequence[float] = (), backfill_rate: float = 0.0
) -> RequestSequence:
    """Return :func:`requests_after` for the distribution of at least five past runs.

    Fewer tell too little of how long a run can take: ask for twice the longest time known.

    Args:
        runs: run times of past successful runs.
        failed: requests of this job that were too short.
        backfill_rate: zeta, in [0, 1).

    Raises:
        InputError: there is no past run, or a time is not finite and above 0.

    >>> requests_from_runs([1, 1, 1, 10, 10]).requests
    (1.0, 10.0)
    >>> requests_from_runs([3.0]).requests
    (6.0,)
    """
    law = empirical_law(runs)
    if not has_too_few_runs(runs):
        return requests_after(law, failed, backfill_rate)
    outlived, spent = _failed_times(failed)
    return _single(
        SAFETY * max(law.longest, outlived), law.longer_than(outlived), spent, backfill_rate
    )


def has_too_few_runs(runs: ArrayLike) -> bool:
    """Return True if these past runs are too few to estimate a distribution."""
    return np.size(runs) < MIN_RUNS


def _failed_times(failed: Sequence[float]) -> tuple[float, float]:
    """Return the longest failed request, and the sum of all of them."""
    times = np.asarray(failed, float)
    if not np.all(np.isfinite(times) & (times > 0)):
        raise InputError("failed requests must be finite and above 0")
    return float(times.max(initial=0.0)), float(times.sum())


def _single(
    request: float, law: Discrete | None, spent: float, backfill_rate: float
) -> RequestSequence:
    """Return one request, for a distribution that it covers or for a run of just that length."""
    law = empirical_law([request]) if law is None else law
    return RequestSequence((request,), expected_makespan(law, [request], backfill_rate, spent))


def _check_rate(backfill_rate: float) -> None:
    if not 0 <= backfill_rate < 1:
        raise InputError(f"the backfill rate is {backfill_rate}; it must be at least 0 and below 1")
