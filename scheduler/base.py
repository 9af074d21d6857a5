"""Define the values that all scheduling algorithms share; no algorithm is here.

A *device* is one GPU (or one CPU core) and one trainer, named by a number; device d is on node ``d
// gpus_per_node``. Where several trainers share a GPU, each has one of its *slots*, and a device is
a slot. A policy reads a :class:`RateTable`, :class:`Progress`, a :class:`Cluster` and
:class:`Options` and returns a :class:`Round`, the assignment that should hold now.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal, NamedTuple

from launch.errors import InputError, pluralize

# Limits of a machine; sums, products and quotients of such numbers stay finite.
MIN_VALUE = 1e-12
MAX_VALUE = 1e15
MAX_NODES = 1_000_000  # more would only cost memory
MAX_SLOTS = 64  # of a GPU


def is_number(value: Any) -> bool:
    """Return True if a value, for example from JSON, is a finite float or integer.

    >>> is_number(3), is_number(True), is_number(10**400), is_number(math.inf), is_number("3")
    (True, False, False, False, False)
    """
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) <= sys.float_info.max
    )


NAME = "a name of printable characters: no line breaks, control characters or marks of direction"


def is_name(value: Any) -> bool:
    """Return True if a value can be shown as a name on one line.

    >>> is_name("relax | heat"), is_name("m0\\n"), is_name("m0\\u202e"), is_name(""), is_name(3)
    (True, False, False, False, False)
    """
    return isinstance(value, str) and value != "" and value.isprintable()


def check_range(name: str, value: float, low: float, high: float, unit: str = "") -> None:
    """Check that a number is within bounds that keep time and memory in bounds.

    Raises:
        InputError: it is outside; the message names both.

    >>> check_range("--points", 10**12, 1, 10**6)
    Traceback (most recent call last):
    ...
    launch.errors.InputError: --points is 1000000000000; it must be a number from 1 to 1e+06
    """
    if not low <= value <= high:
        text = f"{str(value)[:40]} {unit}".rstrip()
        raise InputError(f"{name} is {text}; it must be a number from {low:g} to {high:g}")


@dataclass(frozen=True)
class StepTime:
    """Measured seconds of one training step on one GPU at one batch size."""

    batch: int
    seconds: float


@dataclass(frozen=True)
class CommTime:
    """Measured seconds of one gradient exchange of ``params_mb`` between ``gpus`` GPUs."""

    params_mb: float
    gpus: int
    seconds: float


class Span(StrEnum):
    """How the GPUs of a group lie on nodes."""

    ANY = ""  # unknown, or they could not lie otherwise
    NODE = "node"  # on one node
    PACKED = "packed"  # on as few nodes as possible, of several
    SPREAD = "spread"  # on more nodes than necessary


class GroupShape(NamedTuple):
    """What the rate of a network belongs to: the number of GPUs, and how they lie.

    A rate without a span belongs to all spans.
    """

    gpus: int
    span: Span = Span.ANY

    @classmethod
    def of(cls, devices: Collection[int], cluster: Cluster) -> GroupShape:
        """Return the shape of a group.

        One GPU has no span, and neither have groups on a cluster of one node, or of nodes with one
        GPU: they cannot lie otherwise.

        Args:
            devices: its devices, each on another GPU.
            cluster: all devices of the launch; the shape does not change when some of them die.

        >>> cluster = Cluster.of(gpus=12, gpus_per_node=4)
        >>> groups = (0,), (0, 1), (0, 4), range(8), (0, 1, 2, 4, 5, 6), (0, 1, 4, 8)
        >>> [str(GroupShape.of(group, cluster)) for group in groups]
        ['1', '2 node', '2 spread', '8 packed', '6 packed', '4 spread']
        >>> str(GroupShape.of((0, 1), Cluster.of(gpus=4, gpus_per_node=4)))
        '2'
        """
        gpus = len(devices)
        per_node = cluster.gpus_per_node // cluster.slots
        if gpus == 1 or per_node == 1 or cluster.nodes == 1:
            return cls(gpus)
        nodes = len({cluster.node(device) for device in devices})
        if nodes > nodes_needed(gpus, per_node):
            return cls(gpus, Span.SPREAD)
        return cls(gpus, Span.NODE if nodes == 1 else Span.PACKED)

    @classmethod
    def parse(cls, text: str) -> GroupShape:
        """Return the shape that a text of :meth:`__str__` stands for.

        Raises:
            ValueError: it stands for none.

        >>> GroupShape.parse("4 spread")
        GroupShape(gpus=4, span=<Span.SPREAD: 'spread'>)
        """
        gpus, _, span = text.partition(" ")
        if not gpus.isdecimal():
            raise ValueError(f"{text!r} does not begin with a number of GPUs")
        return cls(int(gpus), Span(span))

    def __str__(self) -> str:
        """Return a text such as ``4 spread``, or ``4`` without a span."""
        return f"{self.gpus} {self.span}".rstrip()


def nodes_needed(gpus: int, gpus_per_node: int) -> int:
    """Return the fewest nodes that so many GPUs can lie on."""
    return -(-gpus // gpus_per_node)


@dataclass(frozen=True)
class Network:
    """One network of the ensemble and how fast it trains.

    Args:
        name: unique in the ensemble.
        rates: samples/s on 1, 2, ... GPUs that lie on as few nodes as possible; beyond the last,
            see :mod:`scheduler.ensemble.rates`.
        epochs: number of epochs; a simulation needs it, a policy does not see it.
        params_mb: size of its weights.
        min_gpus, max_gpus: the bounds of its training group.
        step_s: measured step times (for the job scalability analyzer).
        batches: the smallest and the largest global batch, if its batch may change.
        spread_rates: samples/s on 1, 2, ... GPUs that lie on more nodes than necessary, as far as
            they are known to differ; not more of them than ``rates``.
    """

    name: str
    rates: tuple[float, ...]
    epochs: int | None = None
    params_mb: float | None = None
    min_gpus: int = 1
    max_gpus: int | None = None
    step_s: tuple[StepTime, ...] = ()
    batches: tuple[int, int] | None = None
    spread_rates: tuple[float, ...] = ()

    def rates_on(self, span: Span) -> tuple[float, ...]:
        """Return samples/s on 1, 2, ... GPUs that lie so; ``ANY`` is as few nodes as possible.

        >>> network = Network("a", (10.0, 19.0, 28.0), spread_rates=(10.0, 12.0))
        >>> network.rates_on(Span.NODE), network.rates_on(Span.SPREAD)
        ((10.0, 19.0, 28.0), (10.0, 12.0, 28.0))
        """
        if span is Span.SPREAD and self.spread_rates:
            return self.spread_rates + self.rates[len(self.spread_rates) :]
        return self.rates

    @cached_property
    def best_rates(self) -> tuple[float, ...]:
        """Samples/s on 1, 2, ... GPUs that lie as the network trains fastest."""
        if not self.spread_rates:
            return self.rates
        return tuple(map(max, self.rates, self.rates_on(Span.SPREAD)))

    def with_name(self, name: str) -> Network:
        """Return a copy with another name, faster than `replace` for thousands of copies."""
        network = object.__new__(Network)
        values = vars(network)
        values.update(vars(self))
        values["name"] = name
        return network


@dataclass(frozen=True)
class RateTable:
    """The training rates of an ensemble: the content of a profile and the input of a plan.

    Args:
        samples_per_epoch: training samples.
        gpus_per_node: the number of GPUs per node of the machine where the rates were measured.
        models: the networks.
        comm_s: measured gradient exchanges (for the job scalability analyzer).
        sharing: s(k), the throughput of 1, 2, ... networks on one GPU relative to one network; the
            first is 1. Beyond the last, see :mod:`scheduler.ensemble.sharing`. Empty while no
            network has trained alone.
        supply: samples/s that the input gives each network at most.
    """

    samples_per_epoch: int
    gpus_per_node: int
    models: tuple[Network, ...]
    comm_s: tuple[CommTime, ...] = ()
    sharing: tuple[float, ...] = (1.0,)
    supply: float = math.inf

    @cached_property
    def by_name(self) -> dict[str, Network]:
        """The networks by name."""
        return {network.name: network for network in self.models}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the networks, in their order."""
        return tuple(network.name for network in self.models)

    @cached_property
    def rows(self) -> dict[str, int]:
        """The row of each network, by name."""
        return {name: row for row, name in enumerate(self.names)}

    @cached_property
    def has_spread(self) -> bool:
        """Whether the rates of any network are known to depend on how its GPUs lie."""
        return any(network.spread_rates for network in self.models)

    @cached_property
    def _settings(self) -> tuple[Any, ...]:
        return (
            self.samples_per_epoch,
            self.gpus_per_node,
            len(self.models),
            self.comm_s,
            self.sharing,
            self.supply,
        )

    @cached_property
    def _hash(self) -> int:
        # A sample of the models is enough for a hash.
        return hash((self._settings, self.models[:: 1 + len(self.models) // 8]))

    def __eq__(self, other: object) -> bool:
        """Compare two tables; equal ones then share their networks."""
        if (
            not isinstance(other, RateTable)
            or self._settings != other._settings
            or self.models != other.models
        ):
            return False
        # There may be thousands; a later comparison then finds one and the same object.
        vars(other)["models"] = self.models
        return True

    def __hash__(self) -> int:  # once: it is asked about again and again
        """Return the hash, computed once."""
        return self._hash

    def __getstate__(self) -> dict[str, Any]:
        # Leave out the cached hash, which differs in another process.
        return {field_.name: getattr(self, field_.name) for field_ in fields(self)}

    def with_network(self, network: Network) -> RateTable:
        """Return the table with one more network."""
        table = replace(self, models=(*self.models, network))
        # If many are added one by one, this is faster than building the table again.
        vars(table).update(
            by_name={**self.by_name, network.name: network},
            names=(*self.names, network.name),
            rows={**self.rows, network.name: len(self.models)},
        )
        return table


@dataclass(frozen=True)
class Cluster:
    """The usable devices; after a rank has died they need not be contiguous.

    Args:
        devices: their numbers.
        gpus_per_node: devices of a node; where GPUs are shared, all slots of all its GPUs.
        slots: devices that share a GPU. The devices of a node are numbered round by round: first
            one slot of each GPU, then the next slot of each.
        fills: whether to use slots whenever networks outnumber GPUs; otherwise only if it pays.
        fused: consecutive slots of a GPU that belong to one process, which trains equal networks as
            one.

    >>> Cluster.of(gpus=8, gpus_per_node=4).without([1, 2]).devices
    (0, 3, 4, 5, 6, 7)
    """

    devices: tuple[int, ...]
    gpus_per_node: int
    slots: int = 1
    fills: bool = False
    fused: int = 1

    def __post_init__(self) -> None:
        if self.gpus_per_node < 1:
            raise InputError(f"gpus_per_node is {self.gpus_per_node}; it must be at least 1")
        if self.slots < 1 or self.gpus_per_node % self.slots:
            raise InputError(
                f"gpus_per_node is {self.gpus_per_node}, but {self.slots} slots share a GPU: "
                "it must be a multiple of the slots"
            )
        if len(set(self.devices)) < len(self.devices) or min(self.devices, default=0) < 0:
            raise InputError(
                f"devices {self.devices}: each must appear once, as a number of at least 0"
            )

    @classmethod
    def of(cls, gpus: int, gpus_per_node: int, slots: int = 1, fills: bool = False) -> Cluster:
        """Return a cluster of whole GPUs; its last node may be partly outside the launch.

        Args:
            gpus, gpus_per_node: whole GPUs.
            slots: the number of slots per GPU.

        Raises:
            InputError: there is no GPU, or fewer GPUs than one node has.

        >>> Cluster.of(gpus=3, gpus_per_node=2, slots=2).devices
        (0, 1, 2, 3, 4, 6)
        """
        if gpus < 1:
            raise InputError(f"gpus is {gpus}; it must be at least 1")
        check_range("gpus", gpus, 1, MAX_NODES)
        if gpus_per_node > gpus:
            raise InputError(
                f"gpus_per_node is {gpus_per_node}, "
                f"but the whole cluster has {pluralize(gpus, 'GPU')}"
            )
        check_range("slots", slots, 1, MAX_SLOTS)
        devices: Iterable[int] = range(gpus)
        if slots > 1:
            devices = sorted(
                gpu // gpus_per_node * gpus_per_node * slots
                + slot * gpus_per_node
                + gpu % gpus_per_node
                for gpu in range(gpus)
                for slot in range(slots)
            )
        return cls(tuple(devices), gpus_per_node * slots, slots, fills)

    @property
    def gpus(self) -> int:
        """The number of usable devices."""
        return len(self.devices)

    def gpu(self, device: int) -> int:
        """Return the GPU of a device, numbered over all nodes; without slots it is the device.

        >>> [Cluster.of(gpus=4, gpus_per_node=2, slots=2).gpu(device) for device in range(8)]
        [0, 1, 0, 1, 2, 3, 2, 3]
        """
        gpus = self.gpus_per_node // self.slots
        return self.node(device) * gpus + device % self.gpus_per_node % gpus

    @cached_property
    def whole_gpus(self) -> int:
        """The number of GPUs with at least one usable slot."""
        if self.slots == 1:
            return self.gpus
        return len({self.gpu(device) for device in self.devices})

    def node(self, device: int) -> int:
        """Return the node of a device."""
        return device // self.gpus_per_node

    @cached_property
    def nodes(self) -> int:
        """The number of nodes with usable devices."""
        return len({self.node(device) for device in self.devices})

    def usable(self, devices: tuple[int, ...]) -> tuple[int, ...]:
        """Return the given devices that are usable."""
        return tuple(device for device in devices if device in self.devices)

    def without(self, devices: set[int] | list[int] | tuple[int, ...]) -> Cluster:
        """Return the cluster without some devices, because they died or are used by others."""
        excluded = set(devices)
        if not excluded:
            return self
        return replace(self, devices=tuple(d for d in self.devices if d not in excluded))


@dataclass(frozen=True)
class Member:
    """A network and the devices of its group; the first device is the master's.

    Args:
        batch: the global batch of its next epochs if the policy chooses it; None for the network's
            own.
    """

    name: str
    devices: tuple[int, ...]
    batch: int | None = None

    def batch_on(self, gpus: int, min_batch: int) -> int | None:
        """Return the batch for an epoch on fewer GPUs: as many samples per GPU as planned.

        Args:
            gpus: size of the group.
            min_batch: the smallest allowed batch.

        >>> [Member("a", (0, 1, 2, 3), 512).batch_on(gpus, min_batch=256) for gpus in (1, 3, 4)]
        [256, 384, 512]
        """
        if self.batch is None or gpus >= self.gpus:
            return self.batch
        return max(min_batch, self.batch * gpus // self.gpus)

    @property
    def gpus(self) -> int:
        """The size of the group."""
        return len(self.devices)


@dataclass(frozen=True)
class Round:
    """The assignment that should hold now; networks that it does not name wait.

    The current assignment is changed toward it as soon as possible; :mod:`scheduler.ensemble.moves`
    computes the moves.
    """

    members: tuple[Member, ...] = ()

    @property
    def gpus(self) -> int:
        """The number of devices in use."""
        return sum(member.gpus for member in self.members)

    @property
    def counts(self) -> dict[str, int]:
        """The size of each group."""
        return {member.name: member.gpus for member in self.members}


class Record(NamedTuple):
    """One event of a live run.

    Attributes:
        t_s: time in seconds from any origin.
        event: ``group``: the network now trains on these devices (it started, grew or shrank);
            ``epoch``: it ended an epoch; ``stopped``: its devices are free, because it finished,
            failed or must wait.
        network: its name.
        devices: the devices of a group, in a ``group`` record.
    """

    t_s: float
    event: Literal["group", "epoch", "stopped"]
    network: str
    devices: tuple[int, ...] = ()


@dataclass(frozen=True)
class Progress:
    """The state of a run as a policy sees it; it does not say how many epochs are to come.

    Sets and mappings may be views that change later; copy what you keep.

    Args:
        running: the groups that hold devices now.
        epochs_done: epochs trained, of networks that have started (fractions allowed).
        finished: networks that converged or failed, for good.
        target: the last answer of the policy; groups may still be changing toward it.
        rates_changed: whether the rates behind that answer have proved wrong, so that another
            answer may be better although no network has finished.
        exclusive: networks that ran out of memory on a shared GPU and must not share GPUs.
        guessed: networks with guessed rates; slower networks do not hold others back here.
        ahead: epochs until the next rung, or the end, of each network; empty without rungs.
        survivors: networks that have passed a rung and may continue.
        fuse_keys: network -> a text that is equal for networks that a process can train as one;
            empty without such processes.
    """

    running: tuple[Member, ...] = ()
    epochs_done: Mapping[str, float] = field(default_factory=dict)
    finished: AbstractSet[str] = frozenset()
    target: Round = field(default_factory=Round)
    rates_changed: bool = False
    exclusive: frozenset[str] = frozenset()
    guessed: AbstractSet[str] = frozenset()
    ahead: Mapping[str, float] = field(default_factory=dict)
    survivors: AbstractSet[str] = frozenset()
    fuse_keys: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Delta:
    """The largest difference from the reference rate at which a network may join a flotilla.

    Args:
        value: a share of the reference rate, or samples/s.
        relative: whether ``value`` is a share.

    Raises:
        InputError: the value is negative or not finite.

    >>> Delta(0.15, relative=True).of(200.0), Delta(20.0, relative=False).of(200.0)
    (30.0, 20.0)
    >>> str(Delta(0.15, relative=True)), str(Delta(20.0, relative=False))
    ('15%', '20/s')
    """

    value: float
    relative: bool

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and self.value >= 0):
            raise InputError(
                f"delta is {self.value}; "
                "it must be at least 0 (a share of the fastest, or samples/s)"
            )

    def of(self, reference: float) -> float:
        """Return the difference in samples/s at a reference rate."""
        if self.relative:
            return self.value * reference
        return self.value

    def __str__(self) -> str:
        if self.relative:
            return f"{100 * self.value:.12g}%"
        return f"{self.value:.12g}/s"


@dataclass(frozen=True)
class Options:
    """The settings of all policies; each policy reads its own.

    Args:
        alpha: share of the GPUs below which a round of ``global`` ends ([FLEET] section 4.3.2); the
            spec's key is ``round_end_share``.
        delta: closeness of rates within a flotilla, ``pace_tolerance`` in the spec; the paper's is
            ``Delta(20.0, relative=False)``.
        peak_limited: never give a network a GPU that does not make it faster; False follows the
            paper's Algorithm 2 literally.
        seed: the seed of the random choices of ``baseline`` and ``homogeneous``.
    """

    alpha: float = 0.8
    delta: Delta = field(default_factory=lambda: Delta(0.15, relative=True))
    peak_limited: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1:
            raise InputError(
                f"alpha is {self.alpha}; it must be a share of the GPUs, above 0 and at most 1"
            )
