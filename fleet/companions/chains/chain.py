"""One job of a chain: launch, find out why the launch ended, and submit the next job.

A job script ends with ``fleet job``, which runs this module. It starts the launcher, forwards the
batch system's signals, waits, and decides. Every launch writes two lines to one file,
:attr:`fleet.storage.paths.RunPaths.stops`, which is all that the next job needs to know.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from fleet.batch_systems import find_system, lease_of_process
from fleet.companions.batch_jobs.job_events import (
    ChainCancelled,
    JobStarted,
    JobSubmitted,
    read_notes,
)
from fleet.companions.batch_jobs.launching import (
    ORDERLY_STATUSES,
    BatchJob,
    print_message,
)
from fleet.companions.batch_jobs.paused_submissions import delay_options
from fleet.domain.events import LaunchStarted
from fleet.domain.json_record import Flat, JsonRecord, OmitDefault
from fleet.errors import ExitStatus, UserError
from fleet.storage.event_log import log_position, read_events
from fleet.storage.json_lines import add_dated_line
from fleet.storage.lease import Lease
from fleet.storage.paths import RunPaths
from launch.base import call
from launch.errors import InputError
from launch.queues import QUEUES, QueuedJob
from launch.systems import System, continue_job


@dataclass(frozen=True)
class JobStop:
    """The end of a job's launch.

    Args:
        status: exit status (:class:`fleet.errors.ExitStatus`); None if the job was killed.
        warned: True if the batch system was about to end the job.
    """

    status: int | None
    warned: bool = False

    @property
    def is_failure(self) -> bool:
        """True if the machine failed; a launch that ends after a warning was only too slow."""
        return self.status is not None and self.status not in ORDERLY_STATUSES and not self.warned


def find_end(stops: Sequence[JobStop], max_jobs: int, retries: int) -> str:
    """Return why a chain ends after its newest stop; empty if it continues.

    Args:
        stops: the stops of the chain so far, oldest first.
        max_jobs: the maximum number of jobs in the chain.
        retries: the maximum number of machine failures that are retried.

    >>> find_end([JobStop(75)], max_jobs=20, retries=2)
    ''
    >>> find_end([JobStop(2)], max_jobs=20, retries=2)
    'the spec or the arguments are invalid'
    """
    over = {
        ExitStatus.OK: "all networks finished",
        ExitStatus.NETWORK_FAILED: "some networks failed, the others finished",
        ExitStatus.BAD_INPUT: "the spec or the arguments are invalid",
    }
    status = stops[-1].status
    if status in over:
        return over[ExitStatus(status)]
    failures = sum(stop.is_failure for stop in stops)
    if failures > retries:
        return f"the machine failed {_times(failures)} (retries: {retries})"
    return _describe_limit(stops, max_jobs)


def _describe_limit(stops: Sequence[JobStop], max_jobs: int) -> str:
    """Describe that the chain has had its maximum number of jobs; empty before that."""
    if len(stops) < max_jobs:
        return ""
    return f"jobs of the chain have run {_times(len(stops))} (jobs: {max_jobs})"


def _times(count: int) -> str:
    if count == 1:
        return "once"
    return f"{count} times"


def _next_request(stops: Sequence[JobStop], requests: Sequence[float]) -> float | None:
    """Return the walltime of the next job, in seconds; a failed launch repeats its request.

    >>> _next_request([JobStop(75), JobStop(1)], [600, 1200])
    1200
    """
    used = sum(not stop.is_failure for stop in stops)
    if requests:
        return requests[min(used, len(requests) - 1)]
    return None


# ---- the record between jobs ---------------------------------------------------------------------


class JobStopped(JsonRecord, word="stopped"):
    """The end of a launch; the next job writes this line if the job was killed.

    Attributes:
        why: why the launch stopped.
        next: the job that makes the next launch; None if there is none.
        then: the decision, as text.
    """

    job: str
    stop: Annotated[JobStop, Flat]
    why: str
    next: str | None
    then: Annotated[str, OmitDefault] = ""


_Noted = JobStarted | JobStopped | JobSubmitted | ChainCancelled
_KINDS = (JobStarted, JobStopped, JobSubmitted, ChainCancelled)
_CONTINUES = "networks remain"
CHAIN_CANCELLED = "the chain was cancelled (fleet submit --end)"


def add_note(paths: RunPaths, note: _Noted) -> None:
    """Append a line with the time to the file of stops.

    Raises:
        StorageError: the file cannot be written, for instance because the disk is full.
    """
    add_dated_line(paths.stops, note)


@dataclass(frozen=True)
class ChainTimes:
    """How long the chains of a run took.

    Attributes:
        finished: total seconds of launches of each finished chain.
        so_far: the same for the newest chain, if it is unfinished.
    """

    finished: tuple[float, ...]
    so_far: float


def chain_times(path: Path) -> ChainTimes:
    """Return how long the chains of a run's folder worked, without launches that were killed."""
    finished = []
    so_far = 0.0
    started = None
    for moment, noted in read_notes(path, _KINDS):
        if isinstance(noted, JobStarted):
            started = moment
        elif isinstance(noted, JobStopped) and started is not None and moment is not None:
            if noted.stop.status is not None:
                so_far += max(0.0, (moment - started).total_seconds())
            started = None
            if noted.stop.status in (ExitStatus.OK, ExitStatus.NETWORK_FAILED):
                finished.append(so_far)
                so_far = 0.0
    return ChainTimes(tuple(finished), so_far)


