"""What follows for the parts of a launch from each thing that is heard (pure).

A word of a group moves that on in its life (:mod:`fleet.control.group`). What cannot be heard in its phase is an
error, which tells what was heard before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fleet.comm import messages as m
from fleet.control import effects as e
from fleet.control.group import SAID, Phase, TrainingGroup
from fleet.control.history import InvalidTransition
from fleet.control.launch_state import LaunchState
from fleet.control.node_release import NodeRelease
from fleet.control.rates import Rates
from fleet.control.searching import Searching
from fleet.control.shutdown import Ending
from fleet.control.warning_log import WarningLog
from fleet.domain import events
from fleet.errors import InfrastructureError
from fleet.search.searcher import End


class MessageHandlers:
    """See the module; whom it concerns is told."""

    def __init__(
        self,
        launch: LaunchState,
        rates: Rates,
        searching: Searching,
        leaving: NodeRelease,
        ending: Ending,
    ) -> None:
        self._launch = launch
        self._rates = rates
        self._searching = searching
        self._leaving = leaving
        self._ending = ending
        self._outbox = launch.outbox
        self._groups = launch.groups
        self._networks = launch.networks
        self._production = launch.production
        self._startup = launch.startup
        self._buildings = launch.buildings
        self._complaints = WarningLog(launch.setup, launch.outbox)

    def hear(self, heard: e.Heard) -> bool:
        """Tell the parts of the launch; returns whether the policy might answer otherwise now.

        Raises:
            InvalidTransition: that cannot be.
        """
        if isinstance(heard, SAID):
            group = self._groups.get(heard.network)
            if group is None and self._groups.lost:
                return False  # the last word of a rank that has died
            if group is None:
                raise InvalidTransition(f"{heard.network} has no group, and yet there is {heard}")
            self._groups.advance(group, heard)
            group.hear(self._outbox.now_s, isinstance(heard, m.Pace | m.EpochDone))
            if not isinstance(heard, m.Joined):  # that is said before
                self._buildings.end(heard.network)
            if group.phase is Phase.STRUCK:
                return False
        handler = _HANDLERS.get(type(heard))
        if handler is None:
            raise InvalidTransition(f"a coordinator is not told {heard}")
        is_news = handler(self, heard)
        return is_news is True or isinstance(heard, _NEWS)

    def _on_joined(self, joined: m.Joined) -> None:
        self._has_met(self._groups[joined.network])

    def _on_regrouped(self, regrouped: m.Regrouped) -> None:
        group = self._groups[regrouped.network]
        self._outbox.note(
            events.GroupChanged(
                group.name, group.before, group.devices, regrouped.position, regrouped.seconds
            )
        )
        self._has_met(group)

    def _has_met(self, group: TrainingGroup) -> None:
        self._groups.have_met(group)
        self._launch.produce()
        if self._ending.has_begun:
            self._groups.pause(group, run_ends=True)

    def _on_prepared(self, said: m.Prepared) -> None:
        changed = self._production.hear_prepared(said)
        if changed is not None:
            self._outbox.note(changed)

    def _on_pace(self, pace: m.Pace) -> bool:
        self._startup.stepped(pace.network, self._outbox.now_s)
        self._leaving.paced(pace)
        self._rates.observe(pace.network, len(self._groups[pace.network].devices), pace.rate)
        # What a group shows inside an epoch matters at once only where devices wait for it to be shown.
        return self._rates.may_grow and self._groups.wanted.gpus < self._groups.cluster.gpus

    def _on_epoch_done(self, done: m.EpochDone) -> None:
        self._startup.stepped(done.network, self._outbox.now_s)
        self._networks.end_epoch(done)
        self._searching.epoch_ended(done.network, done.record, is_done=bool(done.final))
        self._leaving.saved(done.network)
        group = self._groups[done.network]
        self._rates.observe(done.network, done.record.gpus, done.rate)
        group.next_epoch = group.reads_next = self._production.epoch_after(
            group.next_epoch, self._networks.history(group.name)
        )

    def _on_converged(self, converged: m.Converged) -> None:
        self._startup.trained(converged.network, self._outbox.now_s)
        self._networks.finish(converged.network, converged.reason)
        self._searching.over(converged.network, End.FINISHED)

    def _on_paused(self, paused: m.Paused) -> None:
        group = self._groups[paused.network]
        # An epoch that was begun in an earlier launch is not the one that was granted.
        group.reads_next = group.next_epoch + (paused.stream_epoch == group.next_epoch)

    def _on_stopped(self, stopped: m.Stopped) -> None:
        self._leaving.stopped(stopped)
        self._groups.remove(stopped.network)
        self._outbox.note(
            events.GroupStopped(stopped.network, stopped.checkpoint_s, stopped.export_s)
        )
        if stopped.damage:
            self._outbox.note(events.BestLost(stopped.network, stopped.damage))
        if stopped.tested is not None:
            self._networks.test(stopped.network, stopped.tested, stopped.test_s)

    def _on_failed(self, failed: m.Failed) -> None:
        self._groups.remove(failed.network)
        if self._networks.is_isolated(failed, self._groups.cluster.slots):
            return
        if self._networks.may_retry(failed):
            self._networks.rest(failed.network)
        else:
            self._searching.fail(failed.network, failed.reason, failed.detail, failed.may_pass)

    def _on_built(self, built: m.Built) -> None:
        self._buildings.end_of(self._launch.setup.roles.device_of[built.rank])
        self._groups.built(built)
        self._startup.built(built.network, self._outbox.now_s)
        if built.parameters is not None:
            self._networks.build(built.network, built.parameters)

    def _on_measured(self, measured: m.Measured) -> None:
        self._buildings.end(measured.network, measured.gpus)
        task = self._groups.measured(measured)
        if task is not None:
            self._rates.measured(task, measured)

    def _on_ranks_died(self, died: e.RanksDied) -> None:
        for rank in sorted(set(died.ranks) - self._groups.lost):
            self._groups.lost.add(rank)
            if self._launch.setup.replayed:
                self._outbox.add(e.AbortLaunch(InfrastructureError(f"rank {rank} has died")))
            device = self._launch.setup.roles.device_of.get(rank)
            self._outbox.note(events.RankLost(rank, device))
            if (
                device is not None
            ):  # otherwise trainers prepare their samples themselves from now on
                self._buildings.lose([device])
                tasks = self._groups.lose(rank, died)
                for name in {task.network for task in tasks}:
                    self._networks.die(name, f"rank {rank} died")
                    self._searching.fail_of_deaths(name)
                self._rates.lose(self._groups.cluster.whole_gpus, tasks)
        self._groups.see_who_is_there()
        self._launch.produce()  # which no struck group holds back
        if not self._groups.cluster.devices:
            self._ending.begin("all trainers have died")

    def _on_checkpoint_read(self, read: e.CheckpointRead) -> None:
        self._networks.take_up(read)
        self._searching.read(read.network)
        self._searching.fail_of_deaths(read.network)

    def _on_leased(self, leased: e.Leased) -> None:
        self._networks.lease(leased)
        outcome = leased.standing.outcome
        if outcome is not None:
            if outcome.is_failure:
                end = End.FAILED
            elif outcome.is_pruned:
                end = End.PRUNED
            else:
                end = End.FINISHED
            self._searching.over(leased.network, end)

    def _on_admitted(self, admitted: e.Admitted) -> None:
        self._rates.add(admitted)
        self._searching.admitted(admitted)

    def _on_nodes_asked(self, asked: e.NodesRequested) -> None:
        self._leaving.ask(asked)
        self._rates.lose(self._groups.cluster.whole_gpus)


# After these the policy is asked again.
_NEWS = (
    m.EpochDone,
    m.Converged,
    m.Stopped,
    m.Failed,
    e.RanksDied,
    e.CheckpointRead,
    e.Leased,
    e.Admitted,
    e.NodesRequested,
)

_HANDLERS: Mapping[type, Callable[[MessageHandlers, Any], bool | None]] = {
    m.Joined: MessageHandlers._on_joined,
    m.Regrouped: MessageHandlers._on_regrouped,
    m.FellBack: lambda self, fallen: self._networks.fall_back(fallen),
    m.Pace: MessageHandlers._on_pace,
    m.EpochDone: MessageHandlers._on_epoch_done,
    m.Converged: MessageHandlers._on_converged,
    m.Paused: MessageHandlers._on_paused,
    m.Stopped: MessageHandlers._on_stopped,
    m.Failed: MessageHandlers._on_failed,
    m.Ready: lambda self, ready: self._groups.ready(ready),
    m.Built: MessageHandlers._on_built,
    m.Throughput: lambda self, said: self._production.hear(said),
    m.Prepared: MessageHandlers._on_prepared,
    m.Measured: MessageHandlers._on_measured,
    m.Warned: lambda self, warned: self._complaints.warned(warned),
    m.SampleUnreadable: lambda self, bad: self._complaints.bad(bad),
    e.RanksDied: MessageHandlers._on_ranks_died,
    e.CheckpointRead: MessageHandlers._on_checkpoint_read,
    e.EndRequested: lambda self, asked: self._ending.begin(asked.reason, asked.patience_s),
    e.NodesRequested: MessageHandlers._on_nodes_asked,
    e.Leased: MessageHandlers._on_leased,
    e.Admitted: MessageHandlers._on_admitted,
    e.SearcherAnswered: lambda self, answer: self._searching.answered(answer),
    e.SearcherCallFailed: lambda self, answer: self._searching.answered(answer),
    e.NetworkCommand: lambda self, ruled: self._searching.ruled(ruled),
}
