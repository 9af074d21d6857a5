"""Compute training rates: measured ones, and estimates beyond them ([FLEET] appendix B.3).

A rate r(m) is samples/s of one network on m GPUs. Rates need not rise: Eq. 5 falls beyond its peak,
and measured ones may dip (a group that leaves its node). A *useful* count is one on which the
network is faster than on any fewer GPUs; only those are worth giving.

A rate belongs to a :class:`~scheduler.base.GroupShape`: to a number of GPUs and to how they lie on
nodes, where that is known to matter. Sizes are chosen by the rates of GPUs that lie best, because
:mod:`scheduler.ensemble.exchanges` then lets them lie so; :func:`rate` looks up any.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from launch.errors import InputError
from scheduler.base import Network, RateTable, Span

ROUNDING = 1e-12  # of an efficiency


def curve(network: Network, gpus: int, span: Span | None = None) -> NDArray[np.float64]:
    """Return the rates of one network on 1..``gpus`` GPUs, shape (gpus,), samples/s.

    Up to the last measured count b they are measured; beyond it, as in Eq. 5, the efficiency r(b)/b
    continues to fall by the factor from b-1 to b:

        r(m) = m r(b)/b e^(m-b),    e = (r(b)/b) / (r(b-1)/(b-1))

    In the paper b is twice the GPUs of a node. The paper leaves three cases open: e above 1 (noise
    in the measurement) would promise an unlimited gain, so it counts as 1; a single measurement
    says nothing about scaling, so the rate stays constant; and no rate falls below a millionth of
    the last measured one, so that none is 0.

    Efficiency 10 on one GPU and 9 on two is extrapolated to 8.1 on three:

    >>> curve(Network("a", (10.0, 18.0)), 4).round(2).tolist()
    [10.0, 18.0, 24.3, 29.16]
    """
    rates = network.best_rates if span is None else network.rates_on(span)
    measured = np.asarray(rates[:gpus], dtype=np.float64)
    return np.concatenate(
        [measured, extrapolate_rates(rates, np.arange(len(measured) + 1, gpus + 1))]
    )


def extrapolate_rates(rates: Sequence[float], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the rates on more GPUs than were measured, in the shape of ``counts``."""
    base = len(rates)
    last = rates[-1]
    if base == 1:
        return np.full(len(counts), last)
    falling = _falling(rates)
    rate = counts * (last / base) * (falling ** (counts - base) if falling < 1 else 1.0)
    return np.maximum(rate, 1e-6 * last)


def _falling(rates: Sequence[float]) -> float:
    """Return e of Eq. 5, the factor of efficiency per GPU; 1 if it falls by rounding alone."""
    base = len(rates)
    factor = (rates[-1] / base) / (rates[-2] / (base - 1))
    if factor < 1 - ROUNDING:
        return factor
    return 1.0


def is_straight(network: Network) -> bool:
    """Return True if each further GPU adds as much as those before."""
    return len(network.rates) > 1 and _falling(network.best_rates) == 1


def rate(network: Network, gpus: int, span: Span | None = None) -> float:
    """Return the rate of one network on a number of GPUs, samples/s.

    Args:
        span: how the GPUs lie; None if they lie best.
    """
    rates = network.best_rates if span is None else network.rates_on(span)
    if gpus <= len(rates):
        return float(rates[gpus - 1])
    return float(extrapolate_rates(rates, np.array([gpus]))[0])


