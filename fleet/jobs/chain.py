"""Jobs after jobs: one launch, why it stopped, and what comes next.

A job script ends in ``fleet job``, which is this module: it starts the launcher, passes the batch system's
signals on to it, waits, and decides. Every launch has two lines in one file,
:attr:`fleet.storage.paths.RunPaths.stops`, from which the next job knows how many there were; nothing else is
remembered between jobs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated

from fleet.domain.events import LaunchStarted
from fleet.domain.json_record import Flat, JsonRecord, OmitDefault, from_json
from fleet.errors import ExitStatus, UserError
from fleet.jobs.job_events import ChainCancelled, JobStarted, JobSubmitted, read_notes
from fleet.jobs.launching import (
    ORDERLY_STATUSES,
    WarnedLaunch,
    print_message,
    reserve_emergency_space,
)
from fleet.jobs.paused_submissions import delay_options
from fleet.jobs.systems import find_system, lease_of_process
from fleet.storage.event_log import log_position, read_events
from fleet.storage.json_lines import add_dated_line, read_lines
from fleet.storage.lease import Lease
from fleet.storage.paths import RunPaths
from launch.base import InputError, call
from launch.queues import QUEUES, QueuedJob
from launch.systems import System, continue_job


@dataclass(frozen=True)
class ChainLimits:
    """How long a chain of jobs may become: so many jobs, and so many failures of the machine that are forgiven."""

    jobs: int
    retries: int


@dataclass(frozen=True)
class JobStop:
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
        return self.status is not None and self.status not in ORDERLY_STATUSES and not self.warned


@dataclass(frozen=True)
class Continuation:
    """Whether the chain goes on, and why or why not."""

    continues: bool
    reason: str


def decide_continuation(stops: Sequence[JobStop], limits: ChainLimits) -> Continuation:
    """What comes after the newest stop.

    Args:
        stops: of the chain so far, the newest last.

    >>> decide_continuation([JobStop(75)], ChainLimits(jobs=20, retries=2)).continues
    True
    >>> decide_continuation([JobStop(2)], ChainLimits(jobs=20, retries=2))
    Continuation(continues=False, reason='the spec or the arguments are wrong')
    """
    over = {
        ExitStatus.OK: "all networks finished",
        ExitStatus.NETWORK_FAILED: "some networks failed, the others finished",
        ExitStatus.BAD_INPUT: "the spec or the arguments are wrong",
    }
    status = stops[-1].status
    if status in over:
        return Continuation(False, over[ExitStatus(status)])
    failures = sum(stop.is_failure for stop in stops)
    if failures > limits.retries:
        return Continuation(
            False, f"the machine failed {_times(failures)} (retries: {limits.retries})"
        )
    if len(stops) >= limits.jobs:
        return Continuation(False, f"a job has run {_times(len(stops))} (jobs: {limits.jobs})")
    return Continuation(True, "networks are left")


def _times(count: int) -> str:
    if count == 1:
        return "once"
    return f"{count} times"


def _next_request(stops: Sequence[JobStop], requests: Sequence[float]) -> float | None:
    """What the next job asks for: one that broke off has not used its request up, and asks for as much again.

    >>> _next_request([JobStop(75)], [600, 1200]), _next_request([JobStop(75), JobStop(1)], [600, 1200])
    (1200, 1200)
    """
    used = sum(not stop.is_failure for stop in stops)
    if requests:
        return requests[min(used, len(requests) - 1)]
    return None


# ---- what is remembered between jobs ------------------------------------------------------------


class JobStopped(JsonRecord, word="stopped"):
    """A launch is over: the second of its two lines; the next job writes it where this one ended without a word.

    Attributes:
        why: it stopped.
        next: the job that makes the next launch; None where there will be none.
        then: what was decided, for people.
    """

    job: str
    stop: Annotated[JobStop, Flat]
    why: str
    next: str | None
    then: Annotated[str, OmitDefault] = ""


_Noted = JobStarted | JobStopped | JobSubmitted | ChainCancelled
_KINDS: Mapping[str, type] = {
    kind.word: kind for kind in (JobStarted, JobStopped, JobSubmitted, ChainCancelled)
}
CHAIN_CANCELLED = "the chain was called off (fleet submit --end)"


def add_note(paths: RunPaths, what: _Noted) -> None:
    """Add a line to the file of stops, with the time.

    Raises:
        StorageError: the disk is full, ...
    """
    add_dated_line(paths.stops, what)


@dataclass(frozen=True)
class ChainTimes:
    """What the file of stops tells of how long an ensemble takes.

    Attributes:
        finished: seconds in launches of each chain that has finished.
        so_far: of the newest one, where it has not.
    """

    finished: tuple[float, ...]
    so_far: float


def chain_times(path: Path) -> ChainTimes:
    """How long the chains of a run's folder were at work; a launch that ended without a word does not count."""
    finished = []
    so_far = 0.0
    begun = None
    for line in read_lines(path):
        noted = from_json(line, _KINDS)
        moment = _moment(line)
        if isinstance(noted, JobStarted):
            begun = moment
        elif isinstance(noted, JobStopped) and begun is not None and moment is not None:
            so_far += (
                max(0.0, (moment - begun).total_seconds()) if noted.stop.status is not None else 0.0
            )
            begun = None
            if noted.stop.status in (ExitStatus.OK, ExitStatus.NETWORK_FAILED):
                finished.append(so_far)
                so_far = 0.0
    return ChainTimes(tuple(finished), so_far)


