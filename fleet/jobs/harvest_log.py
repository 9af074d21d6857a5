"""What is noted of a harvest: its jobs, from what each was handed in to why its launch ended, and what follows of it.

Nothing else is remembered between the jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

from fleet.domain.events import EpochEnded, NetworkLeased
from fleet.domain.json_record import JsonRecord, OmitDefault
from fleet.errors import ExitStatus
from fleet.jobs.job_events import ChainCancelled, JobStarted, JobSubmitted, read_notes
from fleet.storage.event_log import read_events, split_launches
from fleet.storage.json_lines import add_dated_line
from fleet.storage.paths import RunPaths


class HarvestRequested(JsonRecord, word="asked"):
    """A user has asked for the harvest: launches that came to nothing before are forgiven."""


class JobCancelled(JsonRecord, word="cancelled"):
    """A job was taken back before it began."""

    job: str


class LaunchEnded(JsonRecord, word="ended"):
    """The launch of a job is over; of a job that was killed, another one says so.

    Attributes:
        status: of the launch (:class:`fleet.errors.ExitStatus`); None where it ended without a word.
        warning: that came before.
        why: it ended.
    """

    job: str
    status: int | None
    warning: Annotated[str, OmitDefault] = ""
    why: Annotated[str, OmitDefault] = ""


class HarvestEnded(JsonRecord, word="over"):
    """No job is left, and none will be handed in.

    Attributes:
        why: in words.
        again: what begins it again; empty where nothing is left to do.
    """

    why: str
    again: str = ""

    def __str__(self) -> str:
        return f"the harvest is over: {self.why}" + (
            self.again and f"; to begin it again: {self.again}"
        )


_KINDS: Mapping[str, type] = {
    kind.word: kind
    for kind in (
        HarvestRequested,
        ChainCancelled,
        JobSubmitted,
        JobCancelled,
        JobStarted,
        LaunchEnded,
        HarvestEnded,
    )
}


def add_note(paths: RunPaths, what: JsonRecord) -> None:
    """Add a line to what is known of a harvest, with the time.

    Raises:
        StorageError: the disk is full, ...
    """
    add_dated_line(paths.harvest_log, what)


def read_harvest_log(paths: RunPaths) -> list[Any]:
    """All that is known of a harvest, in order."""
    return read_notes(paths.harvest_log, _KINDS)


def is_cancelled(paths: RunPaths) -> bool:
    """Whether no more jobs are wanted for a run."""
    said = [
        one for one in read_harvest_log(paths) if isinstance(one, HarvestRequested | ChainCancelled)
    ]
    return bool(said) and isinstance(said[-1], ChainCancelled)


def find_end(paths: RunPaths) -> HarvestEnded | None:
    """That the harvest of a run is over, and why; None where it goes on, or there is none."""
    said = [
        one
        for one in read_harvest_log(paths)
        if isinstance(one, HarvestRequested | JobSubmitted | JobStarted | HarvestEnded)
    ]
    if said and isinstance(said[-1], HarvestEnded):
        return said[-1]
    return None


@dataclass(frozen=True)
class PastLaunch:
    """A launch that is over, as its log tells it.

    Attributes:
        seconds: that it lasted.
        networks: networks that it took.
        epochs: that it finished.
        status: None where it did not come to say that it ended.
        is_warned: whether the batch system was about to end it.
        is_forgiven: whether the harvest was asked for anew since.
    """

    seconds: float
    networks: int
    epochs: int
    status: int | None
    is_warned: bool
    is_forgiven: bool = False

    @property
    def is_fruitless(self) -> bool:
        """Whether it should have finished an epoch, and has not; it need not where it got no network, or was ended."""
        ended_well = self.status in (ExitStatus.OK, ExitStatus.NETWORK_FAILED, ExitStatus.RESUMABLE)
        return not (
            self.epochs
            or self.was_transient
            or self.is_warned
            or (ended_well and not self.networks)
        )

    @property
    def was_transient(self) -> bool:
        """Whether what ended it may pass, and it has finished no epoch before."""
        return self.status == ExitStatus.CAN_PASS and not self.epochs

    @property
    def is_cut(self) -> bool:
        """Whether its nodes were taken back."""
        return self.is_warned or self.status is None


def past_launches(paths: RunPaths, running: Sequence[str] = ()) -> list[PastLaunch]:
    """The launches of a run that are over, in the order in which they began.

    Args:
        running: the ids of its jobs that run now.
    """
    noted = read_harvest_log(paths)
    begun = [(place, one) for place, one in enumerate(noted) if isinstance(one, JobStarted)]
    last = {one.job: place for place, one in begun}
    asked = max(
        (place for place, one in enumerate(noted) if isinstance(one, HarvestRequested)), default=-1
    )
    past = []
    for place, one in begun:
        after = next(
            (
                other
                for other in noted[place + 1 :]
                if isinstance(other, JobStarted | LaunchEnded) and other.job == one.job
            ),
            None,
        )
        end = after if isinstance(after, LaunchEnded) else None
        if end is None and one.job in running and last[one.job] == place:
            continue
        past.append(_past(RunPaths(paths.root, one.job).events, one.log_bytes, end, place < asked))
    return past


def _past(log: Path, start: int, end: LaunchEnded | None, is_forgiven: bool) -> PastLaunch:
    events = next((lines for _, lines in split_launches(read_events(log, start))), [])
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
    """How many launches in a row, to the newest, have finished no epoch."""
    return sum(one.is_fruitless for one in _without_epoch(past))


def count_transient(past: Sequence[PastLaunch]) -> int:
    """How many launches in a row, to the newest, were ended by what may pass, and have finished no epoch."""
    return sum(one.was_transient for one in _without_epoch(past))


def _without_epoch(past: Sequence[PastLaunch]) -> Iterator[PastLaunch]:
    """The launches since one that has finished an epoch, or was forgiven, the newest first."""
    return takewhile(lambda one: not (one.epochs or one.is_forgiven), reversed(past))


def newest_by_job(paths: RunPaths) -> dict[str, JobStarted | LaunchEnded]:
    """Job of a run -> whether its newest launch is over: such a job is about to end, if it is there still."""
    return {
        one.job: one for one in read_harvest_log(paths) if isinstance(one, JobStarted | LaunchEnded)
    }


def end_without_report(job: str, is_back: bool) -> LaunchEnded:
    """The end of a launch that did not come to say why it ended.

    Args:
        is_back: whether its job waits in the queue again, or runs anew.
    """
    return LaunchEnded(
        job,
        None,
        why="it ended without a word, and its job was put back into the queue: preempted, or "
        "its node died"
        if is_back
        else "it ended without a word: preempted, cancelled, killed, or its node died",
    )
