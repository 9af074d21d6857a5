"""Which jobs to hand in next, and which to take back, where several runs share the idle nodes of a site (pure).

The nodes that are idle are shared out by :func:`scheduler.idle.allocate.allocate`, the exact optimum of [BFTrainer]'s
objective (Liu et al., arXiv:2106.12091, Eq. 16). A run gains the samples per second of the networks that further nodes
would train. Launches that are at work are not disturbed by further ones, so what a new one costs is its own start: of a
gap of ``gap_s`` seconds it trains for all but ``start_s``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from scheduler.idle.allocate import Curve, Trainer, allocate

LEAST_SHARE = 0.05  # of a gap: gaps that were shorter than a start may become longer


@dataclass(frozen=True)
class Limits:
    """What the user asks for.

    Attributes:
        nodes_per_job: of a job, at most.
        backlog: jobs that wait in the queue, at most.
        most: jobs that wait or run, at most.
        fruitless: launches in a row without an epoch after which a run is given up.
    """

    nodes_per_job: int = 1
    backlog: int = 2
    most: int = 32
    fruitless: int = 3


@dataclass(frozen=True)
class Harvested:
    """A run, as its folder and the queue show it.

    Attributes:
        name: that no other run of the harvest has.
        waiting: networks that are not over, and that no launch holds.
        held: networks that a launch holds.
        per_node: networks that a node trains at once.
        rate: samples/s of a network, on average.
        start_s: seconds from the beginning of a launch to its first step.
        fruitless: launches in a row without an epoch.
        queued: the ids of its jobs that wait in the queue, and the nodes of each.
        running: number of its jobs that run.
        is_called_off: whether the user wants no more jobs.
    """

    name: str
    waiting: int
    held: int = 0
    per_node: int = 1
    rate: float = 1.0
    start_s: float = 0.0
    fruitless: int = 0
    queued: tuple[tuple[str, int], ...] = ()
    running: int = 0
    is_called_off: bool = False

    @property
    def is_over(self) -> bool:
        """Whether all its networks are over."""
        return not (self.waiting or self.held)

    @property
    def unserved(self) -> int:
        """The networks that wait for more nodes than the jobs in the queue will have."""
        return max(0, self.waiting - self.per_node * sum(nodes for _, nodes in self.queued))


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


def decide(runs: Sequence[Harvested], idle_nodes: int, gap_s: float, limits: Limits) -> list[Order]:
    """What to do about the queue now.

    Args:
        runs: in order of precedence, where they gain the same.
        idle_nodes: that no job has, and no job of ours in the queue will have.
        gap_s: how long nodes are expected to stay idle.

    >>> decide([Harvested("a", waiting=5)], 3, 600.0, Limits())
    [Submit(name='a', nodes=1), Submit(name='a', nodes=1)]
    >>> decide([Harvested("a", waiting=0, queued=(("17", 1),))], 3, 600.0, Limits())
    [Cancel(name='a', job='17')]
    """
    orders: list[Order] = [Cancel(run.name, job) for run in runs if run.is_over or _is_given_up(run, limits)
                           for job, _ in run.queued]
    wanting = [run for run in runs if run.unserved and not _is_given_up(run, limits)]
    queued = sum(len(run.queued) for run in runs) - len(orders)
    present = queued + sum(run.running for run in runs)
    room = min(limits.backlog - queued, limits.most - present)
    if not wanting or room <= 0:
        return orders
    whole = room * limits.nodes_per_job
    # Where no node is idle, the jobs that wait in the queue are as large as may be.
    nodes = min(idle_nodes, whole) if idle_nodes > 0 else whole
    counts = allocate([_trainer(run, gap_s) for run in wanting], [0] * len(wanting), nodes, gap_s)
    jobs = [Submit(run.name, size) for run, count in zip(wanting, counts, strict=True)
            for size in _sizes(count, limits.nodes_per_job)]
    return [*orders, *sorted(jobs, key=lambda job: -job.nodes)[:room]]


def _is_given_up(run: Harvested, limits: Limits) -> bool:
    return run.is_called_off or run.fruitless >= limits.fruitless


def _trainer(run: Harvested, gap_s: float) -> Trainer:
    """What a run gains on further nodes."""
    most = math.ceil(run.unserved / run.per_node)
    share = max(LEAST_SHARE, 1 - run.start_s / gap_s)
    nodes = sorted({1, run.unserved // run.per_node, most} - {0})
    values = tuple(min(count * run.per_node, run.unserved) * run.rate * share for count in nodes)
    return Trainer(Curve(tuple(nodes), values), n_max=most)


def _sizes(nodes: int, largest: int) -> list[int]:
    """So many nodes as jobs, all but one of them as large as may be."""
    whole, rest = divmod(nodes, largest)
    return [largest] * whole + [rest] * bool(rest)
