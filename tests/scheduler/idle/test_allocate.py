"""Allocation of idle nodes: the dynamic program compared with its oracles, and the placement."""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.errors import InputError
from scheduler.idle import allocate as sharing
from scheduler.idle.allocate import objective_value
from tests.examples import examples
from tests.oracles.idle_nodes import allocate_counts, allocate_nodes
from tests.scheduler.contracts import AllocatorContract, Table


@dataclass(frozen=True)
class Problem:
    trainers: tuple[sharing.Trainer, ...]
    current: tuple[int, ...]
    nodes: int
    horizon_s: float

    def ask(self, allocator):
        return allocator(self.trainers, self.current, self.nodes, self.horizon_s)

    def worth(self, counts):
        return objective_value(self.trainers, self.current, counts, self.horizon_s)


SPEEDS = st.floats(0, 1000)


@st.composite
def trainers(draw, values):
    nodes = draw(st.sets(st.integers(1, 6), min_size=1, max_size=3).map(sorted).map(tuple))
    n_max = draw(st.integers(1, nodes[-1]))
    curve = sharing.RateCurve(nodes, tuple(float(draw(values)) for _ in nodes))
    seconds = st.integers(0, 20).map(float)
    return sharing.Trainer(curve, draw(st.integers(1, n_max)), n_max, draw(seconds), draw(seconds))


@st.composite
def problems(draw, most_trainers=4, most_nodes=7, values=SPEEDS):
    """Draw any state of a trainer, including fewer than n_min nodes after some left."""
    team = tuple(draw(st.lists(trainers(values), max_size=most_trainers)))
    nodes = remaining = draw(st.integers(0, most_nodes))
    current = []
    for trainer in team:
        current.append(draw(st.integers(0, min(remaining, trainer.n_max))))
        remaining -= current[-1]
    return Problem(team, tuple(current), nodes, float(draw(st.integers(0, 120))))


class IdleNodesContract(AllocatorContract):
    def problems(self):
        return problems()

    def table(self, problem):
        rows = (
            trainer.gains(had, problem.horizon_s)
            for trainer, had in zip(problem.trainers, problem.current, strict=True)
        )
        return Table(problem.nodes, tuple(tuple(row.tolist()) for row in rows))


class TestExact(IdleNodesContract):
    def counts(self, problem):
        return problem.ask(sharing.allocate)


# Divisible by any number of nodes between two bends, so that sums are exact and ties stay ties.
WHOLE = st.integers(0, 4).map(lambda value: 60 * value)


@settings(max_examples=300)
@given(
    problems(most_trainers=6, most_nodes=14)
    | problems(most_trainers=6, most_nodes=14, values=WHOLE)
)
def test_counts_that_are_in_no_optimum_change_nothing(problem):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharing, "FEW_COUNTS", 10**9)
        of_all = problem.ask(sharing.allocate)
        patch.setattr(sharing, "FEW_COUNTS", 0)
        of_few = problem.ask(sharing.allocate)
    assert problem.worth(of_few) == pytest.approx(problem.worth(of_all), rel=1e-12, abs=1e-9)
    if all((trainer.rates % 1 == 0).all() for trainer in problem.trainers):
        assert of_few == of_all


def test_allocate_equally_as_published_needs_more_than_n_min():
    team = [sharing.Trainer(sharing.RateCurve((0, 8), (0.0, 8.0)), n_min=2, n_max=3)] * 3
    assert sharing.allocate_equally(team, (0, 0, 0), 6, 60) == (2, 2, 2)
    assert sharing.allocate_equally_as_published(team, (0, 0, 0), 6, 60) == (3, 3, 0)
    assert (
        sharing.allocate_equally_as_published(team, (0, 0, 0), 9, 60)
        == sharing.allocate_equally(team, (0, 0, 0), 9, 60)
        == (3, 3, 3)
    )


class TestEqual(IdleNodesContract):
    exact = False

    def counts(self, problem):
        return problem.ask(sharing.allocate_equally)


class TestCountsProgram(IdleNodesContract):
    def problems(self):
        return problems(most_trainers=2, most_nodes=6, values=st.integers(0, 50))

    def counts(self, problem):
        return problem.ask(allocate_counts).counts


def nodes_of(problem):
    """Return the nodes of each trainer, from node 0 on."""
    ends = np.cumsum((0, *problem.current)).tolist()
    return [frozenset(range(first, last)) for first, last in pairwise(ends)]


