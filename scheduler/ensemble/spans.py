"""Tell whether a network trains at another rate on GPUs that lie otherwise.

A group of m GPUs lies on as few nodes as possible (on one, or packed on several), or is spread over
more. Groups of one number of GPUs share one estimate, unless spread groups differ from the others
by more than noise. For each m at which both were seen, d is the logarithm of the ratio of the two
rates; its variance is the sum of the variances of both. The mean of all d, weighted by the inverse
of their variances, is a factor, which is used if it is more than :data:`SURE` standard errors from
1: a z-test of two means with unequal variances (Welch, Biometrika 34, 1947). The error of an
observation includes the variation between epochs; until that is known, a factor must also differ
from 1 by a quarter. There is one factor for groups that would fit on a node and one for larger
ones: the traces of Sia's simulator (SOSP 2023) have networks that are faster on a node than spread,
and slower packed than spread. A network that was not seen both ways has the factor of its family.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from scheduler.base import GroupShape, Span

OFF = 0.25  # relative error above which a rate is wrong
SURE = 3.0  # standard errors within which a difference may be chance
PLAIN_ERROR = 0.02  # of an observation, at least: machines are never quite the same

# Samples/s of earlier runs, by shape, or by numbers of GPUs.
PriorRates: TypeAlias = Mapping[GroupShape, float] | Mapping[int, float]


@dataclass(frozen=True)
class Observation:
    """The speed of a group's steps, without its first steps, waits for data and checkpoints.

    Args:
        rate: samples/s of the whole group.
        spread: standard deviation of the durations of steps, as a share of their mean.
        steps: number of timed steps.
        networks_per_gpu: number of networks on its GPU meanwhile, including this one.
    """

    rate: float
    spread: float = 0.0
    steps: int = 1
    networks_per_gpu: int = 1

    @property
    def error(self) -> float:
        """The standard error of the rate, as a share of it."""
        return self.spread / math.sqrt(max(1, self.steps))


def pool(observations: Sequence[Observation]) -> Observation:
    """Combine the observations of several networks with the same speed."""
    if len(observations) == 1:
        return observations[0]
    steps = np.array([observation.steps for observation in observations], dtype=np.float64)
    mean = float(steps @ [observation.rate for observation in observations] / steps.sum())
    spread = math.sqrt(
        float(steps @ [observation.spread**2 for observation in observations] / steps.sum())
    )
    return Observation(mean, spread, int(steps.sum()))


def as_shape(shape: GroupShape | int) -> GroupShape:
    """Return a shape, which has no span if only a number of GPUs is given."""
    return shape if isinstance(shape, GroupShape) else GroupShape(shape)


def by_shape(rates: PriorRates) -> dict[GroupShape, float]:
    """Return shape -> samples/s."""
    return {as_shape(shape): samples_per_s for shape, samples_per_s in rates.items()}


def by_gpus(rates: Mapping[GroupShape, float]) -> dict[int, float]:
    """Return GPUs -> samples/s: on as few nodes as possible, as far as that is known.

    >>> node, spread = GroupShape(2, Span.NODE), GroupShape(2, Span.SPREAD)
    >>> by_gpus({node: 19.0, spread: 12.0, GroupShape(1): 9.0})
    {2: 19.0, 1: 9.0}
    """
    ordered = sorted(rates, key=lambda shape: shape.span is not Span.SPREAD)
    return {shape.gpus: rates[shape] for shape in ordered}


def rate_of_shape(rates: Mapping[GroupShape, float], shape: GroupShape) -> float | None:
    """Return the rate of a shape; one without a span belongs to all spans.

    >>> rates = {GroupShape(2): 19.0, GroupShape(4): 36.0, GroupShape(4, Span.SPREAD): 20.0}
    >>> [rate_of_shape(rates, GroupShape(gpus, Span.SPREAD)) for gpus in (2, 4, 8)]
    [19.0, 20.0, None]
    """
    return rates.get(shape, rates.get(GroupShape(shape.gpus)))


@dataclass(frozen=True)
class Pair:
    """The logarithm of the rate of spread groups over that of others, and its variance."""

    gpus: int
    log: float
    variance: float


def make_pairs(seen: Mapping[GroupShape, Observation], noise: float) -> list[Pair]:
    """Return a pair for each number of GPUs on which groups were seen spread and not.

    Args:
        seen: shape -> rate of networks of one speed.
        noise: relative standard deviation of observations between epochs.
    """
    pairs = []
    for gpus, (compact, spread) in _by_size(seen).items():
        if spread and compact:
            pooled = pool(spread), pool(compact)
            errors = [max(observed.error, PLAIN_ERROR) for observed in pooled]
            variance = sum(error**2 + noise**2 for error in errors)
            pairs.append(Pair(gpus, math.log(pooled[0].rate / pooled[1].rate), variance))
    return pairs


def spread_factor(pairs: Sequence[Pair], noise: float) -> float | None:
    """Return the rate of spread groups as a multiple of others'; None if they may be equal.

    Args:
        noise: relative standard deviation of observations between epochs; 0 if unknown.

    >>> spread_factor([Pair(2, math.log(0.5), 0.01)], noise=0.02)
    0.5
    >>> spread_factor([Pair(2, math.log(0.9), 0.01)], noise=0.02)
    """
    if not pairs:
        return None
    logs = [pair.log for pair in pairs]
    weights = [1 / pair.variance for pair in pairs]
    mean = float(np.average(logs, weights=weights))
    variance = 1 / sum(weights)
    if len(pairs) > 1:
        variance = max(variance, float(np.var(logs, ddof=1)) / len(logs))
    doubt = SURE * math.sqrt(variance)
    if not noise:
        doubt = max(doubt, math.log(1 + OFF))
    return math.exp(mean) if abs(mean) > doubt else None


def _by_size(
    seen: Mapping[GroupShape, Observation],
) -> dict[int, tuple[list[Observation], list[Observation]]]:
    """Return GPUs -> the rates of groups that are not spread, and of groups that are."""
    sizes: dict[int, tuple[list[Observation], list[Observation]]] = {}
    for shape, observed in seen.items():
        sizes.setdefault(shape.gpus, ([], []))[shape.span is Span.SPREAD].append(observed)
    return sizes


Factors: TypeAlias = tuple[float | None, float | None]


@dataclass(frozen=True)
class SpanPoints:
    """What was seen of networks of one speed, divided by how GPUs lie where that matters.

    Attributes:
        points: GPUs -> rate on as few nodes as possible; of all groups where it does not matter.
        spread: GPUs -> samples/s of spread groups that were seen, where it matters.
        factors: the rate of spread groups as a multiple of the others', of groups that would fit
            on a node and of larger ones; None where it does not matter.
        gpus_per_node: the number of GPUs of a node.
    """

    points: Mapping[int, Observation]
    spread: Mapping[int, float]
    factors: Factors
    gpus_per_node: int

    def factor(self, gpus: int) -> float | None:
        """Return the factor of a number of GPUs, or None."""
        return self.factors[gpus > self.gpus_per_node]

    def spread_points(self) -> dict[int, Observation]:
        """Return GPUs -> rate of spread groups, at all numbers of GPUs that were seen."""
        points = {}
        for gpus, observed in self.points.items():
            factor = self.factor(gpus)
            if gpus > 1 and factor is not None:
                rate = self.spread.get(gpus, observed.rate * factor)
                observed = replace(observed, rate=rate)
            points[gpus] = observed
        return points

    def spread_rates(self, rates: Sequence[float]) -> tuple[float, ...]:
        """Return the rates of spread groups; none if they do not differ.

        Args:
            rates: samples/s on 1, 2, ... GPUs on as few nodes as possible.
        """
        if self.factors == (None, None) or len(rates) < 2:
            return ()
        return (
            rates[0],
            *(
                self.spread.get(gpus, samples_per_s * (self.factor(gpus) or 1.0))
                for gpus, samples_per_s in enumerate(rates[1:], start=2)
            ),
        )


def split_spans(
    seen: Mapping[GroupShape, Observation], gpus_per_node: int, factors: Factors
) -> SpanPoints:
    """Divide what was seen by how GPUs lie, where that matters.

    Args:
        seen: shape -> rate of networks of one speed.
        gpus_per_node: the number of GPUs of a node.
        factors: see :class:`SpanPoints`.

    >>> seen = {GroupShape(2, Span.NODE): Observation(20.0)}
    >>> seen |= {GroupShape(2, Span.SPREAD): Observation(12.0)}
    >>> split_spans(seen, 4, (None, None)).points[2].rate
    16.0
    >>> split = split_spans(seen, 4, (0.6, None))
    >>> split.points[2].rate, split.spread
    (20.0, {2: 12.0})
    """
    points = {}
    spread = {}
    for gpus, (compact, of_spread) in _by_size(seen).items():
        factor = factors[gpus > gpus_per_node]
        if factor is None:
            points[gpus] = pool([*compact, *of_spread])
            continue
        if of_spread:
            pooled = pool(of_spread)
            spread[gpus] = pooled.rate
            points[gpus] = replace(pooled, rate=pooled.rate / factor)
        if compact:
            points[gpus] = pool(compact)
    return SpanPoints(points, spread, factors, gpus_per_node)
