"""The log of a harvest: its jobs, from submission to the end of their launches, and what follows.

Jobs share no other record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Annotated, Any

from fleet.companions.batch_jobs.job_events import (
    ChainCancelled,
    JobStarted,
    JobSubmitted,
    read_notes,
)
from fleet.domain.events import EpochEnded, NetworkLeased
from fleet.domain.json_record import JsonRecord, OmitDefault
from fleet.domain.timeline import split_launches
from fleet.errors import ExitStatus
from fleet.storage.event_log import read_events
from fleet.storage.json_lines import add_dated_line
from fleet.storage.paths import RunPaths


class HarvestRequested(JsonRecord, word="asked"):
    """A user requested the harvest; earlier fruitless launches no longer count."""


class JobCancelled(JsonRecord, word="cancelled"):
    """A waiting job was cancelled."""

    job: str


class LaunchEnded(JsonRecord, word="ended"):
    """The launch of a job has ended; for a killed job, another job writes this.

    Attributes:
        status: exit status (:class:`fleet.errors.ExitStatus`); None if it ended without reporting.
        warning: the warning that preceded it.
        why: the reason.
    """

    job: str
    status: int | None
    warning: Annotated[str, OmitDefault] = ""
    why: Annotated[str, OmitDefault] = ""


class HarvestEnded(JsonRecord, word="over"):
    """No job is left, and none will be submitted.

    Attributes:
        why: the reason, as text.
        again: the command that starts the harvest again; empty if nothing is left to do.
    """

    why: str
    again: str = ""

    def __str__(self) -> str:
        return f"the harvest has ended: {self.why}" + (
            self.again and f"; to start it again: {self.again}"
        )


def add_note(paths: RunPaths, note: JsonRecord) -> None:
    """Append a line with the time to the log of a harvest.

    Raises:
        StorageError: the file cannot be written, for instance because the disk is full.
    """
    add_dated_line(paths.harvest_log, note)


def read_harvest_log(paths: RunPaths, *kinds: type[JsonRecord]) -> list[Any]:
    """Return the notes of some kinds in a harvest's log, in order."""
    return [note for _, note in read_notes(paths.harvest_log, kinds)]


def is_cancelled(paths: RunPaths) -> bool:
    """Return True if the user wants no more jobs for a run."""
    requests = read_harvest_log(paths, HarvestRequested, ChainCancelled)
    return bool(requests) and isinstance(requests[-1], ChainCancelled)


def find_end(paths: RunPaths) -> HarvestEnded | None:
    """Return the end of a run's harvest; None while it goes on, or if there is no harvest."""
    notes = read_harvest_log(paths, HarvestRequested, JobSubmitted, JobStarted, HarvestEnded)
    if notes and isinstance(notes[-1], HarvestEnded):
        return notes[-1]
    return None


@dataclass(frozen=True)
class PastLaunch:
    """A launch that has ended, according to its log.

    Attributes:
        seconds: its duration.
        networks: number of networks that it acquired.
        epochs: number of epochs that it finished.
        status: exit status; None if it ended without reporting.
        is_warned: True if the batch system was about to end it.
        is_forgiven: True if the harvest was requested again since then.
    """

    seconds: float
    networks: int
    epochs: int
    status: int | None
    is_warned: bool
    is_forgiven: bool

    @property
    def is_fruitless(self) -> bool:
        """True if it should have finished an epoch but did not.

        A launch without a network, or one that the batch system ended, need not.
        """
        ended_well = self.status in (ExitStatus.OK, ExitStatus.NETWORK_FAILED, ExitStatus.RESUMABLE)
        return not (
            self.epochs
            or self.was_transient
            or self.is_warned
            or (ended_well and not self.networks)
        )

    @property
    def was_transient(self) -> bool:
        """True if it ended with a transient error before it finished an epoch."""
        return self.status == ExitStatus.CAN_PASS and not self.epochs

    @property
    def is_cut(self) -> bool:
        """True if its nodes were taken back."""
        return self.is_warned or self.status is None


def past_launches(paths: RunPaths, running: Sequence[str] = ()) -> list[PastLaunch]:
    """Return the launches of a run that have ended, in the order of their starts.

    Args:
        paths: the paths of the run.
        running: ids of its jobs that run now.
    """
    starts: list[JobStarted] = []
    ends: dict[int, LaunchEnded] = {}  # by the index of the start
    newest: dict[str, int] = {}  # job -> the index of its newest start without an end
    forgiven = 0
    for note in read_harvest_log(paths, JobStarted, LaunchEnded, HarvestRequested):
        match note:
            case JobStarted(job):
                newest[job] = len(starts)
                starts.append(note)
            case LaunchEnded(job) if job in newest:
                ends[newest.pop(job)] = note
            case HarvestRequested():
                forgiven = len(starts)
    going_on = {newest.get(job) for job in running}
    return [
        _past(paths, start, ends.get(index), index < forgiven)
        for index, start in enumerate(starts)
        if index not in going_on
    ]


def _past(
    paths: RunPaths, start: JobStarted, end: LaunchEnded | None, is_forgiven: bool
) -> PastLaunch:
    log = read_events(RunPaths(paths.root, start.job).events, start.log_bytes)
    events = next((lines for _, lines in split_launches(log)), [])
    seconds = events[-1].t_s if events else 0.0
    return PastLaunch(
        seconds,
        sum(isinstance(logged.event, NetworkLeased) for logged in events),
        sum(isinstance(logged.event, EpochEnded) for logged in events),
        None if end is None else end.status,
        end is not None and bool(end.warning),
        is_forgiven,
    )


def count_fruitless(past: Sequence[PastLaunch]) -> int:
    """Return how many of the newest launches in a row finished no epoch."""
    return sum(launch.is_fruitless for launch in _without_epoch(past))


def count_transient(past: Sequence[PastLaunch]) -> int:
    """Return how many of the newest launches in a row ended with a transient error and no epoch."""
    return sum(launch.was_transient for launch in _without_epoch(past))


def _without_epoch(past: Sequence[PastLaunch]) -> Iterator[PastLaunch]:
    """Yield the launches since the last one with an epoch, or forgiven, newest first."""
    return takewhile(lambda launch: not (launch.epochs or launch.is_forgiven), reversed(past))


def newest_by_job(paths: RunPaths) -> dict[str, JobStarted | LaunchEnded]:
    """Return the newest start or end of a launch of each job."""
    return {note.job: note for note in read_harvest_log(paths, JobStarted, LaunchEnded)}


def end_without_report(job: str, is_back: bool) -> LaunchEnded:
    """Return the end of a launch that did not report why it ended.

    Args:
        job: the id of its job.
        is_back: True if the job waits in the queue again, or is running again.
    """
    if is_back:
        reason = "it ended without reporting, and its job was requeued: preempted, or its node died"
    else:
        reason = "it ended without reporting: preempted, cancelled, killed, or its node died"
    return LaunchEnded(job, None, why=reason)