def median_rates(networks: Sequence[Network]) -> tuple[float, ...]:
    """Return the rates of the network with the median rate on one GPU; (1.0,) without networks.

    >>> slow, fast, other = Network("a", (1.0,)), Network("b", (9.0,)), Network("c", (4.0, 6.0))
    >>> median_rates([slow, fast, other])
    (4.0, 6.0)
    """
    ordered = sorted(networks, key=lambda network: network.rates[0])
    if ordered:
        return ordered[len(ordered) // 2].rates
    return (1.0,)


@dataclass(frozen=True, eq=False)
class Curves:
    """The rates of all networks as arrays of shape (networks, gpus); column m-1 is m GPUs.

    Args:
        names: the networks, in the order of the rate table.
        index: name -> row.
        rate: samples/s.
        allowed: whether a count is within the bounds of the network's group.
        useful: allowed, and faster than on any fewer GPUs that are allowed.
        min_gpus: the fewest GPUs allowed, shape (networks,).
    """

    names: tuple[str, ...]
    index: dict[str, int]
    rate: NDArray[np.float64]
    allowed: NDArray[np.bool_]
    useful: NDArray[np.bool_]
    min_gpus: NDArray[np.int64]

    def counts(self, peak_limited: bool) -> NDArray[np.bool_]:
        """Return which group sizes may be given."""
        if peak_limited:
            return self.useful
        return self.allowed


@lru_cache(maxsize=64)
def curves(table: RateTable, gpus: int) -> Curves:
    """Return the rate table as arrays, up to a number of GPUs."""
    # Policies ask for many numbers of GPUs; each column depends only on those before it, so all are
    # slices of a few large tables.
    wide = _curves(table, 1 << max(0, gpus - 1).bit_length())
    return replace(
        wide,
        rate=wide.rate[:, :gpus],
        allowed=wide.allowed[:, :gpus],
        useful=wide.useful[:, :gpus],
    )


def last_useful(network: Network, gpus: int) -> int:
    """Return the number of GPUs beyond which no more are useful to a network."""
    base = len(network.rates)
    last = max(base, network.min_gpus)
    if base > 1:
        fall = -math.log(_falling(network.best_rates))
        last = max(last, math.ceil(1 / fall) + 1) if fall * gpus > 1 else gpus
    return min(last, network.max_gpus or gpus, gpus)


class _Kinds:
    """The kinds of networks of the last table; networks may be appended one by one.

    Networks may be added one by one, and there may be thousands.
    """

    def __init__(self) -> None:
        self._models: tuple[Network, ...] = ()
        self._kind_of: dict[tuple[object, ...], int] = {}
        self._first: list[int] = []  # row of each kind
        self._of_rows = np.zeros(0, np.int64)

    def of(self, models: tuple[Network, ...]) -> tuple[list[int], NDArray[np.int64]]:
        """Return the kinds of the networks; see :func:`kinds`."""
        start = len(self._models)
        if models[:start] != self._models:
            start = 0
            self._kind_of = {}
            self._first = []
        further = []
        for row, network in enumerate(models[start:], start):
            kind = self._kind_of.setdefault(
                (network.rates, network.spread_rates, network.min_gpus, network.max_gpus),
                len(self._first),
            )
            if kind == len(self._first):
                self._first.append(row)
            further.append(kind)
        self._of_rows = np.concatenate([self._of_rows[:start], np.array(further, np.int64)])
        self._models = models
        return self._first.copy(), self._of_rows


_KINDS = _Kinds()


@lru_cache(maxsize=16)
def kinds(table: RateTable) -> tuple[list[int], NDArray[np.int64]]:
    """Return the first row of each kind of network, and the kind of each row."""
    return _KINDS.of(table.models)


@lru_cache(maxsize=64)
def all_last_useful(table: RateTable, gpus: int) -> NDArray[np.int64]:
    """Return :func:`last_useful` of all networks, shape (networks,)."""
    rows, kind = kinds(table)
    return np.array([last_useful(table.models[row], gpus) for row in rows], dtype=np.int64)[kind]


@lru_cache(maxsize=64)
def useful_curves(table: RateTable, gpus: int, width: int) -> Curves:
    """Return :func:`curves` up to ``width`` columns, without useless columns."""
    return curves(table, min(width, int(all_last_useful(table, gpus).max(initial=1))))


@lru_cache(maxsize=64)
def widest(table: RateTable) -> int:
    """Return the largest number of GPUs that any network was measured on, or needs."""
    return max((max(network.min_gpus, len(network.rates)) for network in table.models), default=1)


@lru_cache(maxsize=64)
def bent_curves(table: RateTable, gpus: int) -> Curves:
    """Return :func:`curves` without the columns where all networks are straight or at their peak.

    On a large cluster these are nearly all.
    """
    bends = []
    for row in kinds(table)[0]:
        network = table.models[row]
        if is_straight(network):
            bends.append(max(len(network.rates), network.min_gpus))
        else:
            bends.append(last_useful(network, gpus))
    return curves(table, min(gpus, max(bends, default=1)))


@lru_cache(maxsize=16)
def _curves(table: RateTable, gpus: int) -> Curves:
    rows, kind = kinds(table)
    networks = [table.models[row] for row in rows]
    min_gpus = np.array([network.min_gpus for network in networks], dtype=np.int64)
    rates = np.empty((len(networks), gpus))
    allowed, useful = np.zeros((2, *rates.shape), np.bool_)
    for row, network in enumerate(networks):
        rates[row] = curve(network, gpus)
        allowed[row, network.min_gpus - 1 : network.max_gpus] = True
        useful[row] = _useful(rates[row], allowed[row])
    return Curves(table.names, table.rows, rates[kind], allowed[kind], useful[kind], min_gpus[kind])


def _useful(rate: NDArray[np.float64], allowed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which allowed counts are faster than all smaller allowed ones."""
    rises = rate[1:] > rate[:-1]
    if rises.all():
        return allowed
    reached = np.maximum.accumulate(np.where(allowed, rate, -np.inf))
    useful = allowed.copy()
    useful[1:] &= rate[1:] > reached[:-1]
    return useful


@lru_cache(maxsize=16)
def extend_as_printed(table: RateTable, gpus: int) -> RateTable:
    """Extend rates beyond the measured ones by Eq. 5 as the paper prints it.

    There b is M_b, twice the GPUs of a node, even if more was measured (up to M_t = max(M_a, M_b));
    in :func:`curve` it is the last measured count. A network that was measured on fewer than M_b is
    left as it is.

    Two GPUs a node, so M_b = 4, where the efficiency falls by 0.9; the fifth rate is measured, the
    sixth is not:

    >>> table = RateTable(1, 2, (Network("a", (10.0, 20.0, 30.0, 36.0, 44.0)),))
    >>> extend_as_printed(table, 6).models[0].rates[4:]
    (44.0, 43.74)
    >>> round(float(curve(table.models[0], 6)[5]), 2)
    51.63
    """
    b = 2 * table.gpus_per_node

    def extend(network: Network) -> Network:
        rates = network.rates
        if not 1 < b < len(rates) < gpus:
            return network
        counts = np.arange(len(rates) + 1, gpus + 1)
        return replace(network, rates=(*rates, *extrapolate_rates(rates[:b], counts).tolist()))

    return replace(table, models=tuple(map(extend, table.models)))


def smooth_rates(table: RateTable, gpus: int) -> RateTable:
    """Extend rates beyond the measured ones with less noise than Eq. 5.

    Eq. 5 takes the fall of efficiency from the last two measured counts, so an error of 5 % in each
    is one of 7 % per GPU, and grows with every further one. Here it is the slope of a straight line
    through the logarithms of all measured efficiencies. As far as the scatter about these lines
    suggests that slopes differ by error alone, each is shrunk toward their mean, because networks
    on one machine scale alike (an empirical Bayes estimate). Measured rates are left as they are.

    Efficiencies 9, 9 and 8.1 fall by 5 % a GPU on average:

    >>> table = RateTable(1, 4, (Network("a", (9.0, 18.0, 24.3)),))
    >>> round(float(smooth_rates(table, 4).models[0].rates[3]), 1)
    30.7
    """
    lines = {
        network.name: Line.through(range(1, len(network.rates) + 1), network.rates)
        for network in table.models
        if 1 < len(network.rates) < gpus
    }
    slopes = shrink_slopes(lines).of

    def extend(network: Network) -> Network:
        if network.name not in slopes:
            return network
        return replace(network, rates=_extended(network.rates, slopes[network.name][0], gpus))

    return replace(table, models=tuple(map(extend, table.models)))


@dataclass(frozen=True)
class Line:
    """A straight line through logarithms of efficiencies, with what its error depends on.

    Attributes:
        slope: by which the logarithm changes with each GPU.
        spread: sum of squared distances of the counts from their mean.
        residual: sum of squared distances of the logarithms from the line.
        freedom: points beyond the two that every line needs.
    """

    slope: float
    spread: float
    residual: float
    freedom: int

    @classmethod
    def through(cls, gpus: Sequence[int], rates: Sequence[float]) -> Line:
        """Fit the line through the rates on at least two numbers of GPUs."""
        count = np.asarray(gpus, dtype=np.float64)
        logs = np.log(np.asarray(rates) / count)
        x = count - count.mean()
        y = logs - logs.mean()
        spread = float(x @ x)
        slope = float(x @ y) / spread
        return cls(slope, spread, float(((y - slope * x) ** 2).sum()), len(count) - 2)


@dataclass(frozen=True)
class Slopes:
    """The slopes of networks, their standard deviations, and the variance of the true slopes."""

    of: Mapping[str, tuple[float, float]]
    true: float


def shrink_slopes(lines: Mapping[str, Line], least_noise: float = 0.0) -> Slopes:
    """Shrink slopes toward their mean by the share of their variance that is error.

    Args:
        least_noise: the smallest variance of one logarithm to assume.
    """
    freedom = sum(line.freedom for line in lines.values())
    if freedom:
        scatter = sum(line.residual for line in lines.values()) / freedom
    else:
        scatter = 0.0
    noise = max(scatter, least_noise)
    error = {name: noise / line.spread for name, line in lines.items()}  # variance of each slope
    if not noise or len(lines) < 2:
        return Slopes(
            {name: (line.slope, math.sqrt(error[name])) for name, line in lines.items()}, 0.0
        )
    slopes = np.array([line.slope for line in lines.values()])
    true = max(0.0, float(slopes.var(ddof=1)) - float(np.mean(list(error.values()))))
    mean = float(slopes.mean())
    return Slopes(
        {
            name: (
                mean + (line.slope - mean) * true / (true + error[name]),
                math.sqrt(true * error[name] / (true + error[name])),
            )
            for name, line in lines.items()
        },
        true,
    )


def _extended(rates: tuple[float, ...], slope: float, gpus: int) -> tuple[float, ...]:
    counts = np.arange(len(rates) + 1, gpus + 1)
    extrapolate_rates = (
        counts * rates[-1] / len(rates) * np.exp(min(0.0, slope) * (counts - len(rates)))
    )
    return (*rates, *extrapolate_rates)


def counts_to_measure(single: Sequence[float], gpus_per_node: int, gpus: int) -> int:
    """Return up to how many GPUs to profile: M_t of [FLEET] appendix B.3.

    M_a = ceil(fastest / slowest single-GPU rate) is what the slowest network
    needs to keep up with the fastest, M_b is two nodes; M_t is the larger,
    within the cluster.

    Args:
        single: the rate of each network on one GPU, samples/s.
        gpus_per_node: the number of GPUs per node of the cluster.
        gpus: the number of GPUs of the cluster.

    >>> counts_to_measure([176.0, 21.0], gpus_per_node=4, gpus=100)
    9
    >>> counts_to_measure([30.0, 20.0], gpus_per_node=4, gpus=6)
    6
    """
    keep_up = math.ceil(max(single) / min(single)) if single else 1
    return min(gpus, max(keep_up, 2 * gpus_per_node))


def preprocessors_needed(throughput: Sequence[float], demand: float) -> int:
    """Return the fewest preprocessors that meet a demand ([FLEET] appendix B.3).

    Args:
        throughput: samples/s of 1, 2, ... preprocessors.
        demand: samples/s that the trainers take.

    Returns:
        The smallest sufficient count; if none suffices, the count with the most throughput.

    Raises:
        InputError: nothing was measured.

    >>> preprocessors_needed([100.0, 190.0, 260.0], demand=150.0)
    2
    """
    if not throughput:
        raise InputError(
            "no throughput of preprocessors was measured; that of at least one is needed"
        )
    for count, reached in enumerate(throughput, start=1):
        if reached >= demand:
            return count
    return 1 + max(range(len(throughput)), key=throughput.__getitem__)


def rates_up_to_gap(rates: Mapping[int, float], min_gpus: int = 1) -> tuple[float, ...]:
    """Return samples/s on 1, 2, ... GPUs up to the first gap; proportional below the minimum.

    Args:
        rates: GPUs -> samples/s; ``min_gpus`` is a key.

    >>> rates_up_to_gap({2: 30.0, 3: 40.0, 5: 60.0}, min_gpus=2)
    (15.0, 30.0, 40.0)
    """
    last = next(gpus for gpus in itertools.count(min_gpus) if gpus + 1 not in rates)
    return tuple(rates.get(gpus, rates[min_gpus] * gpus / min_gpus) for gpus in range(1, last + 1))
