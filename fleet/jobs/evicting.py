"""Carry a plan of evictions out on Slurm: look, act, note, until the nodes are free.

What to do when is decided in :mod:`scheduler.eviction.carrying`. Here are the looks at the machine and the hands. Right
before each act the job is looked at once more: it must still be its owner's, run, and have started when it did.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet.errors import UserError
from launch import slurm_acts
from launch.base import InputError
from launch.slurm_acts import Standing
from launch.slurm_jobs import SlurmJob, running_jobs
from scheduler.eviction.carrying import Eviction, Step
from scheduler.eviction.plan import RunningJob

LOOK_S = 0.5, 10.0  # between two looks, at least and at most: a sixtieth of the deadline
PATIENCE_S = 300.0  # after the deadline, for jobs that end slowly, and for a Slurm that does not answer

Costs = Callable[[Sequence[SlurmJob]], list[RunningJob]]


@dataclass(frozen=True)
class Candidates:
    """The jobs that may be asked to make room, and how each stood when it was first seen.

    Args:
        jobs: with what they would lose now.
        held: nodes of all jobs that hold some.
        signals: upon which jobs save.
    """

    jobs: list[RunningJob]
    held: dict[str, int]
    signals: dict[str, str]


@dataclass
class Machine:
    """What is seen of the cluster.

    Args:
        partition: only the jobs of this one.
        user: only the jobs of this one may be asked; None: those of all.
        costs: what jobs would lose, and how long they take to save.
    """

    partition: str | None
    user: str | None
    costs: Costs
    seen: dict[str, Standing] = field(default_factory=dict)  # the run of each job that an eviction is about

    def look(self) -> Candidates:
        """How things stand now. A job that has been started again is none of those that hold nodes.

        Raises:
            InputError: Slurm does not answer.
        """
        standing = {id_: job for id_, job in slurm_acts.standings(self.partition).items() if job.holds}
        running = running_jobs(self.partition)
        for id_, job in standing.items():
            self.seen.setdefault(id_, job)
        same = {id_ for id_, job in standing.items() if job.start == self.seen[id_].start}
        mine = [job for job in running if job.id in same and standing[job.id].state == "RUNNING"
                and self.user in (None, standing[job.id].user)]
        return Candidates(self.costs(mine), {id_: standing[id_].nodes for id_ in same},
                          {job.id: job.signal for job in mine if job.signal is not None})

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
        if now.user != was.user or self.user not in (None, now.user):
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


def carry_out(eviction: Eviction, first: Candidates, machine: Machine, diary: Diary,
              sleep: Callable[[float], None] = time.sleep, now_s: Callable[[], float] = time.monotonic) -> bool:
    """Act until the nodes are free; whether they are.

    Args:
        eviction: that has looked at nothing yet.
        first: what the machine showed.
        machine: to look at again.
        diary: what everything is noted in.
        sleep, now_s: replaced by tests.

    Raises:
        InputError: at first: all jobs together have fewer nodes.
        UserError: nothing can be noted.
    """
    start, told = now_s(), ""
    found: Candidates | None = first
    pause = min(max(eviction.deadline_min, LOOK_S[0]), LOOK_S[1])
    while True:
        minute = (now_s() - start) / 60
        if found is not None:
            for step in eviction.look(minute, found.jobs, found.held):
                _take(step, minute, eviction, found, machine, diary)
        if eviction.is_done:
            diary.note("end", f"{eviction.freed} nodes are free after {minute:.1f} min", freed=eviction.freed)
            return True
        if minute > eviction.deadline_min + PATIENCE_S / 60:
            diary.note("end", f"{eviction.freed} of {eviction.nodes} nodes are free; it is given up "
                       f"{PATIENCE_S / 60:g} min after the deadline", freed=eviction.freed)
            return False
        sleep(pause)
        try:
            found, told = machine.look(), ""
        except InputError as error:  # it may answer again
            found, told = None, _once(str(error), told, diary)


def _once(said: str, told: str, diary: Diary) -> str:
    if said != told:
        diary.note("silent", f"{said}; it is asked again")
    return said


def _take(step: Step, minute: float, eviction: Eviction, found: Candidates, machine: Machine, diary: Diary) -> None:
    """Note a step; do it first if it is an act."""
    where: dict[str, Any] = {"minute": round(minute, 3), **({"job": step.job} if step.job else {})}
    if not step.is_act:
        diary.note(step.what, told(minute, step), **where, **({"actions": step.actions} if step.actions else {}))
        return
    user = machine.seen[step.job].user
    try:
        wrong = machine.is_as_it_was(step.job)
        done = "" if wrong else _act(step, found)
    except InputError as error:
        wrong, done = str(error), ""
    if wrong:
        eviction.refused(step.job)
        diary.note("refused", f"{minute:7.1f} min  job {step.job} of {user}: nothing was done: {wrong}", **where,
                   user=user)
    else:
        diary.note(step.what, f"{told(minute, step)} (of {user}; {done})", **where, user=user, done=done)


def _act(step: Step, found: Candidates) -> str:
    if step.what == "stop":
        return slurm_acts.put_back(step.job)
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
    words = {"save": f"saves, until minute {step.until_min:.1f}", "stop": "is stopped", "freed": "has freed its nodes",
             "ended": "has ended by itself; it is planned anew", "deaf": "did not end in its time; it is planned anew",
             "plan": "plan", "enough": "enough nodes", "short": "not enough"}
    who = f"job {step.job}: " if step.job else ""
    return f"{minute:7.1f} min  {who}{words[step.what]}{f': {step.said}' if step.said else ''}"


def lines_of(steps: Sequence[tuple[float, Step]], users: Mapping[str, str], signals: Mapping[str, str]) -> list[str]:
    """What would be done, for a dry run; ``freed`` needs no line."""
    lines = []
    for minute, step in steps:
        if step.is_act or step.what == "plan":
            how = {"save": f" (signal {signals[step.job]})" if step.job in signals else " (it saves by itself)",
                   "stop": " (requeue, or cancel where Slurm refuses that)"}.get(step.what, "")
            owner = f" of {users[step.job]}" if step.job else ""
            lines.append(told(minute, step).replace(f"job {step.job}:", f"job {step.job}{owner}:", 1) + how)
    return lines
