"""Simulate a batch system with reservations: jobs request walltimes and may have to ask again.

There are three conventions for when a reservation starts:

- ``planned``: in rounds, as [SPEC] section 4.3 has it. A round plans all
  waiting jobs, the largest processors x request first, each at the earliest
  time that is free, and each starts when planned, also when the machine would
  be free before. Jobs whose request was too short, and jobs that arrive, wait
  for the next round, or run in a gap that no reservation of the round needs.
- ``planned-backfill``: the same, but a gap may also take a job whose own
  reservation is later, as ordinary backfilling does.
- ``work-conserving``: whenever a job ends or arrives, all waiting jobs are planned anew
  (conservative backfilling), so a job that ends early brings the others forward and a request that
  was too long costs nothing but the planning.

In all of them *speculative backfilling* can start a job in a gap shorter than its request if
nothing else fits: the one with the largest expected utilization of the gap. Small jobs never hold a
reservation; they only fill gaps.

[SPEC] is Gainaru et al., Speculative Scheduling for Stochastic HPC
Applications, ICPP 2019. Times are in any unit, the same throughout.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import partial
from itertools import pairwise

import numpy as np

from launch.errors import InputError, pluralize
from scheduler.reservation.distributions import Discrete
from scheduler.reservation.requests import SAFETY
from scheduler.simulation.availability import Availability
from scheduler.simulation.kernel import Event, Simulator

DEPTH = 256  # waiting jobs considered for a plan, and small ones for a gap


class Convention(StrEnum):
    """When reservations start."""

    PLANNED = "planned"
    PLANNED_BACKFILL = "planned-backfill"
    WORK_CONSERVING = "work-conserving"


@dataclass(frozen=True, slots=True)
class QueueJob:
    """A job of the queue.

    Attributes:
        submit: when it arrives.
        processors: how many it holds while it runs.
        run_time: its run time; the scheduler learns it only when the job ends.
        requests: the walltimes it asks for, one after the other; after all have failed it doubles
            the last.
        law: law of its run time for speculative backfilling; None excludes it.
        small: whether it only fills gaps.
        application: number of its program, for the record.
    """

    submit: float
    processors: int
    run_time: float
    requests: tuple[float, ...]
    law: Discrete | None = None
    small: bool = False
    application: int = 1

    def request(self, failed: int) -> float:
        """Return its request after so many failed requests."""
        excess = failed - len(self.requests) + 1
        if excess > 0:
            return self.requests[-1] * SAFETY**excess
        return self.requests[failed]


@dataclass(frozen=True, slots=True)
class Stream:
    """Small jobs that arrive evenly while other jobs are present, each of known run time.

    Attributes:
        interval: time between two arrivals.
        draw: from the simulation's randomness, the next run time.
        processors: the number of processors of each job.
    """

    interval: float
    draw: Callable[[np.random.Generator], float]
    processors: int = 1


@dataclass(frozen=True, slots=True)
class Run:
    """One run: job ``job`` (an index) held its processors from ``start`` to ``end``.

    ``limit`` is when it would have been stopped.
    """

    job: int
    start: float
    end: float
    limit: float
    completed: bool
    speculative: bool


@dataclass(frozen=True)
class Schedule:
    """The runs of every job."""

    processors: int
    jobs: tuple[QueueJob, ...]
    runs: tuple[Run, ...]

    @property
    def start(self) -> float:
        """The arrival of the first job."""
        return min(job.submit for job in self.jobs)

    @property
    def end(self) -> float:
        """The completion of the last job."""
        return max(run.end for run in self.runs)

    @property
    def utilization(self) -> float:
        """Processor time of completed runs over that of the machine ([SPEC] section 3.3)."""
        useful = sum(job.processors * job.run_time for job in self.jobs)
        return useful / (self.processors * (self.end - self.start))

    @property
    def failed_share(self) -> float:
        """Processor time of failed runs over that of the machine."""
        failed_time = sum(
            self.jobs[run.job].processors * (run.end - run.start)
            for run in self.runs
            if not run.completed
        )
        return failed_time / (self.processors * (self.end - self.start))

    def response(self, *, small: bool | None = None) -> float:
        """Return the mean response time of all jobs, of the small ones, or of the others."""
        times = [
            run.end - self.jobs[run.job].submit
            for run in self.runs
            if run.completed and small in (None, self.jobs[run.job].small)
        ]
        if times:
            return float(np.mean(times))
        return math.nan


def simulate(
    jobs: Sequence[QueueJob],
    processors: int,
    convention: Convention = Convention.PLANNED,
    *,
    speculative: bool = False,
    stream: Stream | None = None,
    seed: int = 0,
) -> Schedule:
    """Run jobs through the batch queue.

    Args:
        jobs: in any order; ``Run.job`` and ``Schedule.jobs`` keep it, jobs of the stream come
            after.
        processors: the number of processors of the machine.
        convention: when reservations start.
        speculative: whether jobs may be tried in gaps shorter than their requests.
        stream: small jobs that arrive while other jobs are there.
        seed: the seed of the stream.

    Raises:
        InputError: there is no job, a job is larger than the machine, or a number is out of range.

    A job of 3 that requested 8 leaves a gap. If reservations start when planned, the next job
    starts at 8 anyway:

    >>> two = [QueueJob(0, 4, run_time=3, requests=(8,)), QueueJob(0, 4, run_time=5, requests=(7,))]
    >>> simulate(two, 4).end, simulate(two, 4, Convention.WORK_CONSERVING).end
    (13.0, 8.0)
    """
    _check(jobs, processors, stream)
    return _BatchQueue(jobs, processors, convention, speculative, stream, seed).run()


def _check(jobs: Sequence[QueueJob], processors: int, stream: Stream | None) -> None:
    if not jobs:
        raise InputError("there are no jobs to simulate")
    for index, job in enumerate(jobs):
        if not 1 <= job.processors <= processors:
            raise InputError(
                f"job {index} needs {pluralize(job.processors, 'processor')}, but the machine has "
                f"{processors}"
            )
        if not (math.isfinite(job.run_time) and job.run_time > 0 and 0 <= job.submit < math.inf):
            raise InputError(
                f"job {index} arrives at {job.submit} and runs for {job.run_time}: "
                "times must be finite, the arrival at least 0 and the run above 0"
            )
        requests = job.requests
        increasing = all(later > earlier for earlier, later in pairwise((0.0, *requests)))
        if not (requests and increasing and requests[-1] < math.inf):
            raise InputError(
                f"job {index} requests {requests}: requests must be finite, above 0 and increasing"
            )
    if stream is not None and not (
        0 < stream.interval < math.inf and 1 <= stream.processors <= processors
    ):
        raise InputError(
            f"a stream of jobs of {pluralize(stream.processors, 'processor')} every "
            f"{stream.interval} does not fit a machine of {pluralize(processors, 'processor')}"
        )


class _Kind(IntEnum):
    """The kinds of events at one moment, in this order."""

    END = 0
    ARRIVE = 1
    DECIDE = 2
    FILL = 3


@dataclass(slots=True, eq=False)
class _Waiting:
    """A job that has not completed."""

    index: int
    job: QueueJob
    failed: int = 0  # requests that were too short
    outlived: float = 0.0  # the longest time it has run without completing
    in_round: bool = False  # the round that is being carried out waits for it
    start: float | None = None  # of its reservation
    tried_until: float = -math.inf  # end of its last run on speculation

    @property
    def request(self) -> float:
        return self.job.request(self.failed)

    @property
    def priority(self) -> tuple[int, float, int]:
        """The sort key: earlier rounds first; in a round the largest processors x request first."""
        return self.failed, -self.job.processors * self.request, self.index


class _BatchQueue:
    """The state of one simulation."""

    def __init__(
        self,
        jobs: Sequence[QueueJob],
        processors: int,
        convention: Convention,
        speculative: bool,
        stream: Stream | None,
        seed: int,
    ) -> None:
        self.sim = Simulator(start=min(job.submit for job in jobs), seed=seed)
        self.processors = processors
        self.convention = convention
        self.speculative = speculative
        self.stream = stream
        self.jobs = list(jobs)
        self.runs: list[Run] = []
        self.free = Availability(processors, self.sim.now)
        self.waiting: dict[int, _Waiting] = {}  # neither small nor running, except on speculation
        self.small: deque[_Waiting] = deque()
        self.large_left = sum(not job.small for job in jobs)
        self.round_left = 0  # jobs that the round waits for
        self.alarm: Event | None = None  # for the next reservation that starts

    def run(self) -> Schedule:
        for index, job in enumerate(self.jobs):
            self.sim.at(
                job.submit,
                _Kind.FILL if job.small else _Kind.ARRIVE,
                partial(self.arrive, _Waiting(index, job)),
            )
        if self.stream is not None:
            self.sim.after(self.stream.interval, _Kind.FILL, self.stream_arrives)
        self.sim.run()
        return Schedule(self.processors, tuple(self.jobs), tuple(self.runs))

    # ------------------------------------------------------------ what happens

    def arrive(self, waiting: _Waiting) -> None:
        if waiting.job.small:
            self.small.append(waiting)
            self.fill()
        else:
            self.waiting[waiting.index] = waiting
            self.decide_soon()

    def stream_arrives(self) -> None:
        if self.stream is None or not self.large_left:
            return
        run_time = self.stream.draw(self.sim.rng)
        job = QueueJob(self.sim.now, self.stream.processors, run_time, (run_time,), small=True)
        self.jobs.append(job)
        self.arrive(_Waiting(len(self.jobs) - 1, job))
        self.sim.after(self.stream.interval, _Kind.FILL, self.stream_arrives)

    def begin(self, waiting: _Waiting, limit: float, *, speculative: bool = False) -> None:
        """Start a run; its processors are already reserved until ``limit``."""
        if speculative:
            waiting.tried_until = limit
        else:
            self.waiting.pop(waiting.index, None)
            waiting.start = None
        needed = self.sim.now + waiting.job.run_time
        run = Run(
            waiting.index, self.sim.now, min(needed, limit), limit, needed <= limit, speculative
        )
        self.sim.at(run.end, _Kind.END, partial(self.end, waiting, run))

    def end(self, waiting: _Waiting, run: Run) -> None:
        self.runs.append(run)
        if run.end < run.limit:
            self.free.release(run.end, run.limit, waiting.job.processors)
        if not run.completed:
            waiting.outlived = max(waiting.outlived, run.end - run.start)
            waiting.failed += not run.speculative
        if waiting.job.small:
            self.end_small(waiting, run)
        else:
            self.end_large(waiting, run)

    def end_small(self, waiting: _Waiting, run: Run) -> None:
        if not run.completed:
            self.small.append(waiting)
        self.sim.soon(_Kind.FILL, self.fill)

    def end_large(self, waiting: _Waiting, run: Run) -> None:
        if run.completed:
            self.withdraw(waiting)  # when it ran on speculation
            self.waiting.pop(waiting.index, None)
            self.large_left -= 1
        else:
            self.waiting[waiting.index] = waiting
        if waiting.in_round and (run.completed or not run.speculative):
            waiting.in_round = False
            self.round_left -= 1
        self.decide_soon()

    def decide_soon(self) -> None:
        """Decide once at this moment, after everything that ends or arrives at it."""
        self.sim.soon(_Kind.DECIDE, self.decide)

    def decide(self) -> None:
        self.free.forget(self.sim.now)
        if self.convention is Convention.WORK_CONSERVING:
            self.plan_anew()
        elif not self.round_left and self.waiting:
            self.begin_round()
        else:
            self.backfill()
        self.fill()
        if self.speculative:
            self.speculate()
        self.set_alarm()

    # ------------------------------------------------------------ reservations

    def in_order(self) -> list[_Waiting]:
        """Return the waiting jobs by priority."""
        return sorted(self.waiting.values(), key=lambda waiting: waiting.priority)

    def plan_anew(self) -> None:
        for waiting in self.waiting.values():
            self.withdraw(waiting)
        for waiting in self.in_order()[:DEPTH]:
            self.reserve(waiting)

    def begin_round(self) -> None:
        members = self.in_order()
        self.round_left = len(members)
        for waiting in members:
            waiting.in_round = True
            self.reserve(waiting)

    def reserve(self, waiting: _Waiting) -> None:
        """Reserve processors for a job at the earliest possible time, and start it then."""
        processors = waiting.job.processors
        request = waiting.request
        start = self.free.earliest_start(
            processors, request, max(self.sim.now, waiting.tried_until)
        )
        self.free.reserve(start, start + request, processors)
        if start <= self.sim.now:
            self.begin(waiting, start + request)
        else:
            waiting.start = start

    def withdraw(self, waiting: _Waiting) -> None:
        """Cancel the reservation of a waiting job, if it has one."""
        if waiting.start is not None:
            self.free.release(
                waiting.start, waiting.start + waiting.request, waiting.job.processors
            )
            waiting.start = None

    def set_alarm(self) -> None:
        """Schedule a wake-up for the next reservation."""
        start = min(
            (waiting.start for waiting in self.waiting.values() if waiting.start is not None),
            default=math.inf,
        )
        if self.alarm is not None:
            self.alarm.cancel()
        if start < math.inf:
            self.alarm = self.sim.at(start, _Kind.ARRIVE, self.start_reserved)
        else:
            self.alarm = None

    def start_reserved(self) -> None:
        """Start the jobs whose reservations start now."""
        for waiting in list(self.waiting.values()):
            if waiting.start is not None and waiting.start <= self.sim.now:
                self.begin(waiting, waiting.start + waiting.request)
        self.set_alarm()

    # ------------------------------------------------------------ gaps

    def candidates(self) -> list[_Waiting]:
        """Return the jobs that may use a gap, by priority."""
        now = self.sim.now
        planned = self.convention is Convention.PLANNED
        return [
            waiting
            for waiting in self.in_order()
            if waiting.tried_until <= now and not (planned and waiting.start is not None)
        ][:DEPTH]

    def backfill(self) -> None:
        """Start jobs that fit into a gap and cancel their own reservations."""
        now = self.sim.now
        for waiting in self.candidates():
            processors = waiting.job.processors
            limit = now + waiting.request
            if limit <= self.free.free_until(now, processors):
                self.withdraw(waiting)
                self.free.reserve(now, limit, processors)
                self.begin(waiting, limit)

    def fill(self) -> None:
        """Start the small jobs that fit, in order of arrival."""
        now = self.sim.now
        self.free.forget(now)
        passed: list[_Waiting] = []
        while self.small and len(passed) < DEPTH and self.free.at(now):
            waiting = self.small.popleft()
            limit = now + waiting.request
            if limit <= self.free.free_until(now, waiting.job.processors):
                self.free.reserve(now, limit, waiting.job.processors)
                self.begin(waiting, limit)
            else:
                passed.append(waiting)
        self.small.extendleft(reversed(passed))

    def speculate(self) -> None:
        """Try jobs in gaps shorter than their requests ([SPEC] section 4.3)."""
        while (best := max(self.gaps(), default=None, key=lambda gap: gap[0])) is not None:
            _, waiting, limit = best
            self.free.reserve(self.sim.now, limit, waiting.job.processors)
            self.begin(waiting, limit, speculative=True)

    def gaps(self) -> Iterator[tuple[float, _Waiting, float]]:
        """Yield jobs that might complete in their gap: expected utilization G, the job, its limit.

        The gap of a job lasts as long as its p processors stay free, but not beyond its own
        reservation, d; it is as wide as the g processors that stay free meanwhile. G = p E[X; X <=
        d | X > outlived] / (g d).
        """
        now = self.sim.now
        for waiting in self.candidates():
            job = waiting.job
            limit = self.free.free_until(now, job.processors)
            if waiting.start is not None:
                limit = min(limit, waiting.start)
            if job.law is None or not now < limit < math.inf:
                continue
            work = job.processors * job.law.work_within(limit - now, after=waiting.outlived)
            if work > 0:
                yield work / (self.free.min_free(now, limit) * (limit - now)), waiting, limit