@settings(deadline=None, max_examples=examples(200))
@given(problems(most_trainers=3, most_nodes=7, values=st.integers(0, 50)))
def test_program_over_nodes_has_the_same_optimum(problem):
    before = nodes_of(problem)
    solution = allocate_nodes(problem.trainers, before, problem.nodes, problem.horizon_s)
    assert solution.optimal
    best = problem.worth(problem.ask(sharing.allocate))
    assert problem.worth(solution.counts) == pytest.approx(best, rel=1e-9, abs=1e-9)
    for had, has in zip(before, solution.nodes, strict=True):
        assert had <= has or has <= had


def test_allocate_thirty_trainers_reaches_the_optimum():
    rng = np.random.default_rng(7)
    bends = (1, 2, 4, 8, 16, 32, 64)
    team = [
        sharing.Trainer(
            sharing.RateCurve(bends, tuple(np.round(np.array(bends) ** 0.9 * speed, 1).tolist())),
            2,
            64,
            18.0,
            12.0,
        )
        for speed in rng.uniform(1000, 7000, 30)
    ]
    current = rng.integers(0, 20, 30).tolist()
    best = allocate_counts(team, current, 400, 120.0)
    counts = sharing.allocate(team, current, 400, 120.0)
    assert objective_value(team, current, counts, 120.0) == pytest.approx(
        objective_value(team, current, best.counts, 120.0), rel=1e-9
    )


# A trainer on 6 of 7 nodes is down to 4, below its n_min of 5, and cannot grow.
PREEMPTED = Problem(
    (sharing.Trainer(sharing.RateCurve((5,), (50.0,)), n_min=5, n_max=5),), (4,), 4, 60.0
)


def test_allocate_published_m_makes_a_feasible_case_infeasible():
    published = PREEMPTED.nodes + 1
    ask = (PREEMPTED.trainers, nodes_of(PREEMPTED), PREEMPTED.nodes, PREEMPTED.horizon_s)
    assert allocate_nodes(*ask).counts == PREEMPTED.ask(sharing.allocate) == (0,)
    assert allocate_nodes(*ask, migration_m=published) is None


def test_published_m_forbids_changes_of_half_of_the_nodes():
    slow, fast = (
        sharing.Trainer(sharing.RateCurve((8,), (8.0 * speed,)), n_max=8) for speed in (1, 2)
    )
    problem = Problem((slow, fast), (8, 0), 8, 60.0)
    small = allocate_nodes(problem.trainers, nodes_of(problem), 8, 60.0, migration_m=9)
    assert problem.ask(sharing.allocate) == (0, 8)
    assert small.counts == (4, 4)  # at most (9 - 1) / 2 nodes may move


def test_allocate_trainer_below_minimum_changes_for_free():
    trainer = sharing.Trainer(
        sharing.RateCurve((4,), (40.0,)), n_min=2, n_max=4, up_s=100, down_s=100
    )
    assert trainer.gains(1, horizon_s=10).tolist() == [0, -math.inf, 200, 300, 400]


def test_growing_pays_only_when_the_horizon_outlasts_its_cost():
    # 20 s x 10 lost, 5 a second gained
    team = [sharing.Trainer(sharing.RateCurve((1, 2), (10.0, 15.0)), n_max=2, up_s=20)]
    assert sharing.allocate(team, (1,), 2, horizon_s=39) == (1,)
    assert sharing.allocate(team, (1,), 2, horizon_s=41) == (2,)


def test_weights_and_normalised_curves_change_who_is_served():
    slow, fast = sharing.RateCurve((1, 2), (1.0, 2.0)), sharing.RateCurve((1, 2), (10.0, 12.0))

    def share(*curves):
        return sharing.allocate(
            [sharing.Trainer(curve, n_max=2) for curve in curves], (0, 0), 2, 60.0
        )

    assert share(slow, fast) == (0, 2)
    assert share(slow.normalized(), fast.normalized()) == (2, 0)
    assert share(slow.scaled(20), fast) == (2, 0)


def test_allocate_equally_serves_the_first_with_few_nodes():
    team = [sharing.Trainer(sharing.RateCurve((4,), (4.0,)), n_min, 4) for n_min in (3, 1, 1)]
    assert sharing.allocate_equally(team, (0, 0, 0), 2, 60.0) == (0, 2, 0)
    assert sharing.allocate_equally(team, (0, 0, 0), 8, 60.0) == (4, 2, 2)


@pytest.mark.parametrize("allocator", [sharing.allocate, sharing.allocate_equally, allocate_counts])
@pytest.mark.parametrize(
    ("current", "nodes", "horizon_s", "complaint"),
    [
        ((1, 1), 4, 60.0, "1 trainer, but current counts of 2"),
        ((3,), 4, 60.0, "trainer 0 has 3 nodes; it can have 0 to 2"),
        ((2,), 1, 60.0, "the trainers have 2 nodes, more than the 1 available"),
        ((1,), 4, math.nan, "the horizon is nan"),
        ((1,), 4, -1.0, "the horizon is -1"),
    ],
)
def test_allocate_state_is_refused_if_impossible(allocator, current, nodes, horizon_s, complaint):
    with pytest.raises(InputError, match=complaint):
        allocator(
            [sharing.Trainer(sharing.RateCurve((2,), (2.0,)), n_max=2)], current, nodes, horizon_s
        )


