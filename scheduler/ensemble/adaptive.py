"""``adaptive``: groups that grow and shrink so that all networks would finish together.

When a network finishes, the others share its devices. Nobody knows how many
epochs each still needs, so all are taken to need equally many: then the shares
that water-filling gives (:mod:`scheduler.ensemble.waterfill`) keep them all at one pace,
and the GPUs each gets are used as efficiently as its rate curve allows, for the
hulls of the curves are concave. Shares become group sizes by largest remainder.

This differs from the paper's policies in that a network that goes on keeps its
devices, at most gains some, and never waits for a round to end. It needs a
stream that lets networks train at their own paces, and regrouping that is
cheaper than a checkpoint and a restart.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from scheduler.base import Cluster, Network, Progress, RateTable
from scheduler.ensemble.rates import Curves, bent_curves, estimated, is_straight, rate
from scheduler.ensemble.waterfill import hulls, water_fill

HOLDER_BONUS = 1.0  # added to the remainder of a network that has the larger size already


def group_sizes(rates: RateTable, progress: Progress, cluster: Cluster) -> dict[str, int]:
    """The GPUs of every unfinished network; those that get none wait.

    Args:
        rates: of all networks.
        progress: who has finished, and who holds devices now.
        cluster: whose devices are shared.

    Returns:
        Name -> GPUs, only counts on which a network is faster than on any
        fewer. Their sum is at most that of the cluster.

    a and b are equal and share 3 GPUs: 1.5 each, and the first gets the larger half.

    >>> from scheduler.base import Network
    >>> table = RateTable(100, 4, tuple(Network(name, (10.0, 19.0, 27.0)) for name in "ab"))
    >>> group_sizes(table, Progress(), Cluster.of(3, 3))
    {'a': 2, 'b': 1}
    >>> group_sizes(table, Progress(finished=frozenset("a")), Cluster.of(3, 3))
    {'b': 3}
    """
    known = bent_curves(rates, cluster.gpus)
    rows = np.array([row for row, name in enumerate(known.names)
                     if name not in progress.finished and known.least[row] <= cluster.gpus], dtype=np.int64)
    if not len(rows):
        return {}
    shares = water_fill(hulls(rates, cluster.gpus), rows, np.ones(len(rows)), cluster.gpus).gpus
    sizes = {row: _sizes(known, row, rates.models[row], cluster) for row in rows.tolist()}
    held = {known.index[member.name]: member.gpus for member in progress.running}
    given = _round(dict(zip(rows.tolist(), shares.tolist(), strict=True)), sizes, held, cluster.gpus)
    _give_spare(rates, given, sizes, cluster.gpus - sum(given.values()))
    return {known.names[row]: count for row, count in given.items() if count}


def _sizes(known: Curves, row: int, network: Network, cluster: Cluster) -> NDArray[np.int64]:
    """The group sizes a network may be given: useful ones within a node or of whole nodes.

    The least and the best are among them wherever they lie.
    """
    per_node, dense = cluster.gpus_per_node, known.rate.shape[1]
    useful = 1 + np.flatnonzero(known.useful[row])
    last = min(cluster.gpus, network.max_gpus or cluster.gpus)
    if is_straight(network) and last > dense:
        within, whole = np.arange(dense + 1, per_node), np.arange(per_node * (dense // per_node + 1), last, per_node)
        beyond = np.concatenate((within[within < last], whole, [last]))
        useful = np.append(useful, beyond[estimated(network.rates, beyond) > known.rate[row, useful[-1] - 1]])
    aligned = (useful < per_node) | (useful % per_node == 0)
    aligned[[0, -1]] = True
    return useful[aligned]


def _round(shares: dict[int, float], sizes: dict[int, NDArray[np.int64]], held: dict[int, int],
           gpus: int) -> dict[int, int]:
    """Group sizes from average shares: each rounded down, then up by largest remainder while GPUs last."""
    given, larger = {}, []
    for row, share in shares.items():
        above = int(np.searchsorted(sizes[row], share + 1e-9, side="right"))
        given[row] = int(sizes[row][above - 1]) if above else 0
        if above < len(sizes[row]):
            size = int(sizes[row][above])
            remainder = (share - given[row]) / (size - given[row])
            larger.append((-remainder - HOLDER_BONUS * (held.get(row, 0) >= size), row, size))
    left = gpus - sum(given.values())
    for _, row, size in sorted(larger):
        if size - given[row] <= left:
            left -= size - given[row]
            given[row] = size
    return given


def _give_spare(rates: RateTable, given: dict[int, int], sizes: dict[int, NDArray[np.int64]], spare: int) -> None:
    """What rounding left over goes to the network that is latest, again and again, if it becomes faster."""

    def pace(row: int) -> float:
        return rate(rates.models[row], given[row]) if given[row] else 0.0

    slowest = [(pace(row), row) for row in given]
    heapq.heapify(slowest)
    while spare and slowest:
        _, row = heapq.heappop(slowest)
        above = int(np.searchsorted(sizes[row], given[row], side="right"))
        if above < len(sizes[row]) and sizes[row][above] - given[row] <= spare:
            spare -= int(sizes[row][above]) - given[row]
            given[row] = int(sizes[row][above])
            heapq.heappush(slowest, (pace(row), row))
