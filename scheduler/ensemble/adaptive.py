"""Size groups so that all networks finish together: the policy ``adaptive``.

When a network finishes, the others share its devices. It is unknown how many epochs each still
needs, so all are assumed to need equally many: then the shares of water-filling
(:mod:`scheduler.ensemble.waterfill`) keep them all at one pace, and the GPUs of each are used as
efficiently as its rate curve allows, because the hulls of the curves are concave. If a search
compares networks at rungs, the epochs to the next rung count: all would reach it together, except
networks so near to it that they would have to wait for the others (:func:`_until_rungs`). Networks
that have passed a rung come before networks that have not started (:func:`select_admitted`).
Shares become group sizes by largest remainder.

This differs from the paper's policies: a network that continues keeps its devices, may gain some,
and never waits for a round to end. It needs a stream that lets networks train at their own paces,
and regrouping that is cheaper than a checkpoint and a restart.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from scheduler.base import Cluster, Network, Progress, RateTable
from scheduler.ensemble.indexed import iter_ascending, raise_slowest, rows_outside, values_of
from scheduler.ensemble.rates import (
    Curves,
    bent_curves,
    curve,
    extrapolate_rates,
    is_straight,
    rate,
)
from scheduler.ensemble.waterfill import hulls, water_fill

HOLDER_BONUS = 1.0  # added to the remainder of a network that has the larger size already
PAYS = 0.8  # of the samples/s that each GPU of the least group trains, and a larger group pays


def group_sizes(rates: RateTable, progress: Progress, cluster: Cluster) -> dict[str, int]:
    """Compute the GPUs of every unfinished network; networks without GPUs wait.

    Args:
        rates: the rates of all networks.
        progress: the finished networks and the running groups.
        cluster: the devices to share.

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
    >>> group_sizes(table, Progress(ahead={"a": 1, "b": 4}), Cluster.of(3, 3))
    {'a': 1, 'b': 2}
    """
    rate_curves = bent_curves(rates, cluster.gpus)
    admitted = select_admitted(rates, progress, cluster)
    rows = np.flatnonzero(admitted & (rate_curves.min_gpus <= cluster.gpus))
    if not len(rows):
        return {}
    work = _work(rate_curves.names, rows, progress)
    shares = water_fill(hulls(rates, cluster.gpus), rows, work, cluster.gpus).gpus
    sizes = _sizes_of(rates, cluster)
    current = {rate_curves.index[member.name]: member.gpus for member in progress.running}
    if progress.ahead:
        min_gpus = rate_curves.min_gpus[rows]
        shares = _until_rungs(shares, min_gpus, np.isin(rows, list(current)), cluster.gpus)
        # Otherwise they would keep more than their minimum.
        if min_gpus.sum() <= cluster.gpus:
            current = current
        else:
            current = {}
    sizes_of = _round(rows, shares, sizes, current)
    epochs = work[np.searchsorted(rows, [*sizes_of])].tolist()
    before = dict(zip(sizes_of, epochs, strict=True))
    # GPUs left by rounding go to the network that is latest; a network without GPUs needs more than
    # there are.
    raise_slowest(
        sizes_of,
        sizes,
        cluster.gpus - sum(sizes_of.values()),
        lambda row: rate(rates.models[row], sizes_of[row]) / before[row],
    )
    if admitted is not (unfinished := rows_outside(rate_curves.names, progress.finished)):
        _fill(sizes_of, np.flatnonzero(unfinished & ~admitted), rate_curves, cluster.gpus)
    return {rate_curves.names[row]: sizes_of[row] for row in sorted(sizes_of)}


def select_admitted(rates: RateTable, progress: Progress, cluster: Cluster) -> NDArray[np.bool_]:
    """Select the networks that share the GPUs, bool of shape (networks,).

    A network that has passed one is more likely to be the best than one that has not started. So
    new networks start only on GPUs that do not pay for survivors: a group pays while each of its
    GPUs trains at least ``PAYS`` of what each GPU of the smallest group does. RASDA (Aach et al.,
    arXiv:2412.02729) also starts none while a survivor lacks GPUs, but asks for twice as many at
    each rung, however well the network scales.

    Returns:
        The mask; the unfinished networks themselves if all are admitted.

    c has passed a rung and could use two of the three GPUs; so one of a and b begins.

    >>> from scheduler.base import Network
    >>> table = RateTable(100, 4, tuple(Network(name, (10.0, 19.0, 20.0)) for name in "abc"))
    >>> select_admitted(table, Progress(survivors=frozenset("c")), Cluster.of(3, 3))
    array([ True, False,  True])
    """
    unfinished = rows_outside(rates.names, progress.finished)
    if not progress.survivors:
        return unfinished
    rate_curves = bent_curves(rates, cluster.gpus)
    first = [
        row
        for row in (
            rate_curves.index[name] for name in progress.survivors if name in rate_curves.index
        )
        if unfinished[row] and rate_curves.min_gpus[row] <= cluster.gpus
    ]
    if not first:
        return unfinished
    started = np.zeros_like(unfinished)
    started[[*first, *(rate_curves.index[member.name] for member in progress.running)]] = True
    rivals = started.copy()
    rivals[first] = False
    sizes = _sizes_of(rates, cluster)
    spare = (
        cluster.gpus
        - rate_curves.min_gpus[rivals].sum()
        - sum(_largest_paying_size(rates.models[row], sizes[row]) for row in first)
    )
    new = np.flatnonzero(unfinished & ~started)
    started[new[np.cumsum(rate_curves.min_gpus[new]) <= spare]] = True
    return unfinished & started


def _largest_paying_size(network: Network, sizes: NDArray[np.int64]) -> int:
    """Return the largest group size that pays."""
    of_each = curve(network, int(sizes[-1]))[sizes - 1] / sizes
    return int(sizes[of_each >= PAYS * of_each[0]][-1])


def _fill(sizes: dict[int, int], rows: NDArray[np.int64], rate_curves: Curves, gpus: int) -> None:
    """Start more networks, in their order, on GPUs that the admitted ones cannot use."""
    spare = gpus - sum(sizes.values())
    for row in rows[rate_curves.min_gpus[rows] <= spare].tolist():
        min_gpus = int(rate_curves.min_gpus[row])
        if min_gpus <= spare:
            sizes[row] = min_gpus
            spare -= min_gpus


class _Sizes(dict[int, NDArray[np.int64]]):
    """Mapping from the row of a network to its allowed group sizes, computed on demand.

    Of thousands of networks at most as many as there are GPUs can have any.
    """

    def __init__(self, rate_curves: Curves, rates: RateTable, cluster: Cluster) -> None:
        super().__init__()
        self.rate_curves = rate_curves
        self._rates = rates
        self.cluster = cluster

    def __missing__(self, row: int) -> NDArray[np.int64]:
        self[row] = sizes = _allowed_sizes(
            self.rate_curves, row, self._rates.models[row], self.cluster
        )
        return sizes


@lru_cache(maxsize=2)
def _sizes_of(rates: RateTable, cluster: Cluster) -> _Sizes:
    """Return a cache shared by all decisions between which no rate changes."""
    return _Sizes(bent_curves(rates, cluster.gpus), rates, cluster)


def _work(
    names: tuple[str, ...], rows: NDArray[np.int64], progress: Progress
) -> NDArray[np.float64]:
    """Return the remaining epochs of networks, shape (rows,); the mean of the others if unknown."""
    if not progress.ahead:
        return np.ones(len(rows))
    work = values_of(names, progress.ahead)[rows]
    is_known = np.isfinite(work)
    return np.where(is_known, work, work[is_known].mean() if is_known.any() else 1.0)


def _until_rungs(
    shares: NDArray[np.float64], min_gpus: NDArray[np.int64], holds: NDArray[np.bool_], gpus: int
) -> NDArray[np.float64]:
    """Adjust shares so that no network waits for GPUs that others have beyond their minimum.

    A network close to its rung needs a small share to arrive there with the others: so small that
    it would wait until they are nearly there, and meanwhile it would be unknown whether it is
    better than they are.

    >>> one_each, none = np.array([1, 1, 1]), np.array([False] * 3)
    >>> _until_rungs(np.array([3.6, 0.2, 0.2]), one_each, none, 4)
    array([2., 1., 1.])
    >>> holds = np.array([False, False, True])
    >>> np.round(_until_rungs(np.array([1.7, 0.2, 0.1]), one_each, holds, 2), 3)
    array([1. , 0.2, 1. ])
    """
    if min_gpus.sum() > gpus:
        # Less than their minimum: they take turns.
        return np.where(holds, min_gpus, np.minimum(shares, min_gpus * (1 - 1e-6)))
    more = np.maximum(shares - min_gpus, 0.0)
    return min_gpus + more * min(1.0, float(gpus - min_gpus.sum()) / (float(more.sum()) or 1.0))


def _allowed_sizes(
    rate_curves: Curves, row: int, network: Network, cluster: Cluster
) -> NDArray[np.int64]:
    """Return the useful group sizes that fit within a node or fill whole nodes.

    The smallest and the best size are always included.
    """
    per_node = cluster.gpus_per_node
    dense = rate_curves.rate.shape[1]
    useful = 1 + np.flatnonzero(rate_curves.useful[row])
    last = min(cluster.gpus, network.max_gpus or cluster.gpus)
    if is_straight(network) and last > dense:
        within = np.arange(dense + 1, per_node)
        whole_nodes = np.arange(per_node * (dense // per_node + 1), last, per_node)
        larger = np.concatenate((within[within < last], whole_nodes, [last]))
        useful = np.append(
            useful,
            larger[
                extrapolate_rates(network.best_rates, larger)
                > rate_curves.rate[row, useful[-1] - 1]
            ],
        )
    aligned = (useful < per_node) | (useful % per_node == 0)
    aligned[[0, -1]] = True
    return useful[aligned]


def _round(
    rows: NDArray[np.int64], shares: NDArray[np.float64], sizes: _Sizes, current: Mapping[int, int]
) -> dict[int, int]:
    """Round average shares to group sizes: down, then up by largest remainder while GPUs last.

    Returns:
        Row -> GPUs of the networks that get any.
    """
    # Small shares wait, or get their minimum.
    is_small = shares + 1e-9 < sizes.rate_curves.min_gpus[rows]
    rounded = {}
    larger = []
    for row, share in zip(rows[~is_small].tolist(), shares[~is_small].tolist(), strict=True):
        above = int(np.searchsorted(sizes[row], share + 1e-9, side="right"))
        rounded[row] = int(sizes[row][above - 1])
        if above < len(sizes[row]):
            size = int(sizes[row][above])
            remainder = (share - rounded[row]) / (size - rounded[row])
            larger.append((-remainder - HOLDER_BONUS * (current.get(row, 0) >= size), row, size))
    spare = sizes.cluster.gpus - sum(rounded.values())
    for _, row, size in heapq.merge(
        sorted(larger), _min_sizes(rows[is_small], shares[is_small], sizes, current)
    ):
        if not spare:
            break
        if size - rounded.get(row, 0) <= spare:
            spare -= size - rounded.get(row, 0)
            rounded[row] = size
    return rounded


def _min_sizes(
    rows: NDArray[np.int64], shares: NDArray[np.float64], sizes: _Sizes, current: Mapping[int, int]
) -> Iterator[tuple[float, int, int]]:
    """Yield (order, row, GPUs) of networks whose share is below their smallest size.

    Args:
        rows: rising.
    """
    min_gpus = sizes.rate_curves.min_gpus[rows]
    order = -(shares / min_gpus)
    for row, gpus in current.items():
        index = int(np.searchsorted(rows, row))
        if index < len(rows) and rows[index] == row and gpus >= min_gpus[index]:
            order[index] -= HOLDER_BONUS
    for index in iter_ascending(order, sizes.cluster.gpus):
        yield float(order[index]), int(rows[index]), int(min_gpus[index])
