"""Ask a policy for a plan on a cluster with shared GPUs and a limited input rate.

A policy knows neither. :func:`plan` gives it reachable rates and the devices that should be used:

- *The input.* If the stream supplies less than a network could train, its rate is the supply, and
  no network gets GPUs that would not make it faster. So many networks on one stream are preferred
  to few wide groups.
- *Slots.* If networks outnumber GPUs, k of them share each GPU while that pays
  (:func:`scheduler.ensemble.sharing.best_networks_per_gpu`), or up to the number of slots
  (:attr:`scheduler.base.Cluster.fills`). The policy plans on a cluster of k devices per GPU, at
  rates r s(k) / k. Once networks no longer outnumber GPUs, each has whole GPUs.
- *Separate slots.* A group uses at most one slot of a GPU: two would only share its time, and NCCL
  refuses them.
- *One kind in a process.* Slots of a process that trains equal networks as one are for networks of
  one kind (:mod:`scheduler.ensemble.fusing`), each with one slot.
- *Exclusive GPUs.* A network that ran out of memory beside others waits until GPUs are not shared.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from scheduler.base import (
    Cluster,
    Member,
    Network,
    Options,
    Progress,
    RateTable,
    Round,
    Span,
)
from scheduler.ensemble.fusing import ProcessPlan
from scheduler.ensemble.policies import Policy
from scheduler.ensemble.rates import curve
from scheduler.ensemble.sharing import best_networks_per_gpu, share


def plan(
    policy: Policy, rates: RateTable, progress: Progress, cluster: Cluster, options: Options
) -> Round:
    """Ask a policy which groups should run now.

    Args:
        rates: the rates on unshared GPUs with a fast enough input.
        cluster: the cluster with all slots.

    Returns:
        Its answer in devices of the cluster; no group has two slots of one GPU.
    """
    if not options.peak_limited:
        rates = replace(rates, supply=math.inf)
    if rates.has_spread:
        gpus_per_node = cluster.gpus_per_node // cluster.slots
        rates = limit_to_nodes(rates, (cluster.nodes - 1) * gpus_per_node)
    if cluster.slots == 1:
        return policy.decide(limit_to_supply(rates, cluster.gpus), progress, cluster, options)
    count = networks_per_gpu(rates, progress, cluster)
    return _SharedPlan(policy, progress, cluster, count).decide(rates, options)


@lru_cache(maxsize=16)
def limit_to_nodes(rates: RateTable, max_spread: int) -> RateTable:
    """Leave out the rates of spread groups that the cluster has too few nodes for.

    Args:
        max_spread: the most GPUs that can lie on more nodes than necessary.
    """
    return replace(
        rates,
        models=tuple(
            replace(network, spread_rates=network.spread_rates[:max_spread])
            for network in rates.models
        ),
    )


@lru_cache(maxsize=16)
def limit_to_supply(rates: RateTable, gpus: int) -> RateTable:
    """Limit rates to the supply of the input; GPUs beyond that peak are of no use.

    >>> networks = Network("a", (60.0, 110.0, 150.0)), Network("b", (10.0, 20.0))
    >>> table = RateTable(1, 4, networks, supply=100.0)
    >>> [(network.rates, network.max_gpus) for network in limit_to_supply(table, 4).models]
    [((60.0, 100.0), 2), ((10.0, 20.0), None)]
    """
    if math.isinf(rates.supply) or all(
        max_rate(network, gpus) < rates.supply for network in rates.models
    ):
        return rates
    return replace(
        rates,
        models=tuple(_limit_to_supply(network, rates.supply, gpus) for network in rates.models),
    )


def max_rate(network: Network, gpus: int) -> float:
    """Return an upper bound on the rate of a network."""
    rates = network.best_rates
    if len(rates) > 1:
        return max(max(rates), gpus * rates[-1] / len(rates))
    return rates[0]


def _limit_to_supply(network: Network, supply: float, gpus: int) -> Network:
    last = max(network.min_gpus, min(gpus, network.max_gpus or gpus))
    rates = curve(network, last)
    enough = (rates >= supply).nonzero()[0]
    if not len(enough):
        return network
    max_gpus = max(int(enough[0]) + 1, network.min_gpus)

    def limited(span: Span) -> tuple[float, ...]:
        return tuple(min(rate, supply) for rate in curve(network, max_gpus, span).tolist())

    return replace(
        network,
        rates=limited(Span.ANY),
        max_gpus=max_gpus,
        spread_rates=limited(Span.SPREAD) if network.spread_rates else (),
    )


def networks_per_gpu(rates: RateTable, progress: Progress, cluster: Cluster) -> int:
    """Return how many networks should share each GPU now."""
    unfinished = [
        network.name
        for network in rates.models
        if network.name not in progress.finished and network.name not in progress.exclusive
    ]
    max_networks = max(1, min(cluster.slots, -(-len(unfinished) // max(1, cluster.whole_gpus))))
    if cluster.fills:
        return max_networks
    return best_networks_per_gpu(rates, unfinished, max_networks)


@dataclass(frozen=True)
class _SharedPlan:
    """One question to a policy about a cluster with slots.

    The policy sees a cluster whose devices are numbered without gaps: device j of GPU i of a node
    is slot number j among the used slots of that GPU, occupied ones first.
    """

    policy: Policy
    progress: Progress
    cluster: Cluster
    count: int  # networks that should share a GPU

    def decide(self, rates: RateTable, options: Options) -> Round:
        used = self._used()
        inner = self._inner(used)
        actual = {number: device for device, number in inner.items()}
        width = max(map(len, used.values()), default=1)
        per_node = self.cluster.gpus_per_node // self.cluster.slots * width
        cluster = Cluster(tuple(sorted(actual)), per_node, width)
        processes = None
        if self.cluster.fused > 1 and self.count > 1:
            processes = ProcessPlan(rates, self.progress, self.cluster, self.count)
        progress = self._progress(rates, inner)
        if processes is not None:
            progress = replace(progress, finished=progress.finished | processes.waiting)
        answer = self.policy.decide(self._policy_rates(rates), progress, cluster, options)
        in_use = {
            inner[device]
            for member in self.progress.running
            for device in member.devices
            if device in inner
        }
        members = tuple(
            replace(member, devices=tuple(actual[number] for number in member.devices))
            for member in separate_slots(answer.members, cluster, in_use)
        )
        if processes is not None:
            extra: list[str] = []
            if self.policy.rearranges and members:
                extra = [name for name in processes.unfinished if name not in progress.finished]
            members = processes.assign(members, extra)
        return Round(members)

    def _used(self) -> dict[int, list[int]]:
        """Return GPU -> its usable slots."""
        in_use = [
            device
            for member in self.progress.running
            if member.name not in self.progress.finished
            for device in member.devices
        ]
        targeted = [
            device
            for member in self.progress.target.members
            if member.name not in self.progress.finished
            for device in member.devices
        ]
        occupied = {*in_use, *targeted}
        slots: defaultdict[int, list[int]] = defaultdict(list)
        for device in self.cluster.devices:
            slots[self.cluster.gpu(device)].append(device)
        used = {}
        for gpu, devices in slots.items():
            devices.sort(key=lambda device: (device not in targeted, device not in in_use, device))
            if self.policy.rearranges:
                keeps = 0
            else:
                keeps = sum(device in occupied for device in devices)
            used[gpu] = sorted(devices[: max(self.count, keeps)])
        return used

    def _inner(self, used: Mapping[int, Sequence[int]]) -> dict[int, int]:
        """Return device -> its number in the cluster that the policy sees."""
        width = max(map(len, used.values()), default=1)
        gpus = self.cluster.gpus_per_node // self.cluster.slots
        return {
            device: (gpu // gpus * width + slot) * gpus + gpu % gpus
            for gpu, devices in used.items()
            for slot, device in enumerate(devices)
        }

    def _policy_rates(self, rates: RateTable) -> RateTable:
        part = share(rates.sharing, self.count)
        gpus = self.cluster.whole_gpus
        if self.cluster.fused > 1 and self.count > 1:
            gpus = 1  # a group of several is no part of a program
        return limit_to_supply(
            replace(
                rates,
                models=tuple(
                    replace(
                        network,
                        rates=tuple(part * rate for rate in network.rates),
                        spread_rates=tuple(part * rate for rate in network.spread_rates),
                        max_gpus=max(network.min_gpus, min(gpus, network.max_gpus or gpus)),
                    )
                    for network in rates.models
                ),
            ),
            gpus,
        )

    def _progress(self, rates: RateTable, inner: Mapping[int, int]) -> Progress:
        """Return the progress in the policy's numbers; waiting networks appear as finished."""
        progress = self.progress
        limit = self.cluster.whole_gpus
        if self.cluster.fused > 1 and self.count > 1:
            limit = 1
        waits = {network.name for network in rates.models if network.min_gpus > limit}
        if self.count > 1:
            waits |= progress.exclusive
        target = _members(progress.target.members, inner)
        is_other = self.policy.rearranges and target != _members(
            progress.target.members, inner, only_complete=True
        )
        return replace(
            progress,
            running=_members(progress.running, inner),
            target=Round(target),
            finished=progress.finished | waits,
            rates_changed=progress.rates_changed or is_other,
        )


