"""Carry out a plan of evictions on Slurm: observe, act and log until the urgent job has its nodes.

:mod:`scheduler.eviction.execution` decides what to do; this module reads the queue and acts. Right
before each action it reads the job once more: it must still belong to its owner, be running, and
have its original start time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fleet.companions.batch_jobs.paused_submissions import PausedRuns
from fleet.companions.eviction.job_holds import DeferredSignals, HeldJobs
from fleet.companions.node_release.request import release_nodes
from fleet.errors import FleetError, UserError
from launch import slurm_control, slurm_jobs
from launch.errors import InputError
from launch.slurm_jobs import SlurmJob
from scheduler.eviction.execution import Eviction, Step
from scheduler.eviction.plan import RunningJob

SNAPSHOT_S = 0.5, 10.0  # min and max between two snapshots; a sixtieth of the deadline
PATIENCE_S = 300.0  # after the deadline, for slow jobs and an unresponsive Slurm
KEEP_S = 60.0  # minimum time to keep nodes free for an unnamed job
MESSAGE_MIN = 1.0  # minutes between two messages that a job has not started

Costs = Callable[[Sequence[SlurmJob]], list[RunningJob]]


@dataclass(frozen=True)
class ClusterSnapshot:
    """The jobs that may be evicted, and the state of all jobs.

    Args:
        jobs: evictable jobs with what they would lose now.
        nodes_by_job: number of nodes of each job that holds nodes.
        queue: all jobs by id, waiting ones included.
    """

    jobs: list[RunningJob]
    nodes_by_job: dict[str, int]
    queue: Mapping[str, SlurmJob]

    @property
    def signals(self) -> dict[str, str]:
        """Signals on which jobs save a checkpoint, by job."""
        return {
            job.id: signal for job in self.jobs if (signal := self.queue[job.id].signal) is not None
        }

    @property
    def runs(self) -> dict[str, str]:
        """Folders of the runs that can release nodes while they go on, by job."""
        return {job.id: run for job in self.jobs if (run := self.queue[job.id].yields) is not None}


@dataclass
class ClusterView:
    """A view of the cluster through Slurm.

    Args:
        partition: restricts the view to the jobs of this partition.
        user: restricts evictions to the jobs of this user; None allows all users.
        urgent: the job that is to get the nodes; None if it is unknown.
        costs: returns what jobs would lose, and how long they take to save.
    """

    partition: str | None
    user: str | None
    urgent: str | None
    costs: Costs
    seen: dict[str, SlurmJob] = field(default_factory=dict)  # each job as it was first seen

    def take_snapshot(self) -> ClusterSnapshot:
        """Return the current state. A job that was restarted does not count as holding nodes.

        Raises:
            InputError: Slurm does not answer.
        """
        queue = slurm_jobs.find_jobs()
        holding = [
            job
            for job in queue.values()
            if job.has_nodes and self.partition in (None, job.partition)
        ]
        for job in holding:
            self.seen.setdefault(job.id, job)
        # The start of a requeued job is "N/A" while its processes are still ending on its nodes.
        unchanged = [
            job
            for job in holding
            if job.start == self.seen[job.id].start or job.state == "COMPLETING"
        ]
        evictable = [
            job for job in unchanged if job.state == "RUNNING" and self.may_touch(job.user)
        ]
        return ClusterSnapshot(
            self.costs(evictable), {job.id: job.nodes for job in unchanged}, queue
        )

    def may_touch(self, user: str) -> bool:
        """Return True if jobs of this user may be evicted."""
        return self.user in (None, user)

    def must_wait(self, job: SlurmJob) -> bool:
        """Return True if a waiting or new job must leave the nodes to the urgent job.

        Jobs of FLEET must, because they can continue later. The queue orders all other jobs, unless
        the urgent job is known: then other jobs of the same user wait for it.
        """
        is_own = self.urgent is not None and job.user == slurm_control.current_user()
        return job.id != self.urgent and self.may_touch(job.user) and (job.is_resumable or is_own)

    def competing_jobs(self, snapshot: ClusterSnapshot) -> list[str]:
        """Return the waiting jobs that would take the nodes, and are to be held."""
        return sorted(
            job.id
            for job in snapshot.queue.values()
            if job.is_waiting and not job.is_held and self.must_wait(job)
        )

    def jobs_held_elsewhere(self, snapshot: ClusterSnapshot, job_ids: Sequence[str]) -> list[str]:
        """Return the held jobs of FLEET that no known eviction holds."""
        return sorted(
            job.id
            for job in snapshot.queue.values()
            if job.is_resumable
            and job.is_held
            and job.id not in job_ids
            and self.may_touch(job.user)
        )

    def find_obstacle(self, job: str) -> str:
        """Return why a job must not be acted on now; empty if it may.

        Raises:
            InputError: Slurm does not answer.
        """
        was = self.seen[job]
        now = slurm_jobs.find_jobs(f"--jobs={job}").get(job)
        if now is None or now.state not in ("RUNNING", "SUSPENDED"):
            return f"it is now {now.state if now else 'no longer in the queue'}"
        if now.start != was.start:
            return "it was restarted"
        if now.user != was.user or not self.may_touch(now.user):
            return f"it belongs to {now.user}"
        return ""


@dataclass(frozen=True)
class EvictionLog:
    """The log of an eviction: a file of JSON lines, and the screen."""

    path: Path

    def note(self, kind: str, message: str, **fields: Any) -> None:
        """Append a line to the file, and print its message.

        Raises:
            UserError: the file cannot be written.
        """
        line = json.dumps(
            {"time": round(time.time(), 3), "what": kind, **fields, "said": message},
            ensure_ascii=False,
        )
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(f"{line}\n")
        except OSError as error:
            raise UserError(
                f"{self.path}: {error.strerror}; use --record to name another file"
            ) from None
        print(message, flush=True)


class FreedNodes:
    """The nodes that jobs have freed, and their current owners; empty if Slurm does not list nodes.

    Args:
        first: the state at the beginning.
        urgent: the job that is to get the nodes.
    """

    def __init__(self, first: ClusterSnapshot, urgent: str | None) -> None:
        self._urgent = urgent
        self._had = {
            job: frozenset(first.queue[job].hosts) for job in first.nodes_by_job
        }  # nodes of the jobs to evict
        self._by: dict[str, str] = {}  # node -> the job that freed it
        self._owners: dict[str, SlurmJob] = {}  # node -> its current job

    def update(self, snapshot: ClusterSnapshot) -> dict[str, list[str]]:
        """Return the freed nodes that other jobs have taken since the last call, by job."""
        for job, before_nodes in self._had.items():
            now_nodes = frozenset(snapshot.queue[job].hosts if job in snapshot.nodes_by_job else ())
            self._by |= dict.fromkeys(before_nodes - now_nodes, job)
            self._had[job] = now_nodes
        owners_before = self._owners
        self._owners = {}
        if not self._by:
            return {}
        self._owners = {
            node: job
            for job in snapshot.queue.values()
            if job.id != self._urgent
            for node in self._by.keys() & job.hosts
        }
        taken_nodes: dict[str, list[str]] = {}
        for node, owner in sorted(self._owners.items()):
            if node not in owners_before or owners_before[node].id != owner.id:
                taken_nodes.setdefault(owner.id, []).append(node)
        return taken_nodes

    def track_job(self, job: str, nodes: Sequence[str]) -> None:
        """Track a job that took freed nodes and has to free them in turn."""
        self._had[job] = frozenset(nodes)
        for node in nodes:
            del self._by[node], self._owners[node]

    def freed_by(self, node: str) -> str:
        """Return the job that freed a node."""
        return self._by[node]

    def describe_owners(self) -> str:
        """Return the current owners of freed nodes as text; empty if there are none."""
        return ", ".join(
            f"job {job.id} of {job.user} has {node}" for node, job in sorted(self._owners.items())
        )


@dataclass
class Execution:
    """Acts until the nodes are free, and keeps them free until the urgent job has started or ended.

    Without an urgent job it keeps them free until the deadline, or for :data:`KEEP_S`.

    Attributes:
        eviction: the plan, before its first step.
        first: the state that the plan was made for.
        machine: the view of the cluster.
        log: receives everything that happens.
        held_earlier: jobs held by an earlier eviction, which are released with the others.
        interruption: stops the eviction; held jobs are released then, too.
        free_min: minute since which the nodes are free.
        slurm_error: the last error of Slurm; empty after an answer.
        taken_by: jobs that took freed nodes and are evicted in turn, with their number of nodes.
        message_min: minute of the last message that the urgent job has not started.
    """

    eviction: Eviction
    first: ClusterSnapshot
    machine: ClusterView
    log: EvictionLog
    held_earlier: Sequence[str]
    interruption: DeferredSignals
    free_min: float | None = None
    slurm_error: str = ""
    taken_by: dict[str, int] = field(default_factory=dict)
    message_min: float = 0.0

    def __post_init__(self) -> None:
        self.held_jobs = HeldJobs(self.log.note, self.machine.may_touch, self.held_earlier)
        self.paused_runs = PausedRuns()
        self.freed = FreedNodes(self.first, self.machine.urgent)

    def run(self, now_s: Callable[[], float] = time.monotonic) -> bool:
        """Act, and return True on success.

        Args:
            now_s: replaced by tests.

        Raises:
            InputError: all jobs together have fewer nodes than requested.
            UserError: the log cannot be written.
        """
        try:
            return self._run(now_s)
        finally:
            self.paused_runs.end()
            self.held_jobs.release()

    def _run(self, now_s: Callable[[], float]) -> bool:
        start = now_s()
        pause = min(max(self.eviction.deadline_min, SNAPSHOT_S[0]), SNAPSHOT_S[1])
        snapshot: ClusterSnapshot | None = self.first
        while True:
            minute = (now_s() - start) / 60
            if snapshot is not None:
                self._keep_back(snapshot)
                self._act(minute, snapshot)
            self.paused_runs.touch()
            ended = self._end(minute, snapshot)
            if ended is not None:
                has_succeeded, message = ended
                self.log.note("end", message, freed=self.eviction.freed)
                return has_succeeded
            self.interruption.sleep(pause)
            snapshot = self._take_snapshot()

    def _take_snapshot(self) -> ClusterSnapshot | None:
        """Return the current state, or None if Slurm does not answer."""
        try:
            snapshot = self.machine.take_snapshot()
        except InputError as error:  # it may answer later
            if str(error) != self.slurm_error:
                self.log.note("silent", f"{error}; retrying")
            self.slurm_error = str(error)
            return None
        self.slurm_error = ""
        return snapshot

    def _keep_back(self, snapshot: ClusterSnapshot) -> None:
        """Hold waiting jobs that would take freed nodes, and delay submissions of their runs."""
        self.paused_runs.add_jobs(
            (job.script, job.user)
            for job in snapshot.queue.values()
            if job.is_resumable and self.machine.must_wait(job)
        )
        self.paused_runs.touch()
        self.held_jobs.hold_waiting(snapshot.queue, self.machine.competing_jobs(snapshot))

    def _act(self, minute: float, snapshot: ClusterSnapshot) -> None:
        taken_nodes = self.freed.update(snapshot)
        for job, nodes in taken_nodes.items():
            self._take_back(job, nodes, minute, snapshot)
        # Nodes of jobs that came later do not count, unless these nodes had been freed.
        jobs = [
            replace(job, nodes=self.taken_by.get(job.id, job.nodes))
            for job in snapshot.jobs
            if self._counts(job.id)
        ]
        nodes_by_job = {
            job: self.taken_by.get(job, nodes)
            for job, nodes in snapshot.nodes_by_job.items()
            if self._counts(job)
        }
        nodes_by_job |= {
            job: self.taken_by[job] for job in taken_nodes if job in self.taken_by
        }  # restarted jobs included
        for step in self.eviction.next_steps(minute, jobs, nodes_by_job):
            self._take(step, minute, snapshot)
            if step.kind in ("freed", "ended"):
                self.held_jobs.watch(step.job)
        self.held_jobs.hold_waiting(snapshot.queue)
        if not self.eviction.is_done:
            self.free_min = None
        elif self.free_min is None:
            self.free_min = self.message_min = minute
            owners = self.freed.describe_owners()
            if owners:
                state = f"were freed after {minute:.1f} min, but {owners}"
            else:
                state = f"are free after {minute:.1f} min"
            self.log.note("free", f"{self.eviction.freed} nodes {state}", freed=self.eviction.freed)

    def _counts(self, job: str) -> bool:
        return job in self.first.nodes_by_job or job in self.taken_by

    def _take_back(
        self, job: str, nodes: Sequence[str], minute: float, snapshot: ClusterSnapshot
    ) -> None:
        """Log that a job took freed nodes, and evict it in turn if it can wait."""
        user = snapshot.queue[job].user
        node_list = ", ".join(f"{node}, freed by job {self.freed.freed_by(node)}" for node in nodes)
        is_evicted_next = self.machine.must_wait(
            snapshot.queue[job]
        ) and self.machine.partition in (None, snapshot.queue[job].partition)
        self.log.note(
            "taken",
            f"{minute:7.1f} min  job {job} of {user} took {node_list}"
            + ("; it will be evicted in turn" if is_evicted_next else ""),
            job=job,
            user=user,
            nodes=list(nodes),
        )
        if is_evicted_next:
            self.machine.seen[job] = snapshot.queue[job]
            self.taken_by[job] = len(nodes)
            self.freed.track_job(job, nodes)
            self.eviction.add_job(job, len(nodes), job in snapshot.signals)

    def _end(self, minute: float, snapshot: ClusterSnapshot | None) -> tuple[bool, str] | None:
        """Return whether the eviction succeeded and why it ended; None while it goes on."""
        late = minute > self.eviction.deadline_min + PATIENCE_S / 60
        given_up = f"giving up {PATIENCE_S / 60:g} min after the deadline"
        if self.interruption.name:
            return False, f"interrupted by {self.interruption.name}"
        if self.free_min is None:
            free = f"{self.eviction.freed} of {self.eviction.nodes} nodes are free"
            if late:
                return (False, f"{free}; {given_up}")
            return None
        job = self.machine.urgent
        if job is None:
            over = max(self.eviction.deadline_min, self.free_min + KEEP_S / 60)
            if minute >= over:
                return (True, f"the nodes are no longer kept free, after {minute:.1f} min")
            return None
        now = None if snapshot is None else snapshot.queue.get(job)
        if snapshot is None or (now is not None and now.is_waiting):
            return self._waits(job, now.reason if now else "", minute, given_up if late else "")
        return (
            True,
            f"job {job} is {now.state if now else 'no longer in the queue'} after {minute:.1f} min",
        )

    def _waits(
        self, job: str, reason: str, minute: float, given_up: str
    ) -> tuple[bool, str] | None:
        """Log at intervals that the urgent job has not started, or give up."""
        owners = self.freed.describe_owners()
        causes = "; ".join(
            [*([f"Slurm says {reason}"] if reason else []), *([owners] if owners else [])]
        )
        causes = f" ({causes})" if causes else ""
        if given_up:
            return False, f"job {job} has not started{causes}; {given_up}"
        if minute >= self.message_min + MESSAGE_MIN:
            self.message_min = minute
            self.log.note(
                "waits", f"{minute:7.1f} min  job {job} has not started yet{causes}", job=job
            )
        return None

    def _take(self, step: Step, minute: float, snapshot: ClusterSnapshot) -> None:
        """Log a step; carry it out first if it is an action."""
        fields: dict[str, Any] = {
            "minute": round(minute, 3),
            **({"job": step.job} if step.job else {}),
        }
        if not step.is_action:
            actions = {"actions": step.actions} if step.actions else {}
            self.log.note(step.kind, describe_step(minute, step), **fields, **actions)
            return
        user = self.machine.seen[step.job].user
        try:
            problem = self.machine.find_obstacle(step.job)
            done = "" if problem else self._do(step, minute, snapshot)
        except (InputError, FleetError) as error:  # FleetError: the run does not release nodes
            problem = str(error)
            done = ""
        if problem:
            self.eviction.cancel_action(step.job)
            self.log.note(
                "refused",
                f"{minute:7.1f} min  job {step.job} of {user}: skipped: {problem}",
                **fields,
                user=user,
            )
        else:
            self.log.note(
                step.kind,
                f"{describe_step(minute, step)} (of {user}; {done})",
                **fields,
                user=user,
                done=done,
            )

    def _do(self, step: Step, minute: float, snapshot: ClusterSnapshot) -> str:
        """Carry out an action, and return what was done as text."""
        if step.kind == "yield":
            self.paused_runs.touch(
                60 * (step.until_min - minute)
            )  # no snapshots are taken until then
            released = release_nodes(
                snapshot.runs[step.job], step.nodes, 60 * (step.until_min - minute)
            )
            remaining = slurm_control.shrink(step.job, released)
            return f"{', '.join(released)} released; it keeps {', '.join(remaining)}"
        if step.kind == "stop":
            return self.held_jobs.put_back(step.job)
        signal = snapshot.signals.get(step.job)
        if signal is None:
            return "it saves by itself"
        slurm_control.signal_to_save(step.job, signal)
        return f"signal {signal}"


def describe_step(minute: float, step: Step) -> str:
    """Format a step as text.

    >>> describe_step(0.0, Step("save", "17", until_min=4.0))
    '    0.0 min  job 17: saves, until minute 4.0'
    """
    words = {
        "yield": "releases nodes",
        "shrunk": "has shrunk",
        "save": f"saves, until minute {step.until_min:.1f}",
        "stop": "is stopped",
        "freed": "has freed its nodes",
        "ended": "has ended by itself; making a new plan",
        "deaf": "did not end in time; making a new plan",
        "plan": "plan",
        "enough": "enough nodes",
        "short": "not enough",
    }
    subject = f"job {step.job}: " if step.job else ""
    return (
        f"{minute:7.1f} min  {subject}{words[step.kind]}{f': {step.detail}' if step.detail else ''}"
    )


def dry_run_lines(
    steps: Sequence[tuple[float, Step]], users: Mapping[str, str], signals: Mapping[str, str]
) -> list[str]:
    """Return what an eviction would do, as lines; ``freed`` needs no line."""
    lines = []
    for minute, step in steps:
        if step.is_action or step.kind == "plan":
            if step.job in signals:
                saving = f" (signal {signals[step.job]})"
            else:
                saving = " (it saves by itself)"
            note = {
                "yield": " (its comment says that it can)",
                "save": saving,
                "stop": " (requeue and hold for a while, or cancel if Slurm refuses)",
            }.get(step.kind, "")
            owner = f" of {users[step.job]}" if step.job else ""
            lines.append(
                describe_step(minute, step).replace(
                    f"job {step.job}:", f"job {step.job}{owner}:", 1
                )
                + note
            )
    return lines
