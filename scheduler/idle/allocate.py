"""Allocate idle nodes to trainers whenever the pool of idle nodes changes.

A batch system leaves nodes idle that no waiting job fits into. Trainers that can grow and shrink
use them until the batch system takes them back. Whenever nodes join or leave, or a trainer ends,
the pool is allocated anew, in two decisions:

1. *how many* nodes each trainer gets: :func:`allocate`, the exact optimum of the
   model below, or :func:`allocate_equally`, the heuristic it is compared with;
2. *which* nodes: :func:`place_by_index` or :func:`place_in_order`.

All are pure functions: a replay of a trace calls them, and a live batch system could call the same
ones.

The model is that of BFTrainer (Liu et al., arXiv:2106.12091, section 3). Trainer
``j`` gains ``O_j(n)`` per second on ``n`` nodes, a piecewise linear curve. It runs on
``n_min..n_max`` nodes or waits on none. When it goes from ``c`` nodes to more (fewer),
it pauses for ``up_s`` (``down_s``) seconds. With ``N`` idle nodes, none of which
is expected to leave within ``T`` seconds, the best counts solve

    maximize    sum_j  T O_j(n_j) - O_j(c_j) R_j(n_j)                  (Eq. 16)
    where       R_j(n) = up_s if n > c_j, down_s if n < c_j, else 0    (Eq. 13)
    subject to  n_j = 0 or n_min <= n_j <= n_max,  sum_j n_j <= N      (Eqs. 3, 5)

No trainer both gains and loses nodes (Eq. 6). Nodes are alike in this model, so that
any such counts can be had without breaking that rule, and the program over nodes
that the paper gives to a solver (``tests/oracles/idle_nodes.py``) has the same
optimum as this program over counts; ``docs/idle-nodes.md`` proves it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from launch.errors import InputError, pluralize
from scheduler.base import MAX_NODES, check_range
from scheduler.shares import FloatArray, Gains, IntArray, climb, dynamic_program, optimal_counts

Counts = tuple[int, ...]

FEW_COUNTS = 2000  # of all trainers; if there are more, counts in no optimum are dropped first

# Owners of a node other than trainers.
FREE = -1
BUSY = -2


@dataclass(frozen=True)
class RateCurve:
    """A piecewise linear function of the number of nodes, zero on no nodes.

    Args:
        nodes: the breakpoints, ascending from 0; a curve that starts later is joined to (0, 0).
        values: the values there, per second; finite and not negative.

    Raises:
        InputError: any of that does not hold.

    >>> RateCurve((0, 1, 4), (0.0, 10.0, 34.0)).table(5 - 1)
    array([ 0., 10., 18., 26., 34.])
    """

    nodes: tuple[int, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.nodes) != len(self.values) or not self.nodes:
            raise InputError(
                f"a curve has {pluralize(len(self.nodes), 'node count')} and "
                f"{pluralize(len(self.values), 'value')}; there must be one value for each count, "
                "and at least one"
            )
        for count, value in zip(self.nodes, self.values, strict=True):
            if not (math.isfinite(value) and value >= 0):
                raise InputError(
                    f"a curve is {value} on {pluralize(count, 'node')}; "
                    "it must be a number, 0 or more"
                )
        if self.nodes[0] < 0 or any(a >= b for a, b in pairwise(self.nodes)):
            raise InputError(f"a curve's node counts must rise from 0, not {list(self.nodes)}")
        if self.nodes[0] > 0:
            object.__setattr__(self, "nodes", (0, *self.nodes))
            object.__setattr__(self, "values", (0.0, *self.values))
        if self.values[0] != 0:
            raise InputError(f"a curve is {self.values[0]} on 0 nodes; it must be 0 there")

    def table(self, n_max: int, n_min: int = 0) -> FloatArray:
        """Return its values on 0, 1, ..., ``n_max`` nodes; 0 on fewer than ``n_min``."""
        nodes = np.arange(n_max + 1)
        return np.where(nodes < n_min, 0.0, np.interp(nodes, self.nodes, self.values))

    def scaled(self, factor: float) -> RateCurve:
        """Return the curve multiplied by a factor, such as a user's weight."""
        return RateCurve(self.nodes, tuple(value * factor for value in self.values))

    def normalized(self) -> RateCurve:
        """Return the speed-up over one node: the paper's scaling efficiency (section 5.2.1).

        Raises:
            InputError: the curve is 0 on one node.
        """
        single = float(self.table(1)[1])
        if single == 0:
            raise InputError("a curve is 0 on one node, so there is no speed-up over one node")
        return self.scaled(1 / single)


