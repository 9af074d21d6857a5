"""Rank 0: the coordinator with its views, logs and results."""

from __future__ import annotations

import math
import os
import socket
import sys
import threading
from collections.abc import Iterable, Sequence

from fleet import __version__
from fleet.comm.protocols import World
from fleet.control.launch_state import LaunchConfig
from fleet.domain.events import (
    EarlierRunRead,
    EpochEnded,
    Event,
    LaunchOrigin,
    RunWarned,
    SearcherStarted,
)
from fleet.errors import ExitStatus, InfrastructureError, UserError
from fleet.export.trackers import target_paths
from fleet.monitor.html import write_report
from fleet.monitor.live_view import make_view
from fleet.monitor.report import best_rows, read_report
from fleet.monitor.tensorboard import TensorBoardObserver
from fleet.monitor.view import format_event
from fleet.prediction.ensembles import (
    EnsembleResult,
    find_joinable,
    make_table,
    score_ensembles,
    write_ensembles,
)
from fleet.runtime.admission import Admission
from fleet.runtime.coordinator import Coordinator
from fleet.runtime.external.command_handler import CommandHandler
from fleet.runtime.external.command_queue import CommandQueue
from fleet.runtime.external.tracking import Tracking
from fleet.runtime.interrupt import Interruption
from fleet.runtime.known_rates import ProfileFile
from fleet.runtime.rate_memory import RateMemory
from fleet.runtime.replay import compare
from fleet.runtime.resume import resume
from fleet.runtime.resume_command import COMMAND_VARIABLE, resume_command_of
from fleet.runtime.run_sharing import find_run_sharing
from fleet.runtime.searchers import Searchers
from fleet.runtime.startup.engine_import import find_busy_trainers
from fleet.runtime.startup.launch import PreparedLaunch
from fleet.runtime.startup.request import StartupTimer
from fleet.runtime.watchdog import Watchdog
from fleet.search.controller import SearchController, make_controller
from fleet.storage.event_log import EventLog
from fleet.storage.files import STDOUT, storage_errors
from fleet.storage.leaderboard import least_columns
from fleet.storage.lease import Lease
from fleet.storage.results import NetworkResult, Status
from fleet.terminal import print_table
from launch.environment import find_launcher
from launch.errors import pluralize
from launch.processes import command_of
from scheduler.ensemble.sharing import Sharing, useful_networks_per_gpu

# Longest wait for trackers at the end, whose libraries take seconds to load; and if the walltime
# may be nearly over.
_TRACKING_S = 60.0
_SHORT_TRACKING_S = 10.0
_END_S = 10.0  # longest time for writing the results of a stuck launch


def explain_status(
    status: ExitStatus, rows: Iterable[NetworkResult], resume: str = "the same command"
) -> str:
    """Explain an exit status that launchers report as an abort; empty for other statuses.

    Args:
        status: the exit status.
        rows: the table of results.
        resume: the command that resumes the run.

    >>> explain_status(ExitStatus.NETWORK_FAILED, [])
    'a searcher failed; see the warning above'
    """
    if status is ExitStatus.RESUMABLE:
        return f"some networks have not finished; {resume} resumes the run"
    if status is not ExitStatus.NETWORK_FAILED:
        return ""
    if any(row.status is Status.FAILED for row in rows):
        return "some networks failed; see the reasons in the table"
    return "a searcher failed; see the warning above"


