"""Simulate the autoscaler on jobs that arrive over time ([ELASTIC] sections III-E and IV-C).

    outcome = simulate(jobs, Autoscaling(gpus=400, interval_min=0))

The event kernel is :mod:`scheduler.simulation.kernel`; all decisions are
:func:`scheduler.elastic.autoscaler.decide`'s. A job progresses at its scaling factor:
one of length 30 min on a factor of 1.5 ends after 20.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial

from scheduler.elastic.allocate import ScalingCurve
from scheduler.elastic.autoscaler import Autoscaling, ScaledJob, decide, next_decision
from scheduler.simulation.kernel import Event, Simulator

# Two moments closer than this (min) are one: what rounding does to the end of a job.
SAME_MOMENT = 1e-7


@dataclass(frozen=True, eq=False)
class ElasticJob:
    """A job to simulate.

    Args:
        arrival_min: when it arrives.
        length_min: how long it runs at a scaling factor of 1.
        curve: its scaling factors.
    """

    arrival_min: float
    length_min: float
    curve: ScalingCurve


@dataclass(frozen=True, slots=True)
class JobHolding:
    """A period in which a job had a number of GPUs; it progressed from ``steady_min`` on."""

    job: int
    gpus: int
    start_min: float
    steady_min: float
    end_min: float


@dataclass(frozen=True)
class Outcome:
    """The result of a simulation.

    Args:
        sjs_efficiency: scheduled job scaling efficiency: lengths of the completed jobs over the
            GPU-minutes held by all ([ELASTIC] section IV-C); NaN where none were held.
        drop_ratio: dropped jobs over arrived jobs.
        mean_completion_min: mean of ``completion_min`` over the completed jobs; NaN without any.
        completed: how many jobs completed.
        completion_min: end - arrival of each job, in the order given; None where it did not
            complete.
        dropped: which jobs were dropped.
        holdings: who held how many GPUs when, in order of their end.
        end_min: the time at which the simulation ended.
        rescales: how often a running job was resized.
        decisions: how many decisions each method of the optimizer made.
    """

    sjs_efficiency: float
    drop_ratio: float
    mean_completion_min: float
    completed: int
    completion_min: tuple[float | None, ...]
    dropped: tuple[int, ...]
    holdings: tuple[JobHolding, ...]
    end_min: float
    rescales: int
    decisions: dict[str, int]


def simulate(
    jobs: Sequence[ElasticJob], settings: Autoscaling, minutes: float = math.inf
) -> Outcome:
    """Run the autoscaler on jobs.

    Args:
        jobs: in any order; jobs with equal arrival times arrive in the given order.
        settings: the autoscaler's.
        minutes: when to end the simulation; jobs still running are not completed, but their GPUs
            count. By default the simulation ends with its last job.

    Returns:
        The outcome.
    """
    run = _Simulation(jobs, settings)
    run.sim.run(until=minutes)
    return run.outcome()


class _Kind(IntEnum):
    """The kinds of events at one moment, in this order."""

    COMPLETE = 0
    ARRIVE = 1
    DECIDE = 2


@dataclass(eq=False, slots=True, kw_only=True)
class _Run(ScaledJob):
    """A job that has arrived."""

    number: int
    work_min: float  # what is left of its length, as of start_min
    start_min: float = 0.0  # since when it has had these GPUs
    end: Event = field(init=False)

    @property
    def end_min(self) -> float:
        return self.steady_min + self.work_min / self.curve.factors[self.gpus - 1]


class _Simulation:
    def __init__(self, jobs: Sequence[ElasticJob], settings: Autoscaling) -> None:
        self.jobs = jobs
        self.settings = settings
        self.sim = Simulator()
        self.running: list[_Run] = []
        self.waiting: list[_Run] = []
        self.dropped: list[int] = []
        self.ended: dict[int, float] = {}
        self.holdings: list[JobHolding] = []
        self.rescales = 0
        self.decisions: Counter[str] = Counter()
        self._decision: Event | None = None
        for number, job in enumerate(jobs):
            self.sim.at(job.arrival_min, _Kind.ARRIVE, partial(self._arrive, number))

    # --- what happens ---

    def _arrive(self, number: int) -> None:
        job = self.jobs[number]
        self.waiting.append(_Run(number=number, curve=job.curve, work_min=job.length_min))
        self._decide_when_due()

    def _complete(self, run: _Run) -> None:
        self._release(run)
        self.running.remove(run)
        self.ended[run.number] = self.sim.now
        self._decide_when_due()

    def _decide(self) -> None:
        self._decision = None
        self._complete_what_is_due()
        if self._decision is not None:  # those completions are part of this decision
            self._decision.cancel()
            self._decision = None
        decision = decide(self.running, self.waiting, self.sim.now, self.settings)
        self.decisions[decision.method] += 1
        for run, gpus in zip(self.running, decision.running, strict=True):
            if gpus != run.gpus:
                self._resize(run, gpus)
        waiting = []
        for run, gpus in zip(self.waiting, decision.started, strict=True):
            if gpus:
                self._hold(run, gpus, pause_min=0.0)
                self.running.append(run)
            elif self.settings.drop or run.curve.min_gpus > self.settings.gpus:
                self.dropped.append(run.number)
            else:
                waiting.append(run)
        self.waiting = waiting
        if self.running and self.settings.interval_min and self.settings.effective_hold_min:
            self._decide_when_due(self.settings.interval_min)  # some may be free to change then

    # --- how it is done ---

    def _decide_when_due(self, from_now_min: float = 0.0) -> None:
        moment = next_decision(self.sim.now + from_now_min, self.settings.interval_min)
        if self._decision is not None and self._decision.time <= moment:
            return
        if self._decision is not None:
            self._decision.cancel()
        self._decision = self.sim.at(moment, _Kind.DECIDE, self._decide)

    def _complete_what_is_due(self) -> None:
        if self.sim.peek() > self.sim.now + SAME_MOMENT:
            return
        for run in [run for run in self.running if run.end_min <= self.sim.now + SAME_MOMENT]:
            run.end.cancel()
            self._complete(run)

    def _resize(self, run: _Run, gpus: int) -> None:
        run.end.cancel()
        self._release(run)
        self._hold(run, gpus, self.settings.rescale_cost_min)
        self.rescales += 1

    def _hold(self, run: _Run, gpus: int, pause_min: float) -> None:
        run.gpus = gpus
        run.start_min = self.sim.now
        run.steady_min = self.sim.now + pause_min
        run.end = self.sim.at(run.end_min, _Kind.COMPLETE, partial(self._complete, run))

    def _release(self, run: _Run) -> None:
        now = self.sim.now
        run.work_min -= run.curve.factors[run.gpus - 1] * max(0.0, now - run.steady_min)
        self.holdings.append(JobHolding(run.number, run.gpus, run.start_min, run.steady_min, now))

    # --- the results ---

    def outcome(self) -> Outcome:
        """Return the result, once the simulator has stopped."""
        self._complete_what_is_due()
        for run in self.running:
            self._release(run)
        gpu_minutes = math.fsum(h.gpus * (h.end_min - h.start_min) for h in self.holdings)
        done = math.fsum(self.jobs[number].length_min for number in self.ended)
        took = {number: end - self.jobs[number].arrival_min for number, end in self.ended.items()}
        arrived = len(self.ended) + len(self.running) + len(self.waiting) + len(self.dropped)
        return Outcome(
            sjs_efficiency=done / gpu_minutes if gpu_minutes else math.nan,
            drop_ratio=len(self.dropped) / arrived if arrived else 0.0,
            mean_completion_min=math.fsum(took.values()) / len(took) if took else math.nan,
            completed=len(took),
            completion_min=tuple(took.get(number) for number in range(len(self.jobs))),
            dropped=tuple(self.dropped),
            holdings=tuple(self.holdings),
            end_min=self.sim.now,
            rescales=self.rescales,
            decisions=dict(self.decisions),
        )
