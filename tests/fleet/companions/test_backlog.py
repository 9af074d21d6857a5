"""Tests of the orders for runs that share idle nodes."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.companions.harvest.backlog import (
    Cancel,
    HarvestLimits,
    HarvestState,
    Submit,
    plan_orders,
)
from tests.examples import examples

RUN = HarvestState("a", waiting=10)


OTHER = replace(RUN, name="b")
ONE, TWO, THREE = (tuple((str(number), 1) for number in range(7, 7 + count)) for count in (1, 2, 3))
CHEAP = replace(RUN, rate=1000.0, samples_left=1e6)  # of which a node does a thousandth per second
DEAR = replace(OTHER, rate=1.0, samples_left=1e3)
BUSY = replace(RUN, rate=10.0, samples_left=1000.0, running=2, nodes=2)
FAST, NEW = replace(RUN, rate=1e6, samples_left=1e6, running=3, nodes=3), replace(OTHER, rate=None)
FULL, ALONE = replace(FAST, queued=TWO), replace(RUN, rate=None)
FOUR, LARGE = HarvestLimits(backlog=4), HarvestLimits(nodes_per_job=4)

# Runs, idle nodes, limits, and orders: "a1" submits a job of one node for a, "-7" cancels job 7.
ORDERS = {
    "the backlog is kept filled while networks wait": [
        ([RUN], 0, {}, "a1 a1"),
        ([replace(RUN, queued=ONE)], 4, {}, "a1"),
        ([replace(RUN, queued=TWO)], 4, {}, ""),
    ],
    "at most the maximum number of jobs is submitted": [
        ([replace(RUN, running=31)], 9, {}, "a1"),
        ([replace(RUN, running=32)], 9, {}, ""),
    ],
    "at most one job is submitted per waiting network": [
        ([replace(RUN, waiting=3, per_node=4)], 9, {}, "a1"),
        ([replace(RUN, waiting=3, per_node=4, queued=ONE)], 9, {}, ""),
        ([replace(RUN, waiting=0, training=3)], 9, {}, ""),
    ],
    "what is surplus is cancelled when all is done": [
        ([replace(RUN, waiting=0, queued=(("7", 1), ("8", 2))), OTHER], 4, {}, "-7 -8 b1 b1")
    ],
    "jobs that would find nothing to train are cancelled, the newest first": [
        ([replace(RUN, waiting=0, training=1, queued=THREE)], 4, {}, "-7 -8 -9"),
        ([replace(RUN, waiting=2, training=1, queued=THREE)], 4, {}, "-9"),
        ([replace(RUN, waiting=3, spare=2, queued=THREE)], 4, {}, "-8 -9"),
        ([replace(RUN, waiting=3, per_node=2, queued=THREE)], 4, {}, "-9"),
    ],
    "no job is submitted if a running job can train the network": [
        ([replace(RUN, waiting=2, running=2, nodes=2, spare=2)], 9, {}, ""),
        ([replace(RUN, waiting=2, running=2, nodes=2, spare=1)], 9, {}, "a1"),
    ],
    "three launches in a row without an epoch end it": [
        ([replace(RUN, fruitless_launches=2)], 4, {}, "a1 a1"),
        ([replace(RUN, fruitless_launches=3, queued=ONE)], 4, {}, "-7"),
    ],
    "jobs of a cancelled run are cancelled": [
        ([replace(RUN, is_cancelled=True, queued=ONE), OTHER], 4, {}, "-7 b1 b1")
    ],
    "jobs are as large as idle nodes allow": [
        ([RUN], 3, {"limits": LARGE}, "a3"),
        ([RUN], 6, {"limits": LARGE}, "a4 a2"),
        ([RUN], 0, {"limits": LARGE}, "a4 a4"),
        ([ALONE], 6, {"limits": LARGE}, "a4 a2"),
    ],
    "runs share the nodes by their remaining work": [
        ([CHEAP, DEAR], 4, {"limits": FOUR}, "a1 a1 b1 b1"),
        ([CHEAP, replace(DEAR, samples_left=500.0)], 3, {"limits": FOUR}, "a1 b1 b1"),
        ([CHEAP, replace(DEAR, waiting=1, samples_left=500.0)], 3, {"limits": FOUR}, "a1 a1 b1"),
    ],
    # In a gap of one minute it trains for a quarter of the time, or for the minimum, a twentieth.
    "its start included": [
        (
            [CHEAP, replace(DEAR, samples_left=500.0, start_s=45.0)],
            1,
            {"gap_s": 60, "limits": FOUR},
            "a1",
        ),
        ([replace(RUN, start_s=90.0)], 2, {"gap_s": 60}, "a1 a1"),
    ],
    "a run that has nodes leaves the next ones to a run that has none": [
        ([BUSY, replace(BUSY, name="b", running=0, nodes=0)], 1, {}, "b1"),
        ([BUSY, replace(BUSY, name="b", running=0, nodes=0, samples_left=2500.0)], 1, {}, "b1"),
    ],
    "a run that was not measured yet gets a node at once": [
        ([FAST, NEW], 4, {}, "b1 b1"),
        ([replace(FAST, running=0, nodes=0), NEW], 4, {}, "b1 a1"),
        ([FAST, NEW], 1, {}, "b1"),
        ([FAST, NEW], 0, {"limits": HarvestLimits(nodes_per_job=3, backlog=1)}, "b1"),
        ([FULL, NEW], 0, {}, "-8 b1"),
        ([FULL, replace(NEW, queued=(("9", 1),))], 0, {}, ""),
    ],
}


@pytest.mark.parametrize("cases", ORDERS.values(), ids=ORDERS)
def test_plan_orders_submits_and_cancels_jobs(cases):
    for runs, idle, more, expected in cases:
        orders = plan_orders(
            runs, idle, more.get("gap_s", 600), more.get("limits", HarvestLimits())
        )
        assert expected == " ".join(
            f"{order.name}{order.nodes}" if isinstance(order, Submit) else f"-{order.job}"
            for order in orders
        )


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(
        st.builds(
            HarvestState,
            st.just(""),
            st.integers(0, 9),
            st.integers(0, 3),
            st.integers(1, 4),
            st.none() | st.floats(0.1, 9),
            st.floats(0, 900),
            st.integers(0, 4),
            st.lists(st.tuples(st.uuids().map(str), st.integers(1, 3)), max_size=3).map(tuple),
            st.integers(0, 4),
            st.just(False),
            st.integers(0, 9),
            st.integers(0, 9),
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 12),
    st.builds(HarvestLimits, st.integers(1, 4), st.integers(1, 4), st.integers(1, 12)),
)
def test_plan_orders_respects_all_limits(runs, idle, limits):
    runs = [replace(run, name=str(number)) for number, run in enumerate(runs)]
    orders = plan_orders(runs, idle, 600.0, limits)
    submitted = [order for order in orders if isinstance(order, Submit)]
    cancelled = [order.job for order in orders if isinstance(order, Cancel)]
    queued = sum(len(run.queued) for run in runs) - len(cancelled) + len(submitted)
    assert not submitted or queued <= limits.backlog
    assert not submitted or queued + sum(run.running for run in runs) <= limits.max_jobs
    assert all(1 <= job.nodes <= limits.nodes_per_job for job in submitted)
    for run in runs:
        nodes = sum(job.nodes for job in submitted if job.name == run.name)
        assert not nodes or (nodes - 1) * run.per_node < run.unserved
        if run.is_over or run.fruitless_launches >= limits.fruitless:
            assert {job for job, _ in run.queued} <= set(cancelled)
    if idle:
        assert sum(job.nodes for job in submitted) <= idle
