"""Asks the policy, and makes the moves towards its plan (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.control.effects import AbortLaunch, AskPolicy, PolicyAnswered
from fleet.control.group import Phase, TrainingGroup
from fleet.control.history import InvalidTransition
from fleet.control.launch_state import LaunchState
from fleet.control.node_release import NodeRelease
from fleet.control.rates import Rates, Supply
from fleet.control.searching import Searches
from fleet.control.shutdown import Shutdown
from fleet.domain import events
from fleet.errors import UserError
from launch.errors import pluralize
from scheduler.base import Progress, Round
from scheduler.ensemble import moves


class Placement:
    """Decides which networks train on which devices.

    Args:
        launch: the state of the launch.
        rates: rates of the networks.
        searches: the searches of the run.
        node_release: the nodes that are being released.
        shutdown: the end of the launch.

    Attributes:
        has_news: whether the policy might answer differently than last time.
        is_waiting: whether the policy has been asked and has not answered yet.
    """

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
        self._supply = Supply(launch)
        self._searches = searches
        self._node_release = node_release
        self._shutdown = shutdown
        self._devices = launch.devices
        self._groups = launch.groups
        self._target = launch.target
        self._orders = launch.orders
        self._networks = launch.networks
        self._grants = launch.grants
        self._outbox = launch.outbox
        self._roles = launch.config.roles
        self.has_news = True
        self.is_waiting = False
        self._deciding_s = 0.0  # time of the policy since its last change
        self._round = 0
        self._has_logged_too_late = False

    def decide(self) -> None:
        """Ask the policy if there is news; otherwise make the moves that are possible now."""
        self.has_news |= self._launch.retries.end_backoffs()
        if self.has_news:
            self._plan()
        if not self.is_waiting:
            self._move()

    def _move(self) -> None:
        """Make the moves towards the plan, or end a launch that can make none."""
        held_back = self._held_back() | self._searches.controller.trials.awaited
        possible = self._target.moves(
            held_back, self._node_release.leaving_groups, self._launch.retries.alone
        )
        for move in possible:
            self._apply_move(move)
        for group in self._groups.awaiting_orders:
            if group.name not in held_back:
                self._resume(group)
        starts = [move for move in possible if isinstance(move, moves.Start)]
        if starts:
            self._start(starts)
        if self._networks.has_trainable and not (
            self._groups or self._target.plan.members or self._networks.may_become_available
        ):
            if self._launch.changes.release_held():
                self.has_news = True
                self.decide()
            else:
                self._end_unplaceable()

    def _held_back(self) -> set[str]:
        """Return the groups between two epochs that get no orders yet: others are behind.

        In lockstep all groups end an epoch at nearly the same time, and get orders together.
        Otherwise the first would begin another epoch just before the last one ends the round.
        """
        if not self._grants.is_lockstep:
            return set()
        waiting = {
            group.name: group.next_epoch for group in self._groups if group.phase is Phase.WAITING
        }
        ahead = max(waiting.values(), default=0)
        are_behind = any(
            group.next_epoch < ahead
            for group in self._groups
            if group.phase not in (Phase.WAITING, Phase.STOPPING, Phase.FAILED)
        )
        return set(waiting) if are_behind else set()

    def _plan(self) -> None:
        rates = self._supply.limited_table(self._rates)
        (ahead, survivors) = self._searches.rungs()
        leaving = self._node_release.leaving_groups
        progress = Progress(
            running=tuple(
                group.member
                for group in self._groups
                if group.phase is not Phase.FAILED and group.name not in leaving
            ),
            epochs_done=self._networks.epochs_done,
            finished=self._networks.unavailable,
            target=self._target.plan,
            rates_changed=self._rates.has_changed or self._supply.has_changed,
            exclusive=frozenset(self._launch.retries.alone),
            guessed=frozenset() if self._grants.is_lockstep else self._rates.guessed,
            ahead=ahead,
            survivors=survivors,
            fuse_keys=self._launch.fusing.keys(),
        )
        self.has_news = False
        if self._networks.has_trainable:
            self.is_waiting = True
            self._outbox.add(
                AskPolicy(
                    rates,
                    progress,
                    self._devices.cluster,
                    self._rates.rate_floor,
                    self._rates.is_span_untried,
                )
            )
        else:
            self._adopt(PolicyAnswered(Round()))

    def record_answer(self, answer: PolicyAnswered) -> None:
        """Adopt the answer of the policy, unless something has changed since the question.

        Raises:
            InvalidTransition: the policy was not asked.
        """
        if not self.is_waiting:
            raise InvalidTransition(f"the policy was not asked: {answer}")
        self.is_waiting = False
        if not self.has_news:
            self._adopt(answer)

    def _adopt(self, answer: PolicyAnswered) -> None:
        is_new = answer.round != self._target.plan
        self._rates.mark_planned(is_new, answer.probes, self._networks.is_over)
        self._deciding_s += answer.seconds
        if is_new:
            self._target.adopt(answer.round)
            self._outbox.log(
                events.PlanChanged(
                    tuple(
                        events.PlannedGroup(
                            member.name, member.gpus, member.devices, member.batch or 0
                        )
                        for member in answer.round.members
                    ),
                    self._deciding_s,
                )
            )
            self._deciding_s = 0.0

    # ---- moves ----

    def _apply_move(self, move: moves.Move) -> None:
        """Apply a move of a running group; one that changes inside its epoch is paused first."""
        group = self._groups.get(move.name)
        if group is None:
            return  # groups are started last
        match move:
            case moves.Recruit():
                self._orders.recruit(group, move.devices)
                for device in move.devices:
                    self._launch.start_build(group.name, [device], is_recruit=True)
            case moves.Dismiss():
                self._orders.dismiss(group, move.devices)
            case moves.Grow() | moves.Shrink() if group.is_awaiting_orders:
                self._orders.regroup(group, move.devices)
                self._grant(group.next_epoch)
            case moves.Grow() if group.phase is Phase.TRAINING:
                self._orders.pause(group, run_ends=False)
            case moves.Stop() if (
                not self._launch.startup.is_too_late
            ):  # otherwise no group would replace it
                self._orders.stop(group, self._networks.is_final(group.name))

    def _resume(self, group: TrainingGroup) -> None:
        if self._networks.is_over(group.name) or self._networks.is_paused(group.name):
            self._orders.stop(group, self._networks.is_final(group.name))
        else:
            self._orders.resume(group)
            self._grant(group.next_epoch)

    def _start(self, starts: Sequence[moves.Start]) -> None:
        """Start groups, unless it is too late, or a moment too early.

        Groups that can start together should: a later group gets a later epoch of the stream, and
        the window prevents it from training before the others are close.
        """
        if self._launch.startup.is_too_late:
            self._skip_starts(starts)
            return
        if self._grants.is_in_step and self._devices.returning:
            return
        self._begin_production()
        if self._groups.are_stopping:
            self._round += 1
            self._outbox.log(
                events.RoundStarted(self._round, tuple(start.name for start in starts))
            )
        fresh = self._grants.first_ungranted
        for start in starts:
            epoch = self._grants.next_epoch(self._networks.history(start.name))
            self._orders.start(self._networks.specs[start.name], start.devices, epoch)
            self._launch.start_build(start.name, start.devices)
            self._launch.startup.begin_group(start.name)
            self._node_release.record_save(start.name)
            self._outbox.log(events.GroupStarted(start.name, start.devices, epoch, self._round))
        self._grant(fresh)

    def _skip_starts(self, starts: Sequence[moves.Start]) -> None:
        """Start nothing more, and end the launch once nothing runs."""
        if not self._has_logged_too_late:
            self._has_logged_too_late = True
            startup = self._launch.startup
            self._outbox.log(
                events.TooLateToStart(
                    tuple(start.name for start in starts),
                    startup.time_left_s,
                    startup.longest_s,
                )
            )
        if not self._groups:
            self._shutdown.begin("too little of the walltime is left to start another group")

    def _end_unplaceable(self) -> None:
        """End a launch in which nothing runs and the policy starts nothing."""
        names = ", ".join(self._networks.available)
        cluster = self._devices.cluster
        removed = self._devices.removed_ranks
        if self._node_release.has_released or removed:
            few = f"{pluralize(cluster.gpus, 'trainer')} {'is' if cluster.gpus == 1 else 'are'}"
            if self._node_release.has_released:
                cause = "nodes were released"
            else:
                cause = f"{pluralize(len(removed), 'rank')} died"
            self._shutdown.begin(f"{cause}, and {few} too few for {names}")
        else:
            self._outbox.add(
                AbortLaunch(
                    UserError(
                        f"schedule.policy: {self._launch.config.spec.schedule.policy} leaves "
                        f"{names} waiting while nothing runs; a policy must give devices to a "
                        "waiting network whenever all are free"
                    )
                )
            )

    # ---- the stream ----

    def _begin_production(self) -> None:
        if self._roles.shared and not self._grants.producers:
            spec = self._launch.config.spec
            self._outbox.log(
                self._grants.choose_producers(
                    self._rates.table if self._rates.are_absolute else None,
                    spec.resources.time_scale,
                    spec.resources.preprocessors == "auto",
                    spec.schedule.policy,
                )
            )

    def _grant(self, epoch: int) -> None:
        """Grant an epoch of the stream to groups."""
        self._grants.grant(epoch)
        self._launch.update_grants()
