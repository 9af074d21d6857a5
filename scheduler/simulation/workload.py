"""Make jobs for the batch queue from a distribution or a trace, and write a schedule as a trace.

One of five rules decides the requests of a job:

- ``classical``: the longest run time known; where a distribution is given, its upper bound.
- ``recent``: the longest of the application's last ten runs, and the classical request when that
  fails.
- ``toptimal``, ``atoptimal``: the optimal sequence (:mod:`scheduler.reservation.choose_requests`)
  for what is known.
- ``user``: what the trace says the user asked for (traces only).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from launch.errors import InputError
from scheduler.base import MAX_VALUE, check_range
from scheduler.reservation.distributions import Discrete, Law, discretize, empirical_law, make_law
from scheduler.reservation.requests import has_too_few_runs, optimal_requests
from scheduler.simulation.batch_queue import QueueJob, Run, Schedule, Stream
from scheduler.simulation.swf import SwfJob, Trace

RECENT = 10  # runs that the rule ``recent`` looks back on; [SPEC] section 5.3 finds 10 best
HISTORY = 200  # latest runs of an application that its distribution is learnt from
MAX_JOBS = 1_000_000  # drawn at random
STREAM_SCALE = 100  # jobs of the stream are so many times shorter ([SPEC] section 5.2)


class Rule(StrEnum):
    """The rule that chooses the walltime to request."""

    CLASSICAL = "classical"
    RECENT = "recent"
    TOPTIMAL = "toptimal"
    ATOPTIMAL = "atoptimal"
    USER = "user"


class Sizes(StrEnum):
    """The distribution of processors per job ([SPEC] section 5.2)."""

    FULL = "full"
    HALF = "half"
    TRUNCNORM = "truncnorm"
    BETA = "beta"


def choose_requests(
    rule: Rule, law: Discrete, recent: Sequence[float], backfill_rate: float = 0.0
) -> tuple[float, ...]:
    """Return the requests of a job, one after the other.

    Args:
        rule: any but ``user``.
        law: the distribution of the run time.
        recent: the last run times of the application.
        backfill_rate: zeta, for ``atoptimal``.

    >>> choose_requests(Rule.RECENT, Discrete([1, 2, 9], [0.5, 0.4, 0.1]), [1, 2, 1])
    (2.0, 9.0)
    """
    if rule is Rule.CLASSICAL:
        return (law.longest,)
    if rule is Rule.RECENT:
        longest = float(max(recent))
        if longest < law.longest:
            return (longest, law.longest)
        return (law.longest,)
    if rule is Rule.USER:
        raise InputError(
            "only a trace knows what users asked for; the other rules are: "
            + ", ".join(name for name in Rule if name is not Rule.USER)
        )
    return _optimal(law, backfill_rate if rule is Rule.ATOPTIMAL else 0.0)


@lru_cache(maxsize=64)
def _optimal(law: Discrete, backfill_rate: float) -> tuple[float, ...]:
    """Return the optimal requests; the jobs of one application share their law."""
    return optimal_requests(law, backfill_rate).requests


# ---------------------------------------------------------------- drawn from a distribution


def draw_jobs(
    law: Law,
    count: int,
    processors: int,
    sizes: Sizes,
    rule: Rule,
    rng: np.random.Generator,
    *,
    backfill_rate: float = 0.0,
    points: int = 200,
    submit: float = 0.0,
    past: int = RECENT,
) -> list[QueueJob]:
    """Draw jobs of one application that all arrive at the same time.

    The same generator state gives the same jobs whatever the rule, so rules can be compared run by
    run.

    Args:
        law: the distribution of run times.
        count: number of jobs.
        processors: the number of processors of the machine.
        sizes: the numbers of processors that jobs request.
        rule: how they choose their requests; they know the distribution, and some past runs drawn
            from it.
        rng: the source of randomness.
        backfill_rate: zeta, for ``atoptimal``.
        points: the points of the distribution as the algorithms see it.
        submit: when they arrive.
        past: how many past runs of its own each job knows; the rule ``recent`` asks for the longest
            of them.
    """
    check_range("the number of jobs", count, 1, MAX_JOBS)
    check_range("the number of processors", processors, 1, MAX_VALUE)
    discrete = discretize(law, points)
    runs = law.sample(rng, count)
    processors_of = draw_sizes(sizes, processors, count, rng)
    recent = law.sample(rng, count * past).reshape(count, past)
    return [
        QueueJob(
            submit,
            int(size),
            float(run),
            choose_requests(rule, discrete, past_runs, backfill_rate),
            discrete,
        )
        for size, run, past_runs in zip(processors_of, runs, recent, strict=True)
    ]


def draw_sizes(
    sizes: Sizes, processors: int, count: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return the processors of ``count`` jobs: all, half, or drawn from a distribution on [1, P].

    The laws are a normal of mean P/2 and standard deviation 0.3 P, and a beta with both shapes 2.
    """
    if sizes in (Sizes.FULL, Sizes.HALF) or processors == 1:
        return np.full(count, processors if sizes is Sizes.FULL else max(processors // 2, 1))
    if sizes is Sizes.TRUNCNORM:
        law = make_law(
            "truncnorm", low=1, high=processors, mu=0.5 * processors, sigma=0.3 * processors
        )
    else:
        law = make_law("beta", low=1, high=processors, alpha=2, beta=2)
    return np.rint(law.sample(rng, count)).astype(np.int64)


def small_stream(law: Law, work_rate: float, processors: int) -> Stream:
    """Return a stream of small jobs with ``work_rate`` of the machine's capacity as work.

    Their run times follow the distribution scaled down by ``STREAM_SCALE``, and are known at
    arrival.
    """
    if not 0 < work_rate < 1:
        raise InputError(
            f"the work rate of the stream is {work_rate}; it must be above 0 and below 1"
        )
    return Stream(
        interval=law.mean / STREAM_SCALE / (work_rate * processors),
        draw=lambda rng: float(law.sample(rng, 1)[0]) / STREAM_SCALE,
    )


# ---------------------------------------------------------------- traces


def jobs_from_trace(trace: Trace, rule: Rule, backfill_rate: float = 0.0) -> list[QueueJob]:
    """Return the jobs of a trace that ran, with requests from what was known at their arrival.

    Known for a job are the completed runs of its application (its user and executable) that had
    ended by its arrival in the trace, the latest 200. With fewer than five of them it requests what
    the user requested or, if the trace does not say, the longest run of the trace. A user's request
    counts as at least the run that the trace shows it allowed.

    Raises:
        InputError: no job of the trace ran.
    """
    ran = sorted((job for job in trace.jobs if job.ran), key=lambda job: job.submit_s)
    if not ran:
        raise InputError("no job of the trace has both a run time and processors")
    longest = max(job.run_s for job in ran)
    applications: dict[tuple[int, int], _Past] = {}
    jobs = []
    for job in ran:
        past = applications.setdefault((job.user, job.executable), _Past(len(applications) + 1))
        runs = past.until(job.submit_s)
        law = None if has_too_few_runs(runs) else empirical_law(runs)
        walltimes: tuple[float, ...] = (
            max(job.requested_s, job.run_s) if job.requested_s > 0 else longest,
        )
        if law is not None and rule is not Rule.USER:
            walltimes = choose_requests(rule, law, runs[-RECENT:], backfill_rate)
        jobs.append(
            QueueJob(job.submit_s, job.size, job.run_s, walltimes, law, application=past.number)
        )
        if job.completed:
            past.add(job)
    return jobs


@dataclass
class _Past:
    """The runs of one application: ended runs, and runs still in progress."""

    number: int
    ended: list[float] = field(default_factory=list)
    going_on: list[tuple[float, float]] = field(default_factory=list)

    def add(self, job: SwfJob) -> None:
        heapq.heappush(self.going_on, (job.submit_s + max(job.wait_s, 0.0) + job.run_s, job.run_s))

    def until(self, time: float) -> list[float]:
        while self.going_on and self.going_on[0][0] <= time:
            self.ended.append(heapq.heappop(self.going_on)[1])
        return self.ended[-HISTORY:]


def schedule_to_trace(schedule: Schedule, unit_s: float = 1.0) -> Trace:
    """Return a simulated schedule as a trace, one line per run.

    A job that asks again names its previous run.

    Args:
        schedule: the simulated schedule.
        unit_s: seconds in one unit of the schedule's time.
    """
    return Trace(
        tuple(_lines(schedule, unit_s)),
        {
            "Version": "2.2",
            "MaxProcs": str(schedule.processors),
            "MaxJobs": str(len(schedule.runs)),
        },
    )


def _lines(schedule: Schedule, unit_s: float) -> Iterator[SwfJob]:
    before: dict[int, tuple[int, Run]] = {}
    for number, run in enumerate(sorted(schedule.runs, key=lambda run: (run.start, run.job)), 1):
        job = schedule.jobs[run.job]
        previous = before.get(run.job)
        submit = previous[1].end if previous else job.submit
        yield SwfJob(
            number,
            submit * unit_s,
            wait_s=(run.start - submit) * unit_s,
            run_s=(run.end - run.start) * unit_s,
            processors=job.processors,
            requested_processors=job.processors,
            requested_s=(run.limit - run.start) * unit_s,
            status=1 if run.completed else 0,
            executable=job.application,
            preceding_job=previous[0] if previous else -1,
            think_s=0.0 if previous else -1.0,
        )
        before[run.job] = (number, run)
