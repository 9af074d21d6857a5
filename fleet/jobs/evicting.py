"""Carry a plan of evictions out on Slurm: look, act, note, until the nodes are free, and whom they are for has them.

What to do when is decided in :mod:`scheduler.eviction.carrying`. Here are the looks at the machine and the hands. Right
before each act the job is looked at once more: it must still be its owner's, run, and have started when it did.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from fleet.errors import FleetError, UserError
from fleet.jobs.holding import Holding, Interruption
from launch import slurm_acts
from launch.base import InputError
from launch.slurm_acts import Standing
from launch.slurm_jobs import SlurmJob, running_jobs
from scheduler.eviction.carrying import Eviction, Step
from scheduler.eviction.plan import RunningJob

LOOK_S = 0.5, 10.0  # between two looks, at least and at most: a sixtieth of the deadline
PATIENCE_S = 300.0  # after the deadline, for jobs that end slowly, and for a Slurm that does not answer
KEEP_S = 60.0  # for which nodes are kept free at least, where nobody says for which job

GiveBack = Callable[[str, int, float], Sequence[str]]
Answer = TypeVar("Answer")
Costs = Callable[[Sequence[SlurmJob]], list[RunningJob]]


@dataclass(frozen=True)
class Candidates:
    """The jobs that may be asked to make room, and how each stood when it was first seen.

    Args:
        jobs: with what they would lose now.
        held: nodes of all jobs that hold some.
        signals: upon which jobs save.
        runs: folders of the runs that give nodes back while they go on.
        standing: how all jobs stand, those included that wait.
    """

    jobs: list[RunningJob]
    held: dict[str, int]
    signals: dict[str, str]
    runs: dict[str, str]
    standing: Mapping[str, Standing]


@dataclass
class Machine:
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
    seen: dict[str, Standing] = field(default_factory=dict)  # the run of each job that an eviction is about

    def look(self) -> Candidates:
        """How things stand now. A job that has been started again is none of those that hold nodes.

        Raises:
            InputError: Slurm does not answer.
        """
        everyone = slurm_acts.standings(self.partition)
        standing = {id_: job for id_, job in everyone.items() if job.holds}
        running = running_jobs(self.partition)
        for id_, job in standing.items():
            self.seen.setdefault(id_, job)
        same = {id_ for id_, job in standing.items() if job.start == self.seen[id_].start}
        mine = [job for job in running if job.id in same and standing[job.id].state == "RUNNING"
                and self.may_touch(standing[job.id].user)]
        return Candidates(self.costs(mine), {id_: standing[id_].nodes for id_ in same},
                          {job.id: job.signal for job in mine if job.signal is not None},
                          {job.id: job.yields for job in mine if job.yields is not None}, everyone)

    def may_touch(self, user: str) -> bool:
        """Whether a user's jobs may be asked."""
        return self.user in (None, user)

    def is_as_it_was(self, job: str) -> str:
        """Empty where a job may be acted on; otherwise why not.

        Raises:
            InputError: Slurm does not answer.
        """
        was, now = self.seen[job], slurm_acts.standings(job=job).get(job)
        if now is None or now.state not in ("RUNNING", "SUSPENDED"):
            return f"it is {now.state if now else 'gone'} by now"
        if now.start != was.start:
            return "it has been started anew"
        if now.user != was.user or not self.may_touch(now.user):
            return f"it is a job of {now.user}"
        return ""


@dataclass(frozen=True)
class Diary:
    """Where everything is noted: a file of lines of JSON, and the screen."""

    path: Path
    say: Callable[[str], None]

    def note(self, what: str, said: str, **more: Any) -> None:
        """Add a line.

        Raises:
            UserError: the file cannot be written.
        """
        line = json.dumps({"time": round(time.time(), 3), "what": what, **more, "said": said}, ensure_ascii=False)
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(f"{line}\n")
        except OSError as error:
            raise UserError(f"{self.path}: {error.strerror}; --record names another file") from None
        self.say(said)


@dataclass(frozen=True)
class Keeping:
    """Until when nodes that are free are kept so.

    Args:
        job: for which they are: until it has begun, or is gone; None: until the deadline, or for :data:`KEEP_S`.
        held: jobs that are held since an eviction before, and are released with the others.
    """

    job: str | None = None
    held: Sequence[str] = ()


_FOR_NOBODY = Keeping()


def carry_out(eviction: Eviction, first: Candidates, machine: Machine, diary: Diary, keeping: Keeping = _FOR_NOBODY,
              interruption: Interruption | None = None, sleep: Callable[[float], None] | None = None,
              now_s: Callable[[], float] = time.monotonic) -> bool:
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
    interruption = interruption or Interruption()
    holding = Holding(diary.note, machine.may_touch, keeping.held)
    course = _Course(eviction, machine, diary, keeping, holding, interruption)
    try:
        return course.run(first, sleep or interruption.sleep, now_s)
    finally:
        holding.release()


