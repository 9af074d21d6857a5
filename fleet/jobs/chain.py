"""Jobs after jobs: one launch, why it stopped, and what comes next.

A job script ends in ``fleet job``, which is this module: it starts the launcher, passes the batch system's
signals on to it, waits, and decides. Every launch has two lines in one file,
:attr:`fleet.storage.paths.RunPaths.stops`, from which the next job knows how many there were; nothing else is
remembered between jobs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

from fleet.domain.events import Started
from fleet.domain.record import Flat, Kind, OmitDefault, from_json
from fleet.errors import ExitStatus, StorageError, UserError
from fleet.jobs.making_room import begin_later
from fleet.jobs.notes import Begun, CalledOff, HandedIn, read_notes
from fleet.jobs.room import await_room, keep_last_room, say
from fleet.jobs.systems import SYSTEM_VARIABLE, find_system, lease_of_process
from fleet.jobs.warned import WarnedLaunch
from fleet.storage.event_log import launch_status, log_mark, read_events
from fleet.storage.lease import Lease
from fleet.storage.lines import add_dated_line, read_lines
from fleet.storage.paths import RunPaths
from launch.base import InputError
from launch.calling import call
from launch.queues import QUEUES, QueuedJob
from launch.systems import System, continue_job, is_preempted


@dataclass(frozen=True)
class Limits:
    """How long a chain of jobs may become: so many jobs, and so many failures of the machine that are forgiven."""

    jobs: int
    retries: int


@dataclass(frozen=True)
class Stop:
    """The end of a job's launch.

    Args:
        status: of the launch (:class:`fleet.errors.ExitStatus`); None where the job ended without a word.
        warned: whether the batch system was about to end the job.
    """

    status: int | None
    warned: bool = False

    @property
    def is_failure(self) -> bool:
        """Whether the machine failed; a launch that breaks off after a warning was only too slow."""
        answers = (ExitStatus.OK, ExitStatus.BAD_INPUT, ExitStatus.NETWORK_FAILED, ExitStatus.RESUMABLE)
        return self.status is not None and self.status not in answers and not self.warned


@dataclass(frozen=True)
class Decision:
    """Whether the chain goes on, and why or why not."""

    goes_on: bool
    why: str


def decide(stops: Sequence[Stop], limits: Limits) -> Decision:
    """What comes after the newest stop.

    Args:
        stops: of the chain so far, the newest last.

    >>> decide([Stop(75)], Limits(jobs=20, retries=2)).goes_on
    True
    >>> decide([Stop(2)], Limits(jobs=20, retries=2))
    Decision(goes_on=False, why='the spec or the arguments are wrong')
    """
    last = stops[-1]
    if last.status == ExitStatus.OK:
        return Decision(False, "all networks finished")
    if last.status == ExitStatus.NETWORK_FAILED:
        return Decision(False, "some networks failed, the others finished")
    if last.status == ExitStatus.BAD_INPUT:
        return Decision(False, "the spec or the arguments are wrong")
    failures = sum(stop.is_failure for stop in stops)
    if failures > limits.retries:
        return Decision(False, f"the machine failed {_times(failures)} (retries: {limits.retries})")
    if len(stops) >= limits.jobs:
        return Decision(False, f"a job has run {_times(len(stops))} (jobs: {limits.jobs})")
    return Decision(True, "networks are left")


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _next_request(stops: Sequence[Stop], requests: Sequence[float]) -> float | None:
    """What the next job asks for: one that broke off has not used its request up, and asks for as much again.

    >>> _next_request([Stop(75)], [600, 1200]), _next_request([Stop(75), Stop(1)], [600, 1200])
    (1200, 1200)
    """
    used = sum(not stop.is_failure for stop in stops)
    return requests[min(used, len(requests) - 1)] if requests else None


# ---- what is remembered between jobs ------------------------------------------------------------


class Stopped(Kind, word="stopped"):
    """A launch is over: the second of its two lines; the next job writes it where this one ended without a word.

    Attributes:
        why: it stopped.
        next: the job that makes the next launch; None where there will be none.
        then: what was decided, for people.
    """

    job: str
    stop: Annotated[Stop, Flat]
    why: str
    next: str | None
    then: Annotated[str, OmitDefault] = ""


_Noted = Begun | Stopped | HandedIn | CalledOff
_KINDS: Mapping[str, type] = {kind.word: kind for kind in (Begun, Stopped, HandedIn, CalledOff)}
CALLED_OFF = "the chain was called off (fleet submit --end)"


def note(paths: RunPaths, what: _Noted) -> None:
    """Add a line to the file of stops, with the time.

    Raises:
        StorageError: the disk is full, ...
    """
    add_dated_line(paths.stops, what)


def stops_before(path: Path, job: str) -> list[Stop]:
    """The stops of the chain that a job goes on with: the newest one, where it was to be followed by this job."""
    return _chain_before(path, job)[0]


@dataclass(frozen=True)
class Past:
    """What the file of stops tells of how long an ensemble takes.

    Attributes:
        finished: seconds in launches of each chain that has finished.
        so_far: of the newest one, where it has not.
    """

    finished: tuple[float, ...]
    so_far: float


def past_of(path: Path) -> Past:
    """How long the chains of a run's folder were at work; a launch that ended without a word does not count."""
    finished, so_far, begun = [], 0.0, None
    for line in read_lines(path) if path.exists() else []:
        noted, moment = from_json(line, _KINDS), _moment(line)
        if isinstance(noted, Begun):
            begun = moment
        elif isinstance(noted, Stopped) and begun is not None and moment is not None:
            so_far += max(0.0, (moment - begun).total_seconds()) if noted.stop.status is not None else 0.0
            begun = None
            if noted.stop.status in (ExitStatus.OK, ExitStatus.NETWORK_FAILED):
                finished.append(so_far)
                so_far = 0.0
    return Past(tuple(finished), so_far)


