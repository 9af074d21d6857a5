"""A rule that drops networks whose learning curves will not come up to the best (pure).

A curve is taken for a power law, c - a n^-b of the epoch n, as in Domhan, Springenberg and Hutter, Speeding up
Automatic Hyperparameter Optimization of Deep Neural Networks by Extrapolation of Learning Curves, IJCAI 2015 (their
`pow3`), from whom the rule is as well: drop what will hardly end better than the best so far. How wrong such forecasts
are, networks of the run have shown that were trained to their end: so much is allowed for, and no more.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import defaultdict
from dataclasses import dataclass, field

from fleet.search.pruning import Unjudged
from fleet.search.searcher import Verdict
from fleet.spec.search import Prune

_EXPONENTS = (0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
_FEWEST = 3  # epochs: a power law of fewer says nothing
_SURE = 0.95  # the share of forecasts that were not further below what came than is allowed for


@dataclass
class _Fit:
    """The line of least squares through scores over n^-b, of one network and one exponent: sums, so that it grows."""

    n: int = 0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0
    yy: float = 0.0

    def add(self, x: float, y: float) -> None:
        self.n, self.x, self.y = self.n + 1, self.x + x, self.y + y
        self.xx, self.xy, self.yy = self.xx + x * x, self.xy + x * y, self.yy + y * y

    @property
    def slope(self) -> float:
        """Minus a; a curve that falls is taken for a level one."""
        around = self.xx - self.x * self.x / self.n
        return min(0.0, (self.xy - self.x * self.y / self.n) / around) if around > 0 else 0.0

    @property
    def error(self) -> float:
        """The mean square of what the line misses."""
        slope, n = self.slope, self.n
        around_y, around_xy = self.yy - self.y * self.y / n, self.xy - self.x * self.y / n
        around_x = self.xx - self.x * self.x / n
        return max(0.0, around_y - 2 * slope * around_xy + slope * slope * around_x) / n

    def at(self, x: float) -> float:
        """The score there."""
        return self.y / self.n + self.slope * (x - self.x / self.n)


@dataclass
class _Curve:
    fits: dict[float, _Fit] = field(default_factory=lambda: {exponent: _Fit() for exponent in _EXPONENTS})
    forecasts: dict[int, float] = field(default_factory=dict)  # after so many epochs, of the last one
    epochs: int = 0
    score: float = -math.inf


class Curves(Unjudged):
    """See the module.

    Args:
        prune: its ``least``, the epochs that every network may train; and ``others``, how many must have been trained
            to their end before any is dropped.
        most_epochs: that a network may train.
    """

    def __init__(self, prune: Prune, most_epochs: int, seed: int) -> None:
        super().__init__(prune, most_epochs, seed)
        self._least, self._others, self._most = max(prune.least, _FEWEST), prune.others, most_epochs
        self._curves: defaultdict[str, _Curve] = defaultdict(_Curve)
        self._missed: defaultdict[int, list[float]] = defaultdict(list)  # by how much forecasts were too low, sorted
        self._ended: list[float] = []  # the scores of those that were trained to their end

    def add(self, name: str, epochs: int, score: float, is_done: bool = False) -> Verdict:
        """See :class:`fleet.search.pruning.Judge`."""
        curve = self._curves[name]
        if epochs <= curve.epochs:
            return Verdict.GO_ON
        curve.epochs, curve.score = epochs, score
        if math.isfinite(score):
            for exponent, fit in curve.fits.items():
                fit.add(epochs ** -exponent, score)
        if is_done:
            self._end(curve)
            return Verdict.GO_ON
        forecast = curve.forecasts[epochs] = self._forecast(curve)
        is_bad = epochs >= self._least and len(self._ended) >= self._others and (
            forecast + self._allowed(epochs) < max(self._ended))
        return Verdict.STOP if is_bad else Verdict.GO_ON

    def _end(self, curve: _Curve) -> None:
        if math.isfinite(curve.score):
            self._ended.append(curve.score)
            for epochs, forecast in curve.forecasts.items():
                insort(self._missed[epochs], curve.score - forecast if math.isfinite(forecast) else 0.0)

    def _forecast(self, curve: _Curve) -> float:
        """The score after the last epoch; never below that of now, for it is the best so far."""
        if not math.isfinite(curve.score):
            return -math.inf
        exponent = min(_EXPONENTS, key=lambda exponent: curve.fits[exponent].error)
        return max(curve.score, curve.fits[exponent].at(self._most ** -exponent))

    def _allowed(self, epochs: int) -> float:
        """By how much a forecast after so many epochs may be too low."""
        missed = self._missed[epochs]
        return max(0.0, missed[math.ceil(_SURE * len(missed)) - 1]) if missed else math.inf
