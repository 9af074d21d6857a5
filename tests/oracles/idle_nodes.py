"""Allocation of idle nodes as mixed integer programs, solved by HiGHS.

:func:`allocate_nodes` is the program that BFTrainer publishes (Liu et al.,
arXiv:2106.12091, section 3, Eqs. 1-16), one binary variable for each node and
trainer. It is the oracle that :func:`scheduler.idle.allocate.allocate` is tested
against, and too slow to decide with. :func:`allocate_counts` is the same program
with one integer for each trainer in place of its nodes; it shows how much of the
speed comes from the smaller program and how much from leaving the solver.

Two things differ from the paper, and neither changes what is optimal:

- HiGHS (through scipy) knows no special ordered sets of type 2, which the paper uses
  for the piecewise linear objective (Eqs. 11, 12). A binary variable for each linear
  piece says the same.
- The paper's M, "sufficiently large (> \\|N\\|)", is too small in two places when it is
  \\|N\\| + 1, as in its published code. In the rule against migration (Eq. 10) a trainer
  that gives up d nodes needs M >= 2 d: with M = \\|N\\| + 1 no trainer can change by more
  than about half of the nodes, and where it must (preempted below n_min, for one)
  nothing is feasible. In the size rule (Eq. 4) a waiting trainer needs M >= n_min. Here
  M is 2 \\|N\\| and max(\\|N\\|, n_min).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from launch.errors import InputError
from scheduler.idle.allocate import Counts, RateCurve, Trainer, check_state


@dataclass(frozen=True)
class Solution:
    """The best solution found in time.

    Attributes:
        nodes: the nodes of each trainer (indices into the idle nodes); None where there are only
            counts.
        counts: how many nodes each trainer gets.
        optimal: False when time ran out first.
        gap: how far the optimum may be above this, relative.
    """

    nodes: tuple[frozenset[int], ...] | None
    counts: Counts
    optimal: bool
    gap: float


def allocate_nodes(
    trainers: Sequence[Trainer],
    current: Sequence[frozenset[int]],
    nodes: int,
    horizon_s: float,
    *,
    migration_m: int | None = None,
) -> Solution | None:
    """Solve the published program over nodes.

    Args:
        trainers: as in :func:`scheduler.idle.allocate.allocate`.
        held: the nodes that each has now, numbers 0..nodes - 1.
        nodes: how many are idle.
        horizon_s: the forward-looking time T.
        migration_m: M of Eq. 10; 2 x nodes by default. For showing what a smaller one does.

    Returns:
        The best allocation found; None if there is none (which no valid M brings about).

    Raises:
        InputError: a node is held twice or is not there; or as ``allocate``.
    """
    owned = [node for own_nodes in current for node in own_nodes]
    if len(set(owned)) < len(owned) or not all(0 <= node < nodes for node in owned):
        raise InputError(f"each node 0..{nodes - 1} can be held once, by one trainer")
    check_state(trainers, [len(own_nodes) for own_nodes in current], nodes, horizon_s)
    program = _Program()
    allocated = []
    for trainer, own_nodes in zip(trainers, current, strict=True):
        has = program.variables(nodes)  # x_jn
        count = dict.fromkeys(has.tolist(), 1.0)
        _share(program, trainer, len(own_nodes), nodes, horizon_s, count)
        _forbid_migration(
            program, has, own_nodes, count, 2 * nodes if migration_m is None else migration_m
        )
        allocated.append(has)
    for node in range(nodes):
        program.add({int(has[node]): 1.0 for has in allocated}, upper=1.0)  # Eq. 5
    solution = program.solve()
    if solution is None:
        return None
    values, optimal, gap = solution
    sets = tuple(frozenset(np.flatnonzero(values[has] > 0.5).tolist()) for has in allocated)
    return Solution(sets, tuple(map(len, sets)), optimal, gap)


def allocate_counts(
    trainers: Sequence[Trainer], current: Sequence[int], nodes: int, horizon_s: float
) -> Solution:
    """Solve the same program with one integer variable for each trainer's count.

    Args:
        trainers: as in :func:`scheduler.idle.allocate.allocate`.
        current: as there.
        nodes: as there.
        horizon_s: as there.

    Returns:
        The best allocation found.

    Raises:
        InputError: as there.
    """
    check_state(trainers, current, nodes, horizon_s)
    program = _Program()
    counts = program.variables(len(trainers), upper=nodes)
    for trainer, had, count in zip(trainers, current, counts.tolist(), strict=True):
        _share(program, trainer, had, nodes, horizon_s, {count: 1.0})
    program.add(dict.fromkeys(counts.tolist(), 1.0), upper=nodes)
    solution = program.solve()
    assert solution is not None, "waiting on no nodes is always feasible"
    values, optimal, gap = solution
    return Solution(None, tuple(int(round(value)) for value in values[counts]), optimal, gap)


# --- The rules of the model ---------------------------------------------------------------------


def _share(
    program: _Program,
    trainer: Trainer,
    had: int,
    nodes: int,
    horizon_s: float,
    count: Mapping[int, float],
) -> None:
    """Add the constraints on a trainer's number of nodes (the sum ``count``) and its gain."""
    _bound_size(program, trainer, nodes, count)
    _earn(program, trainer.objective, horizon_s, count)
    _pay_rescaling(program, trainer, had, nodes, count)


