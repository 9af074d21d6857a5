"""Jobs from a distribution or a trace, and schedules as traces."""

import numpy as np
import pytest

from launch.errors import InputError
from scheduler.reservation.distributions import Discrete, make_law
from scheduler.reservation.requests import t_optimal
from scheduler.simulation import workload
from scheduler.simulation.batch_queue import QueueJob, simulate
from scheduler.simulation.swf import SwfJob, Trace, read_swf, write_swf

LAW = make_law("truncnorm", mu=8, sigma=2, low=0, high=20)
KNOWN = Discrete([1, 4, 9], [0.6, 0.3, 0.1])


def drawn(rule, **changes):
    return workload.draw_jobs(
        LAW, 30, 100, workload.Sizes.BETA, rule, np.random.default_rng(3), **changes
    )


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (workload.Rule.CLASSICAL, (9.0,)),
        (workload.Rule.RECENT, (4.0, 9.0)),
        (workload.Rule.TOPTIMAL, (1.0, 4.0, 9.0)),
        (workload.Rule.ATOPTIMAL, (9.0,)),
    ],
)
def test_workload_requests_of_each_rule(rule, expected):
    assert workload.choose_requests(rule, KNOWN, recent=[1, 4, 1], backfill_rate=0.95) == expected


def test_recent_rule_requests_the_longest_once():
    assert workload.choose_requests(workload.Rule.RECENT, KNOWN, recent=[9, 1]) == (9.0,)


def test_workload_users_requests_need_a_trace():
    with pytest.raises(
        InputError, match="the other rules are: classical, recent, toptimal, atoptimal"
    ):
        workload.choose_requests(workload.Rule.USER, KNOWN, [1])


def test_workload_all_rules_draw_the_same_jobs():
    def without_requests(jobs):
        return [(job.submit, job.processors, job.run_time) for job in jobs]

    classical = drawn(workload.Rule.CLASSICAL)
    for rule in (workload.Rule.RECENT, workload.Rule.TOPTIMAL, workload.Rule.ATOPTIMAL):
        assert without_requests(drawn(rule, backfill_rate=0.3)) == without_requests(classical)
    assert {job.requests for job in classical} == {(20.0,)}


def test_workload_more_past_runs_request_no_less():
    first = [
        [job.requests[0] for job in drawn(workload.Rule.RECENT, past=past)] for past in (1, 100)
    ]
    assert sum(first[0]) < sum(first[1])


def test_no_drawn_job_outlives_its_last_request():
    for rule in (workload.Rule.CLASSICAL, workload.Rule.RECENT, workload.Rule.TOPTIMAL):
        assert all(job.run_time <= job.requests[-1] for job in drawn(rule))


@pytest.mark.parametrize(
    ("sizes", "mean", "spread"),
    [
        (workload.Sizes.FULL, 100, 0),
        (workload.Sizes.HALF, 50, 0),
        (workload.Sizes.TRUNCNORM, 50.5, 24),
        (workload.Sizes.BETA, 50.5, 22),
    ],
)
def test_sizes_follow_their_law_and_fit_the_machine(sizes, mean, spread):
    sizes_ = workload.draw_sizes(sizes, 100, 3000, np.random.default_rng(0))
    assert sizes_.min() >= 1
    assert sizes_.max() <= 100
    assert sizes_.mean() == pytest.approx(mean, abs=1.5)
    assert sizes_.std() == pytest.approx(spread, abs=2)


@pytest.mark.parametrize("sizes", workload.Sizes)
def test_workload_machine_of_one_processor_has_jobs_of_one(sizes):
    assert workload.draw_sizes(sizes, 1, 3, np.random.default_rng(0)).tolist() == [1, 1, 1]


def test_workload_stream_brings_its_share_of_the_machine_as_work():
    stream = workload.small_stream(LAW, 0.5, 100)
    rng = np.random.default_rng(0)
    work = np.mean([stream.draw(rng) for _ in range(2000)])
    assert work / stream.interval == pytest.approx(0.5 * 100, rel=0.02)
    with pytest.raises(InputError, match="work rate"):
        workload.small_stream(LAW, 1.0, 100)