@dataclass(frozen=True)
class Trainer:
    """The properties of a trainer on which a decision depends.

    Args:
        objective: what it gains per second, against its number of nodes: samples, speed-up, or
            either times the weight that a user gives it.
        n_min: fewest nodes it runs on (it may always wait on none).
        n_max: most nodes it runs on; the curve must reach as far.
        up_s: seconds it stands still when it is given nodes.
        down_s: seconds it stands still when it gives up nodes.

    Raises:
        InputError: any of that does not hold.
    """

    objective: RateCurve
    n_min: int = 1
    n_max: int = 1
    up_s: float = 0.0
    down_s: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.n_min <= self.n_max:
            raise InputError(f"n_min {self.n_min}, n_max {self.n_max}: must be 1 <= n_min <= n_max")
        if self.n_max > self.objective.nodes[-1]:
            raise InputError(
                f"n_max {self.n_max} is beyond the curve, which ends at "
                f"{pluralize(self.objective.nodes[-1], 'node')}"
            )
        check_range("n_max", self.n_max, 1, MAX_NODES)  # what a trainer gains is tabulated
        for name, seconds in (("up_s", self.up_s), ("down_s", self.down_s)):
            if not (math.isfinite(seconds) and seconds >= 0):
                raise InputError(f"{name} {seconds}: must be a number of seconds, 0 or more")

    @cached_property
    def rates(self) -> FloatArray:
        """Gain per second on 0..n_max nodes; 0 on fewer than n_min, where it does not run."""
        rates = self.objective.table(self.n_max, self.n_min)
        rates.setflags(write=False)
        return rates

    def rescale_s(self, before: int, after: int) -> float:
        """Return the seconds that a change of the node count costs (Eq. 13)."""
        if after == before:
            return 0.0
        if after > before:
            return self.up_s
        return self.down_s

    def gains(self, current: int, horizon_s: float) -> FloatArray:
        """Return its term of Eq. 16 for each count 0..n_max; minus infinity where it cannot run.

        Args:
            current: its current nodes, which may be fewer than n_min after some left.
            horizon_s: the forward-looking time T.

        >>> trainer = Trainer(RateCurve((0, 3), (0.0, 30.0)), n_min=2, n_max=3, up_s=5, down_s=1)
        >>> trainer.gains(2, horizon_s=10)
        array([-20., -inf, 200., 200.])
        """
        return self.offer(current, horizon_s).values

    def offer(self, current: int, horizon_s: float) -> Gains:
        """Return :meth:`gains` as input of :mod:`scheduler.shares`.

        The last result is cached: between decisions most trainers keep their nodes.
        """
        key = current, horizon_s
        before, cached = vars(self).get("_kept", (None, None))
        if before == key and cached is not None:
            return cached
        rates = self.rates
        gains = horizon_s * rates
        rate = float(rates[current])
        if rate > 0:
            gains[:current] -= self.down_s * rate
            gains[current + 1 :] -= self.up_s * rate
        if self.n_min > 1:
            gains[1 : self.n_min] = -math.inf
        gains.setflags(write=False)
        vars(self)["_kept"] = key, (offered := Gains(gains))
        return offered


def objective_value(
    trainers: Sequence[Trainer], current: Sequence[int], counts: Sequence[int], horizon_s: float
) -> float:
    """Return the objective of an allocation (Eq. 16); -inf if a trainer cannot run on its count."""
    return math.fsum(
        trainer.gains(had, horizon_s)[count] if count <= trainer.n_max else -math.inf
        for trainer, had, count in zip(trainers, current, counts, strict=True)
    )


