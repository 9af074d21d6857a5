"""Jobs that come and go, and share the networks of runs: who hands in the next one, and when it is enough.

Each job keeps the backlog filled, when it begins, now and then, and when it ends; so no process has to stay on a login
node. What to do is decided by :func:`fleet.jobs.backlog.decide`. What that is told of is found out here: the queue and
the idle nodes from the batch system, the networks from the tables and the leases in the folders of the runs, and how
fast they are, what starting takes and how long jobs are let be from the runs' own event logs.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol

from fleet.errors import ExitStatus, StorageError, UserError
from fleet.jobs.backlog import Cancel, Harvested, Limits, Order, Submit, decide
from fleet.jobs.chain import Stop
from fleet.jobs.systems import SYSTEM_VARIABLE, lease_of_process
from fleet.jobs.warned import WarnedLaunch
from fleet.storage.event_log import Logged, launch_status, log_mark, read_events, read_run
from fleet.storage.events import EpochEnded, FirstStep, NetworkTaken, Started
from fleet.storage.files import write_json
from fleet.storage.lines import Kind, OmitDefault, add_dated_line, from_json, read_lines
from fleet.storage.network_leases import holders
from fleet.storage.paths import RunPaths
from fleet.storage.results import Status, read_results
from launch.base import InputError
from launch.queues import QUEUES, QueuedJob
from launch.systems import System, is_preempted, submit

GAP_S = 600.0  # how long nodes are taken to stay idle before anything is known of it: it counts as one gap
_EVERY_S = 30.0  # between two looks at the queue
_RATES = 50  # newest epochs of which rates are taken


@dataclass(frozen=True)
class Run:
    """A run that is harvested.

    Attributes:
        job: the name of its jobs.
        root: its folder.
        networks: the names of all of them.
        per_node: networks that a node trains at once, until a launch has shown it.
    """

    job: str
    root: Path
    networks: tuple[str, ...]
    per_node: int

    @property
    def paths(self) -> RunPaths:
        """Its files."""
        return RunPaths(self.root)


@dataclass(frozen=True)
class Plan:
    """A harvest: what was asked for, as all of its jobs know it.

    Attributes:
        options: for the command that hands jobs in.
        partition: or queue, whose idle nodes count; None for the default one.
    """

    runs: tuple[Run, ...]
    limits: Limits
    options: tuple[str, ...] = ()
    partition: str | None = None

    def write(self) -> None:
        """Write it into the folder of each run.

        Raises:
            StorageError: the disk is full, ...
        """
        content = dataclasses.asdict(self) | {
            "runs": [dataclasses.asdict(run) | {"root": str(run.root)} for run in self.runs]}
        for run in self.runs:
            write_json(run.paths.harvest, content)

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Read what :meth:`write` wrote.

        Raises:
            UserError: it is not there, or something else.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            runs = tuple(Run(run["job"], Path(run["root"]), tuple(run["networks"]), run["per_node"])
                         for run in content["runs"])
            return cls(runs, Limits(**content["limits"]), tuple(content["options"]), content["partition"])
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}; fleet harvest writes it") from None
        except (ValueError, LookupError, TypeError) as error:
            raise UserError(f"{path} is no harvest that fleet harvest wrote: {error}") from None


class Queue(Protocol):
    """What is asked of a batch system; a test may give its own."""

    def jobs(self, names: Sequence[str]) -> list[QueuedJob]:
        """The jobs of this user with these names."""

    def idle_nodes(self) -> int:
        """How many nodes have no job."""

    def submit(self, script: Path, nodes: int) -> str:
        """Hand in a job; returns its id."""

    def cancel(self, job: str) -> None:
        """Take back a job that waits."""


class BatchQueue:
    """A batch system, by its commands; each raises InputError where it does not answer."""

    def __init__(self, plan: Plan, system: System) -> None:
        self._plan, self._system, self._queue = plan, system, QUEUES[system.queue_commands]

    def jobs(self, names: Sequence[str]) -> list[QueuedJob]:  # noqa: D102 - Queue says it
        return self._queue.own_jobs(names)

    def idle_nodes(self) -> int:  # noqa: D102
        return self._queue.idle_nodes(self._plan.partition)

    def submit(self, script: Path, nodes: int) -> str:  # noqa: D102
        return submit(self._system, script, more=self._plan.options)

    def cancel(self, job: str) -> None:  # noqa: D102
        self._queue.cancel(job)


# ---- what is noted -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """A user has asked for the harvest: launches that came to nothing before are forgiven."""

    word: ClassVar[str] = "asked"


@dataclass(frozen=True)
class CalledOff:
    """A user wants no more jobs, until the harvest is asked for again."""

    word: ClassVar[str] = "called_off"


@dataclass(frozen=True)
class HandedIn:
    """A job was handed in."""

    word: ClassVar[str] = "submitted"
    job: str
    nodes: int


@dataclass(frozen=True)
class TakenBack:
    """A job was taken back before it began."""

    word: ClassVar[str] = "cancelled"
    job: str


@dataclass(frozen=True)
class Begun:
    """A job has begun, perhaps not for the first time.

    Attributes:
        log_bytes: size of its event log by then.
    """

    word: ClassVar[str] = "begun"
    job: str
    log_bytes: Annotated[int, OmitDefault] = 0


@dataclass(frozen=True)
class Ended:
    """The launch of a job is over; a job that is killed does not come to say so.

    Attributes:
        status: of the launch (:class:`fleet.errors.ExitStatus`).
        warning: that came before.
    """

    word: ClassVar[str] = "ended"
    job: str
    status: int
    warning: Annotated[str, OmitDefault] = ""


_KINDS: Mapping[str, type] = {kind.word: kind for kind in (Asked, CalledOff, HandedIn, TakenBack, Begun, Ended)}


def note(paths: RunPaths, what: Kind) -> None:
    """Add a line to what is known of a harvest, with the time.

    Raises:
        StorageError: the disk is full, ...
    """
    add_dated_line(paths.harvested, what)


def _noted(paths: RunPaths) -> list[Any]:
    """All that is known of a harvest, in order."""
    return [from_json(line, _KINDS) for line in read_lines(paths.harvested)] if paths.harvested.exists() else []


def is_called_off(paths: RunPaths) -> bool:
    """Whether no more jobs are wanted for a run."""
    said = [one for one in _noted(paths) if isinstance(one, Asked | CalledOff)]
    return bool(said) and isinstance(said[-1], CalledOff)


@dataclass(frozen=True)
class Past:
    """A launch that is over, as its log tells it.

    Attributes:
        seconds: that it lasted.
        taken: networks that it took.
        epochs: that it finished.
        status: None where it did not come to say that it ended.
        is_warned: whether the batch system was about to end it.
        is_forgiven: whether the harvest was asked for anew since.
    """

    seconds: float
    taken: int
    epochs: int
    status: int | None
    is_warned: bool
    is_forgiven: bool = False

    @property
    def is_fruitless(self) -> bool | None:
        """Whether it should have finished an epoch, and has not; None where it got no network, or was ended before."""
        if self.epochs:
            return False
        ended_well = self.status in (ExitStatus.OK, ExitStatus.NETWORK_FAILED, ExitStatus.RESUMABLE)
        return None if self.is_warned or (ended_well and not self.taken) else True

    @property
    def is_cut(self) -> bool:
        """Whether its nodes were taken back."""
        return self.is_warned or self.status is None


def past_of(paths: RunPaths, running: Sequence[str] = ()) -> list[Past]:
    """The launches of a run that are over, in the order in which they began.

    Args:
        running: the ids of its jobs that run now.
    """
    noted = _noted(paths)
    begun = [(place, one) for place, one in enumerate(noted) if isinstance(one, Begun)]
    last = {one.job: place for place, one in begun}
    asked = max((place for place, one in enumerate(noted) if isinstance(one, Asked)), default=-1)
    past = []
    for place, one in begun:
        if one.job in running and last[one.job] == place:
            continue
        later = [other for other in noted[place + 1:] if isinstance(other, Begun | Ended) and other.job == one.job]
        end = later[0] if later and isinstance(later[0], Ended) else None
        past.append(_past(RunPaths(paths.root, one.job).events, one.log_bytes, end, place < asked))
    return past


def _past(log: Path, start: int, end: Ended | None, is_forgiven: bool) -> Past:
    events: list[Logged] = []
    for logged in read_events(log, start) if log.exists() else ():
        if isinstance(logged.event, Started) and events:
            break
        events.append(logged)
    seconds = events[-1].t_s if events else 0.0
    return Past(seconds, sum(isinstance(logged.event, NetworkTaken) for logged in events),
                sum(isinstance(logged.event, EpochEnded) for logged in events),
                None if end is None else end.status, end is not None and bool(end.warning), is_forgiven)


def fruitless(past: Sequence[Past]) -> int:
    """How many launches in a row, to the newest, have finished no epoch."""
    count = 0
    for one in reversed(past):
        if one.is_fruitless is False or one.is_forgiven:
            break
        count += bool(one.is_fruitless)
    return count


def mean_gap_s(past: Sequence[Past]) -> float:
    """How long nodes stay idle, in seconds: what launches lasted over how many were cut off, if gaps have no memory."""
    return (GAP_S + sum(one.seconds for one in past)) / (1 + sum(one.is_cut for one in past))


# ---- the queue ---------------------------------------------------------------------------------


class Backlog:
    """Keeps jobs in the queue, as long as networks wait.

    Args:
        environment: of this process.
    """

    def __init__(self, plan: Plan, queue: Queue, environment: Mapping[str, str]) -> None:
        self._plan, self._queue, self._environment = plan, queue, environment

    def top_up(self, without: str = "") -> list[Order]:
        """Look at queue and runs, and hand in or take back what should be; returns what was done.

        Several jobs may come to it at the same moment: one of them does it.

        Args:
            without: the id of a job that is about to end.

        Raises:
            InputError: the batch system does not answer.
            StorageError: nothing can be noted.
        """
        try:
            lease = lease_of_process(self._environment)
            lease.take(self._plan.runs[0].paths.jobs_lease)
        except UserError:  # another job is at it
            return []
        try:
            return self._top_up(without)
        finally:  # also where the batch system does not answer: it may answer the next job
            lease.release()

    def _top_up(self, without: str) -> list[Order]:
        jobs = [job._replace(nodes=job.nodes or self._asked_for(job.id))
                for job in self._queue.jobs([run.job for run in self._plan.runs]) if job.id != without]
        idle = self._queue.idle_nodes()
        past = {run.job: past_of(run.paths, [job.id for job in jobs if job.runs]) for run in self._plan.runs}
        gap_s = mean_gap_s([one for launches in past.values() for one in launches])
        taken = sum(job.nodes for job in jobs if not job.runs)
        runs = [look(run, [job for job in jobs if job.name == run.job], past[run.job]) for run in self._plan.runs]
        orders = decide(runs, max(0, idle - taken), gap_s, self._plan.limits)
        for order in orders:
            self._carry_out(order, next(run.paths for run in self._plan.runs if run.job == order.name))
        return orders

    def _asked_for(self, job: str) -> int:
        """How many nodes a job was handed in for, where its batch system does not say."""
        return next((one.nodes for run in self._plan.runs for one in _noted(run.paths)
                     if isinstance(one, HandedIn) and one.job == job), 1)

    def _carry_out(self, order: Order, paths: RunPaths) -> None:
        match order:
            case Submit(nodes=nodes):
                note(paths, HandedIn(self._queue.submit(paths.harvest_script(nodes), nodes), nodes))
            case Cancel(job=job):
                self._queue.cancel(job)
                note(paths, TakenBack(job))


def look(run: Run, jobs: Sequence[QueuedJob], past: Sequence[Past]) -> Harvested:
    """A run, as its folder and its jobs show it.

    Args:
        jobs: its own.
        past: its launches that are over.
    """
    over, held = _over(run.paths) & set(run.networks), holders(run.paths)
    running = {job.id for job in jobs if job.runs}
    # What a launch holds that is no more waits for another one.
    alive = {name for name, holder in held.items()
             if name not in over and (holder is None or not holder.job or holder.job in running)}
    log = list(read_run(run.paths))
    starts = [logged.event for logged in log if isinstance(logged.event, Started)]
    first_s = [logged.t_s for logged in log if isinstance(logged.event, FirstStep)]
    records = [logged.event.record for logged in log if isinstance(logged.event, EpochEnded)][-_RATES:]
    rates = [record.samples / record.seconds for record in records if record.seconds > 0]
    return Harvested(
        run.job, waiting=len(set(run.networks) - over - alive), held=len(alive),
        per_node=max(1, starts[-1].trainers // starts[-1].nodes) if starts else run.per_node,
        rate=statistics.fmean(rates) if rates else 1.0, start_s=statistics.median(first_s) if first_s else 0.0,
        fruitless=fruitless(past), queued=tuple((job.id, job.nodes) for job in jobs if not job.runs),
        running=len(running), is_called_off=is_called_off(run.paths))


def _over(paths: RunPaths) -> set[str]:
    """The networks that are done, or have failed."""
    try:
        return {row.name for row in read_results(paths.root) if row.status in (Status.FINISHED, Status.FAILED)}
    except UserError:  # there is no table yet
        return set()


# ---- one job -----------------------------------------------------------------------------------


class HarvestJob:
    """One job of a harvest.

    Args:
        paths: of its run, and of its own launch.
        job: its id.
        every_s: between two looks at the queue.
    """

    def __init__(self, paths: RunPaths, backlog: Backlog, system: System, job: str, every_s: float = _EVERY_S) -> None:
        self._paths, self._backlog, self._system, self._job, self._every_s = paths, backlog, system, job, every_s
        self._warned = WarnedLaunch({**os.environ, SYSTEM_VARIABLE: system.name})

    def run(self, command: Sequence[str]) -> int:
        """Launch once, and keep the backlog filled; returns the status of the launch.

        Raises:
            UserError: the launcher is not there.
            StorageError: nothing can be noted.
        """
        self._warned.listen()
        before = log_mark(self._paths.events)
        note(self._paths, Begun(self._job, before[1]))
        self._top_up()
        ended = self._warned.run(command, self._every_s, self._top_up)
        status, warning = launch_status(ended, self._paths.events, before), self._warned.warning
        if not warning and Stop(status).is_failure and is_preempted(self._system, self._job):
            warning = "a preemption"
        note(self._paths, Ended(self._job, status, warning))
        self._top_up(self._job)  # perhaps all others are ended at this moment, and nobody else is left to do it
        return status

    def _top_up(self, without: str = "") -> None:
        try:
            for order in self._backlog.top_up(without):
                print(f"fleet job: {order}", file=sys.stderr, flush=True)
        except (InputError, StorageError) as error:  # this launch can go on all the same
            print(f"fleet job: the backlog is not kept filled for now: {error}", file=sys.stderr, flush=True)
