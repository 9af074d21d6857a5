"""Exchange devices between groups so that more groups lie on nodes as they train fastest.

:mod:`scheduler.ensemble.placement` puts each group on as few nodes as possible, and leaves running
groups where they are. Both can be wrong: on one published machine a network on four GPUs of one
node trains at .53 of four times its speed, and on one and three GPUs of two nodes at .98; another
one at .96 and .44 (Jayaram Subramanya et al., *Sia*, SOSP 2023, traces of its simulator). So where
the rates of spread groups are known (:attr:`scheduler.base.Network.spread_rates`),
:func:`exchange_devices` improves a placement by hill climbing: it moves a group together, or one of
its devices away, by exchanging devices with other groups or with free devices, as long as all
groups together gain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from scheduler.base import Cluster, GroupShape, Member, RateTable, Span, nodes_needed
from scheduler.ensemble.rates import rate

MAX_PASSES = 4  # over all groups
MAX_NODES_TRIED = 64  # of one group
PAYS = 0.05  # gain per GPU of the running groups that would change, in GPUs, from which it pays

Swap = tuple[int, int]  # a device of the group, and the one that it gets instead


def exchange_devices(
    members: Sequence[Member],
    rates: RateTable,
    cluster: Cluster,
    running: Sequence[Member] = (),
    fixed: AbstractSet[int] = frozenset(),
) -> tuple[Member, ...]:
    """Return the groups on devices on which they train faster; sizes do not change.

    A running group keeps enough of its devices to continue without a checkpoint.

    Args:
        members: the groups that should run.
        rates: the rates of all networks.
        cluster: all devices, free or in use.
        running: the groups that run now.
        fixed: devices that must stay in their groups.

    a is faster on two nodes, b on one:

    >>> from scheduler.base import Network
    >>> pair = (Network("a", (9.0, 10.0), spread_rates=(9.0, 18.0)),
    ...         Network("b", (9.0, 18.0), spread_rates=(9.0, 10.0)))
    >>> groups = [Member("a", (0, 1)), Member("b", (2, 4))]
    >>> moved = exchange_devices(groups, RateTable(1, 4, pair), Cluster.of(8, 4))
    >>> [group.devices for group in moved]
    [(0, 4), (2, 1)]
    """
    if not rates.has_spread or cluster.slots > 1 or cluster.nodes == 1:
        return tuple(members)
    exchange = _Exchange(members, rates, cluster, running, fixed)
    for _ in range(MAX_PASSES):
        improved = [name for name in exchange.most_slowed() if exchange.improve(name)]
        if not improved:
            break
    return exchange.members()


class _Exchange:
    """A placement that is improved step by step."""

    def __init__(
        self,
        members: Sequence[Member],
        rates: RateTable,
        cluster: Cluster,
        running: Sequence[Member],
        fixed: AbstractSet[int],
    ) -> None:
        self._members = members
        self._networks = rates.by_name
        self._cluster = cluster
        self._running = {member.name: frozenset(member.devices) for member in running}
        self._fixed = fixed
        self._per_node = cluster.gpus_per_node
        self._devices = {member.name: member.devices for member in members}
        self._owner = {device: member.name for member in members for device in member.devices}
        self._of_node: dict[int, list[int]] = {}
        for device in cluster.devices:
            self._of_node.setdefault(cluster.node(device), []).append(device)

    def members(self) -> tuple[Member, ...]:
        """Return the groups, in their order."""
        return tuple(
            replace(member, devices=self._devices[member.name]) for member in self._members
        )

    def most_slowed(self) -> list[str]:
        """Return the groups that do not lie as they train fastest, the most slowed one first."""
        losses = {
            name: len(devices) - self._worth(name, devices)
            for name, devices in self._devices.items()
        }
        return sorted(
            (name for name in losses if losses[name] > 1e-9), key=lambda name: -losses[name]
        )

    def improve(self, name: str) -> bool:
        """Exchange devices of a group if that pays; return whether it did."""
        gpus = len(self._devices[name])
        if self._worth(name, self._devices[name]) > gpus - 1e-9:  # others have let it lie well
            return False
        network = self._networks[name]
        if rate(network, gpus, Span.SPREAD) > rate(network, gpus, Span.ANY):
            proposals = self._scatter(name)
        else:
            proposals = self._gather(name)
        best_gain, best = 0.0, None
        for swaps in proposals:
            gain = self._gain(name, swaps)
            if gain > best_gain:
                best_gain, best = gain, swaps
        if best is None:
            return False
        for changed, devices in self._changed(name, best).items():
            self._devices[changed] = devices
        for source, partner in best:
            owner = self._owner.pop(partner, None)
            self._owner[partner] = name
            if owner is None:
                del self._owner[source]
            else:
                self._owner[source] = owner
        return True

    def _worth(self, name: str, devices: Sequence[int]) -> float:
        """Return how many GPUs that lie best would train as much."""
        network = self._networks[name]
        gpus = len(devices)
        if gpus == 1 or not network.spread_rates:
            return gpus
        span = GroupShape.of(devices, self._cluster).span
        return gpus * rate(network, gpus, span) / rate(network, gpus)

    def _gain(self, name: str, swaps: Sequence[Swap]) -> float:
        """Return the gain of all groups, in GPUs, beyond what it must be."""
        gain = 0.0
        for changed, devices in self._changed(name, swaps).items():
            gain += self._worth(changed, devices) - self._worth(changed, self._devices[changed])
            if changed in self._running:
                remaining = self._running[changed].intersection(devices)
                if len(remaining) < self._networks[changed].min_gpus:
                    return -1.0
                gain -= PAYS * len(devices)
        return gain - 1e-9

    def _changed(self, name: str, swaps: Sequence[Swap]) -> dict[str, tuple[int, ...]]:
        """Return the devices of the groups that swaps would change."""
        new = dict(swaps)
        for source, partner in swaps:
            new[partner] = source
        names = {name, *(self._owner[partner] for _, partner in swaps if partner in self._owner)}
        return {
            changed: tuple(new.get(device, device) for device in self._devices[changed])
            for changed in names
        }

    def _gather(self, name: str) -> Iterator[list[Swap]]:
        """Propose to move a group to as few nodes as possible."""
        devices = self._devices[name]
        count = Counter(map(self._cluster.node, devices))
        nodes = [node for node, _ in count.most_common()]
        needed = nodes_needed(len(devices), self._per_node)
        further = [node for node in self._of_node if node not in count]
        for center in [*nodes, *further[:MAX_NODES_TRIED]]:
            chosen = {center, *[node for node in nodes if node != center][: needed - 1]}
            outside = [device for device in devices if self._cluster.node(device) not in chosen]
            partners = self._partners(name, chosen)
            if len(partners) >= len(outside) and self._fixed.isdisjoint(outside):
                partners.sort(key=lambda partner: self._cost(name, outside[0], partner))
                yield list(zip(outside, partners, strict=False))

    def _scatter(self, name: str) -> Iterator[list[Swap]]:
        """Propose to move one device of a group to a node on which it has none."""
        devices = self._devices[name]
        count = Counter(map(self._cluster.node, devices))
        crowded = [
            device
            for device in devices
            if device not in self._fixed and count[self._cluster.node(device)] > 1
        ]
        if crowded:
            source = max(crowded, key=lambda device: (count[self._cluster.node(device)], device))
            further = [node for node in self._of_node if node not in count]
            for node in further[:MAX_NODES_TRIED]:
                for partner in self._partners(name, {node}):
                    yield [(source, partner)]

    def _partners(self, name: str, nodes: Collection[int]) -> list[int]:
        """Return the devices on some nodes that a group could get, the free ones first."""
        devices = [
            device
            for node in nodes
            for device in self._of_node.get(node, ())
            if device not in self._fixed and self._owner.get(device) != name
        ]
        return sorted(devices, key=lambda device: (device in self._owner, device))

    def _cost(self, name: str, source: int, partner: int) -> float:
        """Return what another group loses by an exchange, in GPUs."""
        owner = self._owner.get(partner)
        if owner is None:
            return -1.0
        devices = self._changed(name, [(source, partner)])[owner]
        return self._worth(owner, self._devices[owner]) - self._worth(owner, devices)
