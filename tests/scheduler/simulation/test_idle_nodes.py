"""Replays of idle nodes: small ones by hand, random ones by their audit, Summit's by the paper."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.errors import InputError
from scheduler.idle.allocate import (
    BUSY,
    FREE,
    RateCurve,
    Trainer,
    name_order,
    place_by_index,
    place_in_order,
)
from scheduler.simulation import idle_nodes
from scheduler.simulation.idle_trace import (
    Trace,
    TrainerJob,
    read_events,
    read_node_names,
    read_trainers,
)
from tests.places import SHARED
from tests.scheduler.simulation.audits import BrokenRuleError
from tests.scheduler.simulation.audits import replayed as replay

SUMMIT = SHARED / "idle_nodes"
needs_summit = pytest.mark.skipif(not SUMMIT.exists(), reason="the Summit trace is not here")


def trace(end_s, *rows):
    """Make a trace from (time, joining nodes, leaving nodes)."""
    flat = []
    for time, joining, leaving in rows:
        flat += [(time, node, False) for node in leaving]
        flat += [(time, node, True) for node in joining]
    times, nodes, joined = map(np.array, zip(*flat, strict=True))
    return Trace.of(times.astype(float), nodes, joined, int(nodes.max()) + 1, end_s)


def job(speed=10.0, n_max=2, total=1e9, submit_s=0.0, up_s=5.0, down_s=2.0, n_min=1):
    """Make a trainer that processes ``speed`` samples per second on each node."""
    curve = RateCurve((n_max,), (speed * n_max,))
    return TrainerJob("net", submit_s, total, curve, Trainer(curve, n_min, n_max, up_s, down_s))


ONE_LEAVES = trace(200, (0, [0, 1], []), (100, [], [1]))


def test_leaving_node_costs_the_time_to_go_down():
    done = replay(ONE_LEAVES, [job()], idle_nodes.Settings())
    assert (done.preemption_cost, done.rescale_cost) == (2 * 20, 0)
    assert done.trainers[0].samples == 100 * 20 - 40 + 100 * 10
    assert done.used.tolist() == [2, 1, 1]


def test_joining_node_costs_the_time_to_go_up():
    done = replay(trace(200, (0, [0], []), (100, [1], [])), [job()], idle_nodes.Settings())
    assert (done.preemption_cost, done.rescale_cost) == (0, 5 * 10)
    assert done.outcome.tolist() == [0, 1000 - 50, 1000 - 50 + 2000]


def test_two_leaving_nodes_cost_once():
    done = replay(
        trace(200, (0, [0, 1, 2], []), (100, [], [1, 2])),
        [job(n_min=2, n_max=3)],
        idle_nodes.Settings(),
    )
    assert (done.preemption_cost, done.rescale_cost) == (2 * 30, 0)
    assert done.trainers[0].samples == 100 * 30 - 60
    assert done.used.tolist() == [3, 0, 0]


def test_completed_trainer_holds_nodes_until_an_event():
    """The first is done at 50; the second has one node, and two from then on or from 100 on."""
    jobs = [job(n_max=1, total=500), job()]
    nodes = trace(200, (0, [0, 1], []), (100, [2], []))
    waiting = replay(nodes, jobs, idle_nodes.Settings())
    assert [record.samples for record in waiting.trainers] == [500, 200 * 10 + 100 * 10 - 50]
    at_once = replay(nodes, jobs, idle_nodes.Settings(completions_are_events=True))
    assert [record.samples for record in at_once.trainers] == [500, 200 * 10 + 150 * 10 - 50]
    for done in (waiting, at_once):
        assert [record.ended_s for record in done.trainers] == [50, None]


def test_replay_trainer_that_is_done_makes_room_for_the_next():
    jobs = [job(total=500, n_max=1), job(total=500, n_max=1), job(n_max=1, submit_s=90)]
    done = replay(
        trace(200, (0, [0], [])),
        jobs,
        idle_nodes.Settings(max_parallel=1, completions_are_events=True),
    )
    assert [(record.started_s, record.ended_s) for record in done.trainers] == [
        (0, 50),
        (50, 100),
        (100, None),
    ]
    assert (done.completed, done.mean_trainer_hours) == (2, 50 / 3600)


def test_submitted_trainer_starts_at_once_or_at_a_change():
    nodes, late = trace(200, (0, [0], []), (100, [1], [])), [job(n_max=1, submit_s=30)]
    assert replay(nodes, late, idle_nodes.Settings()).trainers[0].started_s == 100
    assert (
        replay(nodes, late, idle_nodes.Settings(completions_are_events=True)).trainers[0].started_s
        == 30
    )


def test_work_is_done_before_its_nodes_leave_at_the_same_moment():
    done = replay(ONE_LEAVES, [job(total=2000)], idle_nodes.Settings())
    assert (done.trainers[0].ended_s, done.preemption_cost) == (100, 0)


def test_replay_heavier_objective_is_served_first():
    light, heavy = job(), job()
    heavy = TrainerJob(
        "net", 0.0, 1e9, heavy.samples, Trainer(heavy.samples.scaled(3), 1, 2, 5.0, 2.0)
    )
    done = replay(ONE_LEAVES, [light, heavy], idle_nodes.Settings())
    assert [record.samples for record in done.trainers] == [0, 2960]
    assert done.outcome[-1] == 3 * 2960


def test_efficiency_is_against_as_many_dedicated_nodes():
    jobs = [job()]
    done = replay(ONE_LEAVES, jobs, idle_nodes.Settings())
    assert idle_nodes.static_outcome(jobs, 1.5, 200, max_parallel=1) == 200 * 15
    assert idle_nodes.efficiency(ONE_LEAVES, jobs, done, max_parallel=1) == pytest.approx(
        2960 / 3000
    )


def test_efficiency_counts_until_all_are_completed():
    """Done at 100 with two nodes, as on two dedicated ones: later idle time does not count."""
    jobs = [job(total=2000)]
    assert idle_nodes.efficiency(
        ONE_LEAVES, jobs, replay(ONE_LEAVES, jobs, idle_nodes.Settings()), 1
    ) == pytest.approx(1)


def test_efficiency_extends_static_outcome_at_its_mean_rate():
    # At 199 s here, with 299 node-seconds; there in 196.7 s on 1.5 nodes.
    jobs = [job(total=2960 - 10)]
    done = replay(ONE_LEAVES, jobs, idle_nodes.Settings())
    assert done.trainers[0].ended_s == pytest.approx(199)
    assert idle_nodes.efficiency(ONE_LEAVES, jobs, done, 1) == pytest.approx(2950 / (10 * 299))


def test_without_idle_nodes_there_is_no_efficiency():
    nodes = trace(100, (50, [0], [])).select(end_s=40)
    summary = idle_nodes.summarize(
        nodes, [job()], idle_nodes.Settings(), replay(nodes, [job()], idle_nodes.Settings())
    )
    assert (summary.node_hours, summary.events, summary.completed) == (0, 0, 0)
    assert math.isnan(summary.efficiency)
    assert math.isnan(summary.mean_trainer_hours)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"max_parallel": 0}, "max_parallel is 0"),
        ({"horizon_s": -1.0}, "the horizon is -1.0"),
        ({"horizon_s": math.inf}, "the horizon is inf"),
    ],
)
def test_settings_that_cannot_be_are_refused(arguments, complaint):
    with pytest.raises(InputError, match=complaint):
        idle_nodes.Settings(**arguments)


# --- Any replay


@st.composite
def traces(draw):
    idle, rows, now = set(), [], 0
    for flips in draw(st.lists(st.sets(st.integers(0, 7), min_size=1), min_size=1, max_size=12)):
        rows.append((now, flips - idle, flips & idle))
        idle ^= flips
        now += draw(st.integers(1, 60))
    return trace(now, *rows)


jobs_of = st.lists(
    st.builds(
        job,
        speed=st.floats(0.5, 20),
        n_max=st.integers(2, 5),
        total=st.integers(0, 3000).map(float),
        submit_s=st.integers(0, 200).map(float),
        up_s=st.integers(0, 30).map(float),
        down_s=st.integers(0, 30).map(float),
        n_min=st.integers(1, 2),
    ),
    max_size=6,
).map(lambda jobs: sorted(jobs, key=lambda job: job.submit_s))

settings_of = st.builds(
    idle_nodes.Settings,
    policy=st.sampled_from(list(idle_nodes.POLICIES.values())),
    horizon_s=st.sampled_from([0.0, 10.0, 120.0]),
    max_parallel=st.integers(1, 4),
    completions_are_events=st.booleans(),
    placement=st.sampled_from(list(idle_nodes.PLACEMENTS.values())),
)


@settings(deadline=None)
@given(traces(), jobs_of, settings_of)
def test_replay_keeps_its_own_rules_and_is_the_same_twice(nodes, jobs, how):
    done, again = replay(nodes, jobs, how), replay(nodes, jobs, how)
    assert done.trainers == again.trainers
    assert done.outcome.tolist() == again.outcome.tolist()
    assert all(
        record.samples == jobs[record.job].total_samples
        for record in done.trainers
        if record.ended_s is not None
    )
    assert done.completed <= len(done.trainers) <= len(jobs)
    order = [record.started_s for record in done.trainers]
    assert order == sorted(order)


def shared(owner, counts):
    return np.where(owner == FREE, 0, owner)  # for any owner, the first one gets it


def migrating(owner, counts):
    return np.roll(place_by_index(owner, counts), 1)


def stolen(owner, counts):
    return np.where(owner == BUSY, 0, place_by_index(owner, counts))


@pytest.mark.parametrize("placement", [shared, migrating, stolen])
def test_replay_audit_finds_a_placement_that_breaks_the_rules(placement):
    nodes = trace(100, (0, [0, 1, 2], []), (50, [3], [0]))
    with pytest.raises(BrokenRuleError):
        replay(nodes, [job(n_max=1), job(n_max=1)], idle_nodes.Settings(placement=placement))


@pytest.mark.parametrize("counts", [(1, 2), (3, 0), (0, 1)])
def test_audit_finds_infeasible_policies(counts):
    """Two idle nodes: the first trainer runs on at most two, the second on at least two."""
    jobs = [job(), job(n_min=2)]
    with pytest.raises(BrokenRuleError):
        replay(trace(100, (0, [0, 1], [])), jobs, idle_nodes.Settings(policy=lambda *_: counts))


# --- The paper's week


@pytest.fixture(scope="module")
def week():
    """Load nodes 0..1023 of Summit for a week, by index and by name, and 1000 ShuffleNet trials."""
    trace_ = read_events(SUMMIT / "summit_idle_events.csv.gz")
    names = read_node_names(SUMMIT / "summit_node_names.txt.gz")
    by_index = trace_.select(0, 1024, 168 * 3600)
    jobs = read_trainers(SUMMIT / "trainers_hps_shufflenet_1000.json")
    return by_index, by_index.arranged(name_order(names[:1024])), jobs


@needs_summit
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (idle_nodes.Settings(policy=idle_nodes.POLICIES["equal"]), 0.757),
        pytest.param(
            idle_nodes.Settings(placement=place_in_order, completions_are_events=True),
            0.895,
            marks=pytest.mark.long,
        ),
    ],
)
def test_replay_has_the_papers_efficiency(week, settings, expected):
    by_index, by_name, jobs = week
    nodes = by_name if settings.placement is place_in_order else by_index
    summary = idle_nodes.summarize(nodes, jobs, settings, replay(nodes, jobs, settings))
    assert summary.efficiency == pytest.approx(expected, abs=0.004)
    assert summary.equivalent_nodes == pytest.approx(85.094, abs=0.001)
