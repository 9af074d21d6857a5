"""What is known of a run time: a law on a bounded interval, or finitely many values with their probabilities.

The six laws of the reservations (truncated normal, beta, exponential, bounded
Pareto, lognormal, uniform) all live on ``[low, high]``: a law with a longer
tail is cut there and scaled up. The algorithms work on a :class:`Discrete`
law, made from one of the six by :func:`discretise` or from past runs by
:func:`empirical`. Times are in any unit, the same throughout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scheduler.base import MOST, InputError, check_range

Array = NDArray[np.float64]

MOST_POINTS = 1_000_000  # that a law is put on


@dataclass(frozen=True, kw_only=True)
class Law:
    """A continuous law of run times on ``[low, high]``.

    A subclass says what the law is before it is cut: its distribution
    function, up to a constant that it may choose (the cut takes differences,
    and near 1 a distribution function has no digits left), the matching
    quantiles and the density. Everything public is about the cut law.
    """

    low: float
    high: float

    name: ClassVar[str] = ""
    positive: ClassVar[tuple[str, ...]] = ()  # parameters that must be above zero

    def __post_init__(self) -> None:
        for parameter, value in self.parameters().items():
            if not math.isfinite(value):
                raise InputError(f"{self.name}: {parameter} is {value}; it must be a finite number")
        for parameter in self.positive:
            if not (value := getattr(self, parameter)) > 0:
                raise InputError(f"{self.name}: {parameter} is {value}; it must be above 0")
        if not 0 <= self.low < self.high:
            raise InputError(f"{self.name}: low is {self.low} and high is {self.high}; "
                             "it must be 0 <= low < high")
        check_range(f"{self.name}: high", self.high, 0, MOST)
        if not self._inside > 1e-9 * abs(self._below):  # a difference without digits is no probability
            raise InputError(f"{self.name}: there is no probability between {self.low} and {self.high}")

    def parameters(self) -> dict[str, float]:
        """Every parameter by name, the bounds last."""
        names = [field.name for field in fields(self)]
        return {name: float(getattr(self, name)) for name in (*names[2:], *names[:2])}

    def cdf(self, times: ArrayLike) -> Array:
        """Probability that a run takes at most this long."""
        clipped = np.clip(np.asarray(times, float), self.low, self.high)
        return np.asarray((self._cdf(clipped) - self._below) / self._inside)

    def pdf(self, times: ArrayLike) -> Array:
        """Density, zero outside the bounds."""
        times = np.asarray(times, float)
        clipped = np.clip(times, self.low, self.high)
        return np.where(times == clipped, self._pdf(clipped) / self._inside, 0.0)

    def sample(self, rng: np.random.Generator, count: int) -> Array:
        """Draw run times, by inverting the distribution function."""
        level = self._below + self._inside * rng.random(count)
        return np.clip(self._quantile(level), self.low, self.high)

    @cached_property
    def mean(self) -> float:
        """Expected run time: low plus the integral of the survival function (midpoint rule)."""
        step = (self.high - self.low) / 20_000
        return self.low + step * float(np.sum(1.0 - self.cdf(self.low + step * (np.arange(20_000) + 0.5))))

    @cached_property
    def _below(self) -> float:
        return float(self._cdf(np.asarray(self.low)))

    @cached_property
    def _inside(self) -> float:
        return float(self._cdf(np.asarray(self.high))) - self._below

    def _cdf(self, times: Array) -> Array:
        raise NotImplementedError

    def _pdf(self, times: Array) -> Array:
        raise NotImplementedError

    def _quantile(self, level: Array) -> Array:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class TruncatedNormal(Law):
    """Normal with mean ``mu`` and standard deviation ``sigma`` before the cut."""

    mu: float
    sigma: float

    name = "truncnorm"
    positive = ("sigma",)

    def _cdf(self, times: Array) -> Array:
        return _normal_cdf((times - self.mu) / self.sigma, upper=self.low > self.mu)

    def _pdf(self, times: Array) -> Array:
        return _normal_density((times - self.mu) / self.sigma) / self.sigma

    def _quantile(self, level: Array) -> Array:
        return self.mu + self.sigma * _normal_quantile(level, upper=self.low > self.mu)


@dataclass(frozen=True, kw_only=True)
class Beta(Law):
    """Beta with shapes ``alpha`` and ``beta``, stretched from [0, 1] to the bounds."""

    alpha: float
    beta: float

    name = "beta"
    positive = ("alpha", "beta")

    def _unit(self, times: Array) -> Array:
        return (times - self.low) / (self.high - self.low)

    def _cdf(self, times: Array) -> Array:
        from scipy.special import betainc
        return betainc(self.alpha, self.beta, self._unit(times))

    def _pdf(self, times: Array) -> Array:
        from scipy.special import betaln, xlog1py, xlogy
        unit = self._unit(times)
        log = xlogy(self.alpha - 1, unit) + xlog1py(self.beta - 1, -unit) - betaln(self.alpha, self.beta)
        return np.exp(log) / (self.high - self.low)

    def _quantile(self, level: Array) -> Array:
        from scipy.special import betaincinv
        return self.low + (self.high - self.low) * betaincinv(self.alpha, self.beta, level)


@dataclass(frozen=True, kw_only=True)
class Exponential(Law):
    """Exponential with ``rate`` events per unit of time (it has no memory: counted from ``low``)."""

    rate: float

    name = "exponential"
    positive = ("rate",)

    def _cdf(self, times: Array) -> Array:
        return -np.expm1(-self.rate * (times - self.low))

    def _pdf(self, times: Array) -> Array:
        return self.rate * np.exp(-self.rate * (times - self.low))

    def _quantile(self, level: Array) -> Array:
        return self.low - np.log1p(-level) / self.rate


@dataclass(frozen=True, kw_only=True)
class BoundedPareto(Law):
    """Pareto with shape ``alpha`` and scale ``low``, so ``low`` must be above 0."""

    alpha: float

    name = "pareto"
    positive = ("alpha", "low")

    def _cdf(self, times: Array) -> Array:
        return -np.expm1(-self.alpha * np.log(times / self.low))

    def _pdf(self, times: Array) -> Array:
        return self.alpha / times * (self.low / times) ** self.alpha

    def _quantile(self, level: Array) -> Array:
        return self.low * np.exp(-np.log1p(-level) / self.alpha)


@dataclass(frozen=True, kw_only=True)
class Lognormal(Law):
    """Lognormal: the logarithm has mean ``mu`` and standard deviation ``sigma``."""

    mu: float
    sigma: float

    name = "lognormal"
    positive = ("sigma",)

    def _score(self, times: Array) -> Array:
        with np.errstate(divide="ignore"):  # log 0 = -inf, whose probability is 0
            return (np.log(times) - self.mu) / self.sigma

    @property
    def _upper(self) -> bool:
        return self.low > 0 and math.log(self.low) > self.mu

    def _cdf(self, times: Array) -> Array:
        return _normal_cdf(self._score(times), upper=self._upper)

    def _pdf(self, times: Array) -> Array:
        safe = np.maximum(times, np.finfo(float).tiny)
        return _normal_density(self._score(safe)) / (self.sigma * safe)

    def _quantile(self, level: Array) -> Array:
        return np.exp(self.mu + self.sigma * _normal_quantile(level, upper=self._upper))


@dataclass(frozen=True, kw_only=True)
class Uniform(Law):
    """Every time between the bounds is as likely as any other."""

    name = "uniform"

    def _cdf(self, times: Array) -> Array:
        return (times - self.low) / (self.high - self.low)

    def _pdf(self, times: Array) -> Array:
        return np.full_like(times, 1.0 / (self.high - self.low))

    def _quantile(self, level: Array) -> Array:
        return self.low + (self.high - self.low) * level


LAWS: dict[str, type[Law]] = {law.name: law for law in
                              (TruncatedNormal, Beta, Exponential, BoundedPareto, Lognormal, Uniform)}


def make_law(name: str, **parameters: float) -> Law:
    """Make one of the six laws from its name and exactly its parameters.

    Args:
        name: a key of ``LAWS``.
        parameters: ``low``, ``high`` and those of the law.

    Raises:
        InputError: no such law, or a parameter missing, superfluous or out of range.

    >>> make_law("uniform", low=0, high=3).cdf(1.5)
    array(0.5)
    """
    if name not in LAWS:
        raise InputError(f"unknown distribution {name!r}; there are: {', '.join(LAWS)}")
    wanted = [field.name for field in fields(LAWS[name])]
    if set(parameters) != set(wanted):
        raise InputError(f"{name} takes {', '.join(wanted)}; given: {', '.join(parameters) or 'none'}")
    return LAWS[name](**parameters)


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
        values, mass = np.array(self.values, float), np.array(self.probabilities, float)
        if values.ndim != 1 or values.shape != mass.shape or not values.size:
            raise InputError(f"a law needs as many values as probabilities, at least one; given: "
                             f"{values.size} and {mass.size}")
        if not np.all(np.isfinite(values) & (values >= 0)) or np.any(np.diff(values) <= 0):
            raise InputError("the times of a law must be finite, at least 0 and increasing")
        if not np.all(mass >= 0) or not math.isclose(mass.sum(), 1.0, abs_tol=1e-9):
            raise InputError(f"the probabilities of a law must be at least 0 and sum to 1; "
                             f"the sum is {mass.sum():.12g}, the smallest {mass.min():.12g}")
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "probabilities", mass)

    @cached_property
    def mean(self) -> float:
        """Expected run time."""
        return float(self.values @ self.probabilities)

    @property
    def longest(self) -> float:
        """The longest run time that has a probability."""
        return float(self.values[np.flatnonzero(self.probabilities)[-1]])

    def beyond(self, time: float) -> Discrete | None:
        """The law of the runs that take longer than ``time``; None when there are none."""
        if time < self.values[0]:
            return self
        left = self.values > time
        weight = self.probabilities[left].sum()
        return Discrete(self.values[left], self.probabilities[left] / weight) if weight > 0 else None

    def work_within(self, time: float, after: float = 0.0) -> float:
        """Expected useful time of a run that is stopped at ``time``: E[X; X <= time | X > after].

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
        return (np.concatenate((zero, np.cumsum(self.probabilities))),
                np.concatenate((zero, np.cumsum(self.probabilities * self.values))))


