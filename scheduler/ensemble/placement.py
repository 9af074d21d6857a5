"""Choose the devices of each group: as few nodes per group as possible ([FLEET] Algorithm 3).

The problem: given group sizes m_i and free devices on nodes, choose disjoint sets of devices a_i
    with |a_i| = m_i so that sum_i c(a_i) / m_i is smallest, where c counts the nodes that a group
    touches (Eq. 4). It is a packing problem. :func:`place_greedily` is the paper's algorithm;
    :func:`place_groups` also searches for the exact optimum, within a budget, and returns the
    better of the two.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice, permutations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launch.errors import InputError, pluralize
from scheduler.base import Member

MAX_PERMUTATIONS = 1024  # [FLEET] appendix A
MAX_STATES = 2_000  # of the exact search: some hundredths of a second
MAX_SHARES = 64  # nodes of one group; with more there are too many ways to choose them

Groups = Mapping[str, int]  # name -> size
Share = tuple[int, int]  # (devices that a group takes of a node, how many the node had free)


def score(members: Iterable[Member], gpus_per_node: int) -> float:
    """Return the sum over groups of nodes touched per GPU, Eq. 4; less is better.

    >>> score([Member("a", (0, 1)), Member("b", (2, 3, 4))], gpus_per_node=4)
    1.1666666666666665
    """
    return sum(nodes_of(member.devices, gpus_per_node) / member.gpus for member in members)


def nodes_of(devices: Sequence[int], gpus_per_node: int) -> int:
    """Return the number of nodes of some devices."""
    return len({device // gpus_per_node for device in devices})


def place_groups(groups: Groups, devices: Sequence[int], gpus_per_node: int) -> tuple[Member, ...]:
    """Place every group on as few nodes as possible.

    Args:
        groups: name -> GPUs, each at least 1.
        devices: the free devices; device d is on node d // gpus_per_node.
        gpus_per_node: the number of GPUs per node of the cluster.

    Returns:
        The groups in the given order. Their score is never above that of :func:`place_greedily`,
        and it is the smallest possible if the exact search ends within ``MAX_STATES`` states and no
        group needs more than ``MAX_SHARES`` nodes.

    Raises:
        InputError: there are fewer devices than the groups need.
    """
    members = place_greedily(groups, devices, gpus_per_node)
    if max(groups.values(), default=1) == 1:  # each is on one node
        return members
    reached = score(members, gpus_per_node)
    better = _exact(groups, devices, gpus_per_node, reached)
    if better is None:
        return members
    return better


def place_greedily(
    groups: Groups, devices: Sequence[int], gpus_per_node: int
) -> tuple[Member, ...]:
    """Run Algorithm 3: lay the groups one after the other along the devices, in a good order.

    First the groups that fill nodes, then pairs that fill nodes, then the best of the first 1024
    permutations of the others. Two errors of the paper's listing are fixed: assigned groups are
    removed from the remaining ones (lines 11 and 24), and a pair is looked up and deleted by the
    same key, the number missing to a full node (lines 14 to 21). If nodes are partly in use, those
    with the most free devices come first.

    >>> [m.devices for m in place_greedily({"a": 2, "b": 3, "c": 2, "d": 1}, range(8), 4)]
    [(2, 3), (5, 6, 7), (0, 1), (4,)]
    """
    slots = _by_node(devices, gpus_per_node)
    if sum(groups.values()) > len(slots):
        raise InputError(
            f"groups need {pluralize(sum(groups.values()), 'GPU')}, but {len(slots)} are free"
        )
    order, remaining = _fill_nodes(groups, gpus_per_node)
    order += _best_permutation(groups, order, remaining, np.array(slots, np.int64) // gpus_per_node)
    devices_of: dict[str, tuple[int, ...]] = {}
    start = 0
    for name in order:
        devices_of[name] = tuple(slots[start : start + groups[name]])
        start += groups[name]
    return tuple(Member(name, devices_of[name]) for name in groups)


def rearrange(
    groups: Groups, running: Iterable[Member], devices: Sequence[int], gpus_per_node: int
) -> tuple[Member, ...]:
    """Place groups while others train: running groups keep their devices.

    A group that shrinks gives up devices where it has the fewest; one that grows takes more on its
    own nodes, then where they fit best; new groups are placed on the remaining devices.

    Args:
        groups: name -> target number of GPUs.
        running: the current groups; those not in ``groups`` give up their devices.
        devices: all usable devices, free or in use.
        gpus_per_node: the number of GPUs per node of the cluster.

    Returns:
        The groups in the given order; the first device of a running group stays the first.

    >>> running = [Member("a", (0, 1)), Member("b", (4, 5))]
    >>> groups = rearrange({"a": 1, "b": 3, "c": 2}, running, range(8), gpus_per_node=4)
    >>> [group.devices for group in groups]
    [(0,), (4, 5, 6), (1, 2)]
    """
    current = {member.name: member.devices for member in running if member.name in groups}
    devices_of = {
        name: _keep(owned, groups[name], gpus_per_node) for name, owned in current.items()
    }
    used = {device for owned in devices_of.values() for device in owned}
    free = {device for device in devices if device not in used}
    for name in sorted(
        (name for name in devices_of if groups[name] > len(devices_of[name])),
        key=lambda name: groups[name],
    ):
        more = _near(devices_of[name], groups[name] - len(devices_of[name]), free, gpus_per_node)
        devices_of[name] += more
        free -= set(more)
    new = place_groups(
        {name: size for name, size in groups.items() if name not in devices_of},
        sorted(free),
        gpus_per_node,
    )
    devices_of.update((member.name, member.devices) for member in new)
    return tuple(Member(name, devices_of[name]) for name in groups)


def _keep(owned: tuple[int, ...], size: int, gpus_per_node: int) -> tuple[int, ...]:
    """Return the devices that a shrinking group keeps: the first, and those on full nodes."""
    if size >= len(owned):
        return owned
    on_node = Counter(device // gpus_per_node for device in owned)
    best = sorted(
        owned[1:],
        key=lambda device: (
            device // gpus_per_node != owned[0] // gpus_per_node,
            -on_node[device // gpus_per_node],
            device,
        ),
    )
    keep = {owned[0], *best[: size - 1]}
    return tuple(device for device in owned if device in keep)


def _near(owned: tuple[int, ...], more: int, free: set[int], gpus_per_node: int) -> tuple[int, ...]:
    """Return free devices for a growing group: on its own nodes, then on few others."""
    own_nodes = {device // gpus_per_node for device in owned}
    free_on: dict[int, list[int]] = {}
    for device in sorted(free):
        free_on.setdefault(device // gpus_per_node, []).append(device)
    chosen: list[int] = []
    while len(chosen) < more:
        need = more - len(chosen)
        node = min(
            free_on,
            key=lambda node: (
                node not in own_nodes,
                len(free_on[node]) < need,
                abs(len(free_on[node]) - need),
                node,
            ),
        )
        chosen += free_on.pop(node)[:need]
    return tuple(chosen)


def _by_node(devices: Iterable[int], gpus_per_node: int) -> list[int]:
    """Return devices node by node, the nodes with the most free ones first."""
    sorted_ = np.sort(np.fromiter(devices, np.int64))
    _, node, free = np.unique(sorted_ // gpus_per_node, return_inverse=True, return_counts=True)
    ordered: list[int] = sorted_[np.argsort(-free[node], kind="stable")].tolist()
    return ordered


def _fill_nodes(groups: Groups, gpus_per_node: int) -> tuple[list[str], list[str]]:
    """Return the groups and pairs that fill nodes, in order, and the remaining groups."""
    order = [name for name, size in groups.items() if size % gpus_per_node == 0]
    alone: dict[int, str] = {}  # GPUs beyond full nodes -> the group that waits for its other half
    for name, size in groups.items():
        over = size % gpus_per_node
        if over == 0:
            continue
        if gpus_per_node - over in alone:
            order += [name, alone.pop(gpus_per_node - over)]
        else:
            alone[over] = name
    placed = set(order)
    return order, [name for name in groups if name not in placed]


def _best_permutation(
    groups: Groups, order: list[str], remaining: list[str], nodes: NDArray[np.int64]
) -> list[str]:
    """Return the order of the remaining groups with the fewest nodes, of the first 1024."""
    rank = [0, *np.cumsum(np.diff(nodes) != 0).tolist()]  # of the node of each slot
    start = sum(groups[name] for name in order)
    # 7! > 1024: the first permutations leave the head as it is
    head = remaining[:-7]
    tail = remaining[-7:]
    start += sum(groups[name] for name in head)
    if len({groups[name] for name in tail}) < 2:  # all permutations touch as many
        return remaining

    def cost(permutation: Iterable[str]) -> float:
        total = 0.0
        first = start
        for name in permutation:
            size = groups[name]
            total += (1 + rank[first + size - 1] - rank[first]) / size
            first += size
        return total

    return head + list(min(islice(permutations(tail), MAX_PERMUTATIONS), key=cost))


def _exact(
    groups: Groups, devices: Sequence[int], gpus_per_node: int, reached: float
) -> tuple[Member, ...] | None:
    """Return the best placement if it beats a known score and is found within the budget.

    A* over the groups, small ones first. A state is the number of placed groups and the number of
    nodes with 0, 1, 2, ... free devices; nodes are otherwise alike. :class:`_LowerBound` never
    overestimates, so the first complete state is optimal.
    """
    names = sorted(groups, key=lambda name: groups[name])
    sizes = [groups[name] for name in names]
    if max(sizes, default=0) > MAX_SHARES * gpus_per_node:
        return None
    to_come = _LowerBound(sizes, len(devices) - sum(sizes), gpus_per_node)
    _, free = np.unique(np.fromiter(devices, np.int64) // gpus_per_node, return_counts=True)
    start = tuple(np.bincount(free, minlength=gpus_per_node + 1).tolist())
    queue = [_State(to_come(0, start), 0, 0, 0.0, start, None)]
    seen: set[tuple[int, tuple[int, ...]]] = set()
    sequence = 0
    while queue and sequence < MAX_STATES:
        state = heapq.heappop(queue)
        placed = -state.to_place
        if state.estimate > reached - 1e-9:
            return None
        if placed == len(sizes):
            return _on_devices(groups, names, state, devices, gpus_per_node)
        if (placed, state.free) in seen:
            continue
        seen.add((placed, state.free))
        max_nodes = int((reached - state.cost - to_come.min_scores[placed + 1]) * sizes[placed])
        for shares in _iter_shares(sizes[placed], state.free, max_nodes):
            cost = state.cost + len(shares) / sizes[placed]
            free = _take_shares(state.free, shares)
            estimate = cost + to_come(placed + 1, free)
            if estimate < reached - 1e-9:
                sequence += 1
                heapq.heappush(
                    queue, _State(estimate, -placed - 1, sequence, cost, free, (state, shares))
                )
    return None


class _LowerBound:
    """A lower bound on what the groups still to be placed add to the score.

    Each group takes at least its minimum of nodes. Only the spare devices can stay free, so most
    nodes must be touched: if there are more of them than shares so far, further shares are needed,
    of the largest group at best.
    """

    def __init__(self, sizes: Sequence[int], spare: int, gpus_per_node: int) -> None:
        nodes = [-(-size // gpus_per_node) for size in sizes]
        self.min_scores = _sums_to_the_end(
            [count / size for count, size in zip(nodes, sizes, strict=True)]
        )
        self._shares = _sums_to_the_end(nodes)
        self._cheapest = 1 / max(sizes, default=1)
        self._spare = spare

    def __call__(self, placed: int, free: tuple[int, ...]) -> float:
        touched = 0
        spare = self._spare
        for size in range(1, len(free)):
            untouched = min(free[size], spare // size)
            spare -= untouched * size
            touched += free[size] - untouched
        return self.min_scores[placed] + max(0, touched - self._shares[placed]) * self._cheapest


def _sums_to_the_end(values: Sequence[float]) -> list[float]:
    return list(accumulate(reversed(values), initial=0))[::-1]


class _State(NamedTuple):
    """A partial placement, ordered by its estimate, then by how complete it is."""

    estimate: float
    to_place: int  # minus the groups placed
    sequence: int
    cost: float
    free: tuple[int, ...]  # how many nodes have 0, 1, 2, ... devices free
    before: tuple[_State, tuple[Share, ...]] | None


def _iter_shares(
    size: int, free: tuple[int, ...], max_nodes: int, largest: Share | None = None
) -> Iterator[tuple[Share, ...]]:
    """Yield all ways to take ``size`` devices from ``max_nodes`` nodes, largest shares first."""
    if size == 0:
        yield ()
        return
    if max_nodes < 1:
        return
    for count in range(min(size, len(free) - 1), -(-size // max_nodes) - 1, -1):
        for free_here in range(len(free) - 1, count - 1, -1):
            share = (count, free_here)
            if free[free_here] == 0 or (largest is not None and share > largest):
                continue
            one_less = (*free[:free_here], free[free_here] - 1, *free[free_here + 1 :])
            for shares in _iter_shares(size - count, one_less, max_nodes - 1, share):
                yield (share, *shares)


def _take_shares(free: tuple[int, ...], shares: tuple[Share, ...]) -> tuple[int, ...]:
    nodes = list(free)
    for count, size in shares:
        nodes[size] -= 1
        nodes[size - count] += 1
    return tuple(nodes)


def _on_devices(
    groups: Groups, names: list[str], state: _State, devices: Sequence[int], gpus_per_node: int
) -> tuple[Member, ...]:
    """Return the devices of a complete state."""
    steps = []
    while state.before is not None:
        state, shares = state.before
        steps.append(shares)
    nodes: dict[int, list[int]] = {}
    for device in sorted(devices):
        nodes.setdefault(device // gpus_per_node, []).append(device)
    chosen: dict[str, tuple[int, ...]] = {}
    for name, shares in zip(names, reversed(steps), strict=True):
        devices_of_group: list[int] = []
        # All nodes of a group are chosen before any is changed: a share of 1 of 2 leaves a node
        # with 1 free, which must not be used for another share of the same group.
        used: list[tuple[int, int]] = []
        for count, size in shares:
            node = next(n for n in nodes if len(nodes[n]) == size and n not in dict(used))
            used.append((node, count))
        for node, count in used:
            devices_of_group += nodes[node][:count]
            del nodes[node][:count]
        chosen[name] = tuple(sorted(devices_of_group))
    return tuple(Member(name, chosen[name]) for name in groups)
