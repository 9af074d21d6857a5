"""Carry a plan of evictions out on Slurm: look, act, note, until the nodes are free, and whom they are for has them.

What to do when is decided in :mod:`scheduler.eviction.execution`. Here are the looks at the machine and the hands. Right
before each act the job is looked at once more: it must still be its owner's, run, and have started when it did.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fleet.errors import FleetError, UserError
from fleet.jobs.job_holds import DeferredSignals, HeldJobs
from fleet.jobs.paused_submissions import PausedRuns
from launch import slurm_control, slurm_jobs
from launch.base import InputError
from launch.slurm_jobs import SlurmJob
from scheduler.eviction.execution import Eviction, Step
from scheduler.eviction.plan import RunningJob

LOOK_S = 0.5, 10.0  # between two looks, at least and at most: a sixtieth of the deadline
PATIENCE_S = (
    300.0  # after the deadline, for jobs that end slowly, and for a Slurm that does not answer
)
KEEP_S = 60.0  # for which nodes are kept free at least, where nobody says for which job
TELL_MIN = 1.0  # between two lines that say that a job has not begun yet

GiveBack = Callable[[str, int, float], Sequence[str]]
Costs = Callable[[Sequence[SlurmJob]], list[RunningJob]]


@dataclass(frozen=True)
class ClusterSnapshot:
    """The jobs that may be asked to make room, and how each stood when it was first seen.

    Args:
        jobs: with what they would lose now.
        nodes_by_job: nodes of all jobs that hold some.
        queue: how all jobs stand, those included that wait.
    """

    jobs: list[RunningJob]
    nodes_by_job: dict[str, int]
    queue: Mapping[str, SlurmJob]

    @property
    def signals(self) -> dict[str, str]:
        """Upon which jobs save."""
        return {
            job.id: signal for job in self.jobs if (signal := self.queue[job.id].signal) is not None
        }

    @property
    def runs(self) -> dict[str, str]:
        """Folders of the runs that give nodes back while they go on."""
        return {job.id: run for job in self.jobs if (run := self.queue[job.id].yields) is not None}


@dataclass
class ClusterView:
    """What is seen of the cluster.

    Args:
        partition: only the jobs of this one.
        user: only the jobs of this one may be asked; None: those of all.
        costs: what jobs would lose, and how long they take to save.
        give_back: has a run give so many nodes back within some seconds, with their processes; returns their names.
    """

    partition: str | None
    user: str | None
    costs: Costs
    give_back: GiveBack
    seen: dict[str, SlurmJob] = field(
        default_factory=dict
    )  # the run of each job that an eviction is about

    def take_snapshot(self) -> ClusterSnapshot:
        """How things stand now. A job that has been started again is none of those that hold nodes.

        Raises:
            InputError: Slurm does not answer.
        """
        everyone = slurm_jobs.find_jobs()
        holding = [
            job
            for job in everyone.values()
            if job.holds and self.partition in (None, job.partition)
        ]
        for job in holding:
            self.seen.setdefault(job.id, job)
        # One that is put back begins "N/A" while its processes are still ending on its nodes.
        same = [
            job
            for job in holding
            if job.start == self.seen[job.id].start or job.state == "COMPLETING"
        ]
        mine = [job for job in same if job.state == "RUNNING" and self.may_touch(job.user)]
        return ClusterSnapshot(self.costs(mine), {job.id: job.nodes for job in same}, everyone)

    def may_touch(self, user: str) -> bool:
        """Whether a user's jobs may be asked."""
        return self.user in (None, user)

    def find_obstacle(self, job: str) -> str:
        """Empty where a job may be acted on; otherwise why not.

        Raises:
            InputError: Slurm does not answer.
        """
        was = self.seen[job]
        now = slurm_jobs.find_jobs(f"--jobs={job}").get(job)
        if now is None or now.state not in ("RUNNING", "SUSPENDED"):
            return f"it is {now.state if now else 'gone'} by now"
        if now.start != was.start:
            return "it has been started anew"
        if now.user != was.user or not self.may_touch(now.user):
            return f"it is a job of {now.user}"
        return ""


@dataclass(frozen=True)
class EvictionLog:
    """Where everything is noted: a file of lines of JSON, and the screen."""

    path: Path
    say: Callable[[str], None]

    def note(self, what: str, said: str, **more: Any) -> None:
        """Add a line.

        Raises:
            UserError: the file cannot be written.
        """
        line = json.dumps(
            {"time": round(time.time(), 3), "what": what, **more, "said": said}, ensure_ascii=False
        )
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(f"{line}\n")
        except OSError as error:
            raise UserError(f"{self.path}: {error.strerror}; --record names another file") from None
        self.say(said)


