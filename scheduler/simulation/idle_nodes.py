"""Replay a trace of idle nodes: what would trainers have done on them?

The decisions of :mod:`scheduler.idle.allocate` are taken at each change of the trace,
on the event kernel of the project. What is counted, and how, follows BFTrainer
(Liu et al., arXiv:2106.12091, section 4) and its published replayer:

- A trainer on ``n`` nodes does ``samples(n)`` per second. A change of its number of nodes from
  ``c`` costs the samples that it would have done on ``c`` nodes in ``up_s`` or ``down_s`` seconds
  (rescale cost). If some of its nodes leave, it first loses the samples of ``down_s`` seconds on
  its previous nodes (preemption cost), once however many leave. Both are subtracted at once, so the
  samples of a trainer can decrease.
- At most ``max_parallel`` trainers take part, first come first served; a trainer that takes part
  may wait on no nodes. Its time runs from its admission to its last sample.
- The published replayer decides at changes of the trace only: a completed trainer holds its nodes
  until the next one. The paper's text also decides when a trainer completes or a new one can take
  part: ``completions_are_events``.
- Efficiency is the outcome divided by the best outcome of the same trainers, at no cost, on
  dedicated nodes: as many as were idle on average, for as long (:func:`efficiency`).
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from launch.errors import InputError
from scheduler.base import MAX_VALUE, check_range
from scheduler.idle import allocate as sharing
from scheduler.simulation.idle_trace import ProgressCallback, Trace, TrainerJob, with_objective
from scheduler.simulation.kernel import Event, Simulator

Policy = Callable[[Sequence[sharing.Trainer], Sequence[int], int, float], sharing.Counts]
Placement = Callable[[sharing.IntArray, Mapping[int, int]], sharing.IntArray]

POLICIES: dict[str, Policy] = {
    "equal": sharing.allocate_equally,
    "equal-as-published": sharing.allocate_equally_as_published,
    "exact": sharing.allocate,
}
PROGRESS_EVERY = 256  # changes of the trace

PLACEMENTS: dict[str, Placement] = {
    "index": sharing.place_by_index,
    "order": sharing.place_in_order,
}


@dataclass(frozen=True)
class Settings:
    """The settings of a replay.

    Attributes:
        policy: how many nodes each trainer gets.
        horizon_s: the forward-looking time that the policy is given.
        max_parallel: the number of trainers at a time.
        completions_are_events: decide anew also when a trainer is done or submitted.
        placement: which nodes; ``place_in_order`` expects a trace whose nodes are arranged by name.
    """

    policy: Policy = sharing.allocate
    horizon_s: float = 120.0
    max_parallel: int = 10
    completions_are_events: bool = False
    placement: Placement = sharing.place_by_index

    def __post_init__(self) -> None:
        if self.max_parallel < 1:
            raise InputError(
                f"max_parallel is {self.max_parallel}; at least 1 trainer must take part"
            )
        check_range("the horizon", self.horizon_s, 0, MAX_VALUE, "s")


@dataclass(frozen=True)
class TrainerRecord:
    """The record of a trainer that took part.

    Attributes:
        job: number of its job.
        started_s: when it first took part.
        ended_s: when its last sample was done; None where the replay ended first.
        samples: how many it did, costs taken off.
    """

    job: int
    started_s: float
    ended_s: float | None
    samples: float


@dataclass(frozen=True)
class ReplayResult:
    """The result of a replay.

    Attributes:
        end_s: how long it lasted.
        trainers: one for each that took part, by job.
        preemption_cost: samples lost to nodes that left.
        rescale_cost: samples lost to decisions.
        times_s: when nodes were shared out or a trainer was done, and the end (D,).
        idle: idle nodes from then on (D,).
        used: those of them that trainers had (D,).
        outcome: what was done until then, in units of the objective (D,).
    """

    end_s: float
    trainers: tuple[TrainerRecord, ...]
    preemption_cost: float
    rescale_cost: float
    times_s: sharing.FloatArray
    idle: sharing.IntArray
    used: sharing.IntArray
    outcome: sharing.FloatArray

    @property
    def completed(self) -> int:
        """The number of completed trainers."""
        return sum(record.ended_s is not None for record in self.trainers)

    @property
    def mean_trainer_hours(self) -> float:
        """Mean hours of the completed trainers; NaN if there are none."""
        hours = [
            (record.ended_s - record.started_s) / 3600
            for record in self.trainers
            if record.ended_s is not None
        ]
        if hours:
            return float(np.mean(hours))
        return math.nan

    def outcome_until(self, time_s: float | sharing.FloatArray) -> sharing.FloatArray:
        """Return the outcome at a time, in units of the objective; linear between entries."""
        return np.interp(time_s, self.times_s, self.outcome)


@dataclass(frozen=True)
class Summary:
    """The key figures of a replay, in the format that commands share.

    Attributes:
        efficiency: see :func:`efficiency`.
        node_hours: idle nodes, integrated over the whole trace (Eq. 17).
        equivalent_nodes: the number of dedicated nodes with as many node-hours (Eq. 18).
        preemption_cost_samples: samples lost to nodes that left.
        rescale_cost_samples: samples lost to decisions.
        completed: trainers that were done.
        mean_trainer_hours: mean time of those.
        events: changes of the trace.
        wall_s: seconds that all this took, where that was measured.
    """

    efficiency: float
    node_hours: float
    equivalent_nodes: float
    preemption_cost_samples: float
    rescale_cost_samples: float
    completed: int
    mean_trainer_hours: float
    events: int
    wall_s: float = math.nan


def replay(
    trace: Trace,
    jobs: Sequence[TrainerJob],
    settings: Settings,
    on_progress: ProgressCallback = lambda done, total: None,
) -> ReplayResult:
    """Replay a trace.

    Args:
        trace: the idle nodes over time.
        jobs: the trainers, by time of submission.
        settings: the settings of the decisions.
        on_progress: called from time to time with the replayed changes of the trace and their
            total.

    Returns:
        What happened.
    """
    return _Replay(trace, jobs, settings, on_progress).run()


def efficiency(
    trace: Trace, jobs: Sequence[TrainerJob], replayed: ReplayResult, max_parallel: int
) -> float:
    """Compute the resource utilization efficiency U = A_e / A_s (section 4.1.2 of the paper).

    A_e is the outcome of the replay, A_s that of the same jobs on dedicated nodes, as many as were
    idle on average, allocated optimally at no cost, for as long; both in units of the objective. If
    all jobs complete before the trace ends, only the time until then counts. If they complete even
    earlier on the dedicated nodes, A_s continues at its mean rate.

    Args:
        trace: the replayed trace.
        jobs: the replayed jobs.
        replayed: the result of the replay.
        max_parallel: the number of trainers at a time, also on the dedicated nodes.

    Returns:
        U; NaN if dedicated nodes do nothing either, as without work.
    """
    ends = [record.ended_s for record in replayed.trainers if record.ended_s is not None]
    end_s = max(ends) if len(ends) == len(jobs) else replayed.end_s
    if end_s == 0:
        return math.nan
    best = static_outcome(jobs, trace.node_seconds(end_s) / end_s, end_s, max_parallel)
    if best > 0:
        return float(replayed.outcome_until(end_s)) / best
    return math.nan


def static_outcome(
    jobs: Sequence[TrainerJob], nodes: float, seconds: float, max_parallel: int
) -> float:
    """Compute the best outcome of jobs on dedicated nodes, in units of the objective.

    Args:
        jobs: by time of submission.
        nodes: how many; a fraction f of a node is one that is there for f of the time.
        seconds: the duration.
        max_parallel: the number of trainers at a time.

    Returns:
        The outcome, carried on at its mean rate where all jobs are done earlier.
    """
    whole_nodes = int(nodes)
    part = nodes - int(nodes)
    low = _static_outcome(jobs, whole_nodes, seconds, max_parallel)
    if part == 0:
        return low
    return (1 - part) * low + part * _static_outcome(jobs, whole_nodes + 1, seconds, max_parallel)


def _static_outcome(
    jobs: Sequence[TrainerJob], nodes: int, seconds: float, max_parallel: int
) -> float:
    if nodes == 0:
        return 0.0
    free_of_charge = with_objective(jobs, "file", rescale_factor=0.0)
    settings = Settings(max_parallel=max_parallel, completions_are_events=True)
    done = replay(Trace.constant(nodes, seconds), free_of_charge, settings)
    ends = [record.ended_s for record in done.trainers if record.ended_s is not None]
    total = float(done.outcome[-1])
    if len(ends) < len(jobs) or max(ends) == 0:
        return total
    return total * seconds / max(ends)


def summarize(
    trace: Trace, jobs: Sequence[TrainerJob], settings: Settings, replayed: ReplayResult
) -> Summary:
    """Return the key figures of a replay; the caller adds the time that it took."""
    node_seconds = trace.node_seconds()
    return Summary(
        efficiency(trace, jobs, replayed, settings.max_parallel),
        node_seconds / 3600,
        node_seconds / trace.end_s,
        replayed.preemption_cost,
        replayed.rescale_cost,
        replayed.completed,
        replayed.mean_trainer_hours,
        len(trace.times_s),
    )


# --- The simulation -----------------------------------------------------------------------------


class _Kind(IntEnum):
    """The kinds of events at one moment, in this order: work is done before its nodes leave."""

    COMPLETION = 0
    CHANGE = 1
    SUBMISSION = 2
    DECISION = 3


@dataclass(slots=True)
class _Active:
    """A trainer that takes part."""

    number: int
    job: TrainerJob
    started_s: float
    nodes: int = 0
    done: float = 0.0  # samples, costs taken off
    outcome: float = 0.0  # the same in units of the objective
    ended_s: float | None = None

    @property
    def rate(self) -> float:
        """Samples per second."""
        if self.ended_s is not None:
            return 0.0
        return float(self.job.sample_rates[self.nodes])

    @property
    def gain(self) -> float:
        """Objective per second."""
        if self.ended_s is not None:
            return 0.0
        return float(self.job.trainer.rates[self.nodes])

    def work(self, seconds: float) -> float:
        """Work for some seconds, backwards if negative; return the samples."""
        samples = self.rate * seconds
        self.done += samples
        self.outcome += self.gain * seconds
        return samples


class _Replay:
    def __init__(
        self,
        trace: Trace,
        jobs: Sequence[TrainerJob],
        settings: Settings,
        on_progress: ProgressCallback,
    ) -> None:
        self.trace = trace
        self.jobs = jobs
        self.settings = settings
        self.on_progress = on_progress
        self.sim = Simulator()
        self.owner: sharing.IntArray = np.full(trace.size, sharing.BUSY, dtype=np.int64)
        self.idle = 0
        self.active: list[_Active] = []
        self.finished: list[_Active] = []
        self.admitted = 0
        self.settled_s = 0.0
        self.next_change_s = math.inf
        self.preemption_cost = self.rescale_cost = 0.0
        self.finished_outcome = 0.0
        self.completion: Event | None = None
        # Time, idle nodes, used ones, outcome: columns that take 32 bytes a note, for traces of
        # millions of changes.
        self.timeline = (array("d"), array("q"), array("q"), array("d"))

    def run(self) -> ReplayResult:
        self._schedule_change(0)
        if self.settings.completions_are_events:
            for time in sorted({job.submit_s for job in self.jobs}):
                self.sim.at(time, _Kind.SUBMISSION, self._submit)
        while self.sim.peek() <= self.trace.end_s:
            self.sim.step()
        self._settle(self.trace.end_s)
        self._note(self.trace.end_s)
        everyone = sorted(self.finished + self.active, key=lambda trainer: trainer.number)
        records = tuple(
            TrainerRecord(trainer.number, trainer.started_s, trainer.ended_s, trainer.done)
            for trainer in everyone
        )
        times, idle, used, outcome = self.timeline
        return ReplayResult(
            self.trace.end_s,
            records,
            self.preemption_cost,
            self.rescale_cost,
            np.frombuffer(times),
            np.frombuffer(idle, np.int64),
            np.frombuffer(used, np.int64),
            np.frombuffer(outcome),
        )

    # What happens.

    def _schedule_change(self, index: int) -> None:
        self.next_change_s = math.inf
        if index < len(self.trace.times_s):
            self.next_change_s = float(self.trace.times_s[index])
            self.sim.at(self.next_change_s, _Kind.CHANGE, lambda: self._change(index))

    def _change(self, index: int) -> None:
        """Apply one change of the trace: nodes leave and join."""
        if index % PROGRESS_EVERY == 0:
            self.on_progress(index, len(self.trace.times_s))
        self._settle(self.sim.now)
        rows = slice(self.trace.starts[index], self.trace.starts[index + 1])
        nodes = self.trace.nodes[rows]
        joined = self.trace.joined[rows]
        leaving = nodes[~joined]
        joining = nodes[joined]
        nodes_lost = Counter(self.owner[leaving].tolist())
        for trainer in self.active:
            if nodes_lost[trainer.number]:
                self.preemption_cost -= trainer.work(-trainer.job.trainer.down_s)
                trainer.nodes -= nodes_lost[trainer.number]
        self.owner[leaving] = sharing.BUSY
        self.owner[joining] = sharing.FREE
        self.idle += len(joining) - len(leaving)
        self._decide_soon()
        self._schedule_change(index + 1)

    def _submit(self) -> None:
        """Submit a trainer; it may have to wait its turn."""
        if len(self.active) < self.settings.max_parallel:
            self._decide_soon()

    def _complete(self, trainer: _Active) -> None:
        """Complete a trainer that has done its last sample."""
        self._settle(self.sim.now)
        trainer.done = trainer.job.total_samples
        trainer.ended_s = self.sim.now
        self._note(self.sim.now)
        if self.settings.completions_are_events:
            self._decide_soon()
        self._await_completion()

    def _decide_soon(self) -> None:
        """Decide after everything else at this moment."""
        self.sim.soon(_Kind.DECISION, self._decide)

    def _decide(self) -> None:
        """Allocate the idle nodes anew."""
        self._settle(self.sim.now)
        self._retire()
        self._admit()
        if self.active:
            trainers = [trainer.job.trainer for trainer in self.active]
            current = [trainer.nodes for trainer in self.active]
            self._rescale(
                self.settings.policy(trainers, current, self.idle, self.settings.horizon_s)
            )
        self._note(self.sim.now)
        self._await_completion()

    # What that takes.

    def _settle(self, now: float) -> None:
        """Let the trainers work until now."""
        seconds = now - self.settled_s
        self.settled_s = now
        if seconds > 0:
            for trainer in self.active:
                trainer.work(seconds)

    def _retire(self) -> None:
        for trainer in [trainer for trainer in self.active if trainer.ended_s is not None]:
            self.active.remove(trainer)
            self.finished.append(trainer)
            self.finished_outcome += trainer.outcome
            self.owner[self.owner == trainer.number] = sharing.FREE

    def _admit(self) -> None:
        while (
            len(self.active) < self.settings.max_parallel
            and self.admitted < len(self.jobs)
            and self.jobs[self.admitted].submit_s <= self.sim.now
        ):
            trainer = _Active(self.admitted, self.jobs[self.admitted], self.sim.now)
            if trainer.job.total_samples == 0:  # done before it needs a node
                trainer.ended_s = self.sim.now
                self.finished.append(trainer)
            else:
                self.active.append(trainer)
            self.admitted += 1

    def _rescale(self, counts: sharing.Counts) -> None:
        changed = [
            (trainer, count)
            for trainer, count in zip(self.active, counts, strict=True)
            if count != trainer.nodes
        ]
        for trainer, count in changed:
            seconds = trainer.job.trainer.rescale_s(trainer.nodes, count)
            self.rescale_cost -= trainer.work(-seconds)
            trainer.nodes = count
        if changed:
            nodes_of = {trainer.number: trainer.nodes for trainer in self.active}
            self.owner = self.settings.placement(self.owner, nodes_of)

    def _await_completion(self) -> None:
        """Schedule the next completion, if it comes before the trace changes."""
        if self.completion is not None:
            self.completion.cancel()
            self.completion = None
        ends = [
            (
                self.sim.now + max(0.0, trainer.job.total_samples - trainer.done) / trainer.rate,
                trainer,
            )
            for trainer in self.active
            if trainer.rate > 0
        ]
        if ends:
            end_s, first = min(ends, key=lambda item: item[0])
            if end_s <= self.next_change_s:
                self.completion = self.sim.at(
                    end_s, _Kind.COMPLETION, lambda: self._complete(first)
                )

    def _note(self, now: float) -> None:
        used = sum(trainer.nodes for trainer in self.active)
        outcome = self.finished_outcome + sum(trainer.outcome for trainer in self.active)
        times, idles, uses, outcomes = self.timeline
        times.append(now)
        idles.append(self.idle)
        uses.append(used)
        outcomes.append(outcome)
