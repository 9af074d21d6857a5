"""Decide step by step which jobs save or stop, so that nodes are free by a deadline.

A plan says which jobs make room and how; here it becomes actions, one snapshot of the machine after
the other. Jobs save one after the other, as the plan assumes, the quickest first. Jobs that lose
work are stopped last, because a job may end by itself before, so that others need not stop. A new
plan is made for the remaining time when a job ends by itself, saves earlier than planned, does not
obey or has changed, and when another job has taken free nodes.

These functions use neither a clock nor a batch system.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from launch.errors import InputError
from scheduler.eviction.plan import Action, RunningJob, check_jobs, plan_evictions

GRAIN = 0.1  # minutes to whose multiples the remaining time is rounded down
AGAIN_MIN = 2.0  # after which a job that was stopped and still holds its nodes is stopped again

StepKind = Literal[
    "plan", "yield", "shrunk", "save", "stop", "freed", "ended", "deaf", "enough", "short"
]


@dataclass(frozen=True)
class Step:
    """An action, or an event to report.

    Args:
        kind: an action: ``yield``: ask the job to give some nodes back and continue; ``save``: ask
            the job to save now; ``stop``: requeue or cancel it. Or an event: a ``plan`` was made; a
            job has ``shrunk`` by some nodes, has ``freed`` its nodes as planned, or has ``ended``
            by itself; it is ``deaf``: it did not end in time; there is ``enough``, so no further
            job has to stop; or the remaining jobs are too ``short`` of nodes.
        job: the job; empty if it concerns all.
        until_min: the minute by which it will have saved.
        nodes: the number of nodes to release.
        actions: the actions of a plan.
        detail: details as text.
    """

    kind: StepKind
    job: str = ""
    until_min: float = 0.0
    actions: Mapping[str, Action] | None = None
    detail: str = ""
    nodes: int = 0

    @property
    def is_action(self) -> bool:
        """Return True if the step is an action to carry out."""
        return self.kind in ("yield", "save", "stop")


class Eviction:
    """One eviction, from the first snapshot of the machine to the last.

    Args:
        nodes: nodes of running jobs to free.
        deadline_min: minutes from the first look.
        margin_min: minutes before the deadline at which jobs are stopped.
        saves_on_request: jobs that save on request; others save by themselves, and are stopped
            then.
        yielding: jobs that can give back all their nodes but one and continue: they are asked
            first, because that loses nothing; once each, one per look, the largest first.

    Raises:
        InputError: a number is out of range.
    """

    def __init__(
        self,
        nodes: int,
        deadline_min: float,
        margin_min: float,
        saves_on_request: Collection[str] = (),
        yielding: Collection[str] = (),
    ) -> None:
        self.nodes = nodes
        self.deadline_min = deadline_min
        self.saves_on_request = set(saves_on_request)
        # The deadline of first actions on jobs that lose work.
        self.last_min = float(max(0, deadline_min - margin_min))
        self.freed = 0
        self.actions: dict[str, Action] = {}  # planned and not started
        self._is_planned = False  # and the machine has not deviated from the plan
        self._can_yield = set(yielding)
        self._yielding: dict[str, int] = {}
        self._nodes_held: dict[str, int] = {}
        self._saving: dict[str, float] = {}
        self._stopped: dict[str, float] = {}
        self._unresponsive: set[str] = set()
        self._is_short = self._has_looked = False

    @property
    def is_done(self) -> bool:
        """Return True if the nodes are free."""
        return self.freed >= self.nodes

    def next_steps(
        self, now_min: float, jobs: Sequence[RunningJob], nodes_held: Mapping[str, int]
    ) -> list[Step]:
        """Return what has happened since the last call, and what to do now.

        Args:
            now_min: minutes since the first look.
            jobs: jobs that may be asked to make room, with their current losses.
            nodes_held: nodes of all jobs that hold any, including ending ones.

        Returns:
            The events since the last look, and the actions.

        Raises:
            InputError: at the first look: all jobs together have fewer nodes.
        """
        if not self._has_looked:
            self._has_looked = True
            check_jobs(jobs, self.nodes)
        steps = [*self._note_freed(now_min, nodes_held), *self._note_overdue(now_min, nodes_held)]
        if self.is_done:
            return steps
        coming = sum(nodes_held[job] for job in (*self._saving, *self._stopped)) + sum(
            self._yielding.values()
        )
        need = self.nodes - self.freed - coming
        request = self._ask_one(now_min, jobs, need)
        if request is not None:
            # Its answer may take long, and the other actions depend on it.
            return [*steps, request]
        busy = self._yielding.keys() | self._saving.keys() | self._stopped.keys()
        free_to_act = [
            replace(
                job, app_time=None if job.id in self._unresponsive else job.app_time, sys_time=None
            )
            for job in jobs
            if job.id not in busy
        ]
        if not self.actions.keys() <= {job.id for job in free_to_act}:
            self._is_planned = False  # a job of the plan may no longer be a candidate
        if need <= 0:
            if self.actions:
                steps.append(Step("enough", detail=f"{', '.join(self.actions)} can go on"))
            self.actions = {}
        elif not (self._is_planned and self.actions):
            steps += self._plan(now_min, free_to_act, need)
        return [*steps, *self._acts(now_min, {job.id: job for job in free_to_act})]

    def cancel_action(self, job: str) -> None:
        """Record that an action was not possible: the job has changed or gives no nodes back."""
        self._yielding.pop(job, None)
        self._saving.pop(job, None)
        self._stopped.pop(job, None)
        self._is_planned = False

    def add_job(self, job: str, nodes: int, saves_on_request: bool) -> None:
        """Add a new job that has taken free nodes; it may be asked in turn.

        Args:
            nodes: number of free nodes that the job now holds.
            saves_on_request: whether it saves on request.
        """
        self.freed -= nodes
        self._nodes_held[job] = nodes
        self._is_planned = False
        if saves_on_request:
            self.saves_on_request.add(job)

    # --- what has happened ---

    def _note_freed(self, now_min: float, nodes_held: Mapping[str, int]) -> list[Step]:
        steps = []
        for job in self._nodes_held.keys() - nodes_held.keys():
            self.freed += self._nodes_held[job]
            as_planned = job in self._saving or job in self._stopped
            if now_min < self._saving.pop(job, now_min) - GRAIN:
                self._is_planned = (
                    False  # there may be time for another to save that was to be stopped
                )
            self._stopped.pop(job, None)
            self._yielding.pop(job, None)
            steps.append(Step("freed" if as_planned else "ended", job))
            if not as_planned:
                self._is_planned = False
        for job in self._nodes_held.keys() & nodes_held.keys():
            fewer = self._nodes_held[job] - nodes_held[job]
            if fewer > 0:
                self.freed += fewer
                self._yielding.pop(job, None)
                steps.append(Step("shrunk", job, nodes=fewer, detail=f"{fewer} nodes"))
        self._nodes_held = dict(nodes_held)
        return sorted(steps, key=lambda step: step.job)

    def _note_overdue(self, now_min: float, nodes_held: Mapping[str, int]) -> list[Step]:
        steps = []
        for job in [job for job, until in self._saving.items() if now_min >= until]:
            del self._saving[job]
            if job in self.saves_on_request:
                self._unresponsive.add(job)
                self._is_planned = False
                steps.append(Step("deaf", job, detail="it still holds its nodes"))
            else:
                steps.append(self._stop(job, now_min, "it has saved by itself"))
        for job in [job for job, since in self._stopped.items() if now_min >= since + AGAIN_MIN]:
            steps.append(self._stop(job, now_min, "it still holds its nodes"))
        return steps

    # --- what to do ---

    def _ask_one(self, now_min: float, jobs: Sequence[RunningJob], need: int) -> Step | None:
        """Ask the largest shrinkable job to give nodes back, if there is time to do without."""
        for job in sorted(jobs, key=lambda job: (-job.nodes, job.id)):
            count = min(need, job.nodes - 1)
            if (
                job.id not in self._can_yield
                or count < 1
                or job.id in self._saving
                or job.id in self._stopped
            ):
                continue
            self._can_yield.discard(job.id)
            until = now_min + (self.last_min - now_min) / 2
            if until > now_min + GRAIN:
                self._yielding[job.id] = count
                return Step(
                    "yield", job.id, until_min=until, detail=f"{count} of {job.nodes}", nodes=count
                )
        return None

    def _plan(self, now_min: float, jobs: Sequence[RunningJob], need: int) -> list[Step]:
        begin = max([now_min, *self._saving.values()])  # one saves at a time
        remaining = max(0.0, math.floor((self.last_min - begin) / GRAIN + 1e-6) * GRAIN)
        try:
            check_jobs(jobs, need)
        except InputError as error:
            was_short = self._is_short
            self._is_short = True
            self.actions = {}
            if was_short:
                return []
            return [Step("short", detail=str(error))]
        before = self.actions
        self._is_short = False
        self._is_planned = True
        plan = plan_evictions(jobs, need, round(remaining, 6), step=round(remaining, 6) or 1)[-1]
        self.actions = dict(plan.actions)
        if before == self.actions:
            return []
        return [
            Step(
                "plan",
                actions=dict(plan.actions),
                until_min=begin + plan.checkpoint_time,
                detail=f"{plan.nodes} nodes, {plan.loss / 3600:.1f} node-hours are lost",
            )
        ]

    def _acts(self, now_min: float, jobs: Mapping[str, RunningJob]) -> list[Step]:
        steps: list[Step] = []
        saves = sorted(
            (job for job, action in self.actions.items() if action != "kill"),
            key=lambda job: (jobs[job].app_time or 0, job),
        )
        if saves and not self._saving:
            job = saves[0]
            until = now_min + float(jobs[job].app_time or 0)
            if until > self.last_min + GRAIN:  # looks take time, too
                self._is_planned = False
                return steps
            del self.actions[job]
            self._saving[job] = until
            steps.append(Step("save", job, until_min=until))
        if now_min >= self.last_min:
            steps += [
                self._stop(job, now_min, "it loses least")
                for job, action in [*self.actions.items()]
                if action == "kill"
            ]
        return steps

    def _stop(self, job: str, now_min: float, detail: str) -> Step:
        self.actions.pop(job, None)
        self._stopped[job] = now_min
        return Step("stop", job, detail=detail)


def dry_run(jobs: Sequence[RunningJob], eviction: Eviction) -> list[tuple[float, Step]]:
    """Return the steps, with their minutes, if every job obeys and none ends by itself.

    >>> jobs = [RunningJob("a", 2, 7200, app_time=3), RunningJob("b", 2, 100)]
    >>> jobs.append(RunningJob("c", 4, 90000, app_time=4))
    >>> steps = dry_run(jobs, Eviction(6, 6, margin_min=1))
    >>> [(minute, step.kind, step.job) for minute, step in steps[:3]]
    [(0.0, 'plan', ''), (0.0, 'save', 'c'), (4.0, 'freed', 'c')]
    >>> [(minute, step.kind, step.job) for minute, step in steps[3:]]
    [(5.0, 'stop', 'b'), (5.0, 'freed', 'b')]
    """
    now = 0.0
    running = {job.id: job for job in jobs}
    steps = []
    ends: dict[str, float] = {}
    while not eviction.is_done:
        for job in [job for job, end in ends.items() if end <= now]:
            del running[job], ends[job]
        taken_steps = eviction.next_steps(
            now, list(running.values()), {job.id: job.nodes for job in running.values()}
        )
        steps += [(now, step) for step in taken_steps]
        running |= {
            step.job: replace(running[step.job], nodes=running[step.job].nodes - step.nodes)
            for step in taken_steps
            if step.kind == "yield"
        }
        ends |= {
            step.job: step.until_min if step.kind == "save" else now
            for step in taken_steps
            if step.kind in ("save", "stop")
        }
        if all(step.kind != "yield" for step in taken_steps):
            now = min(ends.values(), default=max(now, eviction.last_min))
    return steps
