"""Estimate the combined throughput of networks that share a GPU.

s(k) is the combined throughput of k networks on one GPU relative to one network alone; s(1) = 1.
Each of them trains at a share s(k) / k of its rate alone. One curve is assumed for all networks of
a machine.

It is fitted to networks that have trained beside different numbers of others: log r = a + log(s(k)
/ k), with one ``a`` per speed and group size, by weighted least squares. Rates from so few or so
uneven steps that they say next to nothing are ignored, because a sharing that seems not to pay is
not tried again. Only counts connected with k = 1 are known. :func:`speedup` guesses s beyond the
largest known k, which is enough to try it; but at most twice as many networks share a GPU as are
known to. So a run on an unknown machine begins with one network on each GPU, tries two as soon as
the first rates are known, and so on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from scheduler.base import GroupShape, RateTable
from scheduler.ensemble.rates import rate
from scheduler.ensemble.spans import PriorRates, as_shape, by_shape

REACH = 2  # times as many networks on a GPU as were measured, at most
CONTENTION = 0.25  # of a GPU, which each network keeps busy alone, before any is measured
PAYS = 1.03  # gain in total throughput from which one more network per GPU pays

_SPREAD = 0.3  # of the durations of steps, at least: a few equal ones are no proof that all are
_PLAIN_ERROR = 0.02  # of a rate, at least
_VAGUE = 0.2  # an error with which a rate says nothing of what networks train together
_VAGUER = 2.0  # times the error of what is known, and it is no reason to forget that

# (speed, shape of the group): its rate depends on nothing but the others beside it.
Unit: TypeAlias = tuple[str, GroupShape]


def speedup(sharing: Sequence[float], count: int) -> float:
    """Return s(k): the combined throughput of k networks on a GPU relative to one.

    Beyond the known counts it saturates as Amdahl's law says, if a network alone keeps a share c of
    the GPU busy that no other can use meanwhile:

        s(k) = k / (1 + c (k - 1))

    The largest known count gives c. Before anything is known c is :data:`CONTENTION`, so that s(2)
    is 1.6 and s(k) stays below 4. That s(2) is the geometric mean of two published values: 1.37,
    the median over the pairs on a V100 in Gavel's measurements (Narayanan et al., OSDI 2020), and
    1.87, the mean over the 1,388 pairs in Lucid's (Hu et al., ASPLOS 2023).

    Args:
        sharing: s(1), s(2), ... as far as known.

    >>> speedup((1.0,), 2), speedup((1.0,), 3), round(speedup((1.0,), 8), 2)
    (1.6, 2.0, 2.91)
    >>> speedup((1.0, 1.5), 2), round(speedup((1.0, 1.5), 8), 2), speedup((1.0, 1.0), 8)
    (1.5, 2.4, 1.0)
    """
    last = max(1, min(count, len(sharing)))
    measured = sharing[last - 1] if sharing else 1.0
    if last == count:
        return measured
    contention = CONTENTION
    if last > 1:
        contention = max(0.0, (last / measured - 1) / (last - 1))
    return measured * _saturate(count, contention) / _saturate(last, contention)


def _saturate(count: int, contention: float) -> float:
    """Return the speedup by Amdahl's law."""
    return count / (1 + contention * (count - 1))


def share(sharing: Sequence[float], count: int) -> float:
    """Return s(k) / k: the relative rate of each of k networks on a GPU."""
    return speedup(sharing, count) / count


def best_networks_per_gpu(rates: RateTable, names: Iterable[str], max_networks: int) -> int:
    """Return how many networks should share a GPU: one more must add at least 3 % throughput.

    The input limits the total: one network of 900 samples/s on an input of 100 trains as much
    beside seven others.

    Args:
        names: the networks that could share.
        max_networks: the most networks on one GPU.

    >>> from scheduler.base import Network
    >>> pair = (Network("a", (900.0,)), Network("b", (900.0,)))
    >>> def best(sharing, supply=math.inf):
    ...     table = RateTable(1, 1, pair, sharing=sharing, supply=supply)
    ...     return best_networks_per_gpu(table, "ab", 8)
    >>> best((1.0, 1.0)), best((1.0, 1.0), supply=100.0) > 1
    (1, True)
    >>> [best(sharing) for sharing in ((), (1.0,), (1.0, 1.4))]
    [1, 2, 4]
    """
    max_networks = min(max_networks, max(1, REACH * len(rates.sharing)))
    selected = set(names)
    alone = np.array(
        [rate(network, network.min_gpus) for network in rates.models if network.name in selected]
    )
    if not len(alone):
        return 1

    def together(count: int) -> float:
        return count * float(np.minimum(alone * share(rates.sharing, count), rates.supply).mean())

    count = 1
    while count < max_networks and together(count + 1) > PAYS * together(count):
        count += 1
    return count


def useful_networks_per_gpu(sharing: Sequence[float]) -> int:
    """Return how many networks should share a GPU if the input is no limit.

    >>> useful_networks_per_gpu((1.0, 1.6, 1.9, 1.91)), useful_networks_per_gpu((1.0,))
    (3, 1)
    """
    return next(
        (count for count in range(1, len(sharing)) if sharing[count] <= PAYS * sharing[count - 1]),
        len(sharing),
    )


