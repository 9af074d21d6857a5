"""Fit the six laws to run times."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from launch.errors import InputError
from scheduler.reservation.distributions import LAWS, Array, Law, make_law

FEWEST = 5


@dataclass(frozen=True)
class Fit:
    """A distribution fitted to run times, with its goodness of fit.

    Attributes:
        law: the distribution with the likeliest parameters.
        aic: Akaike's criterion, 2 x parameters - 2 x log-likelihood; the smaller, the better.
        distance: largest difference to the distribution function of the run times
            (Kolmogorov-Smirnov).
    """

    law: Law
    aic: float
    distance: float


def fit_laws(runs: ArrayLike) -> tuple[Fit, ...]:
    """Fit every distribution by maximum likelihood, the best by Akaike's criterion first.

    The bounds are not searched: the likelihood would pull them onto the
    extremes of the sample, where a beta density is zero or infinite. They are
    put outside the extremes by the mean gap between neighboring runs.

    Args:
        runs: at least five run times, finite, above 0 and not all equal.

    Raises:
        InputError: the runs are too few, all equal, or not such times.
    """
    sample = np.sort(np.asarray(runs, float))
    if sample.size < FEWEST or sample[0] == sample[-1]:
        raise InputError(
            f"to fit a distribution takes at least {FEWEST} run times that are not all equal; "
            f"given: {sample.size}, {np.unique(sample).size} different"
        )
    if not (math.isfinite(sample[-1]) and sample[0] > 0):
        raise InputError("run times must be finite and above 0")
    gap = (sample[-1] - sample[0]) / (sample.size - 1)
    low = max(sample[0] - gap, sample[0] / 2)
    high = sample[-1] + gap
    return tuple(sorted((_fit(name, sample, low, high) for name in LAWS), key=lambda fit: fit.aic))


def _fit(name: str, sample: Array, low: float, high: float) -> Fit:
    from scipy.optimize import minimize

    guess = _guess(name, sample, low, high)
    free = list(guess)
    positive = [parameter in LAWS[name].positive for parameter in free]

    def law_at(point: Array) -> Law:  # positive parameters are searched by their logarithm
        values = [math.exp(x) if above else x for x, above in zip(point, positive, strict=True)]
        return make_law(name, low=low, high=high, **dict(zip(free, values, strict=True)))

    def cost(point: Array) -> float:
        try:
            density = law_at(point).pdf(sample)
        except (
            InputError,
            OverflowError,
        ):  # a corner of the search where the distribution does not exist
            return math.inf
        if np.all(density > 0):
            return -float(np.sum(np.log(density)))
        return math.inf

    point = np.array(
        [
            math.log(value) if above else value
            for value, above in zip(guess.values(), positive, strict=True)
        ]
    )
    if free:
        point = minimize(cost, point, method="Nelder-Mead", options={"maxiter": 500 * len(free)}).x
    law = law_at(point)
    steps = np.arange(sample.size + 1) / sample.size
    reached = law.cdf(sample)
    distance = max(np.max(steps[1:] - reached), np.max(reached - steps[:-1]))
    return Fit(law, 2 * len(free) + 2 * cost(point), float(distance))


def _guess(name: str, sample: Array, low: float, high: float) -> dict[str, float]:
    """Return start parameters: moments of the sample, as if nothing were cut."""
    if name == "truncnorm":
        return {"mu": float(sample.mean()), "sigma": float(sample.std())}
    if name == "lognormal":
        return {"mu": float(np.log(sample).mean()), "sigma": float(np.log(sample).std())}
    if name == "beta":
        mean = (sample.mean() - low) / (high - low)
        variance = sample.var() / (high - low) ** 2
        total = max(float(mean * (1 - mean) / variance - 1), 0.1)
        return {"alpha": float(mean * total), "beta": float((1 - mean) * total)}
    if name == "exponential":
        return {"rate": 1 / float(sample.mean() - low)}
    if name == "pareto":
        return {"alpha": 1 / float(np.log(sample / low).mean())}
    return {}
