"""Keep a harvest going: jobs share the networks of runs, and submit the next jobs.

Each job fills the backlog when it starts, at intervals, and when it ends, so no process has to stay
on a login node. :func:`~fleet.companions.harvest.backlog.plan_orders` decides what to do; this
module gathers its input: the queue and the idle nodes from the batch system, the holders of
networks from the leases in the folders of the runs, and progress, rates, start-up times and gaps
from the logs of all launches.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from fleet.batch_systems import lease_of_process
from fleet.companions.batch_jobs.job_events import JobStarted, JobSubmitted
from fleet.companions.batch_jobs.launching import (
    ORDERLY_STATUSES,
    BatchJob,
    find_storage_error,
    print_message,
    reserve_emergency_space,
)
from fleet.companions.batch_jobs.paused_submissions import delay_options
from fleet.companions.harvest.backlog import (
    Cancel,
    HarvestLimits,
    HarvestState,
    Order,
    Submit,
    is_given_up,
    plan_orders,
)
from fleet.companions.harvest.harvest_log import (
    HarvestEnded,
    JobCancelled,
    LaunchEnded,
    PastLaunch,
    add_note,
    count_fruitless,
    count_transient,
    end_without_report,
    find_end,
    is_cancelled,
    newest_by_job,
    past_launches,
    read_harvest_log,
)
from fleet.domain.json_record import JsonRecord, read_record, write_record
from fleet.domain.run import RunState
from fleet.errors import ExitStatus, StorageError, UserError
from fleet.storage.event_log import RunTail, log_position
from fleet.storage.files import write_json
from fleet.storage.network_leases import read_holders
from fleet.storage.paths import RunPaths
from fleet.storage.results import ended_in_table
from launch.errors import InputError
from launch.queues import QUEUES, QueuedJob
from launch.systems import System, submit

GAP_S = 600.0  # prior for how long nodes stay idle; it counts as one gap
_EVERY_S = 30.0  # between two updates of the queue
_ATTEMPTS = 12  # of an ending job to take the lease, a few seconds each
# After a transient error: the first pause, the longest pause, all pauses.
_PAUSE_S = 5.0
_MAX_PAUSE_S = 300.0
_PATIENCE_S = 300.0
_RATES = 50  # number of newest epochs that rates are computed from


@dataclass(frozen=True)
class HarvestRun:
    """A run of a harvest.

    Attributes:
        job: the name of its jobs.
        root: its folder.
        networks: the names of all its networks.
        per_node: estimated number of networks that a node trains at the same time; launches
            replace it.
        epochs: maximum number of epochs of each network; empty if unknown.
    """

    job: str
    root: Path
    networks: tuple[str, ...]
    per_node: int
    epochs: Mapping[str, int] = field(default_factory=dict, hash=False)

    @property
    def paths(self) -> RunPaths:
        """The paths of the run."""
        return RunPaths(self.root)


@dataclass(frozen=True)
class HarvestPlan:
    """The plan of a harvest, which all of its jobs read.

    Attributes:
        runs: the runs, in order of precedence.
        limits: the limits of the queue.
        options: options for the command that submits jobs.
        partition: partition or queue whose idle nodes count; None for the default one.
        command: the command that starts the harvest again, as text; empty if unknown.
    """

    runs: tuple[HarvestRun, ...]
    limits: HarvestLimits
    options: tuple[str, ...] = ()
    partition: str | None = None
    command: str = ""

    def write(self) -> None:
        """Write the plan into the folder of each run.

        Raises:
            StorageError: a file cannot be written, for instance because the disk is full.
        """
        content = write_record(self)
        for run in self.runs:
            write_json(run.paths.harvest, content)
            reserve_emergency_space(run.paths.reserved_space)

    @staticmethod
    def read(path: Path) -> HarvestPlan:
        """Read a plan that :meth:`write` wrote.

        Raises:
            UserError: the file is missing, or is not a plan.
        """
        try:
            return read_record(HarvestPlan, json.loads(path.read_bytes()))
        except OSError as error:
            raise UserError(
                f"{path} cannot be read: {error.strerror}; fleet harvest writes it"
            ) from None
        except ValueError as error:
            raise UserError(
                f"{path} was not written by fleet harvest: {' '.join(str(error).split())}"
            ) from None


class BatchQueue:
    """The queue of a batch system; each method raises InputError if it does not answer.

    A test may replace it.
    """

    def __init__(self, system: System) -> None:
        self._system = system
        self._queue = QUEUES[system.queue_commands]

    def jobs(self, names: Sequence[str]) -> list[QueuedJob]:
        """Return the jobs of this user with these names."""
        return self._queue.own_jobs(names)

    def idle_nodes(self, partition: str | None) -> int:
        """Return how many nodes of a partition, or of the default one, have no job."""
        return self._queue.idle_nodes(partition)

    def submit(self, script: Path, nodes: int, plan: HarvestPlan) -> str:
        """Submit a job and return its id."""
        delay = delay_options(self._system, [run.paths for run in plan.runs])
        return submit(self._system, script, more=(*plan.options, *delay))

    def cancel(self, job: str) -> None:
        """Cancel a waiting job."""
        self._queue.cancel(job)


# ---- the queue ---------------------------------------------------------------------------------


class Backlog:
    """Keeps jobs in the queue while networks wait.

    Args:
        plan: the plan of the harvest.
        queue: the queue of the batch system.
        file: the file of the plan, which the user may change meanwhile.

    Attributes:
        plan: the current plan.
    """

    def __init__(self, plan: HarvestPlan, queue: BatchQueue, file: Path | None = None) -> None:
        self._queue = queue
        self._file = file
        self._use_plan(plan)

    def _use_plan(self, plan: HarvestPlan) -> None:
        self.plan = plan
        self._logs = {run.job: RunLogs(run) for run in plan.runs}

    def has_work(self, root: Path, job: str) -> bool:
        """Return True if a job of a run that is about to start finds a network to train, or may.

        Args:
            root: the folder of the run.
            job: the id of the job.
        """
        run = next(run for run in self.plan.runs if run.root == root)
        try:
            jobs = self._queue.jobs([run.job])
            # Networks that this job held are available to it.
            ids = {job, *self._ending_jobs(jobs)}
            other_jobs = [queued for queued in jobs if queued.id not in ids]
            return self._logs[run.job].read(other_jobs, []).waiting > 0
        except (InputError, OSError):  # no answer; the launch will find out
            return True

    def top_up(self, ending_job: str = "", resubmit: bool = False) -> list[Order]:
        """Read the queue and the runs, submit or cancel jobs accordingly, and return these orders.

        If several jobs call this at the same time, one of them does the work. A job that is about
        to end waits for the others, because it may be the last one.

        Args:
            ending_job: the id of a job that is about to end.
            resubmit: True to cancel waiting jobs, because they were submitted with other options.

        Raises:
            InputError: the batch system does not answer.
            StorageError: the log cannot be written.
        """
        if self._file is not None:
            with suppress(UserError):  # keep the current plan
                plan = HarvestPlan.read(self._file)
                if plan != self.plan:
                    self._use_plan(plan)
        for attempts_left in reversed(range(_ATTEMPTS if ending_job else 1)):
            try:
                lease = lease_of_process(os.environ)
                lease.take(self.plan.runs[0].paths.jobs_lease)
                break
            except UserError:  # another job is doing it
                if not attempts_left:
                    return []
        try:
            return [*(self._cancel_waiting() if resubmit else []), *self._top_up(ending_job)]
        finally:  # even if the batch system does not answer, so that the next job can try
            lease.release()

    def _cancel_waiting(self) -> list[Order]:
        orders = [
            Cancel(job.name, job.id)
            for job in self._queue.jobs([run.job for run in self.plan.runs])
            if not job.runs
        ]
        for order in orders:
            self._carry_out(order)
        return list(orders)

    def _top_up(self, ending_job: str) -> list[Order]:
        names = [run.job for run in self.plan.runs]
        queued = [
            job._replace(nodes=job.nodes or self._requested_nodes(job.id))
            for job in self._queue.jobs(names)
        ]
        idle = self._queue.idle_nodes(self.plan.partition)
        self._log_dead_launches(queued)
        jobs = [job for job in queued if job.id not in {ending_job, *self._ending_jobs(queued)}]
        past = {
            run.job: past_launches(run.paths, [job.id for job in jobs if job.runs])
            for run in self.plan.runs
        }
        gap_s = mean_gap_s([launch for launches in past.values() for launch in launches])
        reserved_nodes = sum(job.nodes for job in jobs if not job.runs)
        runs = [
            self._logs[run.job].read([job for job in jobs if job.name == run.job], past[run.job])
            for run in self.plan.runs
        ]
        orders = plan_orders(runs, max(0, idle - reserved_nodes), gap_s, self.plan.limits)
        for order in orders:
            self._carry_out(order)
        if ending_job:
            self._log_ends(runs, orders)
        return orders

    def _ending_jobs(self, jobs: Sequence[QueuedJob]) -> set[str]:
        """Return the ids of jobs that are still listed although their launches have ended."""
        ended = {
            job
            for run in self.plan.runs
            for job, note in newest_by_job(run.paths).items()
            if isinstance(note, LaunchEnded) and note.status is not None
        }
        return {job.id for job in jobs if job.runs} & ended

    def _log_dead_launches(self, jobs: Sequence[QueuedJob]) -> None:
        """Log the end of each launch that ended without reporting."""
        running, waiting = ({job.id for job in jobs if job.runs is runs} for runs in (True, False))
        for run in self.plan.runs:
            for job, note in newest_by_job(run.paths).items():
                if isinstance(note, JobStarted) and job not in running:
                    add_note(run.paths, end_without_report(job, job in waiting))

    def _log_ends(self, runs: Sequence[HarvestState], orders: Sequence[Order]) -> None:
        """Log the end of the harvest of each run that has come to its end, with the reason."""
        submitted = {order.name for order in orders if isinstance(order, Submit)}
        cancelled = {order.job for order in orders if isinstance(order, Cancel)}
        active = {
            state.name
            for state in runs
            if state.running or {job for job, _ in state.queued} - cancelled
        } | submitted
        for run, state in zip(self.plan.runs, runs, strict=True):
            ends = state.is_over or is_given_up(state, self.plan.limits) or not active
            if ends and state.name not in active and find_end(run.paths) is None:
                command = "" if state.is_over and not self._failed(run) else self.plan.command
                add_note(run.paths, HarvestEnded(self._end_reason(run, state), command))

    def _failed(self, run: HarvestRun) -> int:
        """Return how many networks of a run have failed."""
        outcomes = (status.outcome for status in self._logs[run.job].state.statuses.values())
        return sum(outcome is not None and outcome.is_failure for outcome in outcomes)

    def _end_reason(self, run: HarvestRun, state: HarvestState) -> str:
        if state.is_over:
            failed = self._failed(run)
            if failed:
                return f"all networks have ended, {failed} of them failed"
            return "all networks have ended"
        if state.is_cancelled:
            return "it was cancelled (--end)"
        reasons = [note.why for note in read_harvest_log(run.paths, LaunchEnded) if note.why]
        last_reason = f"; the last reason: {reasons[-1]}" if reasons else ""
        if state.fruitless_launches >= self.plan.limits.fruitless:
            return f"{state.fruitless_launches} launches in a row finished no epoch{last_reason}"
        if state.transient_failures >= self.plan.limits.passing:
            return (
                f"{state.transient_failures} launches in a row ended with a transient "
                f"error{last_reason}"
            )
        return f"no job is left for the remaining networks{last_reason}"

    def _requested_nodes(self, job: str) -> int:
        """Return how many nodes a job requested, if its batch system does not say."""
        return next(
            (
                note.nodes
                for run in self.plan.runs
                for note in read_harvest_log(run.paths, JobSubmitted)
                if note.job == job
            ),
            1,
        )

    def _carry_out(self, order: Order) -> None:
        paths = next(run.paths for run in self.plan.runs if run.job == order.name)
        match order:
            case Submit(nodes=nodes):
                add_note(
                    paths,
                    JobSubmitted(
                        self._queue.submit(paths.harvest_script(nodes), nodes, self.plan), nodes
                    ),
                )
            case Cancel(job=job):
                self._queue.cancel(job)
                add_note(paths, JobCancelled(job))


def mean_gap_s(past: Sequence[PastLaunch]) -> float:
    """Return how long nodes stay idle, in seconds, assuming memoryless gaps.

    This is the total duration of launches over the number that were cut off.
    """
    return (GAP_S + sum(launch.seconds for launch in past)) / (
        1 + sum(launch.is_cut for launch in past)
    )


class RunLogs:
    """A run of a harvest, and the logs of its launches, read as they grow.

    Args:
        run: the run.

    Attributes:
        state: the state of the run by its logs.
    """

    def __init__(self, run: HarvestRun) -> None:
        self._run = run
        self._tail = RunTail(run.paths)
        self.state = RunState()

    def read(self, jobs: Sequence[QueuedJob], past: Sequence[PastLaunch]) -> HarvestState:
        """Return the state of the run in the harvest, from its folder and its jobs.

        Args:
            jobs: its own jobs.
            past: its launches that have ended.

        Raises:
            OSError: the file system does not answer.
        """
        for at, event, _, log in sorted(self._tail.poll(), key=lambda dated: dated.at):
            self.state.apply(at, event, log)
        run = self._run
        done = {name for name, status in self.state.statuses.items() if status.outcome is not None}
        # Networks that ended long ago may have no log.
        done = (done | ended_in_table(run.paths)) & set(run.networks)
        running = {job.id for job in jobs if job.runs}
        # A network held by a launch that has died waits for another launch.
        leased = {
            name: holder
            for name, holder in read_holders(run.paths).items()
            if name in run.networks
            and name not in done
            and (holder is None or not holder.job or holder.job in running)
        }
        by_job = Counter(holder.job for holder in leased.values() if holder is not None)
        own_jobs = {note.job for note in read_harvest_log(run.paths, JobSubmitted, JobStarted)}
        epochs_left = sum(map(self._epochs_left, set(run.networks) - done))
        newest = self.state.epochs[-_RATES:]
        records = [epoch.record for epoch in newest if epoch.record.seconds > 0]
        rates = [record.samples / record.seconds for record in records]
        start_times = [
            launch.first_step[0] - launch.began_s
            for launch in self.state.launches
            if launch.first_step is not None
        ]
        epoch_samples = max(1, records[-1].samples if records else 1)
        return HarvestState(
            run.job,
            waiting=len(set(run.networks) - done - leased.keys()),
            training=len(leased),
            per_node=self._concurrent_networks(1),
            rate=statistics.fmean(rates) if rates else None,
            samples_left=float(epoch_samples * epochs_left),
            start_s=statistics.median(start_times) if start_times else 0.0,
            fruitless_launches=count_fruitless(past),
            transient_failures=count_transient(past),
            running=len(running),
            queued=tuple((job.id, job.nodes) for job in jobs if not job.runs),
            nodes=sum(job.nodes for job in jobs if job.runs),
            spare=sum(
                max(0, self._concurrent_networks(max(1, job.nodes)) - by_job[job.id])
                for job in jobs
                if job.runs and job.id in own_jobs
            ),
            is_cancelled=is_cancelled(run.paths),
        )

    def _concurrent_networks(self, nodes: int) -> int:
        """Return how many networks this number of nodes trains at the same time."""
        if self.state.launch is None:
            return self._run.per_node * nodes
        start = self.state.launch.start
        largest = max((min_gpus for min_gpus, _ in start.bounds.values()), default=1)
        return max(1, start.trainers * nodes // (start.nodes * largest))

    def _epochs_left(self, name: str) -> int:
        """Return the maximum number of epochs that a network still has to train."""
        epochs_done = len(self.state.status_of(name).history)
        return max(1, self._run.epochs.get(name, 0) - epochs_done)


# ---- one job -----------------------------------------------------------------------------------


class HarvestJob(BatchJob):
    """One job of a harvest.

    Args:
        paths: the paths of its run and of its launch.
        backlog: the backlog of the harvest.
        system: the batch system.
        job: the id of the job.
    """

    def __init__(self, paths: RunPaths, backlog: Backlog, system: System, job: str) -> None:
        super().__init__(paths, system, job)
        self._backlog = backlog
        self._was_answered = False

    def run(self, command: Sequence[str]) -> int:
        """Launch once, keep the backlog filled, and return the status of the launch.

        Raises:
            StorageError: the log cannot be written.
        """
        storage_error = self.prepare()
        if storage_error is not None:
            return self._give_up(storage_error, ExitStatus.CAN_PASS)
        newest = newest_by_job(self._paths).get(self._job)
        if isinstance(newest, JobStarted):  # the batch system has requeued the job
            self._note(end_without_report(self._job, is_back=True))
        if not self._backlog.has_work(self._paths.root, self._job):
            self._note(LaunchEnded(self._job, ExitStatus.OK, why="it found no network to train"))
            self._end()
            return ExitStatus.OK
        before = log_position(self._paths.events)
        self._note(JobStarted(self._job, before[1]))
        self._top_up()
        status = self.launch(command, before, _EVERY_S, self._top_up)
        if (
            status not in ORDERLY_STATUSES
            and (storage_error := find_storage_error(self._paths.jobs)) is not None
            and storage_error.may_pass
        ):
            status = ExitStatus.CAN_PASS
        storage_error = self.wait_for_space()
        if storage_error is not None:
            return self._give_up(storage_error, status, self.warning)
        self._note(LaunchEnded(self._job, status, self.warning, self.end_reason))
        self._wait_after_transient_error(status)
        self._end()  # all other jobs may be ending right now, too
        return status

    def _note(self, note: JsonRecord) -> None:
        """Append a line to the log, and wait if the disk is full."""
        try:
            add_note(self._paths, note)
        except StorageError as error:
            if not error.may_pass or self.wait_for_space() is not None:
                raise
            add_note(self._paths, note)

    def _wait_after_transient_error(self, status: int) -> None:
        """Wait, twice as long after each launch in a row with a transient error and no epoch."""
        if status == ExitStatus.CAN_PASS and (count := count_transient(past_launches(self._paths))):
            self.pause(min(_MAX_PAUSE_S, _PAUSE_S * 2 ** (count - 1)))

    def _give_up(self, error: StorageError, status: int, warning: str = "") -> int:
        """End without submitting another job, because files cannot be written.

        The emergency space is freed for this last note. The last one of several such jobs logs that
        the harvest has ended.
        """
        over = HarvestEnded(f"files cannot be written: {error}", self._backlog.plan.command)
        with suppress(OSError):
            self._paths.reserved_space.unlink(missing_ok=True)
        with suppress(StorageError):
            add_note(self._paths, LaunchEnded(self._job, status, warning, str(error)))
            if not any(
                isinstance(note, JobStarted) for note in newest_by_job(self._paths).values()
            ):
                add_note(self._paths, over)
        print_message(str(over))
        return status

    def _top_up(self, ending_job: str = "") -> str:
        """Keep the backlog filled; return an error message if this is impossible now."""
        try:
            for order in self._backlog.top_up(ending_job):
                print_message(str(order))
        except (InputError, StorageError, OSError) as error:  # this launch can continue anyway
            print_message(f"cannot fill the backlog for now: {error}")
            return str(error)
        self._was_answered = True
        return ""

    def _end(self) -> None:
        """Arrange for other jobs to follow, or log why none does."""
        until = time.monotonic() + _PATIENCE_S
        pause_s = _PAUSE_S
        while problem := self._top_up(self._job):
            if not self._was_answered:  # without an answer, other jobs are unknown
                return
            if self.is_signalled or time.monotonic() >= until:
                with suppress(StorageError):
                    add_note(
                        self._paths,
                        HarvestEnded(
                            f"its last launch could not submit another job: {problem}",
                            self._backlog.plan.command,
                        ),
                    )
                break
            self.pause(pause_s)
            pause_s *= 2
        over = find_end(self._paths)
        if over is not None:
            print_message(str(over))
