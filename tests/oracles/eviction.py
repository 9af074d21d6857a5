"""The dynamic program of [COSIM] as printed, and the search that the paper compares it with.

Each answers for one deadline and knows nothing of the others, except :func:`algorithm_1`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate
from typing import NamedTuple

from scheduler.eviction.plan import CHECKPOINTS, Action, Number, Plan, RunningJob, check_jobs, exact


def branch_and_bound(
    jobs: Sequence[RunningJob], nodes: int, deadline: Number, most_visits: int | None = None
) -> Plan | None:
    """Try every choice for every job, and drop a branch that cannot beat the best plan so far.

    [COSIM] section IV-C calls it backtracking. Exact, and exponential in the
    number of jobs.

    Args:
        jobs: as for :func:`scheduler.eviction.plan.plan_evictions`; decided on in their order,
            which makes a great difference: the largest first is best.
        nodes, deadline: as there.
        most_visits: branches after which to give up; None is never.

    Returns:
        The best plan; None after too many visits.

    Raises:
        InputError: the jobs have fewer nodes; an id comes twice.
    """
    check_jobs(jobs, nodes)
    search = _Search(jobs, nodes, exact(deadline), most_visits)
    search.visit(0, 0, _Cost(), ())
    return None if search.gave_up else Plan.of(jobs, deadline, dict(search.actions))


class _Cost(NamedTuple):
    """The criteria of a plan, in this order."""

    loss: int | Fraction = 0
    time: int | Fraction = 0
    free_kills: int = 0
    system: int = 0
    stopped: int = 0

    def with_(self, job: RunningJob, action: Action) -> _Cost:
        """Return the cost with one more stopped job."""
        if action == "kill":
            return _Cost(
                self.loss + exact(job.loss),
                self.time,
                self.free_kills + (job.loss == 0),
                self.system,
                self.stopped + 1,
            )
        return _Cost(
            self.loss,
            self.time + exact(job.time(action)),
            self.free_kills,
            self.system + (action == "sys"),
            self.stopped + 1,
        )


@dataclass
class _Search:
    jobs: Sequence[RunningJob]
    nodes: int
    deadline: int | Fraction
    most_visits: int | None
    visits: int = 0
    gave_up: bool = False
    best: _Cost | None = None
    actions: tuple[tuple[str, Action], ...] = ()
    later: list[int] = field(init=False)  # nodes of the jobs from each one on

    def __post_init__(self) -> None:
        self.later = [*accumulate(job.nodes for job in reversed(self.jobs))][::-1] + [0]

    def visit(
        self, index: int, freed: int, cost: _Cost, actions: tuple[tuple[str, Action], ...]
    ) -> None:
        self.visits += 1
        if self.most_visits is not None and self.visits > self.most_visits:
            self.gave_up = True
        if (
            self.gave_up
            or cost.time > self.deadline
            or freed + self.later[index] < self.nodes
            or (self.best is not None and cost >= self.best)
        ):
            return
        if freed >= self.nodes:
            self.best, self.actions = cost, actions
            return
        job = self.jobs[index]
        for action in (*CHECKPOINTS, "kill"):
            if job.time(action) is not None:
                self.visit(
                    index + 1,
                    freed + job.nodes,
                    cost.with_(job, action),
                    (*actions, (job.id, action)),
                )
        self.visit(index + 1, freed, cost, actions)


def algorithm_1(jobs: Sequence[RunningJob], nodes: int, deadline: int) -> list[Plan]:
    """Run [COSIM] Algorithm 1 as printed: a table over freed nodes and time, in whole times.

    One thing is not as printed: the last line takes the argmin over nodes and
    times, and where losses are equal an argmin in the order of nodes may return
    a plan that takes longer. Here it compares loss, then time. Beyond these two
    the printed algorithm has no rule for ties.

    Returns:
        The best plan for each deadline 0, 1, ... ``deadline``.

    Raises:
        InputError: the jobs have fewer nodes; an id comes twice.
    """
    check_jobs(jobs, nodes)
    table: dict[tuple[int, int], _Cell] = {(0, 0): _Cell(0, ())}
    for job in jobs:
        following = dict(table)
        for (freed, time), cell in table.items():
            for action in ("kill", *CHECKPOINTS):
                takes, loses = job.time(action), job.loss if action == "kill" else 0
                if takes is None or time + takes > deadline:
                    continue
                at = (freed + job.nodes, time + int(takes))
                if at not in following or following[at].loss > cell.loss + loses:
                    following[at] = _Cell(cell.loss + loses, (*cell.actions, (job.id, action)))
        table = following
    plans = []
    for moment in range(deadline + 1):
        in_time = [
            (cell.loss, time, cell.actions)
            for (freed, time), cell in table.items()
            if freed >= nodes and time <= moment
        ]
        plans.append(
            Plan.of(jobs, moment, dict(min(in_time, key=lambda candidate: candidate[:2])[2]))
        )
    return plans


class _Cell(NamedTuple):
    """The best known way to free a number of nodes in a time."""

    loss: Number
    actions: tuple[tuple[str, Action], ...]