# --- How many nodes -----------------------------------------------------------------------------


def allocate(
    trainers: Sequence[Trainer], current: Sequence[int], nodes: int, horizon_s: float
) -> Counts:
    """Allocate idle nodes optimally.

    A dynamic program decides (:func:`scheduler.shares.dynamic_program`), in time O(J N n_max) at
    most; if there are many counts, :func:`scheduler.shares.optimal_counts` first drops counts that
    are in no optimum.

    Args:
        trainers: the trainers, in order of precedence; among equally good allocations the later
            trainers get the fewest nodes.
        current: current nodes of each, without nodes that left.
        nodes: number of idle nodes, including the trainers' current nodes.
        horizon_s: seconds for which no node is expected to leave (the paper's T_fwd).

    Returns:
        The number of nodes of each trainer.

    Raises:
        InputError: the trainers have more nodes than there are, or than they can use.

    Two trainers of linear speed, 10 and 9 per second and node, on 4 nodes. Giving all to the
    faster costs the other 2 x 9 x 3 = 54, and gains 2 x (10 - 9) a second:

    >>> curves = [RateCurve((0, 4), (0.0, 4.0 * rate)) for rate in (10, 9)]
    >>> trainers = [Trainer(curve, n_max=4, up_s=0, down_s=3) for curve in curves]
    >>> allocate(trainers, current=(2, 2), nodes=4, horizon_s=26)
    (2, 2)
    >>> allocate(trainers, current=(2, 2), nodes=4, horizon_s=28)
    (4, 0)

    Source: the objective and the constraints are BFTrainer's; the dynamic program takes the
    place of its mixed integer program.
    """
    check_state(trainers, current, nodes, horizon_s)
    offers = [trainer.offer(had, horizon_s) for trainer, had in zip(trainers, current, strict=True)]
    best = tuple(offer.best for offer in offers)
    if sum(best) <= nodes:  # so that each can have what it is best on
        return best
    gains = [offer.up_to(nodes) for offer in offers]
    if sum(len(offer.values) for offer in gains) <= FEW_COUNTS:
        return tuple(dynamic_program([offer.values for offer in gains], nodes))
    return tuple(optimal_counts(gains, climb(gains, nodes)))


def allocate_equally(
    trainers: Sequence[Trainer],
    current: Sequence[int],
    nodes: int,
    horizon_s: float,
    *,
    more_than_n_min: bool = False,
) -> Counts:
    """Give each trainer the same number of nodes: the paper's baseline (section 5.1).

    Each gets nodes // len(trainers), or n_max where that is less, or none where n_min is more.
    The remaining nodes go to the first trainer that can use them, then to the second, and so on.

    Args:
        trainers: the trainers, in order of arrival.
        current: see :func:`allocate`; only checked.
        nodes: number of idle nodes, including the trainers' current nodes.
        horizon_s: not used.
        more_than_n_min: whether a share must be greater than ``n_min``; if not, it may be equal.

    Returns:
        The number of nodes of each trainer.

    Raises:
        InputError: as :func:`allocate`.

    >>> trainers = [Trainer(RateCurve((0, 8), (0.0, 8.0)), n_max=n_max) for n_max in (8, 8, 1)]
    >>> allocate_equally(trainers, (0, 0, 0), 11, horizon_s=60)
    (7, 3, 1)
    """
    check_state(trainers, current, nodes, horizon_s)
    share = nodes // max(1, len(trainers))
    counts = [
        min(share, trainer.n_max) if share >= trainer.n_min + more_than_n_min else 0
        for trainer in trainers
    ]
    spare = nodes - sum(counts)
    for index, trainer in enumerate(trainers):
        more = min(spare, trainer.n_max - counts[index])
        if counts[index] + more >= trainer.n_min:
            counts[index] += more
            spare -= more
    return tuple(counts)


