"""A pruner that stops networks whose learning curves will not reach the best (pure).

A curve is fitted by a power law, c - a n^-b of the epoch n, as in Domhan, Springenberg and Hutter,
Speeding up Automatic Hyperparameter Optimization of Deep Neural Networks by Extrapolation of
Learning Curves, IJCAI 2015 (their `pow3`). The rule is theirs as well: stop networks that will
hardly end better than the best so far. The tolerance is the error of such forecasts for networks of
the run that trained to their end.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from fleet.search.pruning import NoPruning
from fleet.search.searcher import Verdict
from fleet.spec.search import Prune

_EXPONENTS = np.array([0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0])
_FEWEST = 3  # epochs that a power law needs
_SURE = 0.95  # share of past forecasts whose error the tolerance covers


@dataclass
class _Curve:
    """The learning curve of a network.

    Attributes:
        epochs: number of epochs.
        score: the newest score.
        sums: shape (6, exponents), float64, over the epochs with finite scores y and x = n^-b:
            count, sums of x, y, x x, x y and y y.
        forecasts: number of epochs -> forecast of the last score at that time.
    """

    epochs: int = 0
    score: float = -math.inf
    sums: np.ndarray = field(default_factory=lambda: np.zeros((6, len(_EXPONENTS))))
    forecasts: dict[int, float] = field(default_factory=dict)

    def add(self, score: float) -> None:
        """Add the newest epoch, with a finite score."""
        x = self.epochs**-_EXPONENTS
        for row, more in zip(
            self.sums, (1.0, x, score, x * x, x * score, score * score), strict=True
        ):
            row += more

    def continued(self, last: int) -> float:
        """Return the forecast of the last score by the power law that fits best.

        For each exponent it is the least-squares line through scores over n^-b; falling curves are
        level.
        """
        n, x, y, xx, xy, yy = self.sums
        of_x = xx - x * x / n
        of_xy = xy - x * y / n
        of_y = yy - y * y / n
        slopes = np.minimum(0.0, of_xy / np.where(of_x > 0, of_x, math.inf))  # minus a
        best = (of_y - 2 * slopes * of_xy + slopes * slopes * of_x).argmin()
        return float(
            y[best] + slopes[best] * (n[best] * last ** -_EXPONENTS[best] - x[best])
        ) / float(n[best])


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
        self._max_epochs = most_epochs
        self._curves: defaultdict[str, _Curve] = defaultdict(_Curve)
        # epochs -> errors of forecasts that were too low, sorted
        self._missed: defaultdict[int, list[float]] = defaultdict(list)
        self._ended: list[float] = []  # final scores of networks that trained to their end

    def add(self, name: str, epochs: int, score: float, is_done: bool = False) -> Verdict:
        """See :class:`fleet.search.pruning.Pruner`."""
        curve = self._curves[name]
        if epochs <= curve.epochs:
            return Verdict.GO_ON
        curve.epochs = epochs
        curve.score = score
        if math.isfinite(score):
            curve.add(score)
        if is_done:
            self._end(curve)
            return Verdict.GO_ON
        forecast = curve.forecasts[epochs] = self._forecast(curve)
        is_bad = (
            epochs >= self._min_epochs
            and len(self._ended) >= self._min_trials
            and (forecast + self._allowed(epochs) < max(self._ended))
        )
        if is_bad:
            return Verdict.STOP
        return Verdict.GO_ON

    def _end(self, curve: _Curve) -> None:
        if math.isfinite(curve.score):
            self._ended.append(curve.score)
            for epochs, forecast in curve.forecasts.items():
                insort(
                    self._missed[epochs], curve.score - forecast if math.isfinite(forecast) else 0.0
                )

    def _forecast(self, curve: _Curve) -> float:
        """Return the forecast of the last score; at least the current one."""
        if not math.isfinite(curve.score):
            return -math.inf
        return max(curve.score, curve.continued(self._max_epochs))

    def _allowed(self, epochs: int) -> float:
        """Return by how much a forecast after so many epochs may be too low."""
        missed = self._missed[epochs]
        if missed:
            return max(0.0, missed[math.ceil(_SURE * len(missed)) - 1])
        return math.inf
