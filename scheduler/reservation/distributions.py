"""Define distributions of run times: continuous ones on a bounded interval, and discrete ones.

The six distributions of the reservations (truncated normal, beta, exponential, bounded
Pareto, lognormal, uniform) all live on ``[low, high]``: a distribution with a longer
tail is cut there and scaled up. The algorithms work on a :class:`Discrete`
law, made from one of the six by :func:`discretize` or from past runs by
:func:`empirical_law`. Times are in any unit, the same throughout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from launch.errors import InputError
from scheduler.base import MAX_VALUE, check_range

Array = NDArray[np.float64]

MAX_POINTS = 1_000_000  # of a discretized distribution


class Uncut(NamedTuple):
    """A distribution before it is shifted and cut: distribution function, its inverse, density."""

    cdf: Callable[[Array], Array]
    inverse: Callable[[Array], Array]
    pdf: Callable[[Array], Array]


def _normal(_: Mapping[str, float]) -> Uncut:
    from scipy.special import ndtr, ndtri

    return Uncut(ndtr, ndtri, lambda at: np.exp(-at * at / 2) / math.sqrt(2 * math.pi))


def _exponential(_: Mapping[str, float]) -> Uncut:
    return Uncut(lambda at: -np.expm1(-at), lambda level: -np.log1p(-level), lambda at: np.exp(-at))


def _beta(parameters: Mapping[str, float]) -> Uncut:
    from scipy.special import betainc, betaincinv, betaln, xlog1py, xlogy

    alpha = parameters["alpha"]
    beta = parameters["beta"]
    return Uncut(
        partial(betainc, alpha, beta),
        partial(betaincinv, alpha, beta),
        lambda at: np.exp(xlogy(alpha - 1, at) + xlog1py(beta - 1, -at) - betaln(alpha, beta)),
    )


def _uniform(_: Mapping[str, float]) -> Uncut:
    return Uncut(np.asarray, np.asarray, np.ones_like)


class LawFamily(NamedTuple):
    """One of the six families, before it is cut.

    Attributes:
        uncut: the distribution, from the parameters.
        shape_parameters: parameters beside the bounds.
        positive: parameters that must be above zero.
        origin_and_unit: origin and unit of the scale that the distribution is on, from the
            parameters.
        is_log: whether the scale is that of the logarithm (of a time over the origin).
    """

    uncut: Callable[[Mapping[str, float]], Uncut]
    shape_parameters: tuple[str, ...]
    positive: tuple[str, ...]
    origin_and_unit: Callable[[Mapping[str, float]], tuple[float, float]]
    is_log: bool = False


LAWS = {
    "truncnorm": LawFamily(_normal, ("mu", "sigma"), ("sigma",), lambda p: (p["mu"], p["sigma"])),
    "beta": LawFamily(
        _beta, ("alpha", "beta"), ("alpha", "beta"), lambda p: (p["low"], p["high"] - p["low"])
    ),
    "exponential": LawFamily(
        _exponential, ("rate",), ("rate",), lambda p: (p["low"], 1 / p["rate"])
    ),
    "pareto": LawFamily(
        _exponential,
        ("alpha",),
        ("alpha", "low"),
        lambda p: (p["low"], 1 / p["alpha"]),
        is_log=True,
    ),
    "lognormal": LawFamily(
        _normal,
        ("mu", "sigma"),
        ("sigma",),  # e to the 600 is beyond all times
        lambda p: (math.exp(min(max(p["mu"], -600.0), 600.0)), p["sigma"]),
        is_log=True,
    ),
    "uniform": LawFamily(_uniform, (), (), lambda p: (p["low"], p["high"] - p["low"])),
}


@dataclass(frozen=True, eq=False)
class Law:
    """A continuous law of run times, cut to ``[low, high]``.

    Args:
        name: a key of ``LAWS``.
        low, high: the bounds.
        shape_parameters: its parameters beside them.

    Raises:
        InputError: a parameter is out of range, or there is no probability between the bounds.
    """

    name: str
    low: float
    high: float
    shape_parameters: Mapping[str, float]

    def __post_init__(self) -> None:
        parameters = self.parameters()
        for parameter, value in parameters.items():
            if not math.isfinite(value):
                raise InputError(f"{self.name}: {parameter} is {value}; it must be a finite number")
        for parameter in LAWS[self.name].positive:
            if not parameters[parameter] > 0:
                raise InputError(
                    f"{self.name}: {parameter} is {parameters[parameter]:g}; it must be above 0"
                )
        if not 0 <= self.low < self.high:
            raise InputError(
                f"{self.name}: low is {self.low} and high is {self.high}; "
                "it must be 0 <= low < high"
            )
        check_range(f"{self.name}: high", self.high, 0, MAX_VALUE)
        # A difference of rounding errors is no probability.
        if not self._inside > 1e-9 * abs(self._below):
            raise InputError(
                f"{self.name}: there is no probability between {self.low} and {self.high}"
            )

    def parameters(self) -> dict[str, float]:
        """Return every parameter by name, the bounds last."""
        return {
            name: float(value)
            for name, value in {**self.shape_parameters, "low": self.low, "high": self.high}.items()
        }

    def cdf(self, times: ArrayLike) -> Array:
        """Return the probability that a run takes at most these times, in their shape."""
        clipped = np.clip(np.asarray(times, float), self.low, self.high)
        return np.asarray((self._reached(clipped) - self._below) / self._inside)

    def pdf(self, times: ArrayLike) -> Array:
        """Return the density, zero outside the bounds, in the shape of ``times``."""
        times = np.asarray(times, float)
        clipped = np.clip(times, self.low, self.high)
        density = self._uncut.pdf(self._scaled(clipped)) / (self._origin_and_unit[1] * self._inside)
        if LAWS[self.name].is_log:
            density /= np.maximum(clipped, np.finfo(float).tiny)
        return np.where(times == clipped, density, 0.0)

    def sample(self, rng: np.random.Generator, count: int) -> Array:
        """Draw run times, by inverting the distribution function."""
        level = self._below + self._inside * rng.random(count)
        if self._is_tail:
            at = -self._uncut.inverse(-level)
        else:
            at = self._uncut.inverse(level)
        origin, unit = self._origin_and_unit
        if LAWS[self.name].is_log:
            times = origin * np.exp(unit * at)
        else:
            times = origin + unit * at
        return np.clip(times, self.low, self.high)

    @cached_property
    def mean(self) -> float:
        """Expected run time: low plus the integral of the survival function (midpoint rule)."""
        step = (self.high - self.low) / 20_000
        return self.low + step * float(
            np.sum(1.0 - self.cdf(self.low + step * (np.arange(20_000) + 0.5)))
        )

    @cached_property
    def _uncut(self) -> Uncut:
        return LAWS[self.name].uncut(self.shape_parameters)

    @cached_property
    def _origin_and_unit(self) -> tuple[float, float]:
        return LAWS[self.name].origin_and_unit(self.parameters())

    def _scaled(self, times: ArrayLike) -> Array:
        """Return times on the scale of the uncut law."""
        origin, unit = self._origin_and_unit
        if not LAWS[self.name].is_log:
            return (np.asarray(times) - origin) / unit
        with np.errstate(divide="ignore"):  # log 0 = -inf, whose probability is 0
            return np.asarray(np.log(np.asarray(times) / origin) / unit)

    @cached_property
    def _is_tail(self) -> bool:
        # The upper half of the normal distribution; other distributions start at 0.
        return bool(self._scaled(self.low) > 0)

    def _reached(self, times: ArrayLike) -> Array:
        """Return the uncut distribution function; minus 1 in its upper tail, to keep digits."""
        at = self._scaled(times)
        return np.asarray(-self._uncut.cdf(-at) if self._is_tail else self._uncut.cdf(at))

    @cached_property
    def _below(self) -> float:
        return float(self._reached(self.low))

    @cached_property
    def _inside(self) -> float:
        return float(self._reached(self.high)) - self._below


def make_law(name: str, **parameters: float) -> Law:
    """Make one of the six laws from its name and exactly its parameters.

    Args:
        name: a key of ``LAWS``.
        parameters: ``low``, ``high`` and those of the distribution.

    Raises:
        InputError: the distribution is unknown, or a parameter is missing, superfluous or out of
            range.

    >>> make_law("uniform", low=0, high=3).cdf(1.5)
    array(0.5)
    """
    if name not in LAWS:
        raise InputError(f"unknown distribution {name!r}; there are: {', '.join(LAWS)}")
    required = ("low", "high", *LAWS[name].shape_parameters)
    if set(parameters) != set(required):
        raise InputError(
            f"{name} takes {', '.join(required)}; given: {', '.join(parameters) or 'none'}"
        )
    return Law(
        name,
        parameters["low"],
        parameters["high"],
        {parameter: parameters[parameter] for parameter in LAWS[name].shape_parameters},
    )


@dataclass(frozen=True, eq=False)
class Discrete:
    """Finitely many run times with their probabilities.

    Args:
        values: times, at least 0, increasing.
        probabilities: one for each value, at least 0, with sum 1.

    Raises:
        InputError: when one of these does not hold.
    """

    values: Array
    probabilities: Array

    def __post_init__(self) -> None:
        values = np.array(self.values, float)
        mass = np.array(self.probabilities, float)
        if values.ndim != 1 or values.shape != mass.shape or not values.size:
            raise InputError(
                f"a distribution needs as many values as probabilities, at least one; given: "
                f"{values.size} and {mass.size}"
            )
        if not np.all(np.isfinite(values) & (values >= 0)) or np.any(np.diff(values) <= 0):
            raise InputError(
                "the times of a distribution must be finite, at least 0 and increasing"
            )
        if not np.all(mass >= 0) or not math.isclose(mass.sum(), 1.0, abs_tol=1e-9):
            raise InputError(
                f"the probabilities of a distribution must be at least 0 and sum to 1; "
                f"the sum is {mass.sum():.12g}, the smallest {mass.min():.12g}"
            )
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "probabilities", mass)

    @cached_property
    def mean(self) -> float:
        """Expected run time."""
        return float(self.values @ self.probabilities)

    @property
    def support(self) -> tuple[Array, Array]:
        """The values with a positive probability, and these probabilities."""
        positive = self.probabilities > 0
        return self.values[positive], self.probabilities[positive]

    @property
    def longest(self) -> float:
        """The longest run time with a positive probability."""
        return float(self.values[np.flatnonzero(self.probabilities)[-1]])

    def longer_than(self, time: float) -> Discrete | None:
        """Return the distribution of runs longer than ``time``; None if there are none."""
        if time < self.values[0]:
            return self
        longer = self.values > time
        weight = self.probabilities[longer].sum()
        if weight > 0:
            return Discrete(self.values[longer], self.probabilities[longer] / weight)
        return None

    def work_within(self, time: float, after: float = 0.0) -> float:
        """Return the useful time of a run stopped at ``time``: E[X; X <= time | X > after].

        >>> Discrete([1, 2, 4], [0.5, 0.25, 0.25]).work_within(2)
        1.0
        >>> Discrete([1, 2, 4], [0.5, 0.25, 0.25]).work_within(2, after=1)
        1.0
        """
        first, last = np.searchsorted(self.values, (after, time), side="right")
        reached, moment = self._sums
        alive = 1.0 - reached[first]
        if last <= first or alive <= 0:
            return 0.0
        return float((moment[last] - moment[first]) / alive)

    @cached_property
    def _sums(self) -> tuple[Array, Array]:
        zero = [0.0]
        return (
            np.concatenate((zero, np.cumsum(self.probabilities))),
            np.concatenate((zero, np.cumsum(self.probabilities * self.values))),
        )


def discretize(law: Law, points: int) -> Discrete:
    """Put a continuous law on ``points + 1`` equally spaced values from low to high.

    A value represents the interval that ends there, so a run is never considered
    for shorter than it is ([SPEC] section 4.2; Gainaru et al., ICPP 2019).

    Args:
        law: the distribution.
        points: number of intervals, n in the paper.

    Raises:
        InputError: ``points`` is below 1 or above a million.

    >>> discretize(make_law("uniform", low=0, high=4), 4).probabilities
    array([0.  , 0.25, 0.25, 0.25, 0.25])
    """
    check_range("the number of points", points, 1, MAX_POINTS)
    values = np.linspace(law.low, law.high, points + 1)
    mass = np.diff(law.cdf(values), prepend=0.0)
    return Discrete(values, mass / mass.sum())


def empirical_law(runs: ArrayLike) -> Discrete:
    """Return the distribution of past runs: each observed time with its relative frequency.

    Args:
        runs: run times, finite and above 0, in any order.

    Raises:
        InputError: there are none, or one is not a time.

    >>> empirical_law([3, 1, 3, 3]).values, empirical_law([3, 1, 3, 3]).probabilities
    (array([1., 3.]), array([0.25, 0.75]))
    """
    runs = np.asarray(runs, float)
    if not runs.size:
        raise InputError("there are no past runs to learn from")
    if not np.all(np.isfinite(runs) & (runs > 0)):
        raise InputError("run times must be finite and above 0")
    values, counts = np.unique(runs, return_counts=True)
    return Discrete(values, counts / runs.size)


def coarsen(law: Discrete, max_values: int) -> tuple[Discrete, float]:
    """Reduce a distribution to fewer values; also return the relative excess of the best cost.

    Neighboring values are merged into the largest of them, so that none grows by more than a factor
    1 + e; e is the smallest for which ``max_values`` values remain, to 1 %. Take a sequence that is
    best for the given law and multiply all requests by 1 + e: each run of the coarse law is served
    as before, in at most 1 + e times the time. So the best sequence for the coarse law costs at
    most 1 + e times the least; and no more for the given law, whose runs are shorter.

    Args:
        law: any.
        max_values: the most values, at least 1.

    Returns:
        The distribution, and e.

    >>> coarse, excess = coarsen(Discrete([8, 10, 20, 21], [0.25, 0.25, 0.25, 0.25]), max_values=3)
    >>> coarse.values.tolist(), coarse.probabilities.tolist(), round(excess, 6)
    ([8.0, 10.0, 21.0], [0.25, 0.25, 0.5], 0.05)
    """
    values, mass = law.support
    # This excess is nearly always large enough.
    excess = math.expm1(math.log(values[-1] / values[values > 0][0]) / max_values) or 1e-15
    while len(_groups(values, excess, max_values)) > max_values:
        excess *= 2
    while excess > 1e-12 and len(_groups(values, excess / 2, max_values)) <= max_values:
        excess /= 2
    low = excess / 2
    while excess - low > 0.01 * excess:
        middle = (low + excess) / 2
        if len(_groups(values, middle, max_values)) > max_values:
            low = middle
        else:
            excess = middle
    starts = np.array(_groups(values, excess, max_values))
    largest = values[np.append(starts[1:], len(values)) - 1]
    grown = np.where(
        largest > values[starts], largest / np.maximum(values[starts], np.finfo(float).tiny), 1.0
    )
    merged = np.add.reduceat(mass, starts)
    return Discrete(largest, merged / merged.sum()), float(grown.max()) - 1


def _groups(values: Array, excess: float, max_groups: int) -> list[int]:
    """Return where groups begin whose values differ by at most a factor 1 + excess."""
    starts = [0]
    while len(starts) <= max_groups:
        end = int(values.searchsorted(values[starts[-1]] * (1 + excess), side="right"))
        if end == len(values):
            break
        starts.append(end)
    return starts