def discretise(law: Law, points: int) -> Discrete:
    """Put a continuous law on ``points + 1`` equally spaced values from low to high.

    A value stands for the interval that ends there, so a run is never taken
    for shorter than it is ([SPEC] section 4.2; Gainaru et al., ICPP 2019).

    Args:
        law: the law.
        points: number of intervals, n in the paper.

    Raises:
        InputError: ``points`` is below 1 or above a million.

    >>> discretise(make_law("uniform", low=0, high=4), 4).probabilities
    array([0.  , 0.25, 0.25, 0.25, 0.25])
    """
    check_range("the number of points", points, 1, MOST_POINTS)
    values = np.linspace(law.low, law.high, points + 1)
    mass = np.diff(law.cdf(values), prepend=0.0)
    return Discrete(values, mass / mass.sum())


def empirical(runs: ArrayLike) -> Discrete:
    """The law of past runs: the times that were seen, each as likely as it was frequent.

    Args:
        runs: run times, finite and above 0, in any order.

    Raises:
        InputError: there are none, or one is not a time.

    >>> empirical([3, 1, 3, 3]).values, empirical([3, 1, 3, 3]).probabilities
    (array([1., 3.]), array([0.25, 0.75]))
    """
    runs = np.asarray(runs, float)
    if not runs.size:
        raise InputError("there are no past runs to learn from")
    if not np.all(np.isfinite(runs) & (runs > 0)):
        raise InputError("run times must be finite and above 0")
    values, counts = np.unique(runs, return_counts=True)
    return Discrete(values, counts / runs.size)


