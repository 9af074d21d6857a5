"""Which jobs to evict, compared with all 4^n choices and with the paper's program."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.errors import InputError
from scheduler.eviction import plan as eviction
from scheduler.eviction.plan import (
    Plan,
    RunningJob,
    Spectrum,
    groups_to_stop,
    plan_evictions,
    round_up,
)
from scheduler.simulation.greedy import greedy
from tests.examples import examples
from tests.oracles.eviction import algorithm_1, branch_and_bound

# The criteria of a plan, in this order, and its nodes.
LOSS, TIME, FREE_KILLS, SYSTEM, STOPPED, NODES = range(6)
HUNDREDTHS = np.array([100, 100, 1, 1, 1, 1])


@st.composite
def job_lists(
    draw, max_jobs=6, nodes=(1, 2, 3, 4, 5), losses=(0, 0, 1, 2, 3, 10), times=(None, 0, 1, 2, 3, 4)
):
    """Draw few different values, so that ties are common."""
    nodes, losses, times = (st.sampled_from(values) for values in (nodes, losses, times))
    return [
        RunningJob(f"j{i}", draw(nodes), draw(losses), draw(times), draw(times))
        for i in range(draw(st.integers(1, max_jobs)))
    ]


def choices(job):
    """Return the ways to treat a job and the cost of each, in hundredths."""
    rows = {None: [0, 0, 0, 0, 0, 0], "kill": [job.loss, 0, job.loss == 0, 0, 1, job.nodes]}
    if job.app_time is not None:
        rows["app"] = [0, job.app_time, 0, 0, 1, job.nodes]
    if job.sys_time is not None:
        rows["sys"] = [0, job.sys_time, 0, 1, 1, job.nodes]
    return {
        way: np.rint(np.array(row, float) * HUNDREDTHS).astype(int) for way, row in rows.items()
    }


def judge(jobs, actions):
    """Return the totals of a plan."""
    return sum(choices(job)[actions.get(job.id)] for job in jobs)


def every_plan(jobs):
    """Return the totals of all 4^n plans, (plans, 6)."""
    plans = np.zeros((1, 6), int)
    for job in jobs:
        plans = (plans[:, None] + np.array(list(choices(job).values()))).reshape(-1, 6)
    return plans


def assert_none_is_better(jobs, nodes, plans):
    """Check that each plan is possible and consistent, and that no other is better."""
    rivals = every_plan(jobs)
    for plan in plans:
        plan_ = judge(jobs, plan.actions)
        assert plan.nodes == plan_[NODES] >= nodes
        assert (plan.loss, plan.checkpoint_time) == (plan_[LOSS] / 100, plan_[TIME] / 100)
        possible = rivals[
            (rivals[:, NODES] >= nodes) & (rivals[:, TIME] <= round(plan.deadline * 100))
        ]
        assert plan_[:NODES].tolist() == min(possible[:, :NODES].tolist())


@settings(deadline=None, max_examples=examples(150))
@given(job_lists(), st.data())
def test_no_choice_of_all_is_better_ties_included(jobs, data):
    nodes = data.draw(st.integers(0, sum(job.nodes for job in jobs)))
    assert_none_is_better(
        jobs, nodes, plan_evictions(jobs, nodes, deadline=data.draw(st.integers(0, 9)))
    )


@settings(deadline=None, max_examples=examples(60))
@given(
    job_lists(max_jobs=4, losses=(0, 0.1, 0.2, 0.3, 7.5), times=(None, 0, 0.1, 0.2, 0.3, 1.25)),
    st.data(),
)
def test_decimal_losses_and_times_are_added_up_exactly(jobs, data):
    nodes = data.draw(st.integers(0, sum(job.nodes for job in jobs)))
    step = data.draw(st.sampled_from([0.1, 0.25, 1]))
    assert_none_is_better(jobs, nodes, plan_evictions(jobs, nodes, deadline=1, step=step))


@settings(deadline=None, max_examples=examples(60))
@given(job_lists(max_jobs=5, nodes=(4, 8, 12)), st.integers(0, 6))
def test_plan_evictions_spectrum_covers_all_counts(jobs, deadline):
    spectrum = Spectrum(jobs, deadline)
    losses = spectrum.losses()
    plans_of_all = sum(job.nodes for job in jobs)
    assert losses.shape == (plans_of_all + 1, deadline + 1)
    for nodes in range(plans_of_all + 1):
        plans = spectrum.plans(nodes)
        assert_none_is_better(jobs, nodes, plans)
        assert losses[nodes].tolist() == [plan.loss for plan in plans]


@settings(deadline=None, max_examples=examples(100))
@given(job_lists(), st.data())
def test_branch_and_bound_finds_plans_as_good(jobs, data):
    nodes = data.draw(st.integers(0, sum(job.nodes for job in jobs)))
    assert_none_is_better(
        jobs, nodes, [branch_and_bound(jobs, nodes, data.draw(st.integers(0, 9)))]
    )


@settings(deadline=None, max_examples=examples(100))
@given(job_lists(), st.data())
def test_greedy_plans_are_possible(jobs, data):
    nodes = data.draw(st.integers(0, sum(job.nodes for job in jobs)))
    deadline = data.draw(st.integers(0, 9))
    plan = greedy(jobs, nodes, deadline)
    assert plan.nodes >= nodes
    assert plan.checkpoint_time <= deadline
    assert plan.loss >= plan_evictions(jobs, nodes, deadline)[-1].loss


# ---------------------------------------------------------------- larger cases


def crowd(count, seed, most_nodes=60, most_time=6):
    rng = np.random.default_rng(seed)
    times = [
        [None if time == 0 else int(time) for time in rng.integers(0, most_time, count)]
        for _ in range(2)
    ]
    return [
        RunningJob(
            str(i),
            int(rng.integers(1, most_nodes)),
            int(rng.integers(0, 500)),
            times[0][i],
            times[1][i],
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("seed", range(4))
def test_plan_evictions_matches_the_printed_algorithm(seed):
    jobs = crowd(12, seed)
    nodes = sum(job.nodes for job in jobs) * (seed + 1) // 5
    losses, printed = plan_evictions(jobs, nodes, 10), algorithm_1(jobs, nodes, 10)
    assert [(p.loss, p.checkpoint_time) for p in losses] == [
        (p.loss, p.checkpoint_time) for p in printed
    ]


def test_pieces_that_fit_the_cache_make_no_difference(monkeypatch):
    jobs = crowd(20, seed=5)
    plain = plan_evictions(jobs, 200, 12)
    monkeypatch.setattr(eviction, "CACHED_CELLS", 40)
    assert plan_evictions(jobs, 200, 12) == plain


def test_losses_beyond_64_bits_are_still_exact():
    jobs = [
        RunningJob("a", 3, 10**30 + 1, sys_time=2),
        RunningJob("b", 3, 10**30, app_time=1),
        RunningJob("c", 1, 1, app_time=3),
    ]
    assert_exact = [(p.loss, p.actions) for p in plan_evictions(jobs, 4, 3)]
    assert assert_exact == [
        (10**30 + 1, {"b": "kill", "c": "kill"}),
        (1, {"b": "app", "c": "kill"}),
        (1, {"b": "app", "c": "kill"}),
        (0, {"a": "sys", "b": "app"}),
    ]


# ---------------------------------------------------------------- what is asked


def test_deadlines_are_multiples_of_the_step():
    jobs = [RunningJob("a", 1, 5, app_time=3), RunningJob("b", 1, 5, app_time=2)]
    plans = plan_evictions(jobs, 2, deadline=14, step=5)
    assert [(p.deadline, p.loss, p.checkpoint_time) for p in plans] == [
        (0, 10, 0),
        (5, 0, 5),
        (10, 0, 5),
    ]


def test_plan_for_zero_nodes_stops_no_job():
    assert plan_evictions([RunningJob("a", 1, 0, 0, 0)], 0, 1) == [
        Plan(0, 0, 0, 0, {}),
        Plan(1, 0, 0, 0, {}),
    ]
    assert plan_evictions([], 0, 0) == [Plan(0, 0, 0, 0, {})]


def test_groups_to_stop_only_names_groups():
    groups = [
        RunningJob("a", 2, 300.123456789, app_time=12.345678901),
        RunningJob("b", 2, 100, app_time=31),
    ]
    assert groups_to_stop(groups, gpus=2, deadline=30) == {"a": "app"}
    assert groups_to_stop(groups, gpus=2, deadline=0) == {"b": "kill"}
    assert groups_to_stop(groups, gpus=0, deadline=0) == {}


@pytest.mark.parametrize("deadline", [83.99912345678901, 1e9, 1e-9, 1 / 3])
def test_any_time_to_give_gpus_back_is_planned_for(deadline):
    groups = [RunningJob("a", 1, 10, app_time=1 / 3), RunningJob("b", 1, 1, app_time=7.123456789)]
    assert groups_to_stop(groups, gpus=1, deadline=deadline) == (
        {"a": "app"} if deadline > 0.4 else {"b": "kill"}
    )


def test_time_for_all_groups_one_after_another_is_enough():
    groups = [RunningJob(name, 1, 10, app_time=2) for name in "ab"]
    assert groups_to_stop(groups, gpus=2, deadline=3.9) in (
        {"a": "app", "b": "kill"},
        {"a": "kill", "b": "app"},
    )
    assert groups_to_stop(groups, gpus=2, deadline=4) == {"a": "app", "b": "app"}


@pytest.mark.parametrize(
    ("value", "grain", "rounded"),
    [(0, 0.1, 0), (0.1 + 0.2, 0.1, 0.3), (0.31, 0.1, 0.4), (7, 5, 10), (7.5, 2.5, 7.5)],
)
def test_times_are_rounded_up_but_not_for_the_noise_of_floats(value, grain, rounded):
    assert round_up(value, grain) == rounded


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"id": ""}, "a job has no id"),
        ({"id": "a\nb"}, r"the id 'a\\nb' of a job must be a name of printable characters"),
        ({"nodes": 0}, "job a: nodes is 0; it must be a whole number above 0"),
        ({"nodes": 2.5}, "job a: nodes is 2.5; it must be a whole number"),
        ({"nodes": True}, "job a: nodes is True"),
        ({"loss": -1}, "job a: loss is -1; it must be a number from 0 to"),
        ({"loss": math.nan}, "job a: loss is nan"),
        ({"app_time": math.inf}, "job a: app_time is inf"),
        ({"sys_time": -0.5}, "job a: sys_time is -0.5"),
    ],
)
def test_plan_evictions_job_out_of_range_is_refused(fields, message):
    with pytest.raises(InputError, match=message):
        RunningJob(**{"id": "a", "nodes": 1, "loss": 0, **fields})


@pytest.mark.parametrize(
    ("nodes", "deadline", "step", "message"),
    [
        (6, 1, 1, "6 nodes cannot be freed: 2 jobs in all, on 5"),
        (-1, 1, 1, "the number of nodes to free is -1"),
        (2.0, 1, 1, "the number of nodes to free is 2.0"),
        (1, -1, 1, "the deadline is -1"),
        (1, math.nan, 1, "the deadline is nan"),
        (1, 1, 0, "the step between deadlines is 0, too small"),
        (1, 1, 1e-9, "too small for a deadline of 1"),
        (1, 1, math.inf, "the step between deadlines is inf"),
    ],
)
@pytest.mark.parametrize(
    "solve", [plan_evictions, lambda jobs, nodes, *args: Spectrum(jobs, *args).plans(nodes)]
)
def test_plan_evictions_refuses_values_out_of_range(solve, nodes, deadline, step, message):
    with pytest.raises(InputError, match=message):
        solve([RunningJob("a", 2, 1), RunningJob("b", 3, 1)], nodes, deadline, step)


@pytest.mark.parametrize("solve", [plan_evictions, greedy, branch_and_bound, algorithm_1])
def test_plan_evictions_id_that_comes_twice_is_refused(solve):
    with pytest.raises(InputError, match="job a appears twice"):
        solve([RunningJob("a", 2, 1), RunningJob("a", 3, 1)], 1, 1)


def test_plan_evictions_table_that_would_not_fit_is_refused():
    jobs = [RunningJob("a", 100_003, 1, app_time=1.23456789), RunningJob("b", 100_000, 1)]
    with pytest.raises(InputError, match="coarser times"):
        plan_evictions(jobs, 150_000, 15)


# ---------------------------------------------------------------- the comparisons


def test_greedy_saves_the_costliest_then_kills_the_cheapest():
    jobs = [
        RunningJob("dear", 2, 900, sys_time=4),
        RunningJob("middle", 2, 500, sys_time=9),
        RunningJob("cheap", 2, 100, sys_time=1),
        RunningJob("cheaper", 2, 50, app_time=1),
    ]
    plan = greedy(jobs, 6, 5)
    assert (plan.actions, plan.loss) == ({"dear": "sys", "cheap": "kill", "cheaper": "kill"}, 150)


def test_branch_and_bound_says_when_it_gave_up():
    jobs = crowd(10, seed=1)
    assert branch_and_bound(jobs, 200, 5, most_visits=20) is None
    assert branch_and_bound(jobs, 200, 5).loss == plan_evictions(jobs, 200, 5)[-1].loss
