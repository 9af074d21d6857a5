"""Brings what runs nearer to what the policy wants: the policy is asked, and the moves that follow are made (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.control.effects import AbortLaunch
from fleet.control.group import Phase, TrainingGroup
from fleet.control.launch_state import Ask, LaunchState, PolicyAnswer
from fleet.control.node_release import NodeRelease
from fleet.control.rates import Rates, Supply
from fleet.control.searching import Searching
from fleet.control.shutdown import Ending
from fleet.domain import events
from fleet.errors import UserError
from fleet.units import pluralize
from scheduler.base import Progress, Round
from scheduler.ensemble import moves


class Placement:
    """Who trains on which devices.

    Args:
        ask: the policy.

    Attributes:
        has_news: whether the policy might answer otherwise than it did.
    """

    def __init__(
        self,
        launch: LaunchState,
        rates: Rates,
        searching: Searching,
        leaving: NodeRelease,
        ending: Ending,
        ask: Ask,
    ) -> None:
        self._launch = launch
        self._rates = rates
        self._ask = ask
        self._supply = Supply(launch)
        self._searching = searching
        self._leaving = leaving
        self._ending = ending
        self._groups = launch.groups
        self._networks = launch.networks
        self._production = launch.production
        self._outbox = launch.outbox
        self._roles = launch.setup.roles
        self.has_news = True
        self._deciding_s = 0.0  # that the policy has taken since it last wanted something else
        self._round = 0
        self._is_late = False

    def decide(self) -> None:
        """Ask the policy if there is news, and make the moves that can be made now."""
        self.has_news |= self._networks.wake(self._launch.now_s)
        if self.has_news:
            self._plan()
        held_back = self._groups.held_back | self._searching.mind.awaited
        found = self._groups.moves(held_back, self._leaving.groups, self._networks.alone)
        for move in found:
            self._make(move)
        for group in self._groups.standing:
            if group.name not in held_back:
                self._go_on(group)
        starts = [move for move in found if isinstance(move, moves.Start)]
        if starts:
            self._start(starts)
        if self._networks.has_left and not (
            self._groups or self._groups.wanted.members or self._networks.away
        ):
            if self._networks.hold_none_back():
                self.has_news = True
                self.decide()
            else:
                self._give_up()

    def _plan(self) -> None:
        rates = self._supply.told(self._rates)
        (ahead, survivors) = self._searching.rungs()
        progress = Progress(
            running=self._groups.running(self._leaving.groups),
            epochs_done=self._networks.epochs_done,
            finished=self._networks.unavailable,
            target=self._groups.wanted,
            rates_changed=self._rates.has_changed or self._supply.has_changed,
            exclusive=frozenset(self._networks.alone),
            guessed=frozenset() if self._production.is_lockstep else self._rates.guessed,
            ahead=ahead,
            survivors=survivors,
        )
        decision = PolicyAnswer(Round())
        if self._networks.has_left:
            decision = self._ask(rates, progress, self._groups.cluster, self._rates.least)
        self.has_news = False
        self._rates.planned(
            decision.round != self._groups.wanted, decision.tried, self._networks.is_over
        )
        self._deciding_s += decision.seconds
        if decision.round != self._groups.wanted:
            self._groups.wanted = decision.round
            self._outbox.note(
                events.Planned(
                    tuple(
                        events.PlannedGroup(
                            member.name, member.gpus, member.devices, member.batch or 0
                        )
                        for member in decision.round.members
                    ),
                    self._deciding_s,
                )
            )
            self._deciding_s = 0.0

    # ---- moves ----

    def _make(self, move: moves.Move) -> None:
        """Make a move of a group that runs; one that is to change inside its epoch is asked to stand still first."""
        group = self._groups.get(move.name)
        if group is None:
            return  # to start groups comes last
        match move:
            case moves.Recruit():
                self._groups.recruit(group, move.devices)
                for device in move.devices:
                    self._launch.build(group.name, [device], is_recruit=True)
            case moves.Dismiss():
                self._groups.dismiss(group, move.devices)
            case moves.Grow() | moves.Shrink() if group.stands_still:
                self._groups.regroup(group, move.devices)
                self._grant(group.next_epoch)
            case moves.Grow() if group.phase is Phase.TRAINING:
                self._groups.pause(group, run_ends=False)
            case moves.Stop() if not self._is_too_late:  # else no other is started in its place
                self._groups.stop(group, self._networks.is_final(group.name))

    def _go_on(self, group: TrainingGroup) -> None:
        if self._networks.is_over(group.name) or self._networks.is_paused(group.name):
            self._groups.stop(group, self._networks.is_final(group.name))
        else:
            self._groups.go_on(group)
            self._grant(group.next_epoch)

    @property
    def _is_too_late(self) -> bool:
        return self._launch.startup.is_too_late(self._launch.now_s)

    def _start(self, starts: Sequence[moves.Start]) -> None:
        """Start groups, unless it is too late for that, or a moment too early.

        Groups that could start together should: each that comes later is given a later epoch of the stream, and the
        window keeps it from training on that before the others are near.
        """
        if self._is_too_late:
            self._do_not_start(starts)
            return
        if self._production.is_in_step and self._groups.are_returning:
            return
        self._begin_production()
        if self._groups.are_stopping:
            self._round += 1
            self._outbox.note(
                events.RoundStarted(self._round, tuple(start.name for start in starts))
            )
        fresh = self._production.fresh
        for start in starts:
            epoch = self._production.next_epoch(self._networks.history(start.name))
            self._groups.start(self._networks.specs[start.name], start.devices, epoch)
            self._launch.build(start.name, start.devices)
            self._launch.startup.started(start.name, self._launch.now_s)
            self._leaving.saved(start.name)
            self._outbox.note(events.GroupStarted(start.name, start.devices, epoch, self._round))
        self._grant(fresh)

    def _do_not_start(self, starts: Sequence[moves.Start]) -> None:
        """Start nothing any more; end once nothing runs."""
        if not self._is_late:
            self._is_late = True
            startup = self._launch.startup
            self._outbox.note(
                events.TooLate(
                    tuple(start.name for start in starts),
                    startup.left_s(self._launch.now_s) or 0.0,
                    startup.longest_s or 0.0,
                )
            )
        if not self._groups:
            self._ending.begin("too little of the walltime is left for another group")

    def _give_up(self) -> None:
        """Nothing runs, and the policy starts nothing."""
        left = ", ".join(self._networks.left)
        cluster = self._groups.cluster
        lost = self._groups.lost
        if self._leaving.has_left or lost:
            few = f"{pluralize(cluster.gpus, 'trainer')} {'is' if cluster.gpus == 1 else 'are'}"
            if self._leaving.has_left:
                why = "nodes were given back"
            else:
                why = f"{pluralize(len(lost), 'rank')} died"
            self._ending.begin(f"{why}, and {few} too few for {left}")
        else:
            self._outbox.add(
                AbortLaunch(
                    UserError(
                        f"schedule.policy: {self._launch.setup.spec.schedule.policy} leaves {left} waiting while nothing runs; "
                        "it must give devices to a network that waits whenever all are free"
                    )
                )
            )

    # ---- the stream ----

    def _begin_production(self) -> None:
        if self._roles.shared and not self._production.turns:
            spec = self._launch.setup.spec
            self._outbox.note(
                self._production.begin(
                    self._rates.table if self._rates.are_absolute else None,
                    spec.resources.time_scale,
                    spec.resources.preprocessors == "auto",
                    spec.schedule.policy,
                )
            )

    def _grant(self, epoch: int) -> None:
        """Let groups train on an epoch of the stream."""
        self._production.grant(epoch)
        self._launch.produce()
