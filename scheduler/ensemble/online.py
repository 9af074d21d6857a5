"""Estimate training rates from training itself, so that nothing must be measured before it.

A policy gets a :class:`scheduler.base.RateTable`, as if everything had been measured. It comes from
three sources:

- *A prior.* On one GPU, log r = c_machine + c_family - log(operations of a sample). The offsets are
  learned from the measured networks; the family's offset is shrunk toward the machine's as far as
  the scatter within families suggests (an empirical Bayes estimate, as in
  :func:`scheduler.ensemble.rates.smooth_rates`). A network that was never measured gets the lower
  end of its range, one standard deviation below: a network that is assumed to be fast, and is not,
  would otherwise wait for a GPU to the end.
- *A slope.* The logarithm of the efficiency r(m) / m falls along a straight line. A network that
  was measured at two sizes has its own slope, shrunk toward the mean of all; others have the mean.
  An unmeasured size gets the upper end of its range, one standard deviation above. So a plan that
  might be better tries it, by a regrouping and on samples that count; a plan that could not be
  better is left alone. Once tried, the size is measured, and if the plan depends on the result
  (:mod:`scheduler.ensemble.probing`), another plan follows.
- *Observations.* A measured rate at a size is used for that size. Beside other networks on one GPU
  it stands for the network's share of the rate there (:mod:`scheduler.ensemble.sharing`).

What is observed belongs to a :class:`scheduler.base.GroupShape`: a number of GPUs, and how they lie
on nodes. All spans of a number share one estimate, until networks have shown that spread groups
differ from others by more than the noise of both (:mod:`scheduler.ensemble.spans`). From then on
groups on as few nodes as possible have an estimate, and spread ones another.

No network is planned on more than twice the GPUs on which it was measured (Qiao et al., *Pollux*,
OSDI 2021, and its code): anything larger is a guess. The limit is twice the largest size of any
network for a network that was not measured, and for all networks as soon as some were measured at
two sizes.

Estimating all networks takes time in proportion to their number. So networks with equal properties
except their names are estimated once; and with more than a hundred networks the table is renewed
after several observations, not after each (:data:`RENEWED`), and only then do these trigger another
plan.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from scheduler.base import GroupShape, Network, RateTable, Span
from scheduler.ensemble.rates import Line, rate, shrink_slopes
from scheduler.ensemble.sharing import Sharing, curves_differ, share
from scheduler.ensemble.spans import (
    OFF,
    PLAIN_ERROR,
    SURE,
    Observation,
    Pair,
    PriorRates,
    SpanPoints,
    as_shape,
    by_shape,
    make_pairs,
    pool,
    rate_of_shape,
    split_spans,
    spread_factor,
)

# number of changes that estimate the noise of rates: at most and at least
MAX_CHANGES = 50
MIN_CHANGES = 4
REACH = 2  # times as many GPUs as were seen, at most
POOLED = 5  # networks that were seen at two sizes say how well all others scale
RENEWED = 50  # the table waits for one more observation for each so many networks
LONG_EPOCH_S = (
    60.0  # of an epoch, from which groups are moved to learn how they train on other nodes
)
SPANS_TRIED = 2  # networks of a family that are moved to learn how groups train on other nodes
NOMINAL = 1e11  # operations/s of a GPU, before anything has been seen: only ratios decide
_DEVIATIONS = 1.4826  # of a normal distribution, in medians of what it deviates by


@dataclass(frozen=True)
class Traits:
    """The properties of a network that are known before its first step.

    Args:
        name: unique in the ensemble.
        key: networks with equal keys train at equal speed.
        family: networks of one family have a common offset.
        operations: operations per sample, in any unit; None if unknown.
        min_gpus, max_gpus: the bounds of its group.
    """

    name: str
    key: str
    family: str = ""
    operations: float | None = None
    min_gpus: int = 1
    max_gpus: int | None = None


def is_off(observed: Observation, expected: float, noise: float = 0.0) -> bool:
    """Return True if a rate is wrong by more than a quarter, and not by chance.

    Args:
        expected: expected rate, samples/s.
        noise: relative standard deviation of such observations from one epoch to the next.

    >>> is_off(Observation(13.0), expected=10.0), is_off(Observation(12.0), expected=10.0)
    (True, False)
    >>> is_off(Observation(13.0, spread=0.5, steps=16), expected=10.0)
    False
    >>> is_off(Observation(13.0), expected=10.0, noise=0.1)
    False
    """
    doubt = math.exp(SURE * math.hypot(observed.error, noise))
    # The rate nearest to the expected one that the observation allows.
    nearest = min(max(expected, observed.rate / doubt), observed.rate * doubt)
    return abs(nearest - expected) > OFF * expected


class Noise:
    """The variation of a group's rate between epochs when nothing has changed.

    Steps of one epoch are alike, but on a shared machine, or with more ranks than cores, the next
    epoch differs. The deviation comes from the median of the latest changes, so a single change of
    the machine does not count as noise.
    """

    def __init__(self) -> None:
        self._changes: deque[float] = deque(maxlen=MAX_CHANGES)

    def add(self, before: float, now: float) -> None:
        """Add a change between two rates of a group."""
        self._changes.append(abs(math.log(now / before)))

    @property
    def deviation(self) -> float:
        """The relative standard deviation of an observation; 0 while there are too few changes."""
        if len(self._changes) < MIN_CHANGES:
            return 0.0
        # A change is the difference of two observations.
        return _DEVIATIONS * statistics.median(self._changes) / math.sqrt(2)


class OnlineRates:
    """The rates of an ensemble as far as training has shown them.

    Args:
        networks: the networks of the ensemble.
        samples_per_epoch, gpus_per_node: of the table.
        gpus: the number of GPUs of the cluster; the maximum for a network.
        prior: key -> {shape or GPUs: samples/s} of earlier runs; a prior like any other, but a good
            one.
        slots: slots of each GPU.
        shared: k -> s(k) of earlier runs on this machine.
        idle_slots: number of networks that are expected to train no more together than one, unless
            measured otherwise.

    Attributes:
        sharing: the model of GPU sharing; None without slots.
    """

    def __init__(
        self,
        networks: Sequence[Traits],
        samples_per_epoch: int,
        gpus_per_node: int,
        gpus: int,
        prior: Mapping[str, PriorRates] | None = None,
        slots: int = 1,
        shared: Mapping[int, float] | None = None,
        idle_slots: int = 1,
    ) -> None:
        self._networks = {network.name: network for network in networks}
        self._samples = samples_per_epoch
        self._gpus_per_node = gpus_per_node
        self._gpus = gpus
        self._remembered = {key: by_shape(rates) for key, rates in (prior or {}).items()}
        keys = {network.key for network in networks}
        self._prior = {
            key: dict(rates) for key, rates in self._remembered.items() if key in keys and rates
        }
        # key -> shape -> network -> the latest
        self._seen: dict[str, dict[GroupShape, dict[str, Observation]]] = {}
        self._noise = Noise()
        # family, and whether groups are larger than a node -> keys
        self._seen_both_ways: dict[tuple[str, bool], set[str]] = {}
        self._largest = 0  # of the sizes that have been seen of any network
        if slots > 1:
            self.sharing: Sharing | None = Sharing(shared, self._prior, idle_slots)
        else:
            self.sharing = None
        self._plan_sharing = self._curve
        self._table: RateTable | None = None
        self._estimate: _Estimate | None = None  # by which the table was made
        self._unread = 0  # observations since then
        self._of_key: dict[str, list[str]] = {}  # the names of networks
        self._kinds: dict[
            Traits, Traits
        ] = {}  # without names: networks of one kind have the same rates
        self._kind_of: dict[str, Traits] = {}  # of networks
        self._guessed: set[str] = set()
        for network in networks:
            self._register(network)
        self._plan_rates: Mapping[str, Network] = {}  # by which the present plan was made
        # Networks and numbers of GPUs, or shapes, whose rates the present plan depends on.
        self._probes: AbstractSet[tuple[str, int | GroupShape]] = frozenset()
        self.is_off = (
            False  # whether an observation since then says that it was made by a wrong rate
        )
        self.is_answered = False  # whether one has shown a rate that it only tried
        self.may_grow = (
            False  # whether one has been made at the most GPUs that its network was allowed
        )

    def add(self, network: Traits, prior: PriorRates) -> None:
        """Add a network.

        Args:
            prior: shape or GPUs -> samples/s of earlier runs; ignored if training has shown that
                speed.
        """
        self._networks[network.name] = network
        if prior and network.key not in self._seen:
            self._prior.setdefault(network.key, by_shape(prior))
        self._register(network)
        if self._table is None or self._estimate is None or len(self._networks) < 2 * RENEWED:
            self._table = None
        else:
            self._table = self._table.with_network(
                self._estimate.add_network(network.name, self._kind_of[network.name])
            )

    def _register(self, network: Traits) -> None:
        self._of_key.setdefault(network.key, []).append(network.name)
        kind = replace(network, name="")
        self._kind_of[network.name] = self._kinds.setdefault(kind, kind)
        if not self.is_known(network.name):
            self._guessed.add(network.name)
        elif network.key in self._prior:
            self._record_spans(network.key, is_large=False)
            self._record_spans(network.key, is_large=True)

    # ---- observe ----

    def observe(self, name: str, shape: GroupShape | int, observed: Observation) -> None:
        """Record the rate of a group; it replaces its last observation or its prior.

        Args:
            shape: of the group, or its number of GPUs.
        """
        if not observed.rate > 0:
            return
        shape = as_shape(shape)
        gpus = shape.gpus
        key = self._networks[name].key
        if key not in self._seen:
            self._guessed.difference_update(self._of_key[key])
        if self.sharing is not None:
            self.sharing.observe(
                (key, shape),
                observed.networks_per_gpu,
                observed.rate,
                observed.spread,
                observed.steps,
            )
        alone = self._alone(observed)
        prior = self._prior.get(key, {})
        before = rate_of_shape(prior, shape)
        if before is not None:
            if is_off(alone, before, self._noise.deviation):
                del self._prior[key]  # so the others are in doubt as well
            else:
                del prior[shape if shape in prior else GroupShape(gpus)]
        is_first = not self.has_seen(name, gpus)
        is_new_shape = not self.has_seen(name, shape)
        seen = self._seen.setdefault(key, {}).setdefault(shape, {})
        last = seen.get(name)
        if last is not None and last.networks_per_gpu == observed.networks_per_gpu:
            self._noise.add(last.rate, observed.rate)
        seen[name] = observed
        if is_new_shape and shape.span:
            self._record_spans(key, gpus > self._gpus_per_node)
        self._largest = max(self._largest, gpus)
        self._unread += 1
        if self._unread >= (
            len(self._networks) // RENEWED if len(self._networks) > 2 * RENEWED else 1
        ):
            self._table = None
        planned = self._plan_rates.get(name)
        if planned is not None:
            expected = rate(planned, gpus, shape.span)
            self.is_off |= is_off(alone, expected, self._noise.deviation)
            self.is_off |= curves_differ(self._plan_sharing, self._curve, OFF)
            self.is_answered |= is_first and (name, gpus) in self._probes
            self.is_answered |= is_new_shape and (name, shape) in self._probes
            max_gpus = planned.max_gpus or self._gpus
            self.may_grow |= is_first and gpus >= max_gpus < self._max_gpus(
                self._kind_of[name], self._is_sure
            )
            self.may_grow |= len(self._curve) > len(self._plan_sharing)

    def _alone(self, observed: Observation) -> Observation:
        """Return the observation converted to GPUs that the group does not share."""
        if observed.networks_per_gpu == 1:
            return observed
        return replace(
            observed,
            rate=observed.rate / share(self._curve, observed.networks_per_gpu),
            networks_per_gpu=1,
        )

    @property
    def _curve(self) -> tuple[float, ...]:
        """s(1), s(2), ... as far as they are known."""
        if self.sharing is None:
            return (1.0,)
        return self.sharing.curve

    def has_seen(self, name: str, shape: GroupShape | int | None = None) -> bool:
        """Return True if training has shown the rate of a network.

        Args:
            shape: of its group, or a number of GPUs, however they lie; None for any.
        """
        seen = self._seen.get(self._networks[name].key, {})
        if shape is None:
            return bool(seen)
        if isinstance(shape, GroupShape):
            return shape in seen
        return any(shape == seen_shape.gpus for seen_shape in seen)

    def is_span_untried(self, name: str, shape: GroupShape) -> bool:
        """Return True if it is worth knowing how fast a network trains that lies otherwise.

        That is known if :data:`SPANS_TRIED` networks of its family were seen both ways, in groups
        that would fit on a node, or in larger ones. It is not worth two changes of a group if an
        epoch is short.
        """
        network = self._networks[name]
        observed = self._seen.get(network.key, {}).get(shape)
        if not observed:
            return False
        is_large = shape.gpus > self._gpus_per_node
        keys = self._seen_both_ways.get((network.family, is_large), set())
        if network.key in keys or len(keys) >= SPANS_TRIED:
            return False
        alone = pool([self._alone(observation) for observation in observed.values()])
        return self._samples >= LONG_EPOCH_S * alone.rate

    def _record_spans(self, key: str, is_large: bool) -> None:
        """Note whether networks of a key were seen spread, and not, in groups of such sizes."""
        spans = {
            shape.span is Span.SPREAD
            for shape in (*self._prior.get(key, ()), *self._seen.get(key, ()))
            if shape.span and (shape.gpus > self._gpus_per_node) == is_large
        }
        if len(spans) == 2:
            self._seen_both_ways.setdefault((self.family_of(key), is_large), set()).add(key)

    def is_known(self, name: str) -> bool:
        """Return True if the rates of a network rest on training or an earlier run."""
        return self.has_seen(name) or self._networks[name].key in self._prior

    @property
    def guessed(self) -> AbstractSet[str]:
        """A view of the networks whose rates rest on their traits alone."""
        return self._guessed

    # ---- plan ----

    @property
    def has_news(self) -> bool:
        """Return True if another plan may be better than the present one."""
        return (self.is_off or self.is_answered or self.may_grow) and (
            self._table is None or not self._unread
        )

    def record_plan(self, probes: AbstractSet[tuple[str, int | GroupShape]] = frozenset()) -> None:
        """Record that a plan was made from the current table.

        Args:
            probes: the networks and numbers of GPUs, or shapes, on whose unmeasured rates it
                depends.
        """
        self._probes = probes
        self._plan_rates = self.table().by_name
        self._plan_sharing = self._curve
        if not self._unread:  # otherwise the next table knows more
            self.is_off = self.is_answered = self.may_grow = False

    def table(self) -> RateTable:
        """Return the rates of all networks, each up to the GPUs on which it may be planned.

        Shapes: ``rates`` of a network has an entry for each number of GPUs from 1 to its
        ``max_gpus``.
        """
        if self._table is None:
            self._estimate = _Estimate(self)
            self._unread = 0
            self._table = self._estimate.table()
        return self._table

    def lower_rates(self, name: str) -> tuple[float, ...]:
        """Return the rates of a network with unmeasured sizes at the lower end of their range."""
        estimate = self.table().by_name[name]
        assert self._estimate is not None
        return self._estimate.curve(
            self._kind_of[name], estimate.max_gpus or self._gpus, is_high=False
        )

    def measured_table(self) -> RateTable:
        """Return the rates of measured networks up to their largest measured size."""
        largest = {key: max(self._sizes(key), default=0) for key in self._of_key}
        table = self.table()
        kinds = self._kind_of
        return replace(
            table,
            models=tuple(
                Network(
                    network.name,
                    network.rates[:max_gpus],
                    min_gpus=network.min_gpus,
                    max_gpus=kind.max_gpus,
                    spread_rates=network.spread_rates[:max_gpus],
                )
                for network in table.models
                if (max_gpus := largest[(kind := kinds[network.name]).key])
            ),
        )

    def limit_gpus(self, gpus: int) -> None:
        """Set the number of GPUs after the cluster has become smaller."""
        self._gpus = gpus
        self._table = None

    @property
    def _is_sure(self) -> bool:
        """Return True if enough networks have two measured sizes to predict how others scale."""
        sizes = ({shape.gpus for shape in seen} for seen in self._seen.values())
        return sum(len(of_key) > 1 for of_key in sizes) >= POOLED

    def _max_gpus(self, kind: Traits, is_sure: bool) -> int:
        """Return the most GPUs on which a network may be planned now; one before any measurement.

        If they were assumed twice as fast on two GPUs, the first networks would each get two, and
        others none.
        """
        sizes = self._sizes(kind.key)
        largest = self._largest if is_sure else max(sizes, default=self._largest)
        max_gpus = min(max(1, REACH * largest), kind.max_gpus or self._gpus, self._gpus)
        return max(max_gpus, kind.min_gpus)

    def _sizes(self, key: str) -> set[int]:
        """Return the numbers of GPUs that networks of a key were seen on, now or earlier."""
        return {shape.gpus for shape in (*self._prior.get(key, ()), *self._seen.get(key, ()))}

    def remembered_rate(self, key: str, shape: GroupShape) -> float | None:
        """Return the samples/s of earlier runs in groups of a shape, or None."""
        return rate_of_shape(self._remembered.get(key, {}), shape)

    def family_of(self, key: str) -> str:
        """Return the family of the networks of a key."""
        return self._networks[self._of_key[key][0]].family

    def points(self, key: str) -> dict[GroupShape, Observation]:
        """Return shape -> rate of the networks of a key, from training or else an earlier run."""
        seen = self._seen.get(key, {})
        sizes = {shape.gpus for shape in seen}
        prior = {
            shape: Observation(observation)
            for shape, observation in self._prior.get(key, {}).items()
            # What training has shown of a size replaces what was known of it without a span.
            if shape.span or shape.gpus not in sizes
        }
        return prior | {
            shape: pool([self._alone(observation) for observation in by_name.values()])
            for shape, by_name in seen.items()
        }


class _Estimate:
    """One estimate of all rates from the current observations."""

    def __init__(self, rates: OnlineRates) -> None:
        self._rates = rates
        self._noise = rates._noise.deviation
        self._pairs_of_key = {
            key: make_pairs(rates.points(key), self._noise) for key in rates._of_key
        }
        # family -> the pairs of all its networks
        self._pairs_of_family: dict[str, list[Pair]] = {}
        for key, pairs in self._pairs_of_key.items():
            self._pairs_of_family.setdefault(rates.family_of(key), []).extend(pairs)
        self._spans = {key: self._split(key) for key in rates._of_key}
        self._points = {key: spans.points for key, spans in self._spans.items()}
        errors = [
            max(observation.error, PLAIN_ERROR) ** 2
            for points in self._points.values()
            for observation in points.values()
        ]
        lines = {
            key: Line.through(sorted(points), [points[gpus].rate for gpus in sorted(points)])
            for key, points in self._points.items()
            if len(points) > 1
        }
        self._slopes = shrink_slopes(lines, least_noise=float(np.mean(errors)) if errors else 0.0)
        self._common = (
            float(np.mean([line.slope for line in lines.values()])) if lines else 0.0,
            math.sqrt(self._slopes.true),
        )
        self._base = self._base_of_unknown()
        self._offset = self._offset_of_families()

    def _split(self, key: str) -> SpanPoints:
        rates = self._rates
        of_key = self._pairs_of_key.get(key, ())
        of_family = self._pairs_of_family.get(rates.family_of(key), ())

        def factor(is_large: bool) -> float | None:
            for pairs in (of_key, of_family):
                of_size = [pair for pair in pairs if (pair.gpus > rates._gpus_per_node) == is_large]
                if of_size:
                    return spread_factor(of_size, self._noise)
            return None

        return split_spans(rates.points(key), rates._gpus_per_node, (factor(False), factor(True)))

    def table(self) -> RateTable:
        rates = self._rates
        is_sure = self._rates._is_sure
        network_of = {id(kind): self._network("", kind, is_sure) for kind in rates._kinds.values()}
        return RateTable(
            rates._samples,
            rates._gpus_per_node,
            tuple(network_of[id(kind)].with_name(name) for name, kind in rates._kind_of.items()),
            sharing=rates._curve,
        )

    def add_network(self, name: str, kind: Traits) -> Network:
        """Return a network that was added after the estimate, from the knowledge of that time."""
        if kind.key not in self._points:
            self._spans[kind.key] = self._split(kind.key)
            self._points[kind.key] = self._spans[kind.key].points
        return self._network(name, kind, self._rates._is_sure)

    def _network(self, name: str, kind: Traits, is_sure: bool) -> Network:
        """Return a network with its rates up to the GPUs on which it may be planned."""
        max_gpus = self._rates._max_gpus(kind, is_sure)
        rates = self.curve(kind, max_gpus)
        return Network(
            name,
            rates,
            min_gpus=kind.min_gpus,
            max_gpus=max_gpus,
            spread_rates=self._spans[kind.key].spread_rates(rates),
        )

    def _slope(self, key: str, deviations: float = 1.0) -> float:
        """Return the change of the log efficiency per further GPU, at the optimistic end."""
        mean, deviation = self._slopes.of.get(key, self._common)
        return min(0.0, mean + deviations * deviation)

    def curve(self, kind: Traits, max_gpus: int, is_high: bool = True) -> tuple[float, ...]:
        """Return samples/s on 1..max_gpus GPUs, unmeasured sizes at the upper or lower end."""
        points = self._points[kind.key]
        slope = self._slope(kind.key)
        outer_slope = slope if is_high else self._slope(kind.key, -1.0)
        count = np.arange(1, max_gpus + 1)
        if not points:
            single = self._base_of(kind) + self._offset(kind.family)
            return tuple((count * np.exp(single + slope * (count - 1))).tolist())
        rates = _through(points, count, slope, outer_slope)
        spans = self._spans[kind.key]
        if spans.factors[0] is not None:
            # Larger groups are on several nodes, as spread ones are: they may continue either way.
            spread = spans.spread_points()
            sizes = sorted(spread)
            fall = slope
            if len(sizes) > 1:
                fall = min(0.0, Line.through(sizes, [spread[size].rate for size in sizes]).slope)
            is_unseen = (count > spans.gpus_per_node) & ~np.isin(count, sizes)
            continued = _through(spread, count, fall, fall)
            rates = np.where(is_unseen, np.maximum(rates, continued), rates)
        return tuple(rates.tolist())

    # ---- on one GPU ----

    def _base_of_unknown(self) -> float:
        """Return minus the log of unknown operations: the mean over networks."""
        logs = [
            -math.log(kind.operations) for kind in self._rates._kind_of.values() if kind.operations
        ]
        if logs:
            return float(np.mean(logs))
        return -math.log(NOMINAL)

    def _base_of(self, kind: Traits) -> float:
        if kind.operations:
            return -math.log(kind.operations)
        return self._base

    def _offset_of_families(self) -> Callable[[str], float]:
        """Return the offset of a family to the log rate on one GPU, pessimistically."""
        residuals: dict[
            str, dict[str, float]
        ] = {}  # family -> key -> how far what was seen is above the base
        for kind in self._rates._kinds.values():
            points = self._points[kind.key]
            if points:
                size = min(points)
                single = math.log(points[size].rate / size) - self._slope(kind.key) * (size - 1)
                residuals.setdefault(kind.family, {})[kind.key] = single - self._base_of(kind)
        machine, families, scatter = _offsets(
            {family: list(of_keys.values()) for family, of_keys in residuals.items()}
        )
        return lambda family: families.get(family, machine) - scatter


def _through(
    points: Mapping[int, Observation],
    count: NDArray[np.int64],
    slope: float,
    outer_slope: float,
) -> NDArray[np.float64]:
    """Return samples/s on numbers of GPUs: through the points, and along slopes beyond them.

    Args:
        points: GPUs -> rate.
        count: numbers of GPUs: 1, 2, ...
        slope, outer_slope: of the logarithm of the efficiency, below and above all points.
    """
    sizes = np.array(sorted(points))
    logs = np.log([points[int(size)].rate / size for size in sizes])
    inside = np.clip(count, sizes[0], sizes[-1])
    slopes = np.where(count > inside, outer_slope, slope)
    rates = count * np.exp(np.interp(inside, sizes, logs) + slopes * (count - inside))
    seen = sizes <= len(count)
    # Exact for observed sizes.
    rates[sizes[seen] - 1] = [points[int(size)].rate for size in sizes[seen]]
    return np.asarray(rates, dtype=np.float64)


def _offsets(residuals: Mapping[str, Sequence[float]]) -> tuple[float, dict[str, float], float]:
    """Return the log offset of the machine and of each family, and the scatter within families.

    Returns:
        The machine's offset, the families' offsets, and the standard deviation of networks within
        their families.

    >>> _offsets({"a": [1.0, 1.0], "b": [3.0, 3.0]})
    (2.0, {'a': 1.0, 'b': 3.0}, 0.0)
    >>> _offsets({"a": [0.5, 1.5], "b": [1.0, 2.0]})
    (1.25, {'a': 1.25, 'b': 1.25}, 0.7071067811865476)
    """
    if not residuals:
        return math.log(NOMINAL), {}, 0.0
    means = {family: float(np.mean(values)) for family, values in residuals.items()}
    machine = float(np.mean(list(means.values())))
    freedom = sum(len(values) - 1 for values in residuals.values())
    if not freedom:
        return machine, means, 0.0
    variance = (
        sum(
            float(np.sum((np.asarray(values) - means[family]) ** 2))
            for family, values in residuals.items()
        )
        / freedom
    )
    if len(means) < 2:
        return machine, means, math.sqrt(variance)
    error = {family: variance / len(values) for family, values in residuals.items()}
    true = max(
        0.0, float(np.var(list(means.values()), ddof=1)) - float(np.mean(list(error.values())))
    )
    shrunk_means = {
        family: machine
        + (mean - machine) * (true / (true + error[family]) if error[family] else 1.0)
        for family, mean in means.items()
    }
    return machine, shrunk_means, math.sqrt(variance)