def curves_differ(before: Sequence[float], now: Sequence[float], off: float) -> bool:
    """Return True if a plan made from one curve may be wrong for another.

    >>> curves_differ((1.0,), (1.0, 1.4), 0.25)
    True
    >>> curves_differ((1.0, 1.4), (1.0, 1.5), 0.25)
    False
    >>> curves_differ((1.0, 1.4), (1.0, 1.0), 0.25)
    True
    """
    counts = range(1, 1 + max(len(before), len(now)))
    then, after = ([speedup(curve, count) for count in counts] for curve in (before, now))
    return (
        len(before) != len(now)
        or useful_networks_per_gpu(then) != useful_networks_per_gpu(after)
        or any(abs(new - old) > off * old for old, new in zip(then, after, strict=True))
    )


def alone_rates(rates: RateTable | None) -> dict[str, dict[int, float]]:
    """Return network -> {GPUs: samples/s} of a table of networks that do not share GPUs."""
    if rates:
        return {network.name: dict(enumerate(network.rates, start=1)) for network in rates.models}
    return {}


@dataclass(frozen=True)
class _SharedRate:
    """The rate of a unit beside others, samples/s, and its relative standard error."""

    unit: Unit
    count: int
    rate: float
    error: float = _PLAIN_ERROR


class Sharing:
    """The curve s, estimated from training.

    Args:
        prior: k -> s(k) of earlier runs, for k > 1; measurements of this run take precedence.
        alone: speed -> {shape or GPUs: samples/s} of earlier runs on GPUs that were not shared.
        idle_slots: number of networks that are expected to train no more together than one, unless
            measured otherwise; so sharing is not tried.

    Attributes:
        expected: s(1), s(2), ... of these slots, which were not measured.
    """

    def __init__(
        self,
        prior: Mapping[int, float] | None = None,
        alone: Mapping[str, PriorRates] | None = None,
        idle_slots: int = 1,
    ) -> None:
        self._prior = dict(prior or {})
        self.expected = (1.0,) * idle_slots
        self._fit: dict[int, float] = {}
        self._observations = {
            ((speed, shape), 1): _SharedRate((speed, shape), 1, rate)
            for speed, rates in (alone or {}).items()
            for shape, rate in by_shape(rates).items()
        }

    def observe(
        self,
        group: tuple[str, GroupShape | int],
        count: int,
        rate: float,
        spread: float,
        steps: int,
    ) -> None:
        """Record the rate of a group while ``count`` networks, including its own, used its GPU.

        Args:
            group: its speed, and its shape or number of GPUs.
            rate: samples/s of the whole group.
            spread: standard deviation of the durations of steps, as a share of their mean.
            steps: number of timed steps.
        """
        error = max(_PLAIN_ERROR, max(spread, _SPREAD) / math.sqrt(max(1, steps)))
        unit = group[0], as_shape(group[1])
        before = self._observations.get((unit, count))
        if error > _VAGUE or (before is not None and error > _VAGUER * before.error):
            return
        self._observations[unit, count] = _SharedRate(unit, count, rate, error)
        self._fit = _fit_sharing(list(self._observations.values()))

    @property
    def fitted(self) -> dict[int, float]:
        """k -> s(k) for each k above 1 that this run has measured."""
        return dict(self._fit)

    def is_known(self, count: int) -> bool:
        """Return True if s(k) rests on measurements."""
        return count == 1 or count in self._fit or count in self._prior

    @property
    def curve(self) -> tuple[float, ...]:
        """s(1), s(2), ... as far as they are known; gaps are guessed."""
        values = self._prior | self._fit
        curve = [1.0]
        if not (
            values or any(observation.count == 1 for observation in self._observations.values())
        ):
            return ()
        for count in range(2, 1 + max([*values, len(self.expected)])):
            guess = curve[-1] if count <= len(self.expected) else speedup(curve, count)
            curve.append(values.get(count, guess))
        return tuple(curve)


def _fit_sharing(observations: Sequence[_SharedRate]) -> dict[int, float]:
    """Return s(k) of each k that is connected to k = 1 by units measured at both.

    >>> a, b = ("a", GroupShape(1)), ("b", GroupShape(1))
    >>> _fit_sharing([_SharedRate(a, 1, 10.0), _SharedRate(a, 2, 8.0), _SharedRate(b, 3, 4.0)])
    {2: 1.6}
    """
    counts = _connected_counts(observations)
    used = [observation for observation in observations if observation.count in counts]
    units = sorted({observation.unit for observation in used})
    columns = sorted(counts - {1})
    if not columns:
        return {}
    design = np.zeros((len(used), len(units) + len(columns)))
    for row, observation in enumerate(used):
        design[row, units.index(observation.unit)] = 1.0
        if observation.count > 1:
            design[row, len(units) + columns.index(observation.count)] = 1.0
    weights = 1 / np.array([observation.error for observation in used])
    logs = np.log([observation.rate for observation in used])
    solution = np.linalg.lstsq(design * weights[:, np.newaxis], logs * weights, rcond=None)[0][
        len(units) :
    ]
    # No network trains faster beside others than alone: such values are noise.
    return {
        count: round(count * min(1.0, math.exp(log)), 9)
        for count, log in zip(columns, solution, strict=True)
    }


def _connected_counts(observations: Sequence[_SharedRate]) -> set[int]:
    """Return the numbers of networks on a GPU that can be compared with one."""
    reached = {1}
    while True:
        units = {observation.unit for observation in observations if observation.count in reached}
        more = {observation.count for observation in observations if observation.unit in units}
        if more <= reached:
            return reached
        reached |= more