def _moment(line: Mapping[str, object]) -> datetime | None:
    try:
        return datetime.fromisoformat(str(line.get("time")))
    except ValueError:
        return None


def has_started(paths: RunPaths, job: str) -> bool:
    """Whether an earlier launch of the chain that a job goes on with got so far as to take up its networks."""
    stops, log_bytes = _chain_before(paths.stops, job)
    return bool(stops) and paths.events.exists() and any(
        isinstance(event, Started) for _, event in read_events(paths.events, log_bytes))


def _chain_before(path: Path, job: str) -> tuple[list[Stop], int]:
    """The stops of a job's chain so far, and the size of the event log before its first launch, in bytes."""
    stops: list[Stop] = []
    following, log_bytes = None, 0
    for noted in _noted(path):
        match noted:
            case Stopped():
                stops.append(noted.stop)
                following = noted.next
            case Begun() if noted.job != following:
                stops, log_bytes = [], noted.log_bytes
    return (stops, log_bytes) if job == following else ([], 0)


def _unfinished(path: Path) -> str | None:
    """The job whose launch has begun, and of whose stop nothing is known."""
    launches = [noted for noted in _noted(path) if isinstance(noted, Begun | Stopped)]
    return launches[-1].job if launches and isinstance(launches[-1], Begun) else None


def is_called_off(path: Path, job: str) -> bool:
    """Whether a user has ended the chain that a job belongs to; one that is handed in later is another chain's."""
    ours, is_off = set[str](), False
    for noted in _noted(path):
        match noted:
            case CalledOff():
                is_off = bool(ours)
            case Stopped(next=following):
                ours |= {noted.job} | ({following} if following else set())
            case HandedIn() | Begun() if noted.job not in ours:
                ours, is_off = {noted.job}, False
    return is_off and job in ours


def jobs_of(path: Path) -> tuple[set[str], str]:
    """The jobs of which a chain knows, and what was decided at its newest stop."""
    known, then = set[str](), ""
    for noted in _noted(path):
        match noted:
            case Stopped(next=following):
                known |= {noted.job} | ({following} if following else set())
                then = noted.then or noted.why
            case HandedIn() | Begun():
                known.add(noted.job)
    return known, then


def _noted(path: Path) -> list[_Noted]:
    return read_notes(path, _KINDS)


# ---- one job ------------------------------------------------------------------------------------


