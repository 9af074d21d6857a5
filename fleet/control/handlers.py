"""Handlers of all inputs: each updates the parts of a launch that it concerns (pure).

A message of a group advances its phase (:mod:`fleet.control.group`). An input that is impossible in
that phase is an error, which reports the inputs before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fleet.comm import messages as m
from fleet.control import effects as e
from fleet.control.chance import ChanceWarning
from fleet.control.group import GROUP_MESSAGES, Phase, TrainingGroup
from fleet.control.history import InvalidTransition
from fleet.control.launch_state import LaunchState
from fleet.control.measurement import MeasurementTask
from fleet.control.node_release import NodeRelease
from fleet.control.rates import Rates
from fleet.control.searching import Searches
from fleet.control.shutdown import Shutdown
from fleet.control.warning_log import WarningLog
from fleet.domain import events
from fleet.errors import InfrastructureError
from fleet.search.searcher import TrialOutcome
from fleet.search.trials import outcome_of
from scheduler.base import GroupShape


class MessageHandlers:
    """Dispatches inputs to the parts of a launch."""

    def __init__(
        self,
        launch: LaunchState,
        rates: Rates,
        searches: Searches,
        node_release: NodeRelease,
        shutdown: Shutdown,
    ) -> None:
        self._launch = launch
        self._rates = rates
        self._searches = searches
        self._node_release = node_release
        self._shutdown = shutdown
        self._outbox = launch.outbox
        self._devices = launch.devices
        self._groups = launch.groups
        self._networks = launch.networks
        self._changes = launch.changes
        self._grants = launch.grants
        self._startup = launch.startup
        self._builds = launch.builds
        self._warning_log = WarningLog(launch.config, launch.outbox)
        self._chance_warning = ChanceWarning(launch)

    def handle(self, message: e.Input) -> bool:
        """Handle an input; return True if the policy might answer differently now.

        Raises:
            InvalidTransition: the input is impossible in the current state.
        """
        if isinstance(message, GROUP_MESSAGES):
            group = self._groups.get(message.network)
            if group is None and self._devices.removed_ranks:
                return False  # the last message of a rank that has died
            if group is None:
                raise InvalidTransition(f"{message.network} has no group: {message}")
            self._groups.advance(group, message)
            group.record_message(self._outbox.now_s, isinstance(message, m.Pace | m.EpochDone))
            if not isinstance(message, m.Joined):  # which is sent before building
                self._builds.end(message.network)
            if group.phase is Phase.FAILED:
                return False
        handler = _HANDLERS.get(type(message))
        if handler is None:
            raise InvalidTransition(f"unexpected input: {message}")
        is_news = handler(self, message)
        return is_news is True or isinstance(message, _NEWS)

    def _on_joined(self, joined: m.Joined) -> None:
        self._end_join(self._groups[joined.network])

    def _on_regrouped(self, regrouped: m.Regrouped) -> None:
        group = self._groups[regrouped.network]
        self._outbox.log(
            events.GroupChanged(
                group.name,
                group.previous_devices,
                group.devices,
                regrouped.position,
                regrouped.seconds,
            )
        )
        self._end_join(group)

    def _end_join(self, group: TrainingGroup) -> None:
        self._groups.joining.pop(group.name, None)
        self._launch.update_grants()
        if self._shutdown.has_begun:
            self._launch.orders.pause(group, run_ends=True)

    def _on_fell_back(self, fallback: m.FellBack) -> None:
        self._outbox.log(
            events.NetworkRolledBack(
                fallback.network, fallback.damage, len(fallback.history), fallback.position
            )
        )

    def _on_prepared(self, prepared: m.Prepared) -> None:
        changed = self._grants.record_prepared(prepared)
        if changed is not None:
            self._outbox.log(changed)

    def _on_pace(self, pace: m.Pace) -> bool:
        self._startup.record_step(pace.network)
        self._node_release.record_pace(pace)
        self._rates.observe(pace.network, self._shape(pace.network), pace.rate)
        # A rate inside an epoch matters immediately only if unused devices wait for it.
        return self._rates.may_grow and self._launch.target.plan.gpus < self._devices.cluster.gpus

    def _shape(self, name: str) -> GroupShape:
        """Return how many GPUs a group has, and how they lie."""
        return GroupShape.of(self._groups[name].devices, self._launch.config.roles.cluster)

    def _on_epoch_done(self, done: m.EpochDone) -> None:
        self._startup.record_step(done.network)
        self._changes.end_epoch(done)
        self._chance_warning.check()
        self._searches.end_epoch(done.network, done.record, is_done=bool(done.final))
        self._node_release.record_save(done.network)
        group = self._groups[done.network]
        shape = self._shape(done.network)
        if shape.gpus != done.record.gpus:
            shape = GroupShape(done.record.gpus)
        self._rates.observe(done.network, shape, done.rate)
        group.next_epoch = group.next_read_epoch = self._grants.epoch_after(
            group.next_epoch, self._networks.history(group.name)
        )

    def _on_converged(self, converged: m.Converged) -> None:
        self._startup.record_training(converged.network)
        self._changes.finish(converged.network, converged.reason)
        self._searches.end_network(converged.network, TrialOutcome.FINISHED)

    def _on_paused(self, paused: m.Paused) -> None:
        group = self._groups[paused.network]
        # An epoch begun in an earlier launch is not the granted one.
        group.next_read_epoch = group.next_epoch + (paused.stream_epoch == group.next_epoch)

    def _on_stopped(self, stopped: m.Stopped) -> None:
        self._node_release.record_stop(stopped)
        self._launch.orders.disband(self._groups[stopped.network])
        self._outbox.log(
            events.GroupStopped(stopped.network, stopped.checkpoint_s, stopped.export_s)
        )
        if stopped.damage:
            self._outbox.log(events.BestCheckpointDamaged(stopped.network, stopped.damage))
        if stopped.tested is not None:
            self._outbox.log(events.NetworkTested(stopped.network, stopped.tested, stopped.test_s))

    def _on_failed(self, failed: m.Failed) -> None:
        self._launch.orders.disband(self._groups[failed.network])
        retries = self._launch.retries
        if retries.try_isolate(failed, self._devices.cluster.slots):
            return
        if retries.try_retry(failed):
            retries.schedule(failed.network)
        else:
            self._searches.fail(failed.network, failed.reason, failed.detail, failed.may_pass)

    def _on_built(self, built: m.Built) -> None:
        device = self._launch.config.roles.device_of[built.rank]
        self._builds.end_device(device)
        self._groups.mark_built(device, built)
        self._startup.record_build(built.network)
        if built.parameters is not None:
            self._changes.set_parameters(built.network, built.parameters)

    def _on_measured(self, measured: m.Measured) -> None:
        self._builds.end(measured.network, measured.gpus)
        task = MeasurementTask(measured.network, measured.gpus)
        if self._devices.end_measuring(task):
            self._rates.record_measurement(task, measured)
        elif not self._devices.removed_ranks:
            raise InvalidTransition(f"this measurement is not running: {measured}")

    def _on_ranks_died(self, died: e.RanksDied) -> None:
        for rank in sorted(set(died.ranks) - self._devices.removed_ranks):
            self._devices.removed_ranks.add(rank)
            if self._launch.config.replayed:
                self._outbox.add(e.AbortLaunch(InfrastructureError(f"rank {rank} has died")))
            device = self._launch.config.roles.device_of.get(rank)
            self._outbox.log(events.RankDied(rank, device))
            if device is not None:  # otherwise trainers prepare their samples from now on
                self._builds.drop_devices([device])
                tasks = self._devices.remove([device])
                self._groups.fail_device(device, died)
                for task in tasks:
                    # The launch that holds the network records its deaths.
                    if task.network not in self._networks.waiting.unleased:
                        self._changes.record_death(task.network, f"rank {rank} died")
                        self._searches.fail_after_deaths(task.network)
                self._rates.limit_devices(self._devices.cluster.whole_gpus, tasks)
        self._devices.check_all_ready()
        self._launch.update_grants()  # which failed groups no longer hold back
        if not self._devices.cluster.devices:
            self._shutdown.begin("all trainers have died")

    def _on_checkpoint_read(self, read: e.CheckpointRead) -> None:
        self._changes.restore(read)
        self._searches.restore(read.network)
        self._searches.fail_after_deaths(read.network)

    def _on_leased(self, leased: e.LeaseGranted) -> None:
        self._changes.add_lease(leased)
        if leased.status.outcome is not None:
            self._searches.end_network(leased.network, outcome_of(leased.status))

    def _on_admitted(self, admitted: e.NetworkAdmitted) -> None:
        self._rates.add(admitted)
        self._searches.handle_admitted(admitted)

    def _on_nodes_requested(self, request: e.NodesRequested) -> None:
        self._node_release.begin_release(request)
        self._rates.limit_devices(self._devices.cluster.whole_gpus)


# The policy is called again after these.
_NEWS = (
    m.EpochDone,
    m.NotFused,
    m.Converged,
    m.Stopped,
    m.Failed,
    e.RanksDied,
    e.CheckpointRead,
    e.LeaseGranted,
    e.NetworkAdmitted,
    e.NodesRequested,
)

_HANDLERS: Mapping[type, Callable[[MessageHandlers, Any], bool | None]] = {
    m.Joined: MessageHandlers._on_joined,
    m.Regrouped: MessageHandlers._on_regrouped,
    m.FellBack: MessageHandlers._on_fell_back,
    m.Pace: MessageHandlers._on_pace,
    m.EpochDone: MessageHandlers._on_epoch_done,
    m.Converged: MessageHandlers._on_converged,
    m.Paused: MessageHandlers._on_paused,
    m.Stopped: MessageHandlers._on_stopped,
    m.Failed: MessageHandlers._on_failed,
    m.Ready: lambda self, ready: self._devices.mark_ready(ready),
    m.Built: MessageHandlers._on_built,
    m.Throughput: lambda self, throughput: self._grants.record_throughput(throughput),
    m.Prepared: MessageHandlers._on_prepared,
    m.Measured: MessageHandlers._on_measured,
    m.EnergyUsed: lambda self, used: self._outbox.log(events.EnergyUsed(used.network, used.joules)),
    m.Warned: lambda self, warned: self._warning_log.add_warning(warned),
    m.NotFused: lambda self, refused: self._launch.fusing.record(refused),
    m.SampleUnreadable: lambda self, bad: self._warning_log.add_unreadable(bad),
    e.RanksDied: MessageHandlers._on_ranks_died,
    e.CheckpointRead: MessageHandlers._on_checkpoint_read,
    e.EndRequested: lambda self, request: self._shutdown.begin(request.reason, request.patience_s),
    e.NodesRequested: MessageHandlers._on_nodes_requested,
    e.LeaseGranted: MessageHandlers._on_leased,
    e.NetworkAdmitted: MessageHandlers._on_admitted,
    e.SearcherAnswered: lambda self, answer: self._searches.handle_answer(answer),
    e.SearcherCallFailed: lambda self, answer: self._searches.handle_answer(answer),
    e.NetworkCommand: lambda self, command: self._searches.handle_command(command),
}
