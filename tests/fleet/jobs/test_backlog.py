"""Which jobs are handed in and taken back where several runs share idle nodes."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.jobs.backlog import Cancel, Harvested, Limits, Submit, decide
from tests.examples import examples

RUN = Harvested("a", waiting=10)


def test_the_backlog_is_kept_filled_while_networks_wait():
    assert decide([RUN], 0, 600, Limits()) == [Submit("a", 1)] * 2
    assert decide([replace(RUN, queued=(("7", 1),))], 4, 600, Limits()) == [Submit("a", 1)]
    assert decide([replace(RUN, queued=(("7", 1), ("8", 1)))], 4, 600, Limits()) == []


def test_there_are_no_more_jobs_than_may_be_nor_more_than_networks_that_wait():
    assert decide([replace(RUN, running=31)], 9, 600, Limits()) == [Submit("a", 1)]
    assert decide([replace(RUN, running=32)], 9, 600, Limits()) == []
    assert decide([replace(RUN, waiting=3, per_node=4)], 9, 600, Limits()) == [Submit("a", 1)]
    assert decide([replace(RUN, waiting=3, per_node=4, queued=(("7", 1),))], 9, 600, Limits()) == []
    assert decide([replace(RUN, waiting=0, held=3)], 9, 600, Limits()) == []


def test_what_is_surplus_is_cancelled_when_all_is_done():
    queued = (("7", 1), ("8", 2))
    assert decide([replace(RUN, waiting=0, held=1, queued=queued)], 4, 600, Limits()) == []
    assert decide([replace(RUN, waiting=0, queued=queued), replace(RUN, name="b")], 4, 600, Limits()) == [
        Cancel("a", "7"), Cancel("a", "8"), Submit("b", 1), Submit("b", 1)]


def test_three_launches_in_a_row_without_an_epoch_end_it():
    assert decide([replace(RUN, fruitless=2)], 4, 600, Limits()) == [Submit("a", 1)] * 2
    assert decide([replace(RUN, fruitless=3, queued=(("7", 1),))], 4, 600, Limits()) == [Cancel("a", "7")]


def test_what_is_called_off_is_taken_back():
    off = replace(RUN, is_called_off=True, queued=(("7", 1),))
    assert decide([off, replace(RUN, name="b")], 4, 600, Limits()) == [Cancel("a", "7")] + [Submit("b", 1)] * 2


def test_jobs_are_as_large_as_idle_nodes_allow():
    limits = Limits(nodes_per_job=4)
    assert decide([RUN], 3, 600, limits) == [Submit("a", 3)]
    assert decide([RUN], 6, 600, limits) == [Submit("a", 4), Submit("a", 2)]
    assert decide([RUN], 0, 600, limits) == [Submit("a", 4), Submit("a", 4)]


def test_runs_share_the_nodes_by_what_they_gain_start_included():
    fast, slow = replace(RUN, rate=10.0, waiting=1), replace(RUN, name="b", rate=9.0)
    assert decide([slow, fast], 2, 600, Limits()) == [Submit("b", 1), Submit("a", 1)]
    assert decide([slow, replace(fast, waiting=5)], 2, 600, Limits()) == [Submit("a", 1)] * 2
    # Of a gap of a minute the fast one trains for 30 s.
    assert decide([slow, replace(fast, waiting=5, start_s=30.0)], 2, 60, Limits()) == [Submit("b", 1)] * 2
    assert decide([replace(RUN, start_s=90.0)], 2, 60, Limits()) == [Submit("a", 1)] * 2  # gaps may become longer


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.builds(
    Harvested, st.just(""), st.integers(0, 9), st.integers(0, 3), st.integers(1, 4), st.floats(0.1, 9),
    st.floats(0, 900), st.integers(0, 4), st.lists(st.tuples(st.uuids().map(str), st.integers(1, 3)), max_size=3)
    .map(tuple), st.integers(0, 4)), min_size=1, max_size=4), st.integers(0, 12), st.builds(
        Limits, st.integers(1, 4), st.integers(1, 4), st.integers(1, 12)))
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
        assert (run.is_over or run.fruitless >= limits.fruitless) == bool(
            not run.queued or set(taken_back) & {job for job, _ in run.queued}) or not run.queued
    if idle:
        assert sum(job.nodes for job in handed_in) <= idle