@dataclass(frozen=True)
class KeepFree:
    """Until when nodes that are free are kept so.

    Args:
        job: for which they are: until it has begun, or is gone; None: until the deadline, or for :data:`KEEP_S`.
        held_jobs: jobs that are held since an eviction before, and are released with the others.
    """

    job: str | None = None
    held_jobs: Sequence[str] = ()


def carry_out(
    eviction: Eviction,
    first: ClusterSnapshot,
    machine: ClusterView,
    diary: EvictionLog,
    keeping: KeepFree,
    interruption: DeferredSignals,
    sleep: Callable[[float], None] | None = None,
    now_s: Callable[[], float] = time.monotonic,
) -> bool:
    """Act until the nodes are free, and keep them so for a while; whether all went well.

    Args:
        eviction: that has looked at nothing yet.
        first: what the machine showed.
        machine: to look at again.
        diary: what everything is noted in.
        interruption: breaks it off; also then, what is held is released.
        sleep, now_s: replaced by tests.

    Raises:
        InputError: at first: all jobs together have fewer nodes.
        UserError: nothing can be noted.
    """
    holding = HeldJobs(diary.note, machine.may_touch, keeping.held_jobs)
    room = PausedRuns()
    course = _Course(
        eviction,
        machine,
        diary,
        keeping,
        holding,
        room,
        interruption,
        FreedNodes(first, keeping.job),
    )
    try:
        return course.run(first, sleep or interruption.sleep, now_s)
    finally:
        room.end()
        holding.release()


class FreedNodes:
    """Which nodes jobs have let go of, and who has these now; nothing where Slurm does not tell the names of nodes.

    Args:
        first: what the machine showed.
        urgent: the job that is to have the nodes.
    """

    def __init__(self, first: ClusterSnapshot, urgent: str | None) -> None:
        self._urgent = urgent
        self._had = {
            job: frozenset(first.queue[job].hosts) for job in first.nodes_by_job
        }  # of those that are to make room
        self._by: dict[str, str] = {}  # node -> the job that has let go of it
        self._owners: dict[str, SlurmJob] = {}  # node -> the job that has it now

    def update(self, found: ClusterSnapshot) -> dict[str, list[str]]:
        """The nodes that others have taken since the last look, by their jobs."""
        for job, had in self._had.items():
            has = frozenset(found.queue[job].hosts if job in found.nodes_by_job else ())
            self._by |= dict.fromkeys(had - has, job)
            self._had[job] = has
        before = self._owners
        self._owners = {}
        if not self._by:
            return {}
        self._owners = {
            node: job
            for job in found.queue.values()
            if job.id != self._urgent
            for node in self._by.keys() & job.hosts
        }
        taken: dict[str, list[str]] = {}
        for node, owner in sorted(self._owners.items()):
            if node not in before or before[node].id != owner.id:
                taken.setdefault(owner.id, []).append(node)
        return taken

    def track_job(self, job: str, nodes: Sequence[str]) -> None:
        """A job that has taken nodes is to make room in turn."""
        self._had[job] = frozenset(nodes)
        for node in nodes:
            del self._by[node], self._owners[node]

    def freed_by(self, node: str) -> str:
        """The job that has let go of a node."""
        return self._by[node]

    def describe_owners(self) -> str:
        """Who has nodes that were freed, in words; empty where nobody has."""
        return ", ".join(
            f"job {job.id} of {job.user} has {node}" for node, job in sorted(self._owners.items())
        )


