"""Compute shares of the GPUs that let all networks finish together: the malleable schedule.

Suppose every network could change its group at any moment at no cost. To train W samples within a
time T, a network then needs the average rate W / T. The smallest share of the GPUs for that is the
inverse of the concave hull of its rate curve: a rate between two group sizes is time-sharing
between them, a rate below that of a single GPU is taking turns. :func:`water_fill` finds the T at
which these shares add up to all GPUs; :func:`lower_bound` is the least time that any schedule can
take.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from launch.errors import InputError, pluralize
from scheduler.base import Network, RateTable
from scheduler.ensemble.rates import bent_curves, extrapolate_rates, is_straight, kinds
from scheduler.hulls import concave_hulls

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Hulls:
    """The concave hulls of rate curves, as arrays of shape (networks, vertices).

    Row i has the vertices of network i from (0 GPUs, rate 0) to its best rate; shorter rows repeat
    the last vertex.
    """

    gpus: Floats
    rate: Floats

    @property
    def peak(self) -> Floats:
        """The best rate of each network, samples/s."""
        return self.rate[:, -1]

    @cached_property
    def first(self) -> tuple[Floats, Floats]:
        """The rates and GPUs of the first non-zero vertices."""
        return self.rate[:, 1].copy(), self.gpus[:, 1].copy()

    def demand(self, rate: Floats, rows: Rows) -> tuple[Floats, Floats]:
        """Compute the fewest average GPUs for average rates.

        Args:
            rate: target samples/s of each network, shape (rows,); at most its peak.
            rows: the rows of the networks, shape (rows,).

        Returns:
            The GPUs, and by how much they fall per sample/s less; shapes (rows,).
        """
        rates = self.rate[rows]
        gpus = self.gpus[rows]
        high = np.maximum(1, (rates < rate[:, None]).sum(axis=1))
        row = np.arange(len(rows))
        slope = (gpus[row, high] - gpus[row, high - 1]) / (rates[row, high] - rates[row, high - 1])
        return gpus[row, high] - slope * (rates[row, high] - rate), slope


@lru_cache(maxsize=16)
def hulls(rates: RateTable, gpus: int) -> Hulls:
    """Compute the concave hulls of all rate curves over the allowed group sizes.

    A network that needs more GPUs than there are has only the vertex (0, 0).
    """
    rate_curves = bent_curves(rates, gpus)
    (rows, kind) = kinds(rates)
    rising = [
        _corners(rates.models[row], rate_curves.useful[row], rate_curves.rate[row], gpus)
        for row in rows
    ]
    row = np.repeat(np.arange(len(rising)), [1 + len(counts) for counts, _ in rising])
    count = np.concatenate([np.append(0, counts) for counts, _ in rising])
    rate = np.concatenate([np.append(0.0, values) for _, values in rising])
    corner = concave_hulls(row, count, rate)
    first = np.searchsorted(row[corner], np.arange(len(rising)))
    number = np.diff(first, append=len(corner))
    vertex = corner[first[:, None] + np.minimum(np.arange(number.max()), number[:, None] - 1)]
    return Hulls(count[vertex].astype(np.float64)[kind], rate[vertex][kind])


def _corners(
    network: Network, useful: NDArray[np.bool_], rate: Floats, gpus: int
) -> tuple[NDArray[np.int64], Floats]:
    """Return useful counts and their rates, without those on a straight line to the last."""
    counts = np.flatnonzero(useful) + 1
    rising = rate[useful]
    last = min(gpus, network.max_gpus or gpus)
    if is_straight(network) and last > len(useful):
        end = extrapolate_rates(network.best_rates, np.array([last]))
        if end[0] > rising[-1]:
            return np.append(counts, last), np.append(rising, end)
    return counts, rising


@dataclass(frozen=True, eq=False)
class Level:
    """The result of water-filling.

    Args:
        time_s: the time after which the networks would finish; those at their peak later.
        gpus: average GPUs of each network, shape (rows,).
        rate: average samples/s of each network, shape (rows,).
    """

    time_s: float
    gpus: Floats
    rate: Floats


def water_fill(hull: Hulls, rows: Rows, work: Floats, gpus: float) -> Level:
    """Share GPUs so that all networks finish at one time, as early as possible.

    A network that would have to be faster than its peak is held there, and the others share the
    remaining GPUs.

    Args:
        hull: the hulls of all networks.
        rows: the rows of the networks that share.
        work: samples that each must train, shape (rows,), above 0.
        gpus: how many there are.

    Returns:
        The time and the shares; their sum is at most ``gpus``.
    """
    peak = hull.peak[rows]
    level = _of_a_crowd(hull, rows, work, gpus)
    if level is not None:
        rate = np.minimum(work * level, peak)
        single, smallest = (values[rows] for values in hull.first)
        return Level(1 / level, smallest - smallest / single * (single - rate), rate)
    held_from = peak / work  # the level 1/T from which a network is at its peak

    def demand(level: float) -> tuple[Floats, float]:
        share, slope = hull.demand(np.minimum(work * level, peak), rows)
        return share, float((slope * work)[held_from >= level].sum())

    kinks = np.unique(held_from)
    if demand(kinks[-1])[0].sum() <= gpus:
        level = float(kinks[-1])
    else:
        first = bisect_left(kinks, True, key=lambda level: bool(demand(level)[0].sum() > gpus))
        level = _newton(demand, float(kinks[first]), gpus)
    return Level(1 / level, demand(level)[0], np.minimum(work * level, peak))


def _of_a_crowd(hull: Hulls, rows: Rows, work: Floats, gpus: float) -> float | None:
    """Return the level 1/T if no network gets more than its smallest group, else None.

    Then shares are proportional to the level, so no search is needed.
    """
    if not len(rows) or hull.rate.shape[1] < 2:
        return None
    first, smallest = (values[rows] for values in hull.first)
    if not first.min() > 0:  # one needs more GPUs than there are
        return None
    level = float(gpus / (work * smallest / first).sum())
    if level * float((work / first).max()) <= 1:
        return level
    return None


def _newton(demand: Callable[[float], tuple[Floats, float]], level: float, gpus: float) -> float:
    """Return the level at which demand is ``gpus``, starting from a higher one.

    Left of that level demand is convex and piecewise linear, so Newton's steps never overshoot and
    end after finitely many. If a network is as fast on two sizes except for rounding, demand is so
    steep that a step makes no progress; then it goes beyond.
    """
    while True:
        share, slope = demand(level)
        lower = level - (share.sum() - gpus) / slope
        nearly = level * (1 - 1e-13)
        if not lower < nearly and share.sum() <= gpus * (1 + 1e-9):
            return level
        level = min(lower, nearly)


def lower_bound(rates: RateTable, gpus: int) -> float:
    """Return a lower bound, in seconds, on the time of any schedule of the ensemble.

    Args:
        rates: a rate table with the epochs of every network.
        gpus: the number of GPUs of the cluster.

    Raises:
        InputError: a network has no epochs, or needs more GPUs than there are.

    Two networks of 100 samples share 3 GPUs; on one both have 10 samples/s, on
    two a has 20 and b only 15. Each on one GPU leaves one to share: x more
    samples/s cost x/10 of it for a and x/5 for b, so x = 10/3 and T = 100 / 13.33.

    >>> from scheduler.base import Network
    >>> pair = (Network("a", (10.0, 20.0), epochs=1, max_gpus=2),
    ...         Network("b", (10.0, 15.0), epochs=1, max_gpus=2))
    >>> round(float(lower_bound(RateTable(100, 4, pair), gpus=3)), 6)
    7.5
    """
    for network in rates.models:
        if network.epochs is None:
            raise InputError(
                f"{network.name} has no epochs; a simulation needs them for every network"
            )
        if network.min_gpus > gpus:
            raise InputError(
                f"{network.name} needs at least {pluralize(network.min_gpus, 'GPU')}, not {gpus}"
            )
    work = rates.samples_per_epoch * np.array(
        [network.epochs for network in rates.models], dtype=np.float64
    )
    hull = hulls(rates, gpus)
    level = water_fill(hull, np.arange(len(work)), work, gpus)
    return max(level.time_s, float((work / hull.peak).max()))