def _members(
    members: Iterable[Member], inner: Mapping[int, int], only_complete: bool = False
) -> tuple[Member, ...]:
    """Return groups with renumbered devices; devices without a number are dropped.

    Args:
        only_complete: leave out groups that lose any.
    """
    renumbered = (
        replace(
            member, devices=tuple(inner[device] for device in member.devices if device in inner)
        )
        for member in members
        if not only_complete or all(device in inner for device in member.devices)
    )
    return tuple(member for member in renumbered if member.devices)


def separate_slots(
    members: Sequence[Member], cluster: Cluster, in_use: set[int]
) -> tuple[Member, ...]:
    """Move groups so that no group has two slots of one GPU.

    A surplus device of a group is swapped for a free one of another GPU, or for that of another
    group, preferably one that is not running yet. If no swap is possible, the group gives it up.

    Args:
        in_use: devices of running groups.

    >>> cluster = Cluster.of(gpus=2, gpus_per_node=2, slots=2)
    >>> groups = [Member("a", (0, 2)), Member("b", (1,))]
    >>> [group.devices for group in separate_slots(groups, cluster, set())]
    [(0, 3), (1,)]
    >>> groups.append(Member("c", (3,)))
    >>> [group.devices for group in separate_slots(groups, cluster, {1})]
    [(0, 3), (1,), (2,)]
    """
    groups = {member.name: list(member.devices) for member in members}
    owner = {device: name for name, devices in groups.items() for device in devices}
    for name, devices in groups.items():
        for index, device in enumerate(devices):
            if cluster.gpu(device) not in {cluster.gpu(swap) for swap in devices[:index]}:
                continue
            swap = _exchange(name, device, groups, owner, cluster, in_use)
            if swap is None:
                continue
            loser = owner.get(swap)
            if loser is not None:
                groups[loser][groups[loser].index(swap)] = device
                owner[device] = loser
            else:
                del owner[device]
            devices[index] = swap
            owner[swap] = name
    return tuple(
        replace(member, devices=tuple(_one_each(groups[member.name], cluster)))
        for member in members
    )


def _exchange(
    name: str,
    device: int,
    groups: Mapping[str, Sequence[int]],
    owner: Mapping[int, str],
    cluster: Cluster,
    in_use: set[int],
) -> int | None:
    """Return the best device to swap with; None if there is none."""
    own_gpus = {cluster.gpu(candidate) for candidate in groups[name]}

    def can_give(candidate: int) -> bool:
        loser = owner.get(candidate)
        return loser is None or cluster.gpu(device) not in {
            cluster.gpu(slot) for slot in groups[loser] if slot != candidate
        }

    able = [
        candidate
        for candidate in cluster.devices
        if cluster.gpu(candidate) not in own_gpus and can_give(candidate)
    ]
    if not able:
        return None
    return min(
        able,
        key=lambda candidate: (
            candidate in owner,
            candidate in in_use,
            cluster.node(candidate) != cluster.node(device),
            candidate,
        ),
    )


def _one_each(devices: Sequence[int], cluster: Cluster) -> list[int]:
    """Return the first device of each GPU."""
    first: dict[int, int] = {}
    for device in devices:
        first.setdefault(cluster.gpu(device), device)
    return list(first.values())
