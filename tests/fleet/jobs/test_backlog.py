"""Which jobs are handed in and taken back where several runs share idle nodes."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.jobs.backlog import Cancel, Harvested, HarvestLimits, Submit, decide
from tests.examples import examples

RUN = Harvested("a", waiting=10)


def test_the_backlog_is_kept_filled_while_networks_wait():
    assert decide([RUN], 0, 600, HarvestLimits()) == [Submit("a", 1)] * 2
    assert decide([replace(RUN, queued=(("7", 1),))], 4, 600, HarvestLimits()) == [Submit("a", 1)]
    assert decide([replace(RUN, queued=(("7", 1), ("8", 1)))], 4, 600, HarvestLimits()) == []


def test_there_are_no_more_jobs_than_may_be_nor_more_than_networks_that_wait():
    assert decide([replace(RUN, running=31)], 9, 600, HarvestLimits()) == [Submit("a", 1)]
    assert decide([replace(RUN, running=32)], 9, 600, HarvestLimits()) == []
    assert decide([replace(RUN, waiting=3, per_node=4)], 9, 600, HarvestLimits()) == [Submit("a", 1)]
    assert decide([replace(RUN, waiting=3, per_node=4, queued=(("7", 1),))], 9, 600, HarvestLimits()) == []
    assert decide([replace(RUN, waiting=0, held=3)], 9, 600, HarvestLimits()) == []


def test_what_is_surplus_is_cancelled_when_all_is_done():
    queued = (("7", 1), ("8", 2))
    assert decide([replace(RUN, waiting=0, queued=queued), replace(RUN, name="b")], 4, 600, HarvestLimits()) == [
        Cancel("a", "7"), Cancel("a", "8"), Submit("b", 1), Submit("b", 1)]


def test_a_job_that_would_find_nothing_to_train_is_taken_back_the_newest_first():
    queued = (("7", 1), ("8", 1), ("9", 1))
    assert decide([replace(RUN, waiting=0, held=1, queued=queued)], 4, 600, HarvestLimits()) == [
        Cancel("a", "7"), Cancel("a", "8"), Cancel("a", "9")]
    assert decide([replace(RUN, waiting=2, held=1, queued=queued)], 4, 600, HarvestLimits()) == [Cancel("a", "9")]
    assert decide([replace(RUN, waiting=3, spare=2, queued=queued)], 4, 600, HarvestLimits()) == [
        Cancel("a", "8"), Cancel("a", "9")]
    assert decide([replace(RUN, waiting=3, per_node=2, queued=queued)], 4, 600, HarvestLimits()) == [Cancel("a", "9")]


def test_no_job_is_handed_in_for_a_network_that_one_which_runs_has_room_for():
    assert decide([replace(RUN, waiting=2, running=2, nodes=2, spare=2)], 9, 600, HarvestLimits()) == []
    assert decide([replace(RUN, waiting=2, running=2, nodes=2, spare=1)], 9, 600, HarvestLimits()) == [Submit("a", 1)]


def test_three_launches_in_a_row_without_an_epoch_end_it():
    assert decide([replace(RUN, fruitless=2)], 4, 600, HarvestLimits()) == [Submit("a", 1)] * 2
    assert decide([replace(RUN, fruitless=3, queued=(("7", 1),))], 4, 600, HarvestLimits()) == [Cancel("a", "7")]


def test_what_is_called_off_is_taken_back():
    off = replace(RUN, is_called_off=True, queued=(("7", 1),))
    assert decide([off, replace(RUN, name="b")], 4, 600, HarvestLimits()) == [Cancel("a", "7")] + [Submit("b", 1)] * 2


def test_jobs_are_as_large_as_idle_nodes_allow():
    limits = HarvestLimits(nodes_per_job=4)
    assert decide([RUN], 3, 600, limits) == [Submit("a", 3)]
    assert decide([RUN], 6, 600, limits) == [Submit("a", 4), Submit("a", 2)]
    assert decide([RUN], 0, 600, limits) == [Submit("a", 4), Submit("a", 4)]


def test_runs_share_the_nodes_by_what_a_node_does_of_their_work_start_included():
    cheap = replace(RUN, rate=1000.0, left=1e6)  # of which a node does a thousandth in a second
    dear = replace(RUN, name="b", rate=1.0, left=1e3)
    limits = HarvestLimits(backlog=4)
    assert decide([cheap, dear], 4, 600, limits) == [Submit("a", 1)] * 2 + [Submit("b", 1)] * 2
    assert decide([cheap, replace(dear, left=500.0)], 3, 600, limits) == [Submit("a", 1)] + [Submit("b", 1)] * 2
    assert decide([cheap, replace(dear, waiting=1, left=500.0)], 3, 600, limits) == [Submit("a", 1)] * 2 + [
        Submit("b", 1)]
    # Of a gap of a minute it trains for a quarter, or a twentieth: gaps may become longer.
    slow_start = replace(dear, left=500.0, start_s=45.0)
    assert decide([cheap, slow_start], 1, 60, limits) == [Submit("a", 1)]
    assert decide([replace(RUN, start_s=90.0)], 2, 60, HarvestLimits()) == [Submit("a", 1)] * 2


def test_a_run_that_has_nodes_leaves_the_next_ones_to_a_run_that_has_none():
    busy = replace(RUN, rate=10.0, left=1000.0, running=2, nodes=2)
    assert decide([busy, replace(busy, name="b", running=0, nodes=0)], 1, 600, HarvestLimits()) == [Submit("b", 1)]
    assert decide([busy, replace(busy, name="b", running=0, nodes=0, left=2500.0)], 1, 600, HarvestLimits()) == [
        Submit("b", 1)]


def test_a_run_that_was_not_measured_yet_gets_a_node_at_once():
    fast = replace(RUN, rate=1e6, left=1e6, running=3, nodes=3)
    new = replace(RUN, name="b", rate=None)
    assert decide([fast, new], 4, 600, HarvestLimits()) == [Submit("b", 1), Submit("b", 1)]
    assert decide([replace(fast, running=0, nodes=0), new], 4, 600, HarvestLimits()) == [Submit("b", 1), Submit("a", 1)]
    assert decide([fast, new], 1, 600, HarvestLimits()) == [Submit("b", 1)]
    assert decide([fast, new], 0, 600, HarvestLimits(nodes_per_job=3, backlog=1)) == [Submit("b", 1)]
    full = replace(fast, queued=(("7", 1), ("8", 1)))
    assert decide([full, new], 0, 600, HarvestLimits()) == [Cancel("a", "8"), Submit("b", 1)]
    assert decide([full, replace(new, queued=(("9", 1),))], 0, 600, HarvestLimits()) == []
    alone = replace(RUN, rate=None)
    assert decide([alone], 6, 600, HarvestLimits(nodes_per_job=4)) == [Submit("a", 4), Submit("a", 2)]


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.builds(
    Harvested, st.just(""), st.integers(0, 9), st.integers(0, 3), st.integers(1, 4), st.none() | st.floats(0.1, 9),
    st.floats(0, 900), st.integers(0, 4), st.lists(st.tuples(st.uuids().map(str), st.integers(1, 3)), max_size=3)
    .map(tuple), st.integers(0, 4), st.just(False), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=4),
    st.integers(0, 12), st.builds(HarvestLimits, st.integers(1, 4), st.integers(1, 4), st.integers(1, 12)))
def test_no_limit_is_ever_passed(runs, idle, limits):
    runs = [replace(run, name=str(number)) for number, run in enumerate(runs)]
    orders = decide(runs, idle, 600.0, limits)
    handed_in = [order for order in orders if isinstance(order, Submit)]
    taken_back = [order.job for order in orders if isinstance(order, Cancel)]
    queued = sum(len(run.queued) for run in runs) - len(taken_back) + len(handed_in)
    assert not handed_in or queued <= limits.backlog
    assert not handed_in or queued + sum(run.running for run in runs) <= limits.most
    assert all(1 <= job.nodes <= limits.nodes_per_job for job in handed_in)
    for run in runs:
        nodes = sum(job.nodes for job in handed_in if job.name == run.name)
        assert not nodes or (nodes - 1) * run.per_node < run.unserved
        if run.is_over or run.fruitless >= limits.fruitless:
            assert {job for job, _ in run.queued} <= set(taken_back)
    if idle:
        assert sum(job.nodes for job in handed_in) <= idle
