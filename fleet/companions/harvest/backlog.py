"""Decide which jobs to submit or cancel when several runs share the idle nodes of a site (pure).

A job is submitted only for networks that no other job will train: neither a waiting job nor a
running one with free slots. An unmeasured run gets a node before all others. The allocator
:func:`scheduler.idle.allocate.allocate` then shares the idle nodes; it finds the exact optimum of
[BFTrainer]'s objective (Liu et al., arXiv:2106.12091, Eq. 16). The value of a node to a run is the
share of its remaining work that the node does per second, because samples of different runs are
not comparable and a run is done only when all its samples are. The k-th node of a run counts 1/k
of that, so no run waits for another one to end. Running launches are not disturbed by new ones, so
a new launch costs only its own start: of a gap of ``gap_s`` seconds it trains for all but
``start_s``.
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

MIN_SHARE = 0.05  # of a gap: gaps that were shorter than a start may become longer


@dataclass(frozen=True)
class HarvestLimits:
    """The limits that the user sets.

    Attributes:
        nodes_per_job: maximum number of nodes of a job.
        backlog: maximum number of waiting jobs.
        max_jobs: maximum number of waiting and running jobs.
        fruitless: number of launches in a row without an epoch after which a run is given up.
        passing: the same for launches that ended with a transient error, such as a full disk.
    """

    nodes_per_job: int = 1
    backlog: int = 2
    max_jobs: Annotated[int, Field(alias="most")] = 32  # the key of `harvest.json`
    fruitless: int = 3
    passing: int = 10


@dataclass(frozen=True)
class HarvestState:
    """The state of a run in a harvest, from its folder and the queue.

    Attributes:
        name: unique name of the run in the harvest.
        waiting: unfinished networks that no launch holds.
        training: networks that a launch holds.
        per_node: number of networks that a node trains at the same time.
        rate: mean samples/s of a network; None if nothing was measured yet.
        start_s: seconds from the start of a launch to its first step.
        fruitless_launches: launches in a row without an epoch.
        queued: ids and numbers of nodes of its waiting jobs.
        running: number of its running jobs.
        is_cancelled: True if the user wants no more jobs.
        spare: additional networks that its running jobs can train.
        nodes: number of nodes of its running jobs.
        samples_left: samples that its networks still have to train on.
        transient_failures: launches in a row that ended with a transient error before an epoch.
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
        """True if all networks are done."""
        return not (self.waiting or self.training)

    @property
    def unserved(self) -> int:
        """The number of networks that neither waiting nor running jobs will train."""
        return max(
            0, self.waiting - self.spare - self.per_node * sum(nodes for _, nodes in self.queued)
        )

    @property
    def surplus_jobs(self) -> tuple[str, ...]:
        """The newest waiting jobs that would find nothing to train."""
        surplus = []
        unserved = self.waiting - self.spare
        for job, nodes in self.queued:
            if unserved <= 0:
                surplus.append(job)
            unserved -= self.per_node * nodes
        return tuple(surplus)


@dataclass(frozen=True)
class Submit:
    """Submit a job for a run."""

    name: str
    nodes: int


@dataclass(frozen=True)
class Cancel:
    """Cancel a waiting job."""

    name: str
    job: str


Order: TypeAlias = Submit | Cancel


