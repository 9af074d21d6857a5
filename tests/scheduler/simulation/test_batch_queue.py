"""The batch queue, checked by hand, by a naive planner, and by its audit."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.errors import InputError
from scheduler.reservation.distributions import Discrete, empirical_law
from scheduler.simulation.batch_queue import Convention, QueueJob, Run, Schedule, Stream
from tests.examples import examples
from tests.scheduler.simulation.audits import BrokenRuleError, audit_queued
from tests.scheduler.simulation.audits import queued as simulate

PLANNED, BACKFILL, CONSERVING = Convention
LAW = Discrete([1, 4, 8], [0.5, 0.25, 0.25])


@st.composite
def jobs(draw, max_jobs=8, small=True):
    """Draw jobs on a machine of 10; some must request again, some know their distribution."""
    queue = []
    for _ in range(draw(st.integers(1, max_jobs))):
        walltimes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True))
        queue.append(
            QueueJob(
                submit=draw(st.sampled_from([0, 0, 0, 3, 11])),
                processors=draw(st.integers(1, 10)),
                run_time=draw(st.integers(1, 9)),
                requests=tuple(sorted(walltimes)),
                law=draw(st.sampled_from([None, empirical_law([1, 3, 6, 9])])),
                small=small and draw(st.integers(0, 4)) == 0,
            )
        )
    return queue


def starts(schedule):
    """Return when each job started, run by run."""
    runs = {index: [] for index in range(len(schedule.jobs))}
    for run in schedule.runs:
        runs[run.job].append(run.start)
    return runs


@settings(max_examples=examples(300), deadline=None)
@given(jobs(), st.sampled_from(Convention), st.booleans(), st.booleans())
def test_batch_queue_every_simulation_passes_its_audit(queue, convention, speculative, streamed):
    stream = Stream(2.0, lambda rng: float(rng.integers(1, 4)), processors=2) if streamed else None
    schedule = simulate(queue, 10, convention, speculative=speculative, stream=stream)
    useful = sum(job.processors * job.run_time for job in schedule.jobs)
    assert 0 < schedule.utilization <= 1
    assert schedule.utilization + schedule.failed_share <= 1 + 1e-9
    assert schedule.utilization == pytest.approx(useful / (10 * (schedule.end - schedule.start)))
    if not speculative:
        assert not any(run.speculative for run in schedule.runs)
        # One for each failed request, and the last one.
        for index, times in starts(schedule).items():
            job = schedule.jobs[index]
            assert len(times) == 1 + sum(job.request(k) < job.run_time for k in range(10))


@settings(max_examples=examples(100), deadline=None)
@given(jobs(), st.sampled_from(Convention), st.booleans())
def test_batch_queue_simulation_is_a_function_of_its_inputs(queue, convention, speculative):
    assert (
        simulate(queue, 10, convention, speculative=speculative).runs
        == simulate(queue, 10, convention, speculative=speculative).runs
    )


@settings(max_examples=examples(100), deadline=None)
@given(jobs(small=False))
def test_batch_queue_planned_round_is_that_of_a_naive_planner(queue):
    queue = [
        replace(job, submit=0, requests=(max(job.run_time, job.requests[-1]),)) for job in queue
    ]
    free = np.full(100, 10)
    expected = {}
    for index in sorted(
        range(len(queue)), key=lambda i: (-queue[i].processors * queue[i].requests[0], i)
    ):
        length, size = queue[index].requests[0], queue[index].processors
        start = next(t for t in range(100) if free[t : t + length].min() >= size)
        free[start : start + length] -= size
        expected[index] = [start]
    assert starts(simulate(queue, 10, PLANNED)) == expected


@settings(max_examples=examples(100), deadline=None)
@given(jobs(small=False))
def test_backfilling_never_makes_a_job_of_a_round_start_later(queue):
    queue = [
        replace(job, submit=0, requests=(max(job.run_time, job.requests[-1]),)) for job in queue
    ]
    planned, backfilled = (
        starts(simulate(queue, 10, PLANNED)),
        starts(simulate(queue, 10, BACKFILL)),
    )
    assert all(backfilled[index] <= planned[index] for index in planned)


@settings(max_examples=examples(50), deadline=None)
@given(jobs(small=False))
def test_small_jobs_do_not_delay_a_planned_round(queue):
    queue = [
        replace(job, submit=0, requests=(max(job.run_time, job.requests[-1]),)) for job in queue
    ]
    tiny = [QueueJob(t, 1, 1, (1,), small=True) for t in range(5)]
    alone, together = (starts(simulate(queue + more, 10, PLANNED)) for more in ([], tiny))
    assert all(together[index] == alone[index] for index in alone)


@pytest.mark.parametrize(
    ("convention", "expected"),
    [
        (PLANNED, {0: [0], 1: [8], 2: [15]}),
        (BACKFILL, {0: [0], 1: [8], 2: [3]}),  # 2 fits between 3 and 8
        (CONSERVING, {0: [0], 1: [3], 2: [8]}),
    ],
)
def test_conventions_on_jobs_of_the_full_machine(convention, expected):
    queue = [QueueJob(0, 4, 3, (8,)), QueueJob(0, 4, 5, (7,)), QueueJob(0, 4, 2, (4,))]
    assert starts(simulate(queue, 4, convention)) == expected


def test_batch_queue_failed_job_waits_for_the_next_round():
    queue = [QueueJob(0, 4, 3, (2, 5)), QueueJob(0, 4, 1, (1,))]
    schedule = simulate(queue, 4, PLANNED)
    assert starts(schedule) == {0: [0, 3], 1: [2]}
    assert [run.completed for run in schedule.runs] == [False, True, True]
    assert schedule.utilization == pytest.approx((3 + 1) / 6)
    assert schedule.failed_share == pytest.approx(2 / 6)
    assert schedule.response() == pytest.approx((6 + 3) / 2)


def test_batch_queue_failed_job_fills_a_gap_of_its_own_round():
    queue = [QueueJob(0, 1, 20, (20,)), QueueJob(0, 4, 6, (6,)), QueueJob(0, 4, 3, (2, 3))]
    # The round lasts until 20.
    assert starts(simulate(queue, 5, PLANNED)) == {
        0: [0],
        1: [0],
        2: [6, 8],
    }


def test_outlived_job_requests_twice_the_last():
    schedule = simulate([QueueJob(0, 1, 11, (2, 3))], 1)
    assert [run.limit - run.start for run in schedule.runs] == [2, 3, 6, 12]


def test_new_jobs_wait_for_the_next_round_or_a_gap():
    queue = [
        QueueJob(0, 3, 2, (6,)),
        QueueJob(0, 4, 1, (4,)),
        QueueJob(1, 1, 3, (4,)),
        QueueJob(1, 1, 1, (7,)),
    ]
    assert starts(simulate(queue, 4, PLANNED)) == {0: [0], 1: [6], 2: [1], 3: [7]}


def speculative_runs(queue, processors, convention=BACKFILL):
    """Return the speculative runs in the order of their starts."""
    schedule = simulate(queue, processors, convention, speculative=True)
    return sorted((run for run in schedule.runs if run.speculative), key=lambda run: run.start)


def test_speculation_takes_the_best_use_of_the_gap():
    # The first job ends at 2 and leaves a gap until 20; the others request 19; the likelier goes
    # first.
    likely, unlikely = Discrete([3, 19], [0.9, 0.1]), Discrete([3, 19], [0.1, 0.9])
    queue = [
        QueueJob(0, 4, 2, (20,)),
        QueueJob(0, 4, 19, (19,), unlikely),
        QueueJob(0, 4, 3, (19,), likely),
    ]
    assert speculative_runs(queue, 4) == [
        Run(job=2, start=2, end=5, limit=20, completed=True, speculative=True),
        Run(job=1, start=5, end=20, limit=20, completed=False, speculative=True),
    ]


def test_batch_queue_prefers_wide_jobs_for_gaps():
    law = Discrete([1, 18.5], [0.5, 0.5])
    queue = [
        QueueJob(0, 4, 2, (20,)),
        QueueJob(0, 4, 19, (19,)),
        QueueJob(0, 2, 1, (18.5,), law),
        QueueJob(0, 3, 1, (18.5,), law),
    ]
    assert [(run.job, run.start) for run in speculative_runs(queue, 4)] == [(3, 2), (2, 3)]


def test_speculation_does_not_try_again_what_cannot_succeed():
    # After 17 in the gap, the second job is known to need 19; the third job's gap is too short for
    # it.
    queue = [
        QueueJob(0, 1, 2, (20,)),
        QueueJob(0, 1, 19, (19,), Discrete([1, 19], [0.5, 0.5])),
        QueueJob(0, 1, 2, (18.5,)),
    ]
    assert [(run.job, run.start, run.limit) for run in speculative_runs(queue, 1)] == [(1, 2, 20)]


def test_without_a_law_nothing_is_tried():
    assert not speculative_runs([QueueJob(0, 4, 2, (20,)), QueueJob(0, 4, 3, (19,))], 4)


def test_planned_convention_tries_no_reserved_job_early():
    queue = [QueueJob(0, 4, 2, (20,)), QueueJob(0, 4, 1, (19,), LAW)]
    assert not speculative_runs(queue, 4, PLANNED)
    assert speculative_runs(queue, 4, BACKFILL)


def test_stream_brings_its_work_rate():
    queue = [QueueJob(0, 4, 100, (100,))]
    schedule = simulate(queue, 8, stream=Stream(0.5, lambda rng: 1.0))
    tiny = [job for job in schedule.jobs if job.small]
    assert [job.submit for job in tiny] == [0.5 * k for k in range(1, 200)]
    assert schedule.response(small=True) == 1.0  # four are free, two are needed
    assert schedule.utilization == pytest.approx((400 + 199) / (8 * schedule.end))


def test_small_jobs_fill_gaps_in_order_of_arrival():
    queue = [
        QueueJob(0, 2, 5, (5,)),
        QueueJob(1, 1, 2, (2,), small=True),
        QueueJob(2, 2, 1, (1,), small=True),
    ]
    assert starts(simulate(queue, 2)) == {0: [0], 1: [5], 2: [7]}


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([Run(0, 0, 3, 4, True, False)], "job 1 completed 0 times"),
        (
            [Run(0, 0, 3, 4, True, False), Run(1, 2, 4, 4, True, False)],
            "4 processors .*, but the machine has 3",
        ),
        (
            [
                Run(0, 0, 3, 4, True, False),
                Run(0, 3, 6, 8, True, False),
                Run(1, 6, 8, 8, True, False),
            ],
            "job 0 completed 2 times",
        ),
        ([Run(0, 0, 2, 4, True, False), Run(1, 2, 4, 4, True, False)], "job 0 ended neither"),
        ([Run(0, 0, 2, 4, False, False), Run(0, 2, 5, 5, True, False)], "job 0 ended neither"),
        ([Run(0, 0, 2, 2, False, False), Run(0, 1, 4, 4, True, False)], "job 0 started before"),
        ([Run(1, 0.5, 2.5, 4, True, False), Run(0, 4, 7, 7, True, False)], "job 1 started before"),
    ],
)
def test_batch_queue_audit_finds_a_schedule_that_breaks_a_rule(runs, message):
    queue = (QueueJob(0, 2, 3, (4,)), QueueJob(1, 2, 2, (4,)))
    with pytest.raises(BrokenRuleError, match=message):
        audit_queued(Schedule(3, queue, tuple(runs)))


@pytest.mark.parametrize(
    ("queue", "processors", "message"),
    [
        ([], 4, "no job"),
        ([QueueJob(0, 5, 1, (1,))], 4, "job 0 needs 5 processors, but the machine has 4"),
        ([QueueJob(0, 1, 1, (1,)), QueueJob(0, 0, 1, (1,))], 4, "job 1 needs 0"),
        ([QueueJob(0, 1, 0, (1,))], 4, "runs for 0"),
        ([QueueJob(-1, 1, 1, (1,))], 4, "arrives at -1"),
        ([QueueJob(0, 1, 1, ())], 4, "increasing"),
        ([QueueJob(0, 1, 1, (2, 2))], 4, "increasing"),
        ([QueueJob(0, 1, 1, (2, float("inf")))], 4, "finite"),
    ],
)
def test_jobs_that_cannot_be_are_refused(queue, processors, message):
    with pytest.raises(InputError, match=message):
        simulate(queue, processors)


def test_batch_queue_stream_is_refused_if_impossible():
    with pytest.raises(InputError, match="stream"):
        simulate([QueueJob(0, 1, 1, (1,))], 1, stream=Stream(0.0, lambda rng: 1.0))