@dataclass
class _Course:
    """One eviction that is carried out.

    Attributes:
        free_min: since when the nodes are free.
        silence: what Slurm said instead of an answer, the last time.
    """

    eviction: Eviction
    machine: Machine
    diary: Diary
    keeping: Keeping
    holding: Holding
    interruption: Interruption
    free_min: float | None = None
    silence: str = ""

    def run(self, first: Candidates, sleep: Callable[[float], None], now_s: Callable[[], float]) -> bool:
        """See :func:`carry_out`."""
        start, pause = now_s(), min(max(self.eviction.deadline_min, LOOK_S[0]), LOOK_S[1])
        found: Candidates | None = first
        while True:
            minute = (now_s() - start) / 60
            if found is not None:
                self._act(minute, found)
            if (ended := self._end(minute)) is not None:
                is_good, said = ended
                self.diary.note("end", said, freed=self.eviction.freed)
                return is_good
            sleep(pause)
            found = self._ask(self.machine.look)

    def _ask(self, question: Callable[[], Answer]) -> Answer | None:
        """What Slurm answers; None while it is silent."""
        try:
            answer = question()
        except InputError as error:  # it may answer again
            if str(error) != self.silence:
                self.diary.note("silent", f"{error}; it is asked again")
            self.silence = str(error)
            return None
        self.silence = ""
        return answer

    def _act(self, minute: float, found: Candidates) -> None:
        for step in self.eviction.look(minute, found.jobs, found.held):
            self._take(step, minute, found)
            if step.what in ("freed", "ended"):
                self.holding.watch(step.job)
        self.holding.look(found.standing)
        if self.eviction.is_done and self.free_min is None:
            self.free_min = minute
            self.diary.note("free", f"{self.eviction.freed} nodes are free after {minute:.1f} min",
                            freed=self.eviction.freed)

    def _end(self, minute: float) -> tuple[bool, str] | None:
        """Whether it has ended well, and why it has ended; None while it goes on."""
        late = minute > self.eviction.deadline_min + PATIENCE_S / 60
        given_up = f"it is given up {PATIENCE_S / 60:g} min after the deadline"
        if self.interruption.name:
            return False, f"{self.interruption.name} came: it is broken off"
        if self.free_min is None:
            free = f"{self.eviction.freed} of {self.eviction.nodes} nodes are free"
            return (False, f"{free}; {given_up}") if late else None
        if (job := self.keeping.job) is None:
            over = max(self.eviction.deadline_min, self.free_min + KEEP_S / 60)
            return (True, f"they are kept free no longer, after {minute:.1f} min") if minute >= over else None
        stands = self._ask(lambda: slurm_acts.standings(job=job))
        if stands is None or (job in stands and stands[job].waits):
            return (False, f"job {job} has not begun; {given_up}") if late else None
        return True, f"job {job} is {stands[job].state if job in stands else 'gone'} after {minute:.1f} min"

    def _take(self, step: Step, minute: float, found: Candidates) -> None:
        """Note a step; do it first if it is an act."""
        where: dict[str, Any] = {"minute": round(minute, 3), **({"job": step.job} if step.job else {})}
        if not step.is_act:
            more = {"actions": step.actions} if step.actions else {}
            self.diary.note(step.what, told(minute, step), **where, **more)
            return
        user = self.machine.seen[step.job].user
        try:
            wrong = self.machine.is_as_it_was(step.job)
            done = "" if wrong else self._do(step, minute, found)
        except (InputError, FleetError) as error:  # the latter of a run: it does not give nodes back
            wrong, done = str(error), ""
        if wrong:
            self.eviction.refused(step.job)
            self.diary.note("refused", f"{minute:7.1f} min  job {step.job} of {user}: nothing was done: {wrong}",
                            **where, user=user)
        else:
            self.diary.note(step.what, f"{told(minute, step)} (of {user}; {done})", **where, user=user, done=done)

    def _do(self, step: Step, minute: float, found: Candidates) -> str:
        """What was done, in words."""
        if step.what == "yield":
            gone = self.machine.give_back(found.runs[step.job], step.nodes, 60 * (step.until_min - minute))
            return f"{', '.join(gone)} given back; it keeps {', '.join(slurm_acts.shrink(step.job, gone))}"
        if step.what == "stop":
            return self.holding.put_back(step.job)
        signal = found.signals.get(step.job)
        if signal is None:
            return "it saves by itself"
        slurm_acts.tell_to_save(step.job, signal)
        return f"signal {signal}"


def told(minute: float, step: Step) -> str:
    """A step in words.

    >>> told(0.0, Step("save", "17", until_min=4.0))
    '    0.0 min  job 17: saves, until minute 4.0'
    """
    words = {"yield": "gives nodes back", "shrunk": "has become smaller",
             "save": f"saves, until minute {step.until_min:.1f}", "stop": "is stopped", "freed": "has freed its nodes",
             "ended": "has ended by itself; it is planned anew", "deaf": "did not end in its time; it is planned anew",
             "plan": "plan", "enough": "enough nodes", "short": "not enough"}
    who = f"job {step.job}: " if step.job else ""
    return f"{minute:7.1f} min  {who}{words[step.what]}{f': {step.said}' if step.said else ''}"


def lines_of(steps: Sequence[tuple[float, Step]], users: Mapping[str, str], signals: Mapping[str, str]) -> list[str]:
    """What would be done, for a dry run; ``freed`` needs no line."""
    lines = []
    for minute, step in steps:
        if step.is_act or step.what == "plan":
            how = {"yield": " (as its comment says that it can)",
                   "save": f" (signal {signals[step.job]})" if step.job in signals else " (it saves by itself)",
                   "stop": " (requeue and hold for a while, or cancel where Slurm refuses that)"}.get(step.what, "")
            owner = f" of {users[step.job]}" if step.job else ""
            lines.append(told(minute, step).replace(f"job {step.job}:", f"job {step.job}{owner}:", 1) + how)
    return lines