def plan_orders(
    runs: Sequence[HarvestState], idle_nodes: int, gap_s: float, limits: HarvestLimits
) -> list[Order]:
    """Return the jobs to submit and to cancel now.

    Args:
        runs: states in order of precedence, which breaks ties.
        idle_nodes: nodes that have no job and that no waiting job of the harvest will get.
        gap_s: how long nodes are expected to stay idle, in seconds.
        limits: the user's limits.

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
    unserved_runs = [run for run in runs if run.unserved and not is_given_up(run, limits)]
    unmeasured = [
        run
        for run in unserved_runs
        if len(runs) > 1 and run.rate is None and not (run.queued or run.running)
    ]
    if _room(runs, orders, limits) <= 0 < len(unmeasured):
        orders += _cancel_to_make_room(runs, orders)
    room = _room(runs, orders, limits)
    if not unserved_runs or room <= 0:
        return orders
    # If no node is idle, waiting jobs are as large as allowed.
    nodes = min(idle_nodes or room * limits.nodes_per_job, room * limits.nodes_per_job)
    measuring_jobs = [Submit(run.name, 1) for run in unmeasured[:room]]
    served = {job.name for job in measuring_jobs}
    unserved_runs = [
        replace(run, queued=(("", 1),)) if run.name in served else run for run in unserved_runs
    ]
    return [
        *orders,
        *measuring_jobs,
        *_share_nodes(
            [run for run in unserved_runs if run.unserved],
            room - len(measuring_jobs),
            nodes - len(measuring_jobs),
            gap_s,
            limits.nodes_per_job,
        ),
    ]


def _room(runs: Sequence[HarvestState], orders: Sequence[Order], limits: HarvestLimits) -> int:
    """Return how many jobs may be submitted after the cancellations in `orders`."""
    queued = sum(len(run.queued) for run in runs) - len(orders)
    return min(limits.backlog - queued, limits.max_jobs - queued - sum(run.running for run in runs))


def _cancel_to_make_room(runs: Sequence[HarvestState], orders: Sequence[Order]) -> list[Order]:
    """Cancel a waiting job of a run with several jobs, so that a run without jobs can get one."""
    cancelled = {order.job for order in orders if isinstance(order, Cancel)}
    for run in reversed(runs):
        waiting = [job for job, _ in run.queued if job not in cancelled]
        if waiting and len(waiting) + run.running > 1:
            return [Cancel(run.name, waiting[-1])]
    return []


def _share_nodes(
    runs: Sequence[HarvestState], room: int, nodes: int, gap_s: float, largest: int
) -> list[Submit]:
    """Share `nodes` among the runs, as at most `room` jobs."""
    if not runs or room <= 0 or nodes <= 0:
        return []
    shares = [work_share_per_s(run) for run in runs if run.rate is not None]
    if shares:
        usual = statistics.fmean(shares)
    else:
        usual = 1.0
    gains = [usual if run.rate is None else work_share_per_s(run) for run in runs]
    trainers = [
        _trainer(run, gain / max(gains), nodes, gap_s)
        for run, gain in zip(runs, gains, strict=True)
    ]
    counts = allocate(trainers, [0] * len(runs), nodes, gap_s)
    jobs = [
        Submit(run.name, size)
        for run, count in zip(runs, counts, strict=True)
        for size in _sizes(count, largest)
    ]
    return sorted(jobs, key=lambda job: -job.nodes)[:room]


def is_given_up(run: HarvestState, limits: HarvestLimits) -> bool:
    """Return True if no more jobs are submitted for a run, even if networks remain."""
    return (
        run.is_cancelled
        or run.fruitless_launches >= limits.fruitless
        or run.transient_failures >= limits.passing
    )


def work_share_per_s(run: HarvestState) -> float:
    """Return the share of a run's remaining work that one node does per second.

    >>> state = HarvestState("a", waiting=2, per_node=2, rate=100.0, samples_left=40_000.0)
    >>> work_share_per_s(state)
    0.005
    """
    assert run.rate is not None
    return run.per_node * run.rate / run.samples_left


def _trainer(run: HarvestState, gain: float, nodes: int, gap_s: float) -> Trainer:
    """Return what a run gains from additional nodes.

    Args:
        run: the state of the run.
        gain: work share of a fully used node, relative to that of the best run.
        nodes: number of idle nodes.
        gap_s: expected length of the gap, in seconds.
    """
    max_nodes = math.ceil(run.unserved / run.per_node)
    share = gain * max(MIN_SHARE, 1 - run.start_s / gap_s)
    current_nodes = run.nodes + sum(count for _, count in run.queued)
    counts = range(1, min(max_nodes, nodes) + 1)
    values = accumulate(
        share * min(1.0, run.unserved / run.per_node - (count - 1)) / (current_nodes + count)
        for count in counts
    )
    return Trainer(RateCurve(tuple(counts), tuple(values)), n_max=len(counts))


def _sizes(nodes: int, largest: int) -> list[int]:
    """Split `nodes` into jobs of at most `largest` nodes."""
    full_jobs, remainder = divmod(nodes, largest)
    return [largest] * full_jobs + [remainder] * bool(remainder)