class Keeper:
    """Keeps one job of a chain: launches, passes warnings on, sees to what comes next.

    Args:
        paths: of the run.
        system: the batch system; on ``local``, one job makes all launches.
        job: its id.
        limits: of the chain.
        warn_after: seconds after which to warn the ranks, where the system does not.
        once: further words of the command, until a launch of the chain has started with them.
        requests: seconds that the jobs of the chain ask for, one after the other; the last counts for all that follow.
    """

    def __init__(self, paths: RunPaths, system: System, job: str, limits: Limits,
                 warn_after: float | None = None, once: Sequence[str] = (), requests: Sequence[float] = ()) -> None:
        self._paths, self._system, self._job, self._limits = paths, system, job, limits
        self._once, self._requests = once, requests
        self._environment = {**os.environ, SYSTEM_VARIABLE: system.name}
        self._warned = WarnedLaunch(self._environment, warn_after, lambda: is_preempted(system, job))

    def run(self, command: Sequence[str]) -> int:
        """Launch, until this job is over; returns the status that it should end with.

        Raises:
            UserError: the launcher is not there, or another job is at work on the same run.
            StorageError: nothing can be noted.
            LeaseLost: another job has taken the chain over.
        """
        self._warned.listen()
        if self._await_room() is None:  # a disk that is full for now is no reason to lose the job
            keep_last_room(self._paths.last_room)
        with lease_of_process(self._environment) as lease:
            lease.take(self._paths.jobs_lease)
            return self._run(command, lease)

    def _run(self, command: Sequence[str], lease: Lease) -> int:
        if (lost := _unfinished(self._paths.stops)) is not None:
            note(self._paths, Stopped(lost, Stop(None), "it ended without a word: preempted, killed, or its node died",
                                      next=self._job if lost == self._job else None))
        while True:
            stops = stops_before(self._paths.stops, self._job)
            if is_called_off(self._paths.stops, self._job):
                say(CALLED_OFF)
                return int(ExitStatus.RESUMABLE)
            if len(stops) >= self._limits.jobs:  # the batch system started it again by itself
                say(f"a job has run {_times(len(stops))} (jobs: {self._limits.jobs})")
                return int(ExitStatus.RESUMABLE)
            status, goes_on = self._launch(command, stops, lease)
            if not goes_on or self._system.has_queue:
                return status

    def _await_room(self) -> StorageError | None:
        return await_room(self._paths.jobs, lambda: self._warned.is_signalled)

    def _launch(self, command: Sequence[str], stops: Sequence[Stop], lease: Lease) -> tuple[int, bool]:
        """One launch: how it ended, and whether another follows."""
        before = log_mark(self._paths.events)
        once = () if has_started(self._paths, self._job) else self._once
        note(self._paths, Begun(self._job, before[1]))
        try:
            ended = self._warned.run([*command, *once])
        except UserError as error:  # what has begun without a stop would be taken for killed
            stop = Stop(int(ExitStatus.BAD_INPUT))
            note(self._paths, Stopped(self._job, stop, str(error), next=None, then=decide([stop], self._limits).why))
            raise
        lease.check()  # after a long stop another job may have gone on with the chain
        status = launch_status(ended, self._paths.events, before)
        if Stop(status).is_failure and not self._warned.warning and is_preempted(self._system, self._job):
            self._warned.warning = "a preemption"
        stop = Stop(status, bool(self._warned.warning))
        decision = decide([*stops, stop], self._limits)
        if stop.is_failure and (refused := self._await_room()) is not None:
            decision = Decision(False, str(refused))
            with suppress(OSError):
                self._paths.last_room.unlink(missing_ok=True)  # for what is noted now
        following, then = self._follow(decision, _next_request([*stops, stop], self._requests))
        why = self._warned.why(status, ended, self._paths.events)
        note(self._paths, Stopped(self._job, stop, why, following, then))
        say(f"status {status}; {then}")
        return status, following is not None

    def _follow(self, decision: Decision, request: float | None) -> tuple[str | None, str]:
        """See to it that another launch follows; who does it, and what there is to say."""
        if not decision.goes_on:
            return None, decision.why
        if is_called_off(self._paths.stops, self._job):
            return None, CALLED_OFF
        if not self._system.has_queue:
            return (None, "it was told to stop") if self._warned.is_signalled else (self._job, decision.why)
        try:
            later = begin_later(self._system, [self._paths])
            return continue_job(self._system, self._job, self._paths.job_script, request, later), decision.why
        except (InputError, OSError) as error:
            return None, f"{decision.why}, but no further job could be submitted: {error}"


# ---- ending a chain -----------------------------------------------------------------------------

_NAME = re.compile(r"^#\S+ (?:--job-name=|-J |-N )(\S+)", re.MULTILINE)
_SYSTEM = re.compile(r" --system=(\S+)")


def end_chain(paths: RunPaths) -> tuple[list[str], list[str]]:
    """End the chain of a run: its jobs that were taken back, and those that were told to save and to end.

    Raises:
        UserError: there is nothing to end, or nothing that can be ended by a command.
        InputError: the batch system does not answer, or refuses.
    """
    system, name = _system_of_chain(paths)
    queue = QUEUES[system.queue_commands]

    def ours() -> list[QueuedJob]:
        known, _ = jobs_of(paths.stops)
        return [job for job in queue.own_jobs([name]) if job.id in known]

    if not ours():
        known, then = jobs_of(paths.stops)
        why = "" if not then else f"; at its last stop it was decided: {then}"
        raise UserError(f"--end {paths.root}: none of the chain's jobs waits or runs "
                        f"({', '.join(sorted(known)) or f'{paths.stops} knows of none'}){why}")
    note(paths, CalledOff())  # whatever job begins or ends from now on hands in no other
    back, told = [], []
    for job in ours():
        if job.runs:
            call([word.format(job=job.id) for word in system.tell])
            told.append(job.id)
        else:
            queue.cancel(job.id)
            back.append(job.id)
    return back, told


def _system_of_chain(paths: RunPaths) -> tuple[System, str]:
    """The batch system of a chain, and the name of its jobs, by the script in the folder of the run."""
    try:
        script = paths.job_script.read_text(encoding="utf-8")
    except OSError:
        raise UserError(f"--end {paths.root}: there is no chain: {paths.job_script} is missing, which fleet submit "
                        "writes") from None
    system, name = _SYSTEM.search(script), _NAME.search(script)
    found = find_system(system[1].strip("'\"")) if system else None
    if found is None or (found.has_queue and name is None):
        raise UserError(f"--end {paths.root}: {paths.job_script} is no script that fleet submit wrote")
    if not found.has_queue:
        raise UserError(f"--end {paths.root}: with --system {found.name} the chain runs in the foreground; "
                        "interrupt it there (Ctrl-C), and it saves and ends")
    if not (found.queue_commands and found.tell):
        raise UserError(f"--end {paths.root}: {found.name} has no queue_commands, or no tell, by which jobs are "
                        "found and told to save; end them by its own commands")
    return found, name[1].strip("'\"") if name else ""