@dataclass
class ChainHistory:
    """The record of a run's chains, up to the newest line.

    Attributes:
        stops: the stops of the newest chain.
        next_job: the job that continues it; None if it has ended.
        log_bytes: size of the event log before its first launch.
        unfinished_job: the job whose launch has started and not reported its end.
        job_ids: all jobs.
        decision: the decision at the newest stop.
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
        """Read the history of a run's folder."""
        history = cls()
        for _, noted in read_notes(paths.stops, _KINDS):
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
        """Return the stops of the chain that a job continues."""
        if job == self.next_job:
            return self.stops
        return []

    def is_cancelled(self, job: str) -> bool:
        """Return True if a user has ended the chain that this job belongs to."""
        return self._is_off and job in self._chain_jobs


def has_started(paths: RunPaths, job: str) -> bool:
    """Return True if an earlier launch of the job's chain has begun to train."""
    history = ChainHistory.read(paths)
    return bool(history.stops_before(job)) and any(
        isinstance(event, LaunchStarted)
        for _, event in read_events(paths.events, history.log_bytes)
    )


# ---- one job ------------------------------------------------------------------------------------


class ChainJob(BatchJob):
    """One job of a chain: it launches, forwards warnings, and arranges for the next job.

    Args:
        paths: the paths of the run.
        system: the batch system; with ``local``, one job makes all launches.
        job: the id of this job.
        max_jobs: the maximum number of jobs in the chain.
        retries: the maximum number of machine failures that are retried.
        warn_after: seconds after which to warn the ranks, if the batch system does not.
        once: arguments that are appended until a launch of the chain has started with them.
        requests: walltimes of the chain's jobs in seconds; the last one repeats.
    """

    def __init__(
        self,
        paths: RunPaths,
        system: System,
        job: str,
        max_jobs: int,
        retries: int,
        warn_after: float | None,
        once: Sequence[str],
        requests: Sequence[float],
    ) -> None:
        super().__init__(paths, system, job, warn_after)
        self._max_jobs = max_jobs
        self._retries = retries
        self._once = once
        self._requests = requests

    def run(self, command: Sequence[str]) -> int:
        """Launch until this job is over, and return its exit status.

        Raises:
            UserError: another job is working on the same run.
            StorageError: the record cannot be written.
            LeaseLost: another job has taken over the chain.
        """
        self.prepare()
        with lease_of_process(self.environment) as lease:
            lease.take(self._paths.jobs_lease)
            return self._run(command, lease)

    def _run(self, command: Sequence[str], lease: Lease) -> int:
        dead_job = ChainHistory.read(self._paths).unfinished_job
        if dead_job is not None:
            add_note(
                self._paths,
                JobStopped(
                    dead_job,
                    JobStop(None),
                    "it ended without reporting: preempted, killed, or its node died",
                    next=self._job if dead_job == self._job else None,
                ),
            )
        while True:
            history = ChainHistory.read(self._paths)
            stops = history.stops_before(self._job)
            if history.is_cancelled(self._job):
                end = CHAIN_CANCELLED
            else:  # the batch system may have requeued the job
                end = _describe_limit(stops, self._max_jobs)
            if end:
                print_message(end)
                return ExitStatus.RESUMABLE
            status, continues = self._launch_once(command, stops, lease)
            if not continues or self._system.has_queue:
                return status

    def _launch_once(
        self, command: Sequence[str], stops: Sequence[JobStop], lease: Lease
    ) -> tuple[int, bool]:
        """Make one launch; return its status and whether another one follows."""
        before = log_position(self._paths.events)
        once = () if has_started(self._paths, self._job) else self._once
        add_note(self._paths, JobStarted(self._job, before[1]))
        status = self.launch([*command, *once], before)
        lease.check()  # while this job was suspended, another one may have continued the chain
        stop = JobStop(status, bool(self.warning))
        stops = [*stops, stop]
        end = find_end(stops, self._max_jobs, self._retries)
        if stop.is_failure and (refused := self.wait_for_space()) is not None:
            end = str(refused)
            with suppress(OSError):
                self._paths.reserved_space.unlink(missing_ok=True)  # makes room for the next note
        next_job = None
        if not end:
            next_job, end = self._follow(_next_request(stops, self._requests))
        add_note(self._paths, JobStopped(self._job, stop, self.end_reason, next_job, end))
        print_message(f"status {status}; {end}")
        return status, next_job is not None

    def _follow(self, request: float | None) -> tuple[str | None, str]:
        """Arrange for the next launch; return the job that makes it, and the decision as text."""
        if ChainHistory.read(self._paths).is_cancelled(self._job):
            return None, CHAIN_CANCELLED
        if not self._system.has_queue:
            if self.is_signalled:
                return None, "it received a signal to stop"
            return self._job, _CONTINUES
        try:
            options = delay_options(self._system, [self._paths])
            next_job = continue_job(
                self._system, self._job, self._paths.job_script, request, options
            )
            return next_job, _CONTINUES
        except (InputError, OSError) as error:
            return None, f"{_CONTINUES}, but no other job could be submitted: {error}"