@dataclass
class _Course:
    """One eviction that is carried out.

    Attributes:
        free_min: since when the nodes are free.
        silence: what Slurm said instead of an answer, the last time.
        taken_by: jobs that have taken nodes that were free, and are to make room in turn, with how many.
        told_min: when it was said last that the urgent job has not begun.
    """

    eviction: Eviction
    machine: ClusterView
    diary: EvictionLog
    keeping: KeepFree
    holding: HeldJobs
    room: PausedRuns
    interruption: DeferredSignals
    freed: FreedNodes
    free_min: float | None = None
    silence: str = ""
    taken_by: dict[str, int] = field(default_factory=dict)
    told_min: float = 0.0

    def __post_init__(self) -> None:
        self.first = frozenset(self.machine.seen)

    def run(
        self, first: ClusterSnapshot, sleep: Callable[[float], None], now_s: Callable[[], float]
    ) -> bool:
        """See :func:`carry_out`."""
        start = now_s()
        pause = min(max(self.eviction.deadline_min, LOOK_S[0]), LOOK_S[1])
        found: ClusterSnapshot | None = first
        while True:
            minute = (now_s() - start) / 60
            if found is not None:
                self._keep_back(found)
                self._act(minute, found)
            self.room.touch()
            ended = self._end(minute, found)
            if ended is not None:
                is_good, said = ended
                self.diary.note("end", said, freed=self.eviction.freed)
                return is_good
            sleep(pause)
            found = self._look()

    def _look(self) -> ClusterSnapshot | None:
        """What Slurm answers; None while it is silent."""
        try:
            found = self.machine.take_snapshot()
        except InputError as error:  # it may answer again
            if str(error) != self.silence:
                self.diary.note("silent", f"{error}; it is asked again")
            self.silence = str(error)
            return None
        self.silence = ""
        return found

    def _keep_back(self, found: ClusterSnapshot) -> None:
        """Before a node becomes free: hold what waits and would take it, and have no more of that handed in."""
        self.room.add_jobs(
            (job.script, job.user)
            for job in found.queue.values()
            if job.is_patient and must_wait(job, self.keeping.job, self.machine)
        )
        self.room.touch()
        self.holding.hold_waiting(
            found.queue, competing_jobs(found, self.keeping.job, self.machine)
        )

    def _act(self, minute: float, found: ClusterSnapshot) -> None:
        taken = self.freed.update(found)
        for job, nodes in taken.items():
            self._take_back(job, nodes, minute, found)
        # What a job that has come since holds is not what is to be freed, unless it was free before.
        jobs = [
            replace(job, nodes=self.taken_by.get(job.id, job.nodes))
            for job in found.jobs
            if self._counts(job.id)
        ]
        held = {
            job: self.taken_by.get(job, nodes)
            for job, nodes in found.nodes_by_job.items()
            if self._counts(job)
        }
        held |= {
            job: self.taken_by[job] for job in taken if job in self.taken_by
        }  # also one that has begun anew
        for step in self.eviction.next_steps(minute, jobs, held):
            self._take(step, minute, found)
            if step.kind in ("freed", "ended"):
                self.holding.watch(step.job)
        self.holding.hold_waiting(found.queue)
        if not self.eviction.is_done:
            self.free_min = None
        elif self.free_min is None:
            self.free_min = self.told_min = minute
            others = self.freed.describe_owners()
            if others:
                how = f"were freed after {minute:.1f} min, but {others}"
            else:
                how = f"are free after {minute:.1f} min"
            self.diary.note("free", f"{self.eviction.freed} nodes {how}", freed=self.eviction.freed)

    def _counts(self, job: str) -> bool:
        return job in self.first or job in self.taken_by

    def _take_back(
        self, job: str, nodes: Sequence[str], minute: float, found: ClusterSnapshot
    ) -> None:
        """A job has taken nodes that were free: say so, and have it make room in turn if it is one that can wait."""
        user = found.queue[job].user
        whose = ", ".join(
            f"{node}, which job {self.freed.freed_by(node)} has freed" for node in nodes
        )
        in_turn = must_wait(
            found.queue[job], self.keeping.job, self.machine
        ) and self.machine.partition in (None, found.queue[job].partition)
        self.diary.note(
            "taken",
            f"{minute:7.1f} min  job {job} of {user} has taken {whose}"
            + ("; it is to make room in turn" if in_turn else ""),
            job=job,
            user=user,
            nodes=list(nodes),
        )
        if in_turn:
            self.machine.seen[job] = found.queue[job]
            self.taken_by[job] = len(nodes)
            self.freed.track_job(job, nodes)
            self.eviction.add_job(job, len(nodes), job in found.signals)

    def _end(self, minute: float, found: ClusterSnapshot | None) -> tuple[bool, str] | None:
        """Whether it has ended well, and why it has ended; None while it goes on."""
        late = minute > self.eviction.deadline_min + PATIENCE_S / 60
        given_up = f"it is given up {PATIENCE_S / 60:g} min after the deadline"
        if self.interruption.name:
            return False, f"{self.interruption.name} came: it is broken off"
        if self.free_min is None:
            free = f"{self.eviction.freed} of {self.eviction.nodes} nodes are free"
            if late:
                return (False, f"{free}; {given_up}")
            return None
        job = self.keeping.job
        if job is None:
            over = max(self.eviction.deadline_min, self.free_min + KEEP_S / 60)
            if minute >= over:
                return (True, f"they are no longer kept free, after {minute:.1f} min")
            return None
        now = None if found is None else found.queue.get(job)
        if found is None or (now is not None and now.waits):
            return self._waits(job, now.reason if now else "", minute, given_up if late else "")
        return True, f"job {job} is {now.state if now else 'gone'} after {minute:.1f} min"

    def _waits(
        self, job: str, reason: str, minute: float, given_up: str
    ) -> tuple[bool, str] | None:
        """The urgent job has not begun: say so now and then, with what is known of why, or give it up."""
        others = self.freed.describe_owners()
        why = "; ".join(
            [*([f"Slurm says {reason}"] if reason else []), *([others] if others else [])]
        )
        why = f" ({why})" if why else ""
        if given_up:
            return False, f"job {job} has not begun{why}; {given_up}"
        if minute >= self.told_min + TELL_MIN:
            self.told_min = minute
            self.diary.note(
                "waits", f"{minute:7.1f} min  job {job} has not begun yet{why}", job=job
            )
        return None

    def _take(self, step: Step, minute: float, found: ClusterSnapshot) -> None:
        """Note a step; do it first if it is an act."""
        where: dict[str, Any] = {
            "minute": round(minute, 3),
            **({"job": step.job} if step.job else {}),
        }
        if not step.is_action:
            more = {"actions": step.actions} if step.actions else {}
            self.diary.note(step.kind, describe_step(minute, step), **where, **more)
            return
        user = self.machine.seen[step.job].user
        try:
            wrong = self.machine.find_obstacle(step.job)
            done = "" if wrong else self._do(step, minute, found)
        except (
            InputError,
            FleetError,
        ) as error:  # the latter of a run: it does not give nodes back
            wrong = str(error)
            done = ""
        if wrong:
            self.eviction.cancel_action(step.job)
            self.diary.note(
                "refused",
                f"{minute:7.1f} min  job {step.job} of {user}: nothing was done: {wrong}",
                **where,
                user=user,
            )
        else:
            self.diary.note(
                step.kind,
                f"{describe_step(minute, step)} (of {user}; {done})",
                **where,
                user=user,
                done=done,
            )

    def _do(self, step: Step, minute: float, found: ClusterSnapshot) -> str:
        """What was done, in words."""
        if step.kind == "yield":
            self.room.touch(60 * (step.until_min - minute))  # nobody looks until that has an end
            gone = self.machine.give_back(
                found.runs[step.job], step.nodes, 60 * (step.until_min - minute)
            )
            return f"{', '.join(gone)} given back; it keeps {', '.join(slurm_control.shrink(step.job, gone))}"
        if step.kind == "stop":
            return self.holding.put_back(step.job)
        signal = found.signals.get(step.job)
        if signal is None:
            return "it saves by itself"
        slurm_control.tell_to_save(step.job, signal)
        return f"signal {signal}"


