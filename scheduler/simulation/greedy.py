"""Plan evictions by the heuristic that [COSIM] compares with, for one deadline."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.eviction.plan import Action, Number, Plan, RunningJob, check_jobs, exact


def greedy(jobs: Sequence[RunningJob], nodes: int, deadline: Number) -> Plan:
    """Checkpoint the jobs with the highest loss while time lasts, then kill those with the lowest.

    [COSIM] section IV-C, in time linear in the number of jobs, except the sort.
    It may lose more than it must, and may stop jobs that could run on.

    Raises:
        InputError: the jobs have fewer nodes; an id comes twice.

    With time for one checkpoint it saves the dear job, and then kills a cheap
    one although the dear one has nodes enough:

    >>> jobs = [RunningJob("dear", 2, 900, sys_time=3), RunningJob("cheap", 2, 100, sys_time=3)]
    >>> greedy(jobs, 4, 3).actions
    {'dear': 'sys', 'cheap': 'kill'}
    """
    check_jobs(jobs, nodes)
    by_loss = sorted(jobs, key=lambda job: job.loss, reverse=True)
    actions: dict[str, Action] = {}
    freed = 0
    time = exact(0)
    for job in by_loss:
        way = job.checkpoint_within(deadline)
        if freed >= nodes or way is None or time + exact(way[0]) > exact(deadline):
            break
        actions[job.id] = way[1]
        freed = freed + job.nodes
        time = time + exact(way[0])
    for job in reversed(by_loss):
        if freed >= nodes:
            break
        if job.id not in actions:
            actions[job.id] = "kill"
            freed += job.nodes
    return Plan.of(jobs, deadline, actions)
