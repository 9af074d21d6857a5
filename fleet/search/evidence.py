"""A pruner that lets as many networks pass a rung as its ranking has proven to deserve (pure).

A rung is a number of epochs. Where early epochs rank networks well, only a few need to pass; where
they do not, most must. So the rule measures how well: the correlation of the ranks in a rung with
those in later rungs, over the networks that went further. It assumes that the scores of a network
in a rung and at the end are, as ranks, those of a bivariate normal distribution (a Gaussian copula:
Nelsen, An Introduction to Copulas, 2006, section 2.3). Then it can tell which share of a rung, from
the top, holds the network that is best at the end, except with a small probability.

Only networks that ranked high have gone further, so their plain correlation is too small. The
regression of the later rank on the earlier one does not depend on that selection (Pearson, 1903;
Thorndike, Personnel Selection, 1949, case 2), and yields the correlation of all. While few have
gone further, an assumed correlation counts as much as a few networks.

As in asha (:mod:`fleet.search.rungs`) the other networks pause. They pass later if the share grows,
or if they move up.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import cache
from statistics import NormalDist

import numpy as np

from fleet.search.pruning import NoPruning
from fleet.search.rungs import Rung, RungDecisions
from fleet.search.searcher import Verdict
from fleet.spec.search import Prune

_NORMAL = NormalDist()
_FIRST = 0.04  # the first rung, as a share of the largest number of epochs
_GROWTH = 1.5  # epochs of a rung, divided by those of the one before
_MISS = 0.02  # probability that no network near the best passes a rung
_NEAR = 0.003  # a network whose score is lower by this share of the best one is near it
_MOST_NEAR = 20  # networks near the best that count
_EXPONENT = 0.126  # of the assumed correlation
_WEIGHT = 3.0  # networks as which the assumed correlation counts
_FEWEST = 4  # networks whose ranks in two rungs are compared
_NEWS = 1.05  # correlations are measured again once so many times as many networks have come


class Evidence(NoPruning):
    """Prunes by the measured correlation of early ranks with later ones.

    Args:
        prune: its ``min_epochs``, the epochs that every network may train; and ``on_fail``: whether
            networks that do not pass are paused or pruned.
        most_epochs: maximum epochs of a network.
        seed: not used.
    """

    def __init__(self, prune: Prune, most_epochs: int, seed: int) -> None:
        super().__init__(prune, most_epochs, seed)
        self._pauses = prune.on_fail == "pause"
        self._epochs = make_rungs(prune.min_epochs, most_epochs)
        # The last rung is the end of training, for networks that end earlier as well.
        self._rungs = [Rung(epochs) for epochs in self._epochs]
        last = self._epochs[-1]
        self._correlations = [assumed_correlation(epochs, last) for epochs in self._epochs[:-1]]
        self._passed: dict[str, int] = {}  # network -> number of rungs that it has reached
        self._arrivals = 0  # of networks in rungs after the first
        self._next_measurement = 0.0  # number of arrivals
        self._counts: tuple[int, ...] = ()  # how many networks pass each rung; empty if unknown

    def add(self, name: str, epochs: int, score: float, is_done: bool = False) -> Verdict:
        """See :class:`fleet.search.pruning.Pruner`."""
        first = self._passed.get(name, 0)
        reached = len(self._rungs) if is_done else self._count_rungs(epochs)
        if reached <= first:
            return Verdict.GO_ON
        self._passed[name] = reached
        for rung in self._rungs[first:reached]:
            rung.enter(name, score)
        self._counts = ()
        self._arrivals += reached - max(first, 1)
        if self._arrivals >= self._next_measurement:
            self._measure()
            self._next_measurement = _NEWS * self._arrivals + 1
        if is_done or self._passes(reached - 1, name):
            return Verdict.GO_ON
        if not self._pauses:
            return Verdict.STOP
        self._rungs[reached - 1].pause(name)
        return Verdict.PAUSE

    def promotable(self) -> str | None:
        """See :class:`fleet.search.pruning.Pruner`."""
        for index in range(len(self._rungs) - 2, -1, -1):
            name = self._rungs[index].best_waiting
            if name is not None and self._passes(index, name):
                return name
        return None

    def let_go_on(self, name: str) -> None:
        """See :class:`fleet.search.pruning.Pruner`."""
        for rung in self._rungs:
            rung.release(name)

    leave = let_go_on

    def settle(self, alive: Collection[str]) -> RungDecisions:
        """Prune paused networks; but first the best continues if none has trained to its end."""
        waiting = [name for rung in reversed(self._rungs) for name in rung.waiting]
        if alive or not waiting:
            return RungDecisions()
        if not len(self._rungs[-1]):
            for rung in reversed(self._rungs):
                best = rung.best_waiting
                if best is not None and math.isfinite(rung.score_of(best)):
                    return RungDecisions(go_on=(best,))
        return RungDecisions(stop=tuple(waiting))

    def next_rung(self, name: str, epochs: int) -> int | None:
        """See :class:`fleet.search.pruning.Pruner`."""
        return next((rung for rung in self._epochs if rung > epochs), None)

    def expected(self, max_epochs: int) -> float | None:
        """See :class:`fleet.search.pruning.Pruner`."""
        total = 0.0
        share = 1.0
        at = 0
        networks = max(1, len(self._rungs[0]))
        for index, epochs in enumerate(self._epochs[:-1]):
            if epochs >= max_epochs:
                break
            total += share * (epochs - at)
            share = min(share, self._passing(index) / networks)
            at = epochs
        return total + share * (max_epochs - at)

    # ---- evidence ----

    def _count_rungs(self, epochs: int) -> int:
        """Return how many rungs, except the last, a network has reached after so many epochs."""
        return sum(rung <= epochs for rung in self._epochs[:-1])

    def _passes(self, index: int, name: str) -> bool:
        rung = self._rungs[index]
        count = self._passing(index)
        return rung.is_in_top(name, count) or (
            not self._pauses and rung.is_tied_with_top(name, count)
        )

    def _passing(self, index: int) -> int:
        """Return how many networks pass a rung."""
        if not self._counts:
            networks = max(1, len(self._rungs[0]))
            near = self._count_near()
            self._counts = tuple(
                max(1, math.ceil(passing_share(correlation, networks, near) * networks))
                for correlation in self._correlations
            )
        return self._counts[index]

    def _count_near(self) -> float:
        """Return the number of networks near the best that count as independent.

        They are counted in the last rung that a few networks have reached. Half of them count,
        because networks that are alike rise and fall together.
        """
        rung = next(
            (rung for rung in reversed(self._rungs) if len(rung) >= _FEWEST), self._rungs[0]
        )
        return min(max(1.0, rung.count_near(_NEAR) / 2), _MOST_NEAR)

    def _measure(self) -> None:
        """Measure the correlation of each rung with the end, or with the latest rung that can."""
        last = len(self._rungs) - 1
        for index in range(last):
            for later in range(last, index, -1):
                needed = 2 if later == index + 1 else _FEWEST
                if len(self._rungs[later]) >= needed:
                    self._correlations[index] = self._correlation(index, later)
                    break

    def _correlation(self, index: int, later: int) -> float:
        """Return the correlation of a rung with the end, by the networks of a later rung."""
        networks = list(self._rungs[later].names)
        quantiles = normal_quantiles(len(self._rungs[0]))
        early, late = (
            [quantiles[rung.position(name)] for name in networks]
            for rung in (self._rungs[index], self._rungs[later])
        )
        epochs = self._epochs[index]
        correlation = unselected_correlation(
            early, late, assumed_correlation(epochs, self._epochs[later])
        )
        return correlation * assumed_correlation(self._epochs[later], self._epochs[-1])


def make_rungs(min_epochs: int, most_epochs: int) -> list[int]:
    """Return the epochs of all rungs; the last one is the end of training.

    >>> make_rungs(1, 9), make_rungs(1, 51), make_rungs(6, 9), make_rungs(20, 9)
    ([1, 2, 3, 4, 7, 9], [3, 4, 7, 10, 15, 23, 34, 51], [6, 9], [9])
    """
    rungs = []
    exact = float(max(min_epochs, math.ceil(_FIRST * most_epochs)))
    while round(exact) < most_epochs:
        rungs.append(round(exact))
        exact = max(_GROWTH * exact, rungs[-1] + 1.0)
    return [*rungs, most_epochs]


def assumed_correlation(epochs: int, later: int) -> float:
    """Return the rank correlation that is assumed between two numbers of epochs.

    In recorded learning curves it is about .6 between one epoch and fifty, and .9 between half of
    the epochs and all of them.

    >>> round(assumed_correlation(1, 51), 2), round(assumed_correlation(26, 51), 2)
    (0.61, 0.92)
    """
    return (epochs / later) ** _EXPONENT


@cache
def normal_quantiles(networks: int) -> tuple[float, ...]:
    """Return the quantiles of a normal distribution that belong to ranks, the best first.

    >>> [round(quantile, 2) for quantile in normal_quantiles(4)]
    [1.15, 0.32, -0.32, -1.15]
    """
    return tuple(-_NORMAL.inv_cdf((rank + 0.5) / networks) for rank in range(networks))


def unselected_correlation(early: Sequence[float], late: Sequence[float], assumed: float) -> float:
    """Return the correlation of all networks, measured on networks selected by ``early``.

    Args:
        early, late: normal quantiles of the ranks of the networks in two rungs.
        assumed: the correlation that counts as much as ``_WEIGHT`` networks.

    Returns:
        At least 0: an earlier rung that ranks the wrong way round says as little as a random one.
    """
    x = np.asarray(early) - np.mean(early)
    y = np.asarray(late) - np.mean(late)
    sum_xx = float(x @ x) + _WEIGHT
    sum_xy = float(x @ y) + _WEIGHT * assumed
    sum_yy = float(y @ y) + _WEIGHT
    slope = max(0.0, sum_xy / sum_xx)
    residual = max(0.0, sum_yy - slope * sum_xy) / (len(x) - 1 + _WEIGHT)
    scale = math.hypot(slope, math.sqrt(residual))
    return slope / scale if scale else 0.0


def passing_share(correlation: float, networks: int, near: float = 1.0) -> float:
    """Return the share of a rung that holds one of the best at the end, except by ``_MISS``.

    Args:
        correlation: rank correlation of the rung with the end.
        networks: number of networks.
        near: how many of them count as the best.

    >>> [round(passing_share(correlation, 200), 2) for correlation in (0.0, 0.6, 0.9, 1.0)]
    [0.98, 0.5, 0.06, 0.0]
    """
    best = -_NORMAL.inv_cdf(min(0.4, (near + 0.25) / (2 * networks)))
    noise = _NORMAL.inv_cdf(_MISS ** (1 / near))
    return 1 - _NORMAL.cdf(correlation * best + math.sqrt(max(0.0, 1 - correlation**2)) * noise)
