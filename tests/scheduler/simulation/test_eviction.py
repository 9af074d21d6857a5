"""A simulated machine that carries out an eviction plan, and the machines drawn for it."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.errors import InputError
from scheduler.eviction.plan import plan_evictions
from scheduler.eviction.running_jobs import Checkpointing, FileSystem
from scheduler.simulation.eviction import ON_DEMAND, Use
from scheduler.simulation.greedy import greedy
from scheduler.simulation.theta import NODES, STORAGE, BatchJob, theta_like
from tests.examples import examples
from tests.scheduler.simulation.audits import BrokenRuleError, audit_evicted
from tests.scheduler.simulation.audits import evicted as simulate

SLOW = FileSystem(aggregate_gbps=1, node_gbps=1)  # 1 GB takes a second


def job(name, nodes, since=30, remaining=100, critical=60, memory=120):
    """A job due for a checkpoint in 60 - since minutes; it takes `nodes` minutes."""
    return BatchJob(Checkpointing(name, nodes, since, 60, critical, memory), remaining)


def spans(outcome, name):
    return [(use.start_min, use.end_min, use.done_min) for use in outcome.uses if use.job == name]


def test_eviction_killed_job_repeats_its_work():
    outcome = simulate(
        [job("a", 2), job("b", 3)], {"a": "kill"}, nodes=2, length_min=10, storage=SLOW
    )
    assert (outcome.start_min, outcome.lost_node_s, outcome.idle_node_s) == (0, 2 * 30 * 60, 0)
    assert spans(outcome, "a") == [(0, 0, 0), (10, 140, 130)]  # 30 minutes lost and 100 left
    assert spans(outcome, "b") == [(0, 100, 100)]


def test_app_checkpoint_waits_until_due():
    outcome = simulate([job("a", 2, since=55)], {"a": "app"}, nodes=2, length_min=10, storage=SLOW)
    assert (outcome.start_min, outcome.lost_node_s) == (7, 0)
    assert spans(outcome, "a") == [(0, 7, 5), (17, 112, 95)]


def test_checkpoints_are_written_one_at_a_time():
    outcome = simulate(
        [job("a", 2), job("b", 3)], {"a": "sys", "b": "sys"}, nodes=5, length_min=1, storage=SLOW
    )
    assert outcome.start_min == 4 + 6
    assert spans(outcome, "b")[0] == (0, 10, 4)
    assert outcome.idle_node_s == 2 * 6 * 60


def test_overlapping_waits_free_nodes_early():
    jobs = [job("a", 1, since=50), job("b", 1, since=50)]
    plan = plan_evictions([j.checkpointing.running_job(SLOW) for j in jobs], 2, 30)[-1]
    assert plan.actions == {"a": "sys", "b": "sys"}
    outcome = simulate(jobs, {"a": "app", "b": "app"}, nodes=2, length_min=1, storage=SLOW)
    assert outcome.start_min == 12  # planned: 11 + 11


def test_job_that_ends_before_its_checkpoint_frees_nodes():
    outcome = simulate(
        [job("a", 2, remaining=3)], {"a": "app"}, nodes=2, length_min=1, storage=SLOW
    )
    assert (outcome.start_min, spans(outcome, "a")) == (3, [(0, 3, 3)])


@settings(deadline=None, max_examples=examples(40))
@given(
    st.integers(0, 10**6), st.integers(1, 10), st.floats(0, 1), st.integers(0, 30), st.booleans()
)
def test_simulated_plans_keep_their_deadlines(seed, count, share, deadline, optimal):
    jobs = theta_like(count, seed, nodes=200)
    costs = [j.checkpointing.running_job(STORAGE) for j in jobs]
    nodes = round(share * 200)
    if optimal:
        plan = plan_evictions(costs, nodes, deadline, step=deadline or 1)[-1]
    else:
        plan = greedy(costs, nodes, deadline)
    outcome = simulate(jobs, plan.actions, nodes, 45, STORAGE)
    assert outcome.start_min <= plan.checkpoint_time + 1e-9
    # A plan counts whole node-seconds.
    assert outcome.lost_node_s == pytest.approx(plan.loss, abs=0.5 * count)


def test_two_runs_are_the_same():
    jobs = theta_like(8, seed=3, nodes=100)
    plan = {"job00": "sys", "job01": "app", "job02": "kill"}
    first, second = (simulate(jobs, plan, 1, 45, STORAGE) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("actions", "nodes", "message"),
    [
        ({"c": "kill"}, 1, "the plan stops c, which is not running"),
        ({"a": "kill"}, 3, "the plan frees 2 nodes, but the on-demand job needs 3"),
        ({"b": "app"}, 1, "the plan checkpoints b by 'app', which it cannot do"),
        ({"b": "sys"}, 1, "the plan checkpoints b by 'sys', which it cannot do"),
    ],
)
def test_eviction_plan_that_cannot_be_carried_out_is_refused(actions, nodes, message):
    jobs = [job("a", 2), BatchJob(Checkpointing("b", 1, 5), 10)]
    with pytest.raises(InputError, match=message):
        simulate(jobs, actions, nodes, 10, SLOW)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda uses: [*uses, Use("c", frozenset({0}), 5, 6, 1)], "before it is free"),
        (lambda uses: [use for use in uses if use.job != "b"], "b did not do its 100 min of work"),
        (
            lambda uses: [use for use in uses if use.job != ON_DEMAND],
            "the on-demand job did not run once",
        ),
        (
            lambda uses: [
                replace(use, nodes=use.nodes | {99}) if use.job == "b" else use for use in uses
            ],
            "b ran on another number of nodes",
        ),
    ],
)
def test_eviction_audit_finds_violations(spoil, message):
    jobs, actions = [job("a", 2), job("b", 3)], {"a": "kill"}
    outcome = simulate(jobs, actions, nodes=2, length_min=10, storage=SLOW)
    with pytest.raises(BrokenRuleError, match=message):
        audit_evicted(replace(outcome, uses=tuple(spoil(outcome.uses))), jobs, actions, nodes=2)


# ---------------------------------------------------------------- drawn machines


@settings(deadline=None, max_examples=examples(30))
@given(st.integers(1, 30), st.integers(0, 10**6), st.sampled_from([1, 8, 128]))
def test_theta_like_fills_the_machine_within_its_ranges(count, seed, granularity):
    jobs = [job.checkpointing for job in theta_like(count, seed, granularity=granularity)]
    assert (len(jobs), sum(job.nodes for job in jobs)) == (count, NODES)
    assert all(job.nodes % granularity == 0 and job.nodes > 0 for job in jobs)
    assert all(0 <= job.since_checkpoint_min < job.interval_min == 60 for job in jobs)
    assert all(0.4 * 192 - 0.1 <= job.memory_gb <= 0.9 * 192 + 0.1 for job in jobs)
    assert all(
        0.2 * job.memory_gb - 0.1 <= job.critical_gb <= 0.6 * job.memory_gb + 0.1 for job in jobs
    )


def test_equal_seeds_draw_equal_machines():
    assert theta_like(12, 1) == theta_like(12, 1) != theta_like(12, 2)


@pytest.mark.parametrize(
    ("jobs", "nodes", "granularity"), [(0, 10, 1), (11, 10, 1), (2, 10, 4), (3, 256, 128)]
)
def test_eviction_refuses_an_impossible_machine(jobs, nodes, granularity):
    with pytest.raises(InputError, match="cannot be shared"):
        theta_like(jobs, 0, nodes, granularity)
