"""A pruner that stops networks whose learning curves will not reach the best (pure).

A curve is fitted by a power law, c - a n^-b of the epoch n, as in Domhan, Springenberg and Hutter,
Speeding up Automatic Hyperparameter Optimization of Deep Neural Networks by Extrapolation of
Learning Curves, IJCAI 2015 (their `pow3`). The rule is theirs as well: stop networks that will
hardly end better than the best so far. Networks of the run that trained to their end say for which
epoch to forecast a score, and how wrong such forecasts are.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fleet.search.pruning import NoPruning
from fleet.search.searcher import Verdict
from fleet.spec.search import Prune

_EXPONENTS = np.array([0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0])
_FEWEST = 3  # epochs that a power law needs
_SURE = 0.95  # share of past forecasts whose error the tolerance covers
_MARGIN = 1.1  # factor of that error, because it is estimated from few networks
_HUGE = 1e6  # scores that are so many times as large as the newest are those of a bad start


@dataclass
class _Curve:
    """The learning curve of a network.

    Attributes:
        epochs: number of epochs.
        score: the newest score.
        points: the epochs with finite scores, and the scores.
        forecasts: number of epochs -> forecast of the last score at that time.
    """

    epochs: int = 0
    score: float = -math.inf
    points: tuple[list[int], list[float]] = field(default_factory=lambda: ([], []))
    forecasts: dict[int, float] = field(default_factory=dict)

    def add(self, epochs: int, score: float) -> None:
        """Add the newest epoch."""
        self.epochs = epochs
        self.score = score
        if math.isfinite(score):
            self.points[0].append(epochs)
            self.points[1].append(score)


def continued(epochs: Sequence[int], scores: Sequence[float], last: int) -> float:
    """Return the score after ``last`` epochs by the power law that fits best.

    For each exponent it is the least-squares line through scores over n^-b; falling curves are
    level. An epoch weighs as much as its number, because few curves follow one power law from the
    first epoch on. Scores whose size is a million times that of the newest do not count.

    >>> round(continued([1, 2, 3, 4], [1 - 1 / epoch for epoch in (1, 2, 3, 4)], 100), 6)
    0.99
    """
    all_scores = np.array(scores)
    is_used = np.abs(all_scores) <= (_HUGE * abs(scores[-1]) or math.inf)
    n = np.array(epochs, dtype=float)[is_used]
    y = all_scores[is_used]
    weights = n / n.sum()
    x = n ** -_EXPONENTS[:, None]
    mean_x = x @ weights
    mean_y = y @ weights
    of_x = x - mean_x[:, None]
    of_y = y - mean_y
    variance = of_x**2 @ weights
    covariance = of_x @ (weights * of_y)
    slopes = np.minimum(0.0, covariance / np.where(variance > 0, variance, math.inf))  # minus a
    best = ((of_y - slopes[:, None] * of_x) ** 2 @ weights).argmin()
    return float(mean_y + slopes[best] * (last ** -_EXPONENTS[best] - mean_x[best]))


class Curves(NoPruning):
    """Prunes networks whose forecast is below the best final score.

    Args:
        prune: its ``min_epochs``, the epochs that every network may train; and ``min_trials``, the
            number of networks that must have trained to their end before any is pruned.
        most_epochs: maximum epochs of a network.
        seed: not used.
    """

    def __init__(self, prune: Prune, most_epochs: int, seed: int) -> None:
        super().__init__(prune, most_epochs, seed)
        self._min_epochs = max(prune.min_epochs, _FEWEST)
        self._min_trials = prune.min_trials
        self._most_epochs = most_epochs
        self._curves: defaultdict[str, _Curve] = defaultdict(_Curve)
        # epochs -> by how much forecasts of networks that trained to their end were too low, sorted
        self._missed: defaultdict[int, list[float]] = defaultdict(list)
        self._lengths: list[int] = []  # epochs of such networks, sorted
        self._best = -math.inf  # best final score of such a network

    def add(self, name: str, epochs: int, score: float, is_done: bool = False) -> Verdict:
        """See :class:`fleet.search.pruning.Pruner`."""
        curve = self._curves[name]
        if epochs <= curve.epochs:
            return Verdict.GO_ON
        curve.add(epochs, score)
        if is_done:
            self._end(curve)
            return Verdict.GO_ON
        forecast = curve.forecasts[epochs] = self._forecast(curve)
        is_bad = (
            epochs >= self._min_epochs
            and len(self._lengths) >= self._min_trials
            and forecast + self._allowed(epochs) < self._best
        )
        if is_bad:
            return Verdict.STOP
        return Verdict.GO_ON

    def _end(self, curve: _Curve) -> None:
        if math.isfinite(curve.score):
            self._best = max(self._best, curve.score)
            insort(self._lengths, curve.epochs)
            for epochs, forecast in curve.forecasts.items():
                insort(
                    self._missed[epochs], curve.score - forecast if math.isfinite(forecast) else 0.0
                )

    def _forecast(self, curve: _Curve) -> float:
        """Return the forecast of the last score; at least the current one."""
        if not math.isfinite(curve.score):
            return -math.inf
        return max(curve.score, continued(*curve.points, self._last_epoch(curve.epochs)))

    def _last_epoch(self, epochs: int) -> int:
        """Return the epoch after which a network will end: the median over ended networks."""
        if self._lengths:
            return max(epochs, self._lengths[len(self._lengths) // 2])
        return self._most_epochs

    def _allowed(self, epochs: int) -> float:
        """Return by how much a forecast after so many epochs may be too low."""
        missed = self._missed[epochs]
        if missed:
            return _MARGIN * max(0.0, missed[math.ceil(_SURE * len(missed)) - 1])
        return math.inf
