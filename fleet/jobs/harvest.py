"""Jobs that come and go, and share the networks of runs: who hands in the next one, and when it is enough.

Each job keeps the backlog filled, when it begins, now and then, and when it ends; so no process has to stay on a login
node. What to do is decided by :func:`fleet.jobs.backlog.plan_orders`. What that is told of is found out here: the queue and
the idle nodes from the batch system, who holds which network from the leases in the folders of the runs, and how far
networks are, how fast they are, what starting takes and how long jobs are let be from the logs of all launches.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pydantic import TypeAdapter

from fleet.domain.events import LaunchStarted
from fleet.domain.json_record import JsonRecord
from fleet.domain.network import EpochRecord
from fleet.domain.run import RunState
from fleet.errors import ExitStatus, StorageError, UserError
from fleet.jobs import harvest_log
from fleet.jobs.backlog import (
    Cancel,
    HarvestLimits,
    HarvestState,
    Order,
    Submit,
    is_given_up,
    plan_orders,
)
from fleet.jobs.job_events import JobStarted, JobSubmitted
from fleet.jobs.launching import (
    ORDERLY_STATUSES,
    WarnedLaunch,
    find_storage_error,
    print_message,
    reserve_emergency_space,
)
from fleet.jobs.paused_submissions import delay_options
from fleet.jobs.systems import lease_of_process
from fleet.storage.event_log import RunTail, log_position
from fleet.storage.files import write_json
from fleet.storage.network_leases import read_holders
from fleet.storage.paths import RunPaths
from fleet.storage.results import ended_in_table
from launch.base import InputError
from launch.queues import QUEUES, QueuedJob
from launch.systems import System, submit

GAP_S = 600.0  # how long nodes are taken to stay idle before anything is known of it: it counts as one gap
_EVERY_S = 30.0  # between two looks at the queue
_TURNS = 12  # of a few seconds each, which a job that is about to end waits for others that look
# where something may pass: the first pause, the longest, all
_REST_S = 5.0
_MOST_REST_S = 300.0
_PATIENCE_S = 300.0
_RATES = 50  # newest epochs of which rates are taken


@dataclass(frozen=True)
class HarvestRun:
    """A run that is harvested.

    Attributes:
        job: the name of its jobs.
        root: its folder.
        networks: the names of all of them.
        per_node: networks that a node trains at once, until a launch has shown it.
        epochs: of each network, at most; empty where nobody said.
    """

    job: str
    root: Path
    networks: tuple[str, ...]
    per_node: int
    epochs: Mapping[str, int] = field(default_factory=dict, hash=False)

    @property
    def paths(self) -> RunPaths:
        """Its files."""
        return RunPaths(self.root)


@dataclass(frozen=True)
class HarvestPlan:
    """A harvest: what was asked for, as all of its jobs know it.

    Attributes:
        options: for the command that hands jobs in.
        partition: or queue, whose idle nodes count; None for the default one.
        command: what begins it again, for people; empty where nobody said.
    """

    runs: tuple[HarvestRun, ...]
    limits: HarvestLimits
    options: tuple[str, ...] = ()
    partition: str | None = None
    command: str = ""

    def write(self) -> None:
        """Write it into the folder of each run.

        Raises:
            StorageError: the disk is full, ...
        """
        content = TypeAdapter(HarvestPlan).dump_python(self, mode="json", by_alias=True)
        for run in self.runs:
            write_json(run.paths.harvest, content)
            reserve_emergency_space(run.paths.reserved_space)

    def record_request(self) -> None:
        """Its user asks for it, again or for the first time."""
        for run in self.runs:
            harvest_log.add_note(run.paths, harvest_log.HarvestRequested())

    @staticmethod
    def read(path: Path) -> HarvestPlan:
        """Read what :meth:`write` wrote.

        Raises:
            UserError: it is not there, or something else.
        """
        try:
            return TypeAdapter(HarvestPlan).validate_json(path.read_bytes())
        except OSError as error:
            raise UserError(
                f"{path} cannot be read: {error.strerror}; fleet harvest writes it"
            ) from None
        except ValueError as error:
            raise UserError(
                f"{path} is no harvest that fleet harvest wrote: {' '.join(str(error).split())}"
            ) from None


class BatchQueue:
    """What a harvest asks of a batch system, by its commands; each raises InputError where it does not answer.

    A test may give its own.
    """

    def __init__(self, system: System) -> None:
        self._system = system
        self._queue = QUEUES[system.queue_commands]

    def jobs(self, names: Sequence[str]) -> list[QueuedJob]:
        """The jobs of this user with these names."""
        return self._queue.own_jobs(names)

    def idle_nodes(self, partition: str | None) -> int:
        """How many nodes of a partition, or of the default one, have no job."""
        return self._queue.idle_nodes(partition)

    def submit(self, script: Path, nodes: int, plan: HarvestPlan) -> str:
        """Hand in a job; returns its id."""
        later = delay_options(self._system, [run.paths for run in plan.runs])
        return submit(self._system, script, more=(*plan.options, *later))

    def cancel(self, job: str) -> None:
        """Take back a job that waits."""
        self._queue.cancel(job)


# ---- the queue ---------------------------------------------------------------------------------


class Backlog:
    """Keeps jobs in the queue, as long as networks wait.

    Args:
        environment: of this process.
        file: of the plan, where its user may ask for something else meanwhile.

    Attributes:
        command: what begins the harvest again.
    """

    def __init__(
        self,
        plan: HarvestPlan,
        queue: BatchQueue,
        environment: Mapping[str, str],
        file: Path | None = None,
    ) -> None:
        self._queue = queue
        self._environment = environment
        self._file = file
        self._take(plan)

    def _take(self, plan: HarvestPlan) -> None:
        self._plan = plan
        self.command = plan.command
        self._logs = {run.job: RunLogs(run.paths) for run in plan.runs}

    def has_work(self, root: Path, job: str) -> bool:
        """Whether a job of a run that is about to begin would find a network to train.

        Raises:
            InputError: the batch system does not answer.
            OSError: the file system does not.
        """
        run = next(run for run in self._plan.runs if run.root == root)
        found = self._queue.jobs([run.job])
        others = [
            one for one in found if one.id not in {job, *self._leaving(found)}
        ]  # what it held, it may take again
        return read_harvest_state(run, others, [], self._logs[run.job]).waiting > 0

    def top_up(self, without: str = "", anew: bool = False) -> list[Order]:
        """Look at queue and runs, and hand in or take back what should be; returns what was done.

        Several jobs may come to it at the same moment: one of them does it. A job that is about to end waits for the
        others, for it may be the last.

        Args:
            without: the id of a job that is about to end.
            anew: whether jobs that wait are taken back, since they were handed in with other options.

        Raises:
            InputError: the batch system does not answer.
            StorageError: nothing can be noted.
        """
        if self._file is not None:
            with suppress(UserError):  # it is as it was
                plan = HarvestPlan.read(self._file)
                if plan != self._plan:
                    self._take(plan)
        for left in reversed(range(_TURNS if without else 1)):
            try:
                lease = lease_of_process(self._environment)
                lease.take(self._plan.runs[0].paths.jobs_lease)
                break
            except UserError:  # another job is at it
                if not left:
                    return []
        try:
            return [*(self._take_back() if anew else []), *self._top_up(without)]
        finally:  # also where the batch system does not answer: it may answer the next job
            lease.release()

    def _take_back(self) -> list[Order]:
        orders = [
            Cancel(job.name, job.id)
            for job in self._queue.jobs([run.job for run in self._plan.runs])
            if not job.runs
        ]
        for order in orders:
            self._carry_out(order)
        return list(orders)

    def _top_up(self, without: str) -> list[Order]:
        names = [run.job for run in self._plan.runs]
        found = [
            job._replace(nodes=job.nodes or self._asked_for(job.id))
            for job in self._queue.jobs(names)
        ]
        idle = self._queue.idle_nodes(self._plan.partition)
        self._note_lost(found)
        jobs = [job for job in found if job.id not in {without, *self._leaving(found)}]
        past = {
            run.job: harvest_log.past_launches(run.paths, [job.id for job in jobs if job.runs])
            for run in self._plan.runs
        }
        gap_s = mean_gap_s([one for launches in past.values() for one in launches])
        taken = sum(job.nodes for job in jobs if not job.runs)
        runs = [
            read_harvest_state(
                run,
                [job for job in jobs if job.name == run.job],
                past[run.job],
                self._logs[run.job],
            )
            for run in self._plan.runs
        ]
        orders = plan_orders(runs, max(0, idle - taken), gap_s, self._plan.limits)
        for order in orders:
            self._carry_out(order)
        if without:
            self._note_over(runs, orders)
        return orders

    def _leaving(self, jobs: Sequence[QueuedJob]) -> set[str]:
        """The jobs that are there still, and whose launches are over."""
        newest = {
            job: one
            for run in self._plan.runs
            for job, one in harvest_log.newest_by_job(run.paths).items()
        }
        return {
            job.id
            for job in jobs
            if job.runs
            and isinstance(one := newest.get(job.id), harvest_log.LaunchEnded)
            and one.status is not None
        }

    def _note_lost(self, jobs: Sequence[QueuedJob]) -> None:
        """Say of each launch that ended without a word that it did."""
        running, waiting = ({job.id for job in jobs if job.runs is runs} for runs in (True, False))
        for run in self._plan.runs:
            for job, one in harvest_log.newest_by_job(run.paths).items():
                if isinstance(one, JobStarted) and job not in running:
                    harvest_log.add_note(
                        run.paths, harvest_log.end_without_report(job, job in waiting)
                    )

    def _note_over(self, runs: Sequence[HarvestState], orders: Sequence[Order]) -> None:
        """Say of each run that has come to its end that it has, and why."""
        coming = {order.name for order in orders if isinstance(order, Submit)}
        taken_back = {order.job for order in orders if isinstance(order, Cancel)}
        there = {
            seen.name
            for seen in runs
            if seen.running or {job for job, _ in seen.queued} - taken_back
        } | coming
        for run, seen in zip(self._plan.runs, runs, strict=True):
            ends = seen.is_over or is_given_up(seen, self._plan.limits) or not there
            if ends and seen.name not in there and harvest_log.find_end(run.paths) is None:
                again = "" if seen.is_over and not self._failed(run) else self._plan.command
                harvest_log.add_note(
                    run.paths, harvest_log.HarvestEnded(self._why_over(run, seen), again)
                )

    def _failed(self, run: HarvestRun) -> int:
        """How many networks of a run have failed."""
        outcomes = (standing.outcome for standing in self._logs[run.job].run.statuses.values())
        return sum(outcome is not None and outcome.is_failure for outcome in outcomes)

    def _why_over(self, run: HarvestRun, seen: HarvestState) -> str:
        if seen.is_over:
            failed = self._failed(run)
            if failed:
                return f"all networks are done, {failed} of them failed"
            return "all networks are done"
        if seen.is_cancelled:
            return "it was called off (--end)"
        ends = [
            one.why
            for one in harvest_log.read_harvest_log(run.paths)
            if isinstance(one, harvest_log.LaunchEnded) and one.why
        ]
        last = ends[-1] if ends else ""
        because = last and f"; the last: {last}"
        if seen.fruitless_launches >= self._plan.limits.fruitless:
            return f"{seen.fruitless_launches} launches in a row finished no epoch{because}"
        if seen.transient_failures >= self._plan.limits.passing:
            return f"{seen.transient_failures} launches in a row were ended by a fault that may pass, but has not passed{because}"
        return f"no job is left for the networks that are{because}"

    def _asked_for(self, job: str) -> int:
        """How many nodes a job was handed in for, where its batch system does not say."""
        return next(
            (
                one.nodes
                for run in self._plan.runs
                for one in harvest_log.read_harvest_log(run.paths)
                if isinstance(one, JobSubmitted) and one.job == job
            ),
            1,
        )

    def _carry_out(self, order: Order) -> None:
        paths = next(run.paths for run in self._plan.runs if run.job == order.name)
        match order:
            case Submit(nodes=nodes):
                harvest_log.add_note(
                    paths,
                    JobSubmitted(
                        self._queue.submit(paths.harvest_script(nodes), nodes, self._plan), nodes
                    ),
                )
            case Cancel(job=job):
                self._queue.cancel(job)
                harvest_log.add_note(paths, harvest_log.JobCancelled(job))


def mean_gap_s(past: Sequence[harvest_log.PastLaunch]) -> float:
    """How long nodes stay idle, in seconds: what launches lasted over how many were cut off, if gaps have no memory."""
    return (GAP_S + sum(one.seconds for one in past)) / (1 + sum(one.is_cut for one in past))


class RunLogs:
    """What the launches of a run have logged, read as it grows."""

    def __init__(self, paths: RunPaths) -> None:
        self._tail = RunTail(paths)
        self.run = RunState()

    @property
    def start(self) -> LaunchStarted | None:
        """Of the newest launch."""
        if self.run.launch is None:
            return None
        return self.run.launch.start

    @property
    def first_s(self) -> list[float]:
        """Seconds from the beginning of each launch to its first step."""
        return [
            launch.first_step[0] - launch.began_s
            for launch in self.run.launches
            if launch.first_step is not None
        ]

    @property
    def records(self) -> list[EpochRecord]:
        """The newest epochs."""
        return [epoch.record for epoch in self.run.epochs[-_RATES:] if epoch.record.seconds > 0]

    def refresh(self) -> None:
        """Read what is new.

        Raises:
            OSError: the file system does not answer.
        """
        for at, event, _, log in sorted(self._tail.poll(), key=lambda dated: dated.at):
            self.run.apply(at, event, log)


def read_harvest_state(
    run: HarvestRun,
    jobs: Sequence[QueuedJob],
    past: Sequence[harvest_log.PastLaunch],
    logs: RunLogs | None = None,
) -> HarvestState:
    """A run, as its folder and its jobs show it.

    Args:
        jobs: its own.
        past: its launches that are over.
        logs: of its launches, as far as they were read.
    """
    logs = logs or RunLogs(run.paths)
    logs.refresh()
    over = {name for name, standing in logs.run.statuses.items() if standing.outcome is not None}
    over = (over | ended_in_table(run.paths)) & set(
        run.networks
    )  # of what was done long ago there may be no log
    running = {job.id for job in jobs if job.runs}
    # What a launch holds that is no more waits for another one.
    held = {
        name: holder
        for name, holder in read_holders(run.paths).items()
        if name in run.networks
        and name not in over
        and (holder is None or not holder.job or holder.job in running)
    }
    by_job = Counter(holder.job for holder in held.values() if holder is not None)
    ours = {
        one.job
        for one in harvest_log.read_harvest_log(run.paths)
        if isinstance(one, JobSubmitted | JobStarted)
    }
    at_once = partial(_at_once, run, logs.start)
    rates = [record.samples / record.seconds for record in logs.records]
    return HarvestState(
        run.job,
        waiting=len(set(run.networks) - over - held.keys()),
        training=len(held),
        per_node=at_once(1),
        rate=statistics.fmean(rates) if rates else None,
        samples_left=_samples_left(run, over, logs),
        start_s=statistics.median(logs.first_s) if logs.first_s else 0.0,
        fruitless_launches=harvest_log.count_fruitless(past),
        transient_failures=harvest_log.count_transient(past),
        running=len(running),
        queued=tuple((job.id, job.nodes) for job in jobs if not job.runs),
        nodes=sum(job.nodes for job in jobs if job.runs),
        spare=sum(
            max(0, at_once(max(1, job.nodes)) - by_job[job.id])
            for job in jobs
            if job.runs and job.id in ours
        ),
        is_cancelled=harvest_log.is_cancelled(run.paths),
    )


def _at_once(run: HarvestRun, start: LaunchStarted | None, nodes: int) -> int:
    """How many networks so many nodes train at once."""
    if start is None:
        return run.per_node * nodes
    largest = max((least for least, _ in start.bounds.values()), default=1)
    return max(1, start.trainers * nodes // (start.nodes * largest))


def _samples_left(run: HarvestRun, over: Collection[str], logs: RunLogs) -> float:
    """Samples that the networks of a run are still to be trained on, at most."""
    left = 0
    for name in run.networks:
        if name not in over:
            known = logs.run.networks.get(name)
            done = 0 if known is None else len(known.status.history)
            left += max(1, run.epochs.get(name, 0) - done)
    return float(left * max(1, logs.records[-1].samples if logs.records else 1))


# ---- one job -----------------------------------------------------------------------------------


class HarvestJob:
    """One job of a harvest.

    Args:
        paths: of its run, and of its own launch.
        job: its id.
    """

    def __init__(self, paths: RunPaths, backlog: Backlog, system: System, job: str) -> None:
        self._paths = paths
        self._backlog = backlog
        self._job = job
        self._warned = WarnedLaunch(paths, system, job)
        self._was_answered = False

    def run(self, command: Sequence[str]) -> int:
        """Launch once, and keep the backlog filled; returns the status of the launch.

        Raises:
            StorageError: nothing can be noted.
        """
        self._warned.listen()
        refused = self._warned.wait_for_space()
        if refused is not None:
            return self._give_up(refused, ExitStatus.CAN_PASS)
        reserve_emergency_space(self._paths.reserved_space)
        if isinstance(
            harvest_log.newest_by_job(self._paths).get(self._job), JobStarted
        ):  # the batch system has put it back
            self._note(harvest_log.end_without_report(self._job, is_back=True))
        if not self._finds_work():
            self._note(
                harvest_log.LaunchEnded(
                    self._job, int(ExitStatus.OK), why="it would have found no network to train"
                )
            )
            self._end()
            return int(ExitStatus.OK)
        before = log_position(self._paths.events)
        self._note(JobStarted(self._job, before[1]))
        self._top_up()
        status = self._warned.run(command, before, _EVERY_S, self._top_up)
        warning = self._warned.warning
        if (
            status not in ORDERLY_STATUSES
            and (refused := find_storage_error(self._paths.jobs)) is not None
            and refused.may_pass
        ):
            status = int(ExitStatus.CAN_PASS)
        refused = self._warned.wait_for_space()
        if refused is not None:
            return self._give_up(refused, status, warning)
        self._note(harvest_log.LaunchEnded(self._job, status, warning, self._warned.end_reason))
        self._wait_after_transient_error(status)
        self._end()  # perhaps all others are ended at this moment, and nobody else is left to do it
        return status

    def _note(self, what: JsonRecord) -> None:
        """Add a line; a disk that fills up just now is waited for."""
        try:
            harvest_log.add_note(self._paths, what)
        except StorageError as error:
            if not error.may_pass or self._warned.wait_for_space() is not None:
                raise
            harvest_log.add_note(self._paths, what)

    def _wait_after_transient_error(self, status: int) -> None:
        """Wait the longer the more launches in a row were ended by what may pass, and finished no epoch."""
        if status == ExitStatus.CAN_PASS and (
            count := harvest_log.count_transient(harvest_log.past_launches(self._paths))
        ):
            self._warned.pause(min(_MOST_REST_S, _REST_S * 2 ** (count - 1)))

    def _give_up(self, refused: StorageError, status: int, warning: str = "") -> int:
        """No job can be handed in where nothing can be noted; this end may have the room that was kept for it.

        The last of several jobs that come to it says that the harvest is over.
        """
        over = harvest_log.HarvestEnded(
            f"files cannot be written: {refused}", self._backlog.command
        )
        with suppress(OSError):
            self._paths.reserved_space.unlink(missing_ok=True)
        with suppress(StorageError):
            harvest_log.add_note(
                self._paths, harvest_log.LaunchEnded(self._job, int(status), warning, str(refused))
            )
            if not any(
                isinstance(one, JobStarted)
                for one in harvest_log.newest_by_job(self._paths).values()
            ):
                harvest_log.add_note(self._paths, over)
        print_message(str(over))
        return int(status)

    def _finds_work(self) -> bool:
        try:
            return self._backlog.has_work(self._paths.root, self._job)
        except (InputError, OSError):  # nobody can tell: the launch will find out
            return True

    def _top_up(self, without: str = "") -> str:
        """Keep the backlog filled; returns why that cannot be done, where it cannot."""
        try:
            for order in self._backlog.top_up(without):
                print_message(str(order))
        except (InputError, StorageError, OSError) as error:  # this launch can go on all the same
            print_message(f"the backlog is not kept filled for now: {error}")
            return str(error)
        self._was_answered = True
        return ""

    def _end(self) -> None:
        """See to it that others follow; where none does, say why."""
        until = time.monotonic() + _PATIENCE_S
        pause_s = _REST_S
        while problem := self._top_up(self._job):
            if not self._was_answered:  # ever: nothing is known of other jobs
                return
            if self._warned.is_signalled or time.monotonic() >= until:
                with suppress(StorageError):
                    harvest_log.add_note(
                        self._paths,
                        harvest_log.HarvestEnded(
                            f"its last launch could hand in no further job: {problem}",
                            self._backlog.command,
                        ),
                    )
                break
            self._warned.pause(pause_s)
            pause_s *= 2
        over = harvest_log.find_end(self._paths)
        if over is not None:
            print_message(str(over))