def allocate_equally_as_published(
    trainers: Sequence[Trainer], current: Sequence[int], nodes: int, horizon_s: float
) -> Counts:
    """Allocate as the authors' replay does: a share counts only if it is greater than ``n_min``.

    >>> trainers = [Trainer(RateCurve((0, 8), (0.0, 8.0)), n_min=3, n_max=8)] * 3
    >>> allocate_equally(trainers, (0, 0, 0), 9, horizon_s=60)
    (3, 3, 3)
    >>> allocate_equally_as_published(trainers, (0, 0, 0), 9, horizon_s=60)
    (8, 0, 0)
    """
    return allocate_equally(trainers, current, nodes, horizon_s, more_than_n_min=True)


def check_state(
    trainers: Sequence[Trainer], current: Sequence[int], nodes: int, horizon_s: float
) -> None:
    """Check that the trainers can be in this state.

    Raises:
        InputError: they cannot.
    """
    if len(trainers) != len(current):
        raise InputError(
            f"{pluralize(len(trainers), 'trainer')}, but current counts of {len(current)}"
        )
    if not (math.isfinite(horizon_s) and horizon_s >= 0):
        raise InputError(f"the horizon is {horizon_s}; it must be a number of seconds, 0 or more")
    for index, (trainer, had) in enumerate(zip(trainers, current, strict=True)):
        if not 0 <= had <= trainer.n_max:
            raise InputError(
                f"trainer {index} has {pluralize(had, 'node')}; it can have 0 to {trainer.n_max}"
            )
    if sum(current) > nodes:
        raise InputError(
            f"the trainers have {pluralize(sum(current), 'node')}, more than the {nodes} available"
        )


# --- Which nodes --------------------------------------------------------------------------------


def place_by_index(owner: IntArray, counts: Mapping[int, int]) -> IntArray:
    """Place trainers on nodes: losers give their last nodes, gainers take the first free ones.

    Args:
        owner: the owner of each node: a trainer's number, FREE, or BUSY if it is not idle.
        counts: trainer number -> number of nodes that it shall have; the first takes first.

    Returns:
        The new owners. No trainer both gains and loses nodes.

    Raises:
        InputError: the counts need more nodes than are idle, or a node has an owner without a
            count.

    >>> place_by_index(np.array([0, 1, BUSY, 1, FREE]), {0: 2, 1: 1})
    array([ 0,  1, -2,  0, -1])
    """
    new = owner.copy()
    if not counts and not (owner >= 0).any():
        return new
    current = np.bincount(owner - BUSY, minlength=max(counts, default=-1) - BUSY + 1)[
        -BUSY:
    ].tolist()
    for number, has in enumerate(current):
        if has and number not in counts:
            raise InputError(f"trainer {number} has nodes, but no count")
    for number, count in counts.items():
        if count < current[number]:
            new[np.flatnonzero(new == number)[count:]] = FREE
    free = np.flatnonzero(new == FREE)
    used = 0
    for number, count in counts.items():
        if count > current[number]:
            more = count - current[number]
            new[free[used : used + more]] = number
            used += more
    if used > len(free):
        raise InputError(f"{used - len(free)} more nodes are given away than are idle")
    return new


def place_in_order(owner: IntArray, counts: Mapping[int, int]) -> IntArray:
    """Place trainers on nodes sorted by name: the smallest trainer takes first.

    A batch system gives and takes nodes with neighboring names together, most often the first ones.
    So a trainer with neighboring nodes is preempted less often, and the front goes to the small
    trainers, which lose little.

    Args:
        owner: see :func:`place_by_index`, node after node in name order (:func:`name_order`).
        counts: as there; of equal trainers the first takes first.

    Returns:
        As there.

    Raises:
        InputError: as there.

    >>> place_in_order(np.array([FREE, FREE, FREE]), {0: 2, 1: 1})
    array([1, 0, 0])
    """
    return place_by_index(owner, dict(sorted(counts.items(), key=lambda item: item[1])))


def name_order(names: Sequence[str]) -> IntArray:
    """Return the numbers of the nodes in the order of their names.

    >>> name_order(["b01", "a10", "a09"])
    array([2, 1, 0])
    """
    return np.array(sorted(range(len(names)), key=names.__getitem__), dtype=np.int64)
