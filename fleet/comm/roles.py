"""Roles of ranks: preprocessors and trainers (pure).

Rank 0 also coordinates. If it is the only rank, it trains and prepares its own samples. With more
ranks, the first ranks of each node are preprocessors and the others trainers: one rank per GPU, or
several, each of which has a slot of the GPU. Without GPUs, a core takes the place of a GPU.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from fleet.errors import UserError
from fleet.spec import Spec
from launch.errors import pluralize
from scheduler.base import Cluster, GroupShape, Span

MAX_FUSED = 16  # networks that a rank trains as one, unless the spec has a number


@dataclass(frozen=True)
class Roles:
    """The roles of all ranks.

    Attributes:
        node_of: the node (0, 1, ...) of each rank.
        preprocessors: ranks, in the order in which they take turns.
        trainers: ranks, node by node.
        gpus_per_node: number of trainers on the node that has most of them: with slots, all slots
            of all GPUs.
        slots: number of slots of each GPU; a node's slots are numbered round-robin over its GPUs.
        fills: see :class:`scheduler.base.Cluster`.
        device: name of the resource that trainers share: "GPU", "core" or "device".
        fused: number of trainers of each trainer rank, each with a slot. The first has the number
            of the rank, others have numbers beyond those of all ranks.
    """

    node_of: tuple[int, ...]
    preprocessors: tuple[int, ...]
    trainers: tuple[int, ...]
    gpus_per_node: int
    slots: int = 1
    fills: bool = False
    device: str = "GPU"
    fused: int = 1

    @property
    def ranks(self) -> int:
        """Number of ranks of the launch."""
        return len(self.node_of) - len(self.trainers) * (self.fused - 1) // self.fused

    @cached_property
    def trainer_ranks(self) -> tuple[int, ...]:
        """The ranks that train."""
        return tuple(number for number in self.trainers if number < self.ranks)

    def process(self, trainer: int) -> int:
        """Return the rank of a trainer, or of any other rank.

        >>> roles = assign([0, 0, 0], 1, None, fused=2)
        >>> [roles.process(number) for number in range(5)], roles.trainers_of(1)
        ([0, 1, 2, 1, 2], (1, 3))
        """
        if trainer < self.ranks:
            return trainer
        return self.trainer_ranks[(trainer - self.ranks) // (self.fused - 1)]

    def trainers_of(self, rank: int) -> tuple[int, ...]:
        """Return the trainers of a trainer rank, itself first."""
        first = self.ranks + self.trainer_ranks.index(rank) * (self.fused - 1)
        return (rank, *range(first, first + self.fused - 1))

    def with_trainers(self, ranks: frozenset[int]) -> frozenset[int]:
        """Return ranks, with all their trainers."""
        if self.fused == 1:
            return ranks
        trainers = (self.trainers_of(rank) for rank in ranks.intersection(self.trainer_ranks))
        return ranks.union(*trainers)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return max(self.node_of) + 1

    @property
    def unit(self) -> str:
        """Name of the resource that a network trains on: GPU, core or trainer."""
        if self.device == "GPU" or self.slots > 1:
            return self.device
        return "trainer"

    @property
    def idle_slots(self) -> int:
        """Number of slots that gain nothing, because one training step saturates a core."""
        if self.device == "core" and self.fused == 1:
            return self.slots
        return 1

    @cached_property
    def rank_of(self) -> dict[int, int]:
        """Device number -> trainer rank.

        Policies assume that device d is on node ``d // gpus_per_node``, so a node with fewer
        trainers than the others skips some numbers. The trainers of a rank have consecutive slots.
        """
        gpus = self.physical_gpus_per_node
        return {
            node * self.gpus_per_node
            + (local_index // gpus * self.fused + number) * gpus
            + local_index % gpus: trainer
            for node in range(self.nodes)
            for local_index, rank in enumerate(
                rank for rank in self.trainer_ranks if self.node_of[rank] == node
            )
            for number, trainer in enumerate(self.trainers_of(rank))
        }

    @cached_property
    def device_of(self) -> dict[int, int]:
        """Trainer rank -> device number."""
        return {rank: device for device, rank in self.rank_of.items()}

    @cached_property
    def cluster(self) -> Cluster:
        """The devices, as policies see them."""
        return Cluster(
            tuple(sorted(self.rank_of)), self.gpus_per_node, self.slots, self.fills, self.fused
        )

    def span_of(self, ranks: Sequence[int]) -> Span:
        """Return how the GPUs of some trainers lie on nodes."""
        return GroupShape.of([self.device_of[rank] for rank in ranks], self.cluster).span

    @property
    def physical_gpus_per_node(self) -> int:
        """Number of physical GPUs per node, each of which has ``slots`` slots."""
        return self.gpus_per_node // self.slots

    def local_index(self, rank: int) -> int:
        """Return the index of a trainer among those of its node."""
        return self.device_of[rank] % self.gpus_per_node

    @property
    def shared(self) -> bool:
        """True if preprocessors prepare the samples, False if each trainer prepares its own."""
        return bool(self.preprocessors)

    def relays(self, rank: int) -> bool:
        """Return True if a rank sends samples to other nodes: it leads one of several."""
        return self.nodes > 1 and self.leader(self.node_of[rank]) == rank

    def leader(self, node: int) -> int:
        """Return the leader of a node: its first preprocessor, or its first rank without one."""
        return next(
            (rank for rank in self.preprocessors if self.node_of[rank] == node),
            self.node_of.index(node),
        )


def assign_roles(
    spec: Spec,
    node_of: Sequence[int],
    gpus_per_node: int | None,
    own_preprocessing: bool = False,
    cores: int | None = None,
) -> Roles:
    """Assign roles to the ranks as a spec requests.

    Args:
        node_of: the node of each rank, numbered from 0 in order of first appearance.
        gpus_per_node: number of visible GPUs, None without GPUs; a number in the spec overrides it.
        own_preprocessing: every trainer prepares its own samples, whatever the policy, and trains
            one network, as in a replay.
        cores: number of cores of a node that its ranks may use; None if it does not matter.

    Raises:
        UserError: there are fewer ranks than needed.
    """
    resources = spec.resources
    is_gpu = gpus_per_node is not None or not spec.engine.learns  # an emulated one
    if is_gpu:
        device = "GPU"
    elif resources.gpus_per_node == "auto":
        device = "core"
    else:
        device = "device"
    if cores is not None:  # a group that has fewer cores than ranks is only slow
        cores = max(cores, *(network.min_gpus for network in spec.networks), 1)
    return assign(
        node_of,
        None if resources.preprocessors == "auto" else resources.preprocessors,
        gpus_per_node if resources.gpus_per_node == "auto" else resources.gpus_per_node,
        own_preprocessing or spec.policy.own_samples,
        None if resources.networks_per_gpu == "auto" else resources.networks_per_gpu,
        cores if spec.engine.learns else None,
        device,
        fused=1 if own_preprocessing else _count_fused(spec),
        fills_fused=resources.fuse != "auto",
    )


def _count_fused(spec: Spec) -> int:
    """Return how many networks a rank may train as one."""
    fuse = spec.resources.fuse
    if fuse == "off" or describe_unfused(spec):
        return 1
    limit = MAX_FUSED if fuse == "auto" else fuse
    return max(1, int(min(limit, spec.max_networks)))


def describe_unfused(spec: Spec) -> str:
    """Report why no networks of a spec can be fused, though it asks for that; else empty."""
    if spec.resources.fuse == "off" or spec.data.order != "ring":
        return ""
    return (
        "resources.fuse: no networks are fused, because with data.order: ring they do not read the "
        "same batches"
    )


def describe_missing_slots(spec: Spec, roles: Roles) -> str:
    """Report how many ranks are missing for the requested slots; empty if there are enough.

    ``auto`` requests two slots, which show whether sharing pays. Slots beyond the number of
    networks would stay empty.
    """
    requested = spec.resources.networks_per_gpu
    devices = roles.cluster.whole_gpus
    needed = min(2 if requested == "auto" else requested, math.ceil(spec.max_networks / devices))
    # `auto` does not try to share cores.
    if roles.slots >= needed or (requested == "auto" and roles.device == "core"):
        return ""
    return (
        f"resources.networks_per_gpu is {requested}, but there are ranks for only "
        f"{pluralize(roles.slots, 'network')} per {roles.device}: start "
        f"{(needed - roles.slots) * devices} more for {needed}"
    )


def assign(
    node_of: Sequence[int],
    preprocessors: int | None,
    gpus_per_node: int | None,
    own_preprocessing: bool = False,
    slots: int | None = 1,
    cores: int | None = None,
    device: str = "GPU",
    fused: int = 1,
    fills_fused: bool = True,
) -> Roles:
    """Divide the ranks into preprocessors and trainers.

    Args:
        node_of: the node of each rank, numbered from 0 in order of first appearance.
        preprocessors: their total number; None takes all ranks that are not needed for GPUs if the
            number of GPUs is known, otherwise one rank in eight of each node.
        gpus_per_node: None if every rank that is not a preprocessor trains.
        own_preprocessing: every trainer prepares its own samples (a policy with ``own_samples``).
        slots: maximum number of ranks that share a GPU; None for no limit.
        cores: number of cores of a node, which take the place of GPUs if there are none and slots
            are requested; None if training needs no core.
        device: name of the shared resource; see :class:`Roles`.
        fused: number of trainers of each trainer rank.
        fills_fused: whether they are used even where it is not known to pay.

    Raises:
        UserError: there are fewer ranks than needed.

    >>> assign([0] * 7, 1, None, slots=None, cores=2).slots
    3
    >>> roles = assign([0, 0, 0, 0, 0], 1, None)
    >>> roles.preprocessors, roles.trainers, roles.gpus_per_node
    ((0,), (1, 2, 3, 4), 4)
    """
    size = len(node_of)
    nodes = max(node_of) + 1
    # Maximum number of trainers on a node.
    if gpus_per_node is None or slots is None:
        room = None
    else:
        room = gpus_per_node * slots

    def make_roles(preprocessors: Sequence[int], trainers: Sequence[int]) -> Roles:
        most_trainers = max(Counter(node_of[rank] for rank in trainers).values())
        physical = _count_physical(most_trainers, gpus_per_node, slots, cores)
        slots_each = -(-most_trainers // physical)
        extra = len(trainers) * (fused - 1)
        hosts = [rank for rank in trainers for _ in range(fused - 1)]
        if fused > 1:
            fills = fills_fused and slots is not None
        else:
            fills = slots is not None and slots_each > 1
        return Roles(
            (*node_of, *(node_of[rank] for rank in hosts)),
            tuple(preprocessors),
            (*trainers, *range(size, size + extra)),
            physical * slots_each * fused,
            slots_each * fused,
            fills=fills,
            device=device,
            fused=fused,
        )

    if size == 1 or own_preprocessing:
        # With several ranks, rank 0 only coordinates.
        if size == 1:
            candidates = range(size)
        else:
            candidates = range(1, size)
        trainers = tuple(
            rank
            for node in range(nodes)
            for rank in [rank for rank in candidates if node_of[rank] == node][:room]
        )
        return make_roles((), trainers)
    if preprocessors == 0:
        raise UserError(
            "resources.preprocessors: 0 is possible with one rank only, or with schedule.policy: "
            "baseline; otherwise it should be at least 1 (or auto)"
        )
    if preprocessors is not None and preprocessors < nodes:
        raise UserError(
            f"resources.preprocessors: {preprocessors} should be at least {nodes}, one on each node"
        )
    chosen: list[int] = []
    trainers_list: list[int] = []
    for node in range(nodes):
        ranks = [rank for rank in range(size) if node_of[rank] == node]
        if preprocessors is not None:
            count = preprocessors // nodes + (node < preprocessors % nodes)
        elif room is not None:
            count = max(1, len(ranks) - room)
        elif gpus_per_node is not None:
            count = max(1, min(len(ranks) - gpus_per_node, len(ranks) // 8))
        else:
            count = max(1, len(ranks) // 8)
        if count >= len(ranks):
            raise UserError(
                f"node {node} has {pluralize(len(ranks), 'rank')}, and "
                f"{pluralize(count, 'preprocessor')} would leave no trainer there: start at least "
                f"{pluralize(count + 1, 'rank')} on each node (mpirun -n {nodes * (count + 1)}) or "
                "lower resources.preprocessors"
            )
        chosen += ranks[:count]
        node_trainers = ranks[count:]
        if room is not None and len(node_trainers) > room:
            raise UserError(
                f"node {node} has {pluralize(count, 'preprocessor')} and "
                f"{pluralize(len(node_trainers), 'trainer')} for "
                f"{pluralize(gpus_per_node or 0, device)}: start {pluralize(room + count, 'rank')} "
                "there or raise resources.preprocessors or resources.networks_per_gpu"
            )
        trainers_list += node_trainers
    # Preprocessors take turns over the nodes, so that each node prepares an equal share.
    turn = {rank: [r for r in chosen if node_of[r] == node_of[rank]].index(rank) for rank in chosen}
    chosen.sort(key=lambda rank: (turn[rank], rank))
    return make_roles(chosen, trainers_list)


def _count_physical(trainers: int, gpus: int | None, slots: int | None, cores: int | None) -> int:
    """Count the GPUs, or the cores in place of GPUs, that a node's trainers share.

    Args:
        trainers: number of trainers of the node that has most of them.
        gpus: number of its GPUs; None without GPUs.
        slots, cores: see :func:`assign`.
    """
    if gpus is not None:
        return min(gpus, trainers)
    if slots is None:
        return min(cores or trainers, trainers)
    if slots == 1:
        return trainers
    return max(min(cores or 0, trainers), -(-trainers // slots))
