"""Simulate what an eviction plan does to a machine, minute by minute.

Batch jobs fill the machine when an on-demand job asks for nodes. The plan is carried out: killed
jobs free their nodes immediately; jobs that the system checkpoints queue for the file system at
once, and run until their turn; jobs that checkpoint themselves queue at their next due moment; one
checkpoint is written at a time. The on-demand job starts as soon as its nodes are free. Stopped
jobs restart in the order of stopping, once nodes are free: a killed job at its last checkpoint,
others where they were.

The plan counts every wait and every write one after the other, but waits
overlap, so the on-demand job starts no later than planned and often sooner.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial

from launch.errors import InputError, pluralize
from scheduler.eviction.plan import Action
from scheduler.eviction.running_jobs import FileSystem
from scheduler.simulation.kernel import Event, Simulator
from scheduler.simulation.theta import BatchJob

ON_DEMAND = "on-demand"


@dataclass(frozen=True)
class Use:
    """A period in which nodes ran a job; ``done_min`` of it was work that counts."""

    job: str
    nodes: frozenset[int]
    start_min: float
    end_min: float
    done_min: float


@dataclass(frozen=True)
class Outcome:
    """The result of a simulation.

    Args:
        start_min: start of the on-demand job, minutes after its request.
        lost_node_s: repeated work, node-seconds.
        idle_node_s: node-seconds for which nodes were free while the on-demand job waited for the
            others.
        delay_min: average delay of the batch jobs.
        end_min: when the last batch job ended.
        uses: the uses of nodes, in the order of their ends.
    """

    start_min: float
    lost_node_s: float
    idle_node_s: float
    delay_min: float
    end_min: float
    uses: tuple[Use, ...]


def simulate(
    jobs: Sequence[BatchJob],
    actions: Mapping[str, Action],
    nodes: int,
    length_min: float,
    storage: FileSystem,
) -> Outcome:
    """Carry out a plan and let all jobs end.

    Args:
        jobs: the jobs that run when the on-demand job asks.
        actions: the plan.
        nodes: the number of nodes of the on-demand job.
        length_min: the run time of the on-demand job, in minutes.
        storage: the storage to which checkpoints are written.

    Returns:
        The outcome.

    Raises:
        InputError: the plan names an unknown job or an impossible checkpoint, or does not free the
            nodes.
    """
    names = {job.checkpointing.id for job in jobs}
    strangers = sorted(actions.keys() - names)
    if strangers:
        raise InputError(f"the plan stops {strangers[0]}, which is not running")
    if nodes > (
        free := sum(job.checkpointing.nodes for job in jobs if job.checkpointing.id in actions)
    ):
        raise InputError(
            f"the plan frees {pluralize(free, 'node')}, but the on-demand job needs {nodes}"
        )
    machine = _Machine(jobs, actions, nodes, length_min, storage)
    machine.sim.run()
    return machine.outcome(jobs)


class _Kind(IntEnum):
    """The kinds of events at one moment, in this order."""

    END = 0
    DUE = 1
    START = 2


@dataclass(eq=False)
class _Running:
    """A job on its nodes."""

    job: BatchJob
    nodes: frozenset[int]
    since_min: float
    left_min: float  # of its work, when it was placed
    end: Event = field(init=False)
    paused_min: float | None = None  # when it stopped working to write its checkpoint

    @property
    def id(self) -> str:
        return self.job.checkpointing.id


class _Machine:
    """The machine, from the moment of the on-demand request."""

    def __init__(
        self,
        jobs: Sequence[BatchJob],
        actions: Mapping[str, Action],
        nodes_needed: int,
        length_min: float,
        storage: FileSystem,
    ) -> None:
        self.sim = Simulator()
        self.storage = storage
        self.nodes_needed = nodes_needed
        self.length_min = length_min
        self.start_min: float | None = None
        self.free_since: dict[int, float] = {}  # node -> moment
        self.running: dict[str, _Running] = {}
        self.to_write: deque[tuple[_Running, float]] = deque()  # with the minutes that takes
        self.writing = False
        self.stopped: deque[tuple[BatchJob, float]] = deque()  # with the work that is left
        self.uses: list[Use] = []
        self.lost_node_s = 0.0
        self.idle_node_s = 0.0
        self._ask(jobs, actions)

    def _ask(self, jobs: Sequence[BatchJob], actions: Mapping[str, Action]) -> None:
        first = 0
        for job in jobs:
            self._place_job(
                job, frozenset(range(first, first + job.checkpointing.nodes)), job.left_min
            )
            first += job.checkpointing.nodes
        for running in list(self.running.values()):
            action = actions.get(running.id)
            if action == "kill":
                self._kill(running)
            elif action is not None:
                sizes = running.job.checkpointing.sizes(action)
                due = running.job.checkpointing.wait_min
                if sizes is None or (action == "app" and due is None):
                    raise InputError(
                        f"the plan checkpoints {running.id} by {action!r}, which it cannot do"
                    )
                self.sim.at(
                    due if action == "app" and due else 0,
                    _Kind.DUE,
                    partial(self._due, running, action, self.storage.seconds(sizes) / 60),
                )
        self.sim.at(0, _Kind.START, self._start)

    def _place_job(self, job: BatchJob, nodes: frozenset[int], left_min: float) -> None:
        running = _Running(job, nodes, self.sim.now, left_min)
        running.end = self.sim.after(left_min, _Kind.END, partial(self._release, running))
        self.running[running.id] = running

    def _release(self, running: _Running) -> None:
        """End or stop a job; its nodes are free."""
        running.end.cancel()
        del self.running[running.id]
        if running.paused_min is None:
            worked_until = self.sim.now
        else:
            worked_until = running.paused_min
        self.uses.append(
            Use(
                running.id,
                running.nodes,
                running.since_min,
                self.sim.now,
                worked_until - running.since_min,
            )
        )
        self._free(running.nodes)

    def _free(self, nodes: frozenset[int]) -> None:
        self.free_since.update(dict.fromkeys(nodes, self.sim.now))
        self.sim.after(0, _Kind.START, self._start)

    def _kill(self, running: _Running) -> None:
        redo_min = running.job.checkpointing.since_checkpoint_min
        self.lost_node_s += 60 * redo_min * len(running.nodes)
        self.stopped.append((running.job, running.left_min + redo_min))
        self._release(running)

    def _due(self, running: _Running, action: Action, write_min: float) -> None:
        """Queue a job's checkpoint; a job that checkpoints itself pauses until its turn."""
        if self.running.get(running.id) is running:
            if action == "app":
                self._pause(running)
            self.to_write.append((running, write_min))
            self._write()

    def _pause(self, running: _Running) -> None:
        running.end.cancel()
        running.paused_min = self.sim.now

    def _write(self) -> None:
        """Begin the next checkpoint, if none is being written."""
        while self.to_write and not self.writing:
            running, write_min = self.to_write.popleft()
            if self.running.get(running.id) is not running:
                continue  # it has ended by itself
            if running.paused_min is None:
                self._pause(running)
            self.writing = True
            self.sim.after(write_min, _Kind.END, partial(self._written, running))

    def _written(self, running: _Running) -> None:
        assert running.paused_min is not None
        self.stopped.append(
            (running.job, running.left_min - (running.paused_min - running.since_min))
        )
        self._release(running)
        self.writing = False
        self._write()

    def _start(self) -> None:
        """Start jobs that fit on the free nodes, the on-demand job first."""
        if self.start_min is None:
            if len(self.free_since) < self.nodes_needed:
                return
            self.start_min = self.sim.now
            self.idle_node_s = 60 * sum(self.sim.now - since for since in self.free_since.values())
            nodes = self._take(self.nodes_needed)
            self.uses.append(
                Use(ON_DEMAND, nodes, self.sim.now, self.sim.now + self.length_min, self.length_min)
            )
            self.sim.after(self.length_min, _Kind.END, partial(self._free, nodes))
        while self.stopped and len(self.free_since) >= self.stopped[0][0].checkpointing.nodes:
            job, left_min = self.stopped.popleft()
            self._place_job(job, self._take(job.checkpointing.nodes), left_min)

    def _take(self, count: int) -> frozenset[int]:
        nodes = sorted(self.free_since)[:count]
        for node in nodes:
            del self.free_since[node]
        return frozenset(nodes)

    def outcome(self, jobs: Sequence[BatchJob]) -> Outcome:
        ends = {use.job: use.end_min for use in self.uses}  # the last of each job
        delays = [ends[job.checkpointing.id] - job.left_min for job in jobs]
        assert self.start_min is not None
        return Outcome(
            self.start_min,
            self.lost_node_s,
            self.idle_node_s,
            sum(delays) / len(delays),
            max(ends[job.checkpointing.id] for job in jobs),
            tuple(self.uses),
        )