def test_allocate_program_over_nodes_refuses_a_node_held_twice():
    team = [sharing.Trainer(sharing.RateCurve((2,), (2.0,)), n_max=2)] * 2
    with pytest.raises(InputError, match=r"each node 0\.\.2 can be held once"):
        allocate_nodes(team, [frozenset({0}), frozenset({0})], 3, 60.0)


@pytest.mark.parametrize(
    ("nodes", "values", "complaint"),
    [
        ((), (), "at least one"),
        ((0, 1), (0.0,), "2 node counts and 1 value"),
        ((0, 1), (0.0, -1.0), "is -1.0 on 1 node"),
        ((0, 1), (0.0, math.nan), "is nan on 1 node"),
        ((0, 2, 2), (0.0, 1.0, 1.0), "must rise"),
        ((-1, 2), (0.0, 1.0), "must rise"),
        ((0, 2), (1.0, 1.0), "is 1.0 on 0 nodes"),
    ],
)
def test_allocate_curve_is_refused_if_impossible(nodes, values, complaint):
    with pytest.raises(InputError, match=complaint):
        sharing.RateCurve(nodes, values)


@pytest.mark.parametrize(
    ("n_min", "n_max", "up_s", "complaint"),
    [
        (3, 2, 0.0, "n_min 3, n_max 2"),
        (0, 2, 0.0, "n_min 0, n_max 2"),
        (1, 3, 0.0, "n_max 3 is beyond the curve, which ends at 2 nodes"),
        (1, 2, -1.0, "up_s -1.0"),
        (1, 2, math.inf, "up_s inf"),
    ],
)
def test_allocate_trainer_is_refused_if_impossible(n_min, n_max, up_s, complaint):
    with pytest.raises(InputError, match=complaint):
        sharing.Trainer(sharing.RateCurve((2,), (2.0,)), n_min, n_max, up_s)


def test_allocate_curve_of_no_worth_on_one_node_has_no_speed_up():
    with pytest.raises(InputError, match="0 on one node"):
        sharing.RateCurve((1, 2), (0.0, 2.0)).normalized()


# --- Which nodes


@st.composite
def placements(draw):
    """Draw owners of some nodes, and counts that fit."""
    owner = draw(st.lists(st.sampled_from([sharing.BUSY, sharing.FREE, 0, 1, 2]), max_size=20))
    remaining = sum(owners != sharing.BUSY for owners in owner)
    counts = {}
    for number in draw(st.permutations([0, 1, 2])):
        counts[number] = draw(st.integers(0, remaining))
        remaining -= counts[number]
    return np.array(owner, dtype=np.int64), counts


@pytest.mark.parametrize("node", [sharing.place_by_index, sharing.place_in_order])
@given(state=placements())
def test_placement_gives_counts_from_idle_nodes_only(node, state):
    owner, counts = state
    after = node(owner, counts)
    assert ((after == sharing.BUSY) == (owner == sharing.BUSY)).all()
    for number, count in counts.items():
        had, has = set(np.flatnonzero(owner == number)), set(np.flatnonzero(after == number))
        assert len(has) == count
        assert had <= has or has <= had


def test_place_in_order_serves_the_smallest_first():
    free = np.full(6, sharing.FREE)
    assert sharing.place_by_index(free, {0: 3, 1: 1, 2: 2}).tolist() == [0, 0, 0, 1, 2, 2]
    assert sharing.place_in_order(free, {0: 3, 1: 1, 2: 2}).tolist() == [1, 2, 2, 0, 0, 0]


def test_placement_releases_the_last_nodes():
    placed = sharing.place_by_index(np.array([0, sharing.FREE, 0, 0]), {0: 1})
    assert placed.tolist() == [0, sharing.FREE, sharing.FREE, sharing.FREE]


@pytest.mark.parametrize(
    ("counts", "complaint"),
    [
        ({0: 3}, "1 more nodes are given away than are idle"),
        ({1: 1}, "trainer 0 has nodes, but no count"),
    ],
)
def test_allocate_placement_is_refused_if_impossible(counts, complaint):
    with pytest.raises(InputError, match=complaint):
        sharing.place_by_index(np.array([0, sharing.FREE, sharing.BUSY]), counts)


def test_names_are_ordered_as_text():
    assert sharing.name_order(["h50n18", "a01n01", "b01n01"]).tolist() == [1, 2, 0]