def _moment(line: Mapping[str, object]) -> datetime | None:
    try:
        return datetime.fromisoformat(str(line.get("time")))
    except ValueError:
        return None


@dataclass
class ChainHistory:
    """What the jobs of a run's chains have noted, up to its newest line.

    Attributes:
        stops: of the newest chain.
        next_job: the job that is to go on with it; None where it has ended.
        log_bytes: size of the event log before its first launch.
        unfinished_job: the job whose launch has begun, and of whose stop nothing is known.
        job_ids: all jobs.
        decision: what was decided at the newest stop.
    """

    stops: list[JobStop] = field(default_factory=list)
    next_job: str | None = None
    log_bytes: int = 0
    unfinished_job: str | None = None
    job_ids: set[str] = field(default_factory=set)
    decision: str = ""
    _chain_jobs: set[str] = field(default_factory=set)  # the jobs of the newest chain
    _is_off: bool = False

    @classmethod
    def read(cls, paths: RunPaths) -> ChainHistory:
        """That of a run's folder."""
        history = cls()
        for noted in read_notes(paths.stops, _KINDS):
            history._apply(noted)
        return history

    def _apply(self, noted: _Noted) -> None:
        match noted:
            case JobStopped():
                jobs = {noted.job} | ({noted.next} if noted.next else set())
                self.job_ids |= jobs
                self._chain_jobs |= jobs
                self.stops.append(noted.stop)
                self.next_job = noted.next
                self.unfinished_job = None
                self.decision = noted.then or noted.why
            case ChainCancelled():
                self._is_off = bool(self._chain_jobs)
            case JobSubmitted() | JobStarted():
                self.job_ids.add(noted.job)
                if noted.job not in self._chain_jobs:
                    self._chain_jobs = {noted.job}
                    self._is_off = False
        if isinstance(noted, JobStarted):
            self.unfinished_job = noted.job
            if noted.job != self.next_job:
                self.stops = []
                self.log_bytes = noted.log_bytes

    def stops_before(self, job: str) -> list[JobStop]:
        """The stops of the chain that a job goes on with: the newest one, where it was to be followed by this job."""
        if job == self.next_job:
            return self.stops
        return []

    def is_cancelled(self, job: str) -> bool:
        """Whether a user has ended the chain that a job belongs to; one that is handed in later is another chain's."""
        return self._is_off and job in self._chain_jobs


def has_started(paths: RunPaths, job: str) -> bool:
    """Whether an earlier launch of the chain that a job goes on with got so far as to take up its networks."""
    history = ChainHistory.read(paths)
    return bool(history.stops_before(job)) and any(
        isinstance(event, LaunchStarted)
        for _, event in read_events(paths.events, history.log_bytes)
    )


# ---- one job ------------------------------------------------------------------------------------