def past(count, run_s=100.0, **columns):
    """Make consecutive runs of one application."""
    return [
        SwfJob(k, 1000.0 * k, 0.0, run_s + k, 4, requested_s=5000, status=1, **columns)
        for k in range(count)
    ]


def test_jobs_from_trace_use_only_past_runs():
    trace = Trace(
        (*past(6, user=1, executable=1), SwfJob(7, 5100.0, 0, 90, 4, user=1, executable=1))
    )
    jobs = workload.jobs_from_trace(trace, workload.Rule.CLASSICAL)
    assert [job.requests for job in jobs[:5]] == [(5000.0,)] * 5  # fewer than five runs are known
    assert jobs[5].requests == (104.0,)  # the runs 0 to 4
    assert jobs[6].requests == (104.0,)  # run 5 started at 5000 and was still running
    assert jobs[6].law.values.tolist() == [100.0, 101.0, 102.0, 103.0, 104.0]


def test_other_users_and_executables_tell_nothing():
    trace = Trace(
        (
            *past(6, user=1, executable=1),
            SwfJob(7, 9e4, 0, 90, 4, user=1, executable=2),
            SwfJob(8, 9e4, 0, 90, 4, user=2, executable=1),
        )
    )
    jobs = workload.jobs_from_trace(trace, workload.Rule.TOPTIMAL)
    assert [job.requests for job in jobs[6:]] == [(105.0,)] * 2  # the longest


def test_user_request_counts_at_least_the_run():
    trace = Trace((SwfJob(1, 0, 0, 70, 4, requested_s=60), SwfJob(2, 0, 0, 70, 4, requested_s=80)))
    assert [job.requests for job in workload.jobs_from_trace(trace, workload.Rule.USER)] == [
        (70.0,),
        (80.0,),
    ]


def test_runs_that_did_not_complete_tell_nothing():
    failed = [SwfJob(10 + k, 10.0 * k, 0, 9, 4, status=0) for k in range(9)]
    assert {
        job.law for job in workload.jobs_from_trace(Trace(tuple(failed)), workload.Rule.TOPTIMAL)
    } == {None}


def test_workload_optimal_rule_on_a_trace_is_that_of_the_log():
    trace = Trace((*past(9, user=1, executable=1),))
    last = workload.jobs_from_trace(trace, workload.Rule.TOPTIMAL)[-1]
    assert last.requests == t_optimal(last.law).requests


def test_workload_trace_without_a_run_is_refused():
    with pytest.raises(InputError, match="no job of the trace"):
        workload.jobs_from_trace(Trace((SwfJob(1, 0, 0, 0, 4),)), workload.Rule.USER)


def test_workload_schedule_as_a_trace_names_the_run_before(tmp_path):
    schedule = simulate([QueueJob(0, 4, 3, (2, 5)), QueueJob(0.5, 2, 1, (1,))], 4)
    trace = workload.schedule_to_trace(schedule, unit_s=3600)
    first, second, again = trace.jobs
    assert (first.run_s, first.status, first.requested_s, first.preceding_job) == (
        7200,
        0,
        7200,
        -1,
    )
    assert (again.submit_s, again.run_s, again.status) == (7200, 10800, 1)
    assert (again.preceding_job, again.think_s) == (first.job, 0)
    assert (second.submit_s, second.processors, second.wait_s) == (1800, 2, 5400)
    write_swf(tmp_path / "out.swf", trace)
    assert read_swf(tmp_path / "out.swf") == trace
    assert trace.machine_size == 4


def test_schedule_to_trace_keeps_applications():
    trace = Trace(
        (SwfJob(1, 0, 0, 5, 1, user=7, executable=3), SwfJob(2, 0, 0, 5, 1, user=8, executable=3))
    )
    written = workload.schedule_to_trace(
        simulate(workload.jobs_from_trace(trace, workload.Rule.USER), 1)
    )
    assert [job.executable for job in written.jobs] == [1, 2]
