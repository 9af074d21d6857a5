"""Which jobs to hand in next, and which to take back, where several runs share the idle nodes of a site (pure).

A job is for networks that no job will train otherwise: neither one that waits, nor one that runs and has room for
more. A run of which nothing is measured gets a node before all others. The nodes that are idle then are shared out by
:func:`scheduler.idle.allocate.allocate`, the exact optimum of [BFTrainer]'s objective (Liu et al., arXiv:2106.12091,
Eq. 16). A run gains by a node the share of its remaining work that the node does: samples of two runs are worth
different things, and a run is done when all of its samples are. Of the k-th node of a run that counts for a k-th, so
that no run waits for the end of another. Launches that are at work are not disturbed by further ones, so what a new one
costs is its own start: of a gap of ``gap_s`` seconds it trains for all but ``start_s``.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Annotated, TypeAlias

from pydantic import Field

from scheduler.idle.allocate import RateCurve, Trainer, allocate

LEAST_SHARE = 0.05  # of a gap: gaps that were shorter than a start may become longer


@dataclass(frozen=True)
class HarvestLimits:
    """What the user asks for.

    Attributes:
        nodes_per_job: of a job, at most.
        backlog: jobs that wait in the queue, at most.
        max_jobs: jobs that wait or run, at most.
        fruitless: launches in a row without an epoch after which a run is given up.
        passing: the same of launches that were ended by what may pass, such as a full disk.
    """

    nodes_per_job: int = 1
    backlog: int = 2
    max_jobs: Annotated[int, Field(alias="most")] = 32  # the key of `harvest.json`
    fruitless: int = 3
    passing: int = 10


@dataclass(frozen=True)
class HarvestState:
    """A run, as its folder and the queue show it.

    Attributes:
        name: that no other run of the harvest has.
        waiting: networks that are not over, and that no launch holds.
        training: networks that a launch holds.
        per_node: networks that a node trains at once.
        rate: samples/s of a network, on average; None where none was measured yet.
        start_s: seconds from the beginning of a launch to its first step.
        fruitless_launches: launches in a row without an epoch.
        queued: the ids of its jobs that wait in the queue, and the nodes of each.
        running: number of its jobs that run.
        is_cancelled: whether the user wants no more jobs.
        spare: networks that the jobs which run can take beside those that they hold.
        nodes: of the jobs that run.
        samples_left: samples that its networks are still to be trained on.
        transient_failures: launches in a row without an epoch that were ended by what may pass.
    """

    name: str
    waiting: int
    training: int = 0
    per_node: int = 1
    rate: float | None = 1.0
    start_s: float = 0.0
    fruitless_launches: int = 0
    queued: tuple[tuple[str, int], ...] = ()
    running: int = 0
    is_cancelled: bool = False
    spare: int = 0
    nodes: int = 0
    samples_left: float = 1.0
    transient_failures: int = 0

    @property
    def is_over(self) -> bool:
        """Whether all its networks are over."""
        return not (self.waiting or self.training)

    @property
    def unserved(self) -> int:
        """The networks that neither the jobs in the queue will train, nor those that run have room for."""
        return max(
            0, self.waiting - self.spare - self.per_node * sum(nodes for _, nodes in self.queued)
        )

    @property
    def surplus_jobs(self) -> tuple[str, ...]:
        """The jobs in the queue that would find nothing to train: those that were handed in last."""
        found = []
        left = self.waiting - self.spare
        for job, nodes in self.queued:
            if left <= 0:
                found.append(job)
            left -= self.per_node * nodes
        return tuple(found)


@dataclass(frozen=True)
class Submit:
    """Hand in a job for a run."""

    name: str
    nodes: int


@dataclass(frozen=True)
class Cancel:
    """Take back a job that waits."""

    name: str
    job: str


Order: TypeAlias = Submit | Cancel


def plan_orders(
    runs: Sequence[HarvestState], idle_nodes: int, gap_s: float, limits: HarvestLimits
) -> list[Order]:
    """What to do about the queue now.

    Args:
        runs: in order of precedence, where they gain the same.
        idle_nodes: that no job has, and no job of ours in the queue will have.
        gap_s: how long nodes are expected to stay idle.

    >>> plan_orders([HarvestState("a", waiting=5)], 3, 600.0, HarvestLimits())
    [Submit(name='a', nodes=1), Submit(name='a', nodes=1)]
    >>> plan_orders([HarvestState("a", waiting=0, queued=(("17", 1),))], 3, 600.0, HarvestLimits())
    [Cancel(name='a', job='17')]
    """
    orders: list[Order] = [
        Cancel(run.name, job)
        for run in runs
        for job in (
            [job for job, _ in run.queued] if is_given_up(run, limits) else run.surplus_jobs
        )
    ]
    wanting = [run for run in runs if run.unserved and not is_given_up(run, limits)]
    unmeasured = [
        run
        for run in wanting
        if len(runs) > 1 and run.rate is None and not (run.queued or run.running)
    ]
    if _room(runs, orders, limits) <= 0 < len(unmeasured):
        orders += _cancel_to_make_room(runs, orders)
    room = _room(runs, orders, limits)
    if not wanting or room <= 0:
        return orders
    # Where no node is idle, the jobs that wait in the queue are as large as may be.
    nodes = min(idle_nodes or room * limits.nodes_per_job, room * limits.nodes_per_job)
    first = [Submit(run.name, 1) for run in unmeasured[:room]]
    served = {job.name for job in first}
    wanting = [replace(run, queued=(("", 1),)) if run.name in served else run for run in wanting]
    return [
        *orders,
        *first,
        *_shared(
            [run for run in wanting if run.unserved],
            room - len(first),
            nodes - len(first),
            gap_s,
            limits.nodes_per_job,
        ),
    ]


def _room(runs: Sequence[HarvestState], orders: Sequence[Order], limits: HarvestLimits) -> int:
    """How many jobs may be handed in once some were taken back."""
    queued = sum(len(run.queued) for run in runs) - len(orders)
    return min(limits.backlog - queued, limits.max_jobs - queued - sum(run.running for run in runs))


def _cancel_to_make_room(runs: Sequence[HarvestState], orders: Sequence[Order]) -> list[Order]:
    """Take a job back that waits, of a run that has others, so that one can be handed in for a run that has none."""
    taken_back = {order.job for order in orders if isinstance(order, Cancel)}
    for run in reversed(runs):
        left = [job for job, _ in run.queued if job not in taken_back]
        if left and len(left) + run.running > 1:
            return [Cancel(run.name, left[-1])]
    return []


def _shared(
    wanting: Sequence[HarvestState], room: int, nodes: int, gap_s: float, largest: int
) -> list[Submit]:
    """So many jobs at most, of so many nodes at most, as the nodes are shared out."""
    if not wanting or room <= 0 or nodes <= 0:
        return []
    known = [work_share_per_s(run) for run in wanting if run.rate is not None]
    # one that is being measured may be as any other
    if known:
        usual = statistics.fmean(known)
    else:
        usual = 1.0
    gains = [usual if run.rate is None else work_share_per_s(run) for run in wanting]
    trainers = [
        _trainer(run, gain / max(gains), nodes, gap_s)
        for run, gain in zip(wanting, gains, strict=True)
    ]
    counts = allocate(trainers, [0] * len(wanting), nodes, gap_s)
    jobs = [
        Submit(run.name, size)
        for run, count in zip(wanting, counts, strict=True)
        for size in _sizes(count, largest)
    ]
    return sorted(jobs, key=lambda job: -job.nodes)[:room]


def is_given_up(run: HarvestState, limits: HarvestLimits) -> bool:
    """Whether no job is handed in for a run any more, though networks may be left."""
    return (
        run.is_cancelled
        or run.fruitless_launches >= limits.fruitless
        or run.transient_failures >= limits.passing
    )


def work_share_per_s(run: HarvestState) -> float:
    """The share of the remaining work of a run that a node does in a second.

    >>> work_share_per_s(HarvestState("a", waiting=2, per_node=2, rate=100.0, samples_left=40_000.0))
    0.005
    """
    assert run.rate is not None
    return run.per_node * run.rate / run.samples_left


def _trainer(run: HarvestState, gained: float, nodes: int, gap_s: float) -> Trainer:
    """What a run gains on further nodes.

    Args:
        gained: by a node that trains as many networks as it can, as a share of what one of the best run gains.
        nodes: that there are.
    """
    most = math.ceil(run.unserved / run.per_node)
    share = gained * max(LEAST_SHARE, 1 - run.start_s / gap_s)
    there = run.nodes + sum(count for _, count in run.queued)
    counts = range(1, min(most, nodes) + 1)
    values = accumulate(
        share * min(1.0, run.unserved / run.per_node - (count - 1)) / (there + count)
        for count in counts
    )
    return Trainer(RateCurve(tuple(counts), tuple(values)), n_max=len(counts))


def _sizes(nodes: int, largest: int) -> list[int]:
    """So many nodes as jobs, all but one of them as large as may be."""
    whole, rest = divmod(nodes, largest)
    return [largest] * whole + [rest] * bool(rest)