def coarsened(law: Discrete, most: int) -> tuple[Discrete, float]:
    """A law on fewer values, and by how much the sequence that is best for it may cost too much.

    Neighbouring values become the largest of them, so that none grows by more than a factor 1 + e; e is the
    least for which ``most`` values are left, to 1 %. Of a sequence that is best for the law given, multiply all
    requests by 1 + e: each run of the coarse law is served as before, in at most 1 + e times the time. So the
    best sequence for the coarse law costs at most 1 + e times the least; and for the law given, whose runs are
    shorter, no more.

    Args:
        law: any.
        most: how many values may be left, at least 1.

    Returns:
        The law, and e.

    >>> coarse, excess = coarsened(Discrete([8, 10, 20, 21], [0.25, 0.25, 0.25, 0.25]), most=3)
    >>> coarse.values.tolist(), coarse.probabilities.tolist(), round(excess, 6)
    ([8.0, 10.0, 21.0], [0.25, 0.25, 0.5], 0.05)
    """
    kept = law.probabilities > 0
    values, mass = law.values[kept], law.probabilities[kept]
    excess = math.expm1(math.log(values[-1] / values[values > 0][0]) / most) or 1e-15  # nearly always enough
    while len(_groups(values, excess, most)) > most:
        excess *= 2
    while excess > 1e-12 and len(_groups(values, excess / 2, most)) <= most:
        excess /= 2
    least = excess / 2
    while excess - least > 0.01 * excess:
        middle = (least + excess) / 2
        if len(_groups(values, middle, most)) > most:
            least = middle
        else:
            excess = middle
    starts = np.array(_groups(values, excess, most))
    largest = values[np.append(starts[1:], len(values)) - 1]
    grown = np.where(largest > values[starts], largest / np.maximum(values[starts], np.finfo(float).tiny), 1.0)
    merged = np.add.reduceat(mass, starts)
    return Discrete(largest, merged / merged.sum()), float(grown.max()) - 1


def _groups(values: Array, excess: float, most: int) -> list[int]:
    """Where groups begin within which no value is more than 1 + excess times another; not many more than ``most``."""
    starts = [0]
    while len(starts) <= most:
        end = int(values.searchsorted(values[starts[-1]] * (1 + excess), side="right"))
        if end == len(values):
            break
        starts.append(end)
    return starts


def _normal_cdf(score: Array, *, upper: bool) -> Array:
    """Distribution function of the standard normal, less 1 when only its upper tail is of interest."""
    from scipy.special import ndtr
    return -ndtr(-score) if upper else ndtr(score)


def _normal_quantile(level: Array, *, upper: bool) -> Array:
    from scipy.special import ndtri
    return -ndtri(-level) if upper else ndtri(level)


def _normal_density(score: Array) -> Array:
    return np.exp(-0.5 * score ** 2) / math.sqrt(2 * math.pi)