def must_wait(job: SlurmJob, urgent: str | None, machine: ClusterView) -> bool:
    """Whether a job that comes, or waits, is to leave the nodes to others.

    FLEET's own are, for they can go on later. Of other jobs it is up to the queue who is first, unless it is known for
    which job the nodes are: then one's own wait for that.
    """
    is_own = urgent is not None and job.user == slurm_control.current_user()
    return job.id != urgent and machine.may_touch(job.user) and (job.is_patient or is_own)


def competing_jobs(found: ClusterSnapshot, urgent: str | None, machine: ClusterView) -> list[str]:
    """The jobs in the queue that would take the nodes, and are held."""
    return sorted(
        job.id
        for job in found.queue.values()
        if job.waits and not job.is_held and must_wait(job, urgent, machine)
    )


def jobs_held_elsewhere(
    found: ClusterSnapshot, machine: ClusterView, known: Sequence[str]
) -> list[str]:
    """Jobs of FLEET's in the queue that are held, though not by an eviction that is known of."""
    return sorted(
        job.id
        for job in found.queue.values()
        if job.is_patient and job.is_held and job.id not in known and machine.may_touch(job.user)
    )


def describe_step(minute: float, step: Step) -> str:
    """A step in words.

    >>> describe_step(0.0, Step("save", "17", until_min=4.0))
    '    0.0 min  job 17: saves, until minute 4.0'
    """
    words = {
        "yield": "gives nodes back",
        "shrunk": "has become smaller",
        "save": f"saves, until minute {step.until_min:.1f}",
        "stop": "is stopped",
        "freed": "has freed its nodes",
        "ended": "has ended by itself; it is planned anew",
        "deaf": "did not end in its time; it is planned anew",
        "plan": "plan",
        "enough": "enough nodes",
        "short": "not enough",
    }
    who = f"job {step.job}: " if step.job else ""
    return f"{minute:7.1f} min  {who}{words[step.kind]}{f': {step.detail}' if step.detail else ''}"


def dry_run_lines(
    steps: Sequence[tuple[float, Step]], users: Mapping[str, str], signals: Mapping[str, str]
) -> list[str]:
    """What would be done, for a dry run; ``freed`` needs no line."""
    lines = []
    for minute, step in steps:
        if step.is_action or step.kind == "plan":
            how = {
                "yield": " (as its comment says that it can)",
                "save": f" (signal {signals[step.job]})"
                if step.job in signals
                else " (it saves by itself)",
                "stop": " (requeue and hold for a while, or cancel where Slurm refuses that)",
            }.get(step.kind, "")
            owner = f" of {users[step.job]}" if step.job else ""
            lines.append(
                describe_step(minute, step).replace(
                    f"job {step.job}:", f"job {step.job}{owner}:", 1
                )
                + how
            )
    return lines