class ChainJob:
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

    def __init__(
        self,
        paths: RunPaths,
        system: System,
        job: str,
        limits: ChainLimits,
        warn_after: float | None = None,
        once: Sequence[str] = (),
        requests: Sequence[float] = (),
    ) -> None:
        self._paths = paths
        self._system = system
        self._job = job
        self._limits = limits
        self._once = once
        self._requests = requests
        self._warned = WarnedLaunch(paths, system, job, warn_after)

    def run(self, command: Sequence[str]) -> int:
        """Launch, until this job is over; returns the status that it should end with.

        Raises:
            UserError: another job is at work on the same run.
            StorageError: nothing can be noted.
            LeaseLost: another job has taken the chain over.
        """
        self._warned.listen()
        if (
            self._warned.wait_for_space() is None
        ):  # a disk that is full for now is no reason to lose the job
            reserve_emergency_space(self._paths.reserved_space)
        with lease_of_process(self._warned.environment) as lease:
            lease.take(self._paths.jobs_lease)
            return self._run(command, lease)

    def _run(self, command: Sequence[str], lease: Lease) -> int:
        lost = ChainHistory.read(self._paths).unfinished_job
        if lost is not None:
            add_note(
                self._paths,
                JobStopped(
                    lost,
                    JobStop(None),
                    "it ended without a word: preempted, killed, or its node died",
                    next=self._job if lost == self._job else None,
                ),
            )
        while True:
            history = ChainHistory.read(self._paths)
            stops = history.stops_before(self._job)
            if history.is_cancelled(self._job):
                print_message(CHAIN_CANCELLED)
                return int(ExitStatus.RESUMABLE)
            if len(stops) >= self._limits.jobs:  # the batch system started it again by itself
                print_message(f"a job has run {_times(len(stops))} (jobs: {self._limits.jobs})")
                return int(ExitStatus.RESUMABLE)
            status, goes_on = self._launch(command, stops, lease)
            if not goes_on or self._system.has_queue:
                return status

    def _launch(
        self, command: Sequence[str], stops: Sequence[JobStop], lease: Lease
    ) -> tuple[int, bool]:
        """One launch: how it ended, and whether another follows."""
        before = log_position(self._paths.events)
        once = () if has_started(self._paths, self._job) else self._once
        add_note(self._paths, JobStarted(self._job, before[1]))
        status = self._warned.run([*command, *once], before)
        lease.check()  # after a long stop another job may have gone on with the chain
        stop = JobStop(status, bool(self._warned.warning))
        decision = decide_continuation([*stops, stop], self._limits)
        if stop.is_failure and (refused := self._warned.wait_for_space()) is not None:
            decision = Continuation(False, str(refused))
            with suppress(OSError):
                self._paths.reserved_space.unlink(missing_ok=True)  # for what is noted now
        following, then = self._follow(decision, _next_request([*stops, stop], self._requests))
        add_note(self._paths, JobStopped(self._job, stop, self._warned.end_reason, following, then))
        print_message(f"status {status}; {then}")
        return status, following is not None

    def _follow(self, decision: Continuation, request: float | None) -> tuple[str | None, str]:
        """See to it that another launch follows; who does it, and what there is to say."""
        if not decision.continues:
            return None, decision.reason
        if ChainHistory.read(self._paths).is_cancelled(self._job):
            return None, CHAIN_CANCELLED
        if not self._system.has_queue:
            if self._warned.is_signalled:
                return (None, "it was told to stop")
            return (self._job, decision.reason)
        try:
            later = delay_options(self._system, [self._paths])
            return continue_job(
                self._system, self._job, self._paths.job_script, request, later
            ), decision.reason
        except (InputError, OSError) as error:
            return None, f"{decision.reason}, but no further job could be submitted: {error}"


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

    def own_jobs() -> list[QueuedJob]:
        known = ChainHistory.read(paths).job_ids
        return [job for job in queue.own_jobs([name]) if job.id in known]

    if not own_jobs():
        history = ChainHistory.read(paths)
        why = history.decision and f"; at its last stop it was decided: {history.decision}"
        raise UserError(
            f"--end {paths.root}: none of the chain's jobs waits or runs "
            f"({', '.join(sorted(history.job_ids)) or f'{paths.stops} knows of none'}){why}"
        )
    add_note(paths, ChainCancelled())  # whatever job begins or ends from now on hands in no other
    back = []
    told = []
    for job in own_jobs():
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
        raise UserError(
            f"--end {paths.root}: there is no chain: {paths.job_script} is missing, which fleet submit "
            "writes"
        ) from None
    system = _SYSTEM.search(script)
    name = _NAME.search(script)
    found = find_system(system[1].strip("'\"")) if system else None
    if found is None or (found.has_queue and name is None):
        raise UserError(
            f"--end {paths.root}: {paths.job_script} is no script that fleet submit wrote"
        )
    if not found.has_queue:
        raise UserError(
            f"--end {paths.root}: with --system {found.name} the chain runs in the foreground; "
            "interrupt it there (Ctrl-C), and it saves and ends"
        )
    if not (found.queue_commands and found.tell):
        raise UserError(
            f"--end {paths.root}: {found.name} has no queue_commands, or no tell, by which jobs are "
            "found and told to save; end them by its own commands"
        )
    return found, name[1].strip("'\"") if name else ""