class RankZero:
    """The coordinator of a launch with its views, logs and results.

    Args:
        launch: the prepared launch.
        interruption: says when to stop early.
        lease: the lease of this process, if several launches share the run.
        timer: durations of the start-up.

    Attributes:
        first_epoch: the stream's first epoch in this launch.
    """

    def __init__(
        self,
        world: World,
        launch: PreparedLaunch,
        interruption: Interruption,
        lease: Lease | None,
        timer: StartupTimer,
    ) -> None:
        spec = launch.spec
        paths = launch.paths
        self._world = world
        self._launch = launch
        self._timer = timer
        self._resumed = resume(launch)
        self.results = self._resumed.results
        self.first_epoch = self._resumed.first_epoch
        self._run = self.results.run
        self._unfinished = [
            network
            for network in spec.networks
            if self._run.status_of(network.name).outcome is None
        ]
        self._rates = RateMemory(launch, self._unfinished)
        sharing = find_run_sharing(launch.request.shares_run and lease is not None)
        self._sharing = sharing.join(launch, lease, self._resumed)
        self._events = EventLog(paths.events)
        self._view = make_view(
            self._run, launch.request.plain, self.results.rows, spec.document.name
        )
        self._tracking = Tracking(
            [] if launch.replayed else target_paths(spec.document.trackers, paths.root),
            paths,
            launch.request.spec,
        )
        self._tensorboard = TensorBoardObserver(paths, self.results.networks)
        admission = Admission(launch, self.results, self._rates)
        if launch.replayed or launch.request.shares_run:
            command_handler = None
        else:
            command_handler = CommandHandler(
                CommandQueue(paths.mailbox), self.results, admission, self._run.commands
            )
        self.coordinator = Coordinator(
            world,
            self._make_config(world, interruption.seconds_left()),
            self._rates.speeds(),
            self.results,
            self._events,
            ProfileFile(paths.profile),
            launch.fence,
            self._tracking,
            [
                self._view.on_event,
                self._tensorboard.on_event,
                self._tracking.on_event,
                self._rates.on_event,
            ],
            self._view.on_pace,
            interruption,
            self._make_search(),
            Searchers(launch.searches),
            admission,
            command_handler,
            self._sharing,
        )
        self._sharing.start(self._events.sync_all)
        self._ending = threading.Lock()
        self._end_status: int | None = None
        self._is_stuck = False
        self._watchdog = Watchdog(
            world, interruption, lambda: self.coordinator.status, self._end_stuck
        )
        if interruption.is_watched:
            world.background_tasks.append(self._watchdog.note_task_run)
            self._watchdog.start()

    def start(self) -> None:
        """Log the start of the launch and what earlier launches did not log."""
        self._timer.end("setting up")
        remembered = self._rates.remembered
        self.coordinator.start(
            [
                *([] if remembered is None else [remembered]),
                *self._unlogged_events,
                *self._search_events,
            ],
            self._resumed.statuses,
            self._timer.seconds,
            self._launch.request.folders,
            LaunchOrigin(socket.gethostname(), __version__, command_of(os.getpid())),
        )

    def step(self) -> bool:
        """Run one step of the coordinator; ends all ranks if some are unresponsive at the end."""
        worked = self.coordinator.step()
        if self.coordinator.is_cut:
            self.close()
            self._world.end_all_ranks(self.end())
        return worked

    @property
    def _unlogged_events(self) -> list[Event]:
        """Epochs, changes and choices that no launch has logged.

        A launch that shares its run logs such epochs once it holds their network: before, another
        one may be about to log them.
        """
        launch = self._launch
        resumed = self._resumed
        unlogged = {} if launch.request.shares_run else resumed.unlogged
        epochs = [
            EpochEnded(name, record) for name, records in unlogged.items() for record in records
        ]
        warnings = [RunWarned(text) for text in launch.warnings if text not in self._run.warnings]
        return [*epochs, launch.cache, *warnings, *launch.past.changes, *resumed.changes]

    @property
    def _search_events(self) -> list[SearcherStarted | EarlierRunRead]:
        """Events about searchers, logged before they are called."""
        return [event for search in self._launch.searches.values() for event in search.first_events]

    def _make_config(self, world: World, left_s: float | None) -> LaunchConfig:
        """Make the configuration of the launch.

        Args:
            left_s: seconds until its walltime ends; None without a walltime.
        """
        launch = self._launch
        deaths = {
            name: self.results.deaths.deaths_of(name, epochs)
            for name, epochs in self._unfinished_epochs.items()
        }
        return LaunchConfig(
            launch.spec,
            launch.roles,
            launch.layout,
            launch.inputs.epoch_samples,
            world.is_fault_tolerant,
            ends_s=math.inf if left_s is None else self._events.now() + left_s,
            first_epoch=self.first_epoch,
            replayed=tuple(launch.replayed_epochs()),
            replayed_batches=tuple(record.batch for record in launch.replayed),
            unreadable=frozenset(self.results.unreadable),
            elsewhere=self._sharing.elsewhere,
            sharing=self._rates.sharing,
            alone=self._rates.alone,
            hosts=world.hosts,
            deaths=deaths,
            chance=launch.chance,
        )

    @property
    def busy_trainers(self) -> tuple[int, ...]:
        """Trainers that the unfinished networks can use at the same time."""
        networks_per_gpu = max(1, useful_networks_per_gpu(Sharing(self._rates.sharing).curve))
        return find_busy_trainers(
            self._unfinished,
            self._launch.roles,
            bool(self._launch.spec.searches),
            networks_per_gpu,
        )

    @property
    def _unfinished_epochs(self) -> dict[str, int]:
        """Unfinished network -> number of its epochs so far."""
        statuses = {name: self._run.status_of(name) for name in self.results.networks}
        return {
            name: len(status.history) for name, status in statuses.items() if status.outcome is None
        }

    def _make_search(self) -> SearchController:
        """Make the search controller, and restore it from the logs.

        A launch that works alone follows from all logs: launches that shared the run may have
        paused networks that only this one can resume.
        """
        launch = self._launch
        if launch.request.shares_run or launch.replayed:
            past_events = launch.past.events_of(launch.paths.events)
        else:
            past_events = launch.past.events()
        searches = launch.searches
        controller = make_controller(
            launch.spec,
            launch.search_extremes,
            self._run,
            {name: search.searcher for name, search in searches.items()},
            len(launch.roles.trainers),
            judges=not launch.replayed,
            earlier={name: search.prior_trials for name, search in searches.items()},
        )
        controller.restore(
            [
                *past_events,
                *self._unlogged_events,
                *(
                    event
                    for event in self._search_events
                    if isinstance(event, SearcherStarted) and event.is_another
                ),
            ]
        )
        return controller

    def close(self) -> None:
        """Restore the terminal."""
        self._view.close()

    def _end_stuck(self, reason: str) -> None:
        """End all ranks of a stuck launch from the watchdog's thread, within seconds."""
        self._is_stuck = True
        self.close()
        print(f"fleet: {reason}", file=sys.stderr, flush=True)
        status = self.coordinator.status or ExitStatus.RESUMABLE
        self.coordinator.status = status
        ending = threading.Thread(target=self._end_or_explain, name="ending", daemon=True)
        self.coordinator.ending = ending
        ending.start()
        ending.join(_END_S)
        self._world.end_all_ranks(int(status))

    def _end_or_explain(self) -> None:
        """End the launch; print why its results cannot be written."""
        try:
            self.end()
        except InfrastructureError as error:
            print(f"fleet: {error}", file=sys.stderr, flush=True)

    def end(self) -> int:
        """Write and print the results; returns the exit status.

        The main thread and the watchdog's may both call it; the second call waits for the first.
        """
        with self._ending:
            if self._end_status is None:
                self._end_status = self._write_end()
        return self._end_status

    def _write_end(self) -> int:
        if not self.coordinator.is_cut:
            self._watchdog.stop()
        self._rates.close(self._run.launch)
        self.coordinator.stop()
        self._sharing.close(may_write=self._is_stuck or self.coordinator.is_cut)
        self.results.write()
        self._events.close(is_in_use=self._is_stuck)
        self._tensorboard.close()
        status = ExitStatus(self.coordinator.status or 0)
        # No later launch of this run needs the file.
        if self._launch.cache.is_temporary and not self._unfinished_epochs:
            self._launch.paths.decoded.unlink(missing_ok=True)
        patience_s = _SHORT_TRACKING_S if status is ExitStatus.RESUMABLE else _TRACKING_S
        with storage_errors(STDOUT):
            self._print()
            for failed in self._tracking.close(patience_s):
                print(format_event(failed, self._run), flush=True)
            command = resume_command_of(os.environ)
            explanation = explain_status(status, self.results.rows(), command)
            if explanation:
                note = ""
                if find_launcher(os.environ) is not None and COMMAND_VARIABLE not in os.environ:
                    note = " The launcher reports it as an abort, but no rank has crashed."
                print(f"Status {status.value}: {explanation}.{note}", flush=True)
        return int(status)

    def _print(self) -> None:
        rows = self.results.rows()
        headers, lines, left_out = best_rows(rows)
        print_table(
            headers,
            lines,
            title=f"{self._launch.spec.document.name}: the best network first",
            optional=least_columns(rows),
        )
        if left_out:
            print(left_out)
        ensembles = self._evaluate_ensembles(rows)
        if ensembles:
            print_table(*make_table(ensembles), title="Ensembles of the best networks")
        print(self.coordinator.summary())
        recorded = self._launch.replayed
        if recorded:
            (network,) = self._launch.spec.networks
            replayed = self.results.run.status_of(network.name).history
            if len(replayed) == len(recorded):  # otherwise it failed
                print(compare(recorded, replayed, network.train.deterministic))
        if self.results.unreadable:
            print(
                f"{pluralize(len(self.results.unreadable), 'sample')} could not be read: "
                f"{self._launch.paths.unreadable_samples}"
            )
        report_note = "see report.html there"
        try:
            report = read_report(self._launch.paths)
            for search in report.searches:
                if not search.trials:
                    print(search.summary)
            self._launch.fence.check()  # this launch may have been suspended meanwhile
            write_report(self._launch.paths.report, report, skip_slow=True)
        except UserError as error:  # a damaged log does not make a successful launch fail
            report_note = f"there is no report: {error}"
        print(f"Results are in {self._launch.spec.output}; {report_note}.", flush=True)

    def _evaluate_ensembles(self, rows: Sequence[NetworkResult]) -> list[EnsembleResult]:
        """Evaluate ensembles of the best networks once all networks have ended."""
        if self._launch.replayed or any(
            row.status in (Status.WAITING, Status.TRAINING) for row in rows
        ):
            return []
        pipeline, candidates = find_joinable(self._launch.spec, rows)
        ensembles = score_ensembles(
            self._launch.paths,
            candidates,
            self._launch.sample.for_pipeline(pipeline).target.semantics,
        )
        if ensembles:
            self._launch.fence.check()
            write_ensembles(self._launch.paths, ensembles)
        return ensembles