def _bound_size(
    program: _Program, trainer: Trainer, nodes: int, count: Mapping[int, float]
) -> None:
    """Require n = 0 or n_min <= n <= n_max (Eq. 4)."""
    (low, high), m = program.variables(2).tolist(), max(nodes, trainer.n_min)
    program.add({**count, low: m}, lower=trainer.n_min)
    program.add({**count, low: m}, upper=m)
    program.add({**count, high: -m}, upper=trainer.n_max)
    program.add({**count, high: m}, upper=m)


def _earn(
    program: _Program, curve: RateCurve, horizon_s: float, count: Mapping[int, float]
) -> None:
    """Add T O(n) to the objective, with n between two bends of the curve (Eqs. 11, 12)."""
    weights = program.variables(
        len(curve.nodes), integer=False, gain=[horizon_s * value for value in curve.values]
    ).tolist()
    pieces = program.variables(len(curve.nodes) - 1).tolist()
    program.add(dict.fromkeys(weights, 1.0), lower=1.0, upper=1.0)
    program.add(dict.fromkeys(pieces, 1.0), upper=1.0)
    bends = {weight: -float(nodes) for weight, nodes in zip(weights, curve.nodes, strict=True)}
    program.add({**count, **bends}, lower=0.0, upper=0.0)
    for weight, (before, right) in zip(weights, pairwise([None, *pieces, None]), strict=True):
        neighbors = [piece for piece in (before, right) if piece is not None]
        program.add({weight: 1.0, **dict.fromkeys(neighbors, -1.0)}, upper=0.0)


def _pay_rescaling(
    program: _Program, trainer: Trainer, had: int, nodes: int, count: Mapping[int, float]
) -> None:
    """Subtract O(c) R from the objective; R depends on whether n is above c (Eqs. 14-16)."""
    rate = float(trainer.rates[had])
    up, down = program.variables(2, gain=[-rate * trainer.up_s, -rate * trainer.down_s]).tolist()
    program.add({**count, up: -(nodes - had)}, upper=had)
    program.add({**count, up: -(had + 1)}, lower=0.0)
    program.add({**count, down: nodes - (had - 1)}, upper=nodes)
    program.add({**count, down: had}, lower=had)


def _forbid_migration(
    program: _Program,
    has: np.ndarray,
    own_nodes: frozenset[int],
    count: Mapping[int, float],
    m: int,
) -> None:
    """Require that as many nodes of a trainer change as its count changes by (Eqs. 9, 10)."""
    changed = program.variables(len(has)).tolist()  # u_jn = x_jn xor c_jn
    (shrinks,) = program.variables(1).tolist()  # z_j
    for node, (new, change) in enumerate(zip(has.tolist(), changed, strict=True)):
        was = 1.0 if node in own_nodes else 0.0
        program.add({change: 1.0, new: -1.0}, lower=-was, upper=was)
        program.add({change: 1.0, new: 1.0}, lower=was, upper=2.0 - was)
    total = dict.fromkeys(changed, 1.0)
    program.add({**count, **{k: -v for k, v in total.items()}, shrinks: m}, lower=len(own_nodes))
    program.add({**count, **total, shrinks: m}, upper=m + len(own_nodes))


class _Program:
    """A mixed integer program, built row by row."""

    def __init__(self) -> None:
        self._gain: list[float] = []
        self._integer: list[bool] = []
        self._upper: list[float] = []
        self._rows: list[tuple[Mapping[int, float], float, float]] = []

    def variables(
        self,
        how_many: int,
        upper: float = 1.0,
        integer: bool = True,
        gain: Sequence[float] | None = None,
    ) -> np.ndarray:
        """Add variables between 0 and ``upper``; ``gain`` is their part of the objective."""
        first = len(self._gain)
        self._gain += [0.0] * how_many if gain is None else gain
        self._integer += [integer] * how_many
        self._upper += [upper] * how_many
        return np.arange(first, first + how_many)

    def add(self, row: Mapping[int, float], lower: float = -np.inf, upper: float = np.inf) -> None:
        """Add a constraint: lower <= sum of coefficient x variable <= upper."""
        self._rows.append((row, lower, upper))

    def solve(self) -> tuple[np.ndarray, bool, float] | None:
        """Maximize; return values, True if they are optimal, and the gap; None if unsolved."""
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        if not self._gain:
            return np.zeros(0), True, 0.0
        starts = np.cumsum([0] + [len(row) for row, _, _ in self._rows])
        matrix = csr_array(
            (
                np.array([value for row, _, _ in self._rows for value in row.values()]),
                np.array([column for row, _, _ in self._rows for column in row]),
                starts,
            ),
            shape=(len(self._rows), len(self._gain)),
        )
        scale = max(map(abs, self._gain)) or 1.0  # the solver's tolerances are absolute
        result = milp(
            -np.array(self._gain) / scale * _SCALE,
            integrality=np.array(self._integer, dtype=int),
            bounds=Bounds(0, np.array(self._upper)),
            options={"mip_rel_gap": 0.0},
            constraints=LinearConstraint(
                matrix, [low for _, low, _ in self._rows], [high for _, _, high in self._rows]
            ),
        )
        if result.x is None:
            return None
        return result.x, result.status == 0, float(result.mip_gap)


# The largest coefficient of the objective for the solver, which ignores differences below 1e-6.
_SCALE = 1e4