# ---- ending a chain -----------------------------------------------------------------------------

_NAME = re.compile(r"^#\S+ (?:--job-name=|-J |-N )(\S+)", re.MULTILINE)
_SYSTEM = re.compile(r" --system=(\S+)")


def end_chain(paths: RunPaths) -> tuple[list[str], list[str]]:
    """End the chain of a run.

    Returns:
        The ids of its cancelled jobs, and of the jobs that were signalled to save and end.

    Raises:
        UserError: there is nothing to end, or no command that ends it.
        InputError: the batch system does not answer, or refuses.
    """
    system, name = _system_of_chain(paths)
    queue = QUEUES[system.queue_commands]

    def own_jobs() -> list[QueuedJob]:
        job_ids = ChainHistory.read(paths).job_ids
        return [job for job in queue.own_jobs([name]) if job.id in job_ids]

    if not own_jobs():
        history = ChainHistory.read(paths)
        last_decision = history.decision and f"; the last decision was: {history.decision}"
        raise UserError(
            f"--end {paths.root}: the chain has no waiting or running job "
            f"({', '.join(sorted(history.job_ids)) or f'{paths.stops} lists none'}){last_decision}"
        )
    add_note(paths, ChainCancelled())  # from now on no job submits another one
    cancelled = []
    signalled = []
    for job in own_jobs():
        if job.runs:
            call([word.format(job=job.id) for word in system.tell])
            signalled.append(job.id)
        else:
            queue.cancel(job.id)
            cancelled.append(job.id)
    return cancelled, signalled


def _system_of_chain(paths: RunPaths) -> tuple[System, str]:
    """Return the batch system of a chain and the name of its jobs, from its job script."""
    try:
        script = paths.job_script.read_text(encoding="utf-8")
    except OSError:
        raise UserError(
            f"--end {paths.root}: there is no chain: {paths.job_script}, which fleet submit "
            "writes, is missing"
        ) from None
    system = _SYSTEM.search(script)
    name = _NAME.search(script)
    batch_system = find_system(system[1].strip("'\"")) if system else None
    if batch_system is None or (batch_system.has_queue and name is None):
        raise UserError(f"--end {paths.root}: {paths.job_script} was not written by fleet submit")
    if not batch_system.has_queue:
        raise UserError(
            f"--end {paths.root}: with --system {batch_system.name} the chain runs in the "
            "foreground; press Ctrl-C there to save and end"
        )
    if not (batch_system.queue_commands and batch_system.tell):
        raise UserError(
            f"--end {paths.root}: {batch_system.name} does not define both queue_commands and "
            "tell, so fleet cannot find or signal its jobs; end them with the commands of the "
            "batch system"
        )
    return batch_system, name[1].strip("'\"") if name else ""
