"""The mind of the coordinator: it is told what happens, and says what is to be done (pure).

:class:`Ensemble` asks a policy what should run now and makes it so, by the moves that a simulation makes as well
(:mod:`scheduler.ensemble.moves`). It knows no MPI, no clock and no disk: :meth:`Ensemble.handle` is given the time and
what was heard, and returns effects, which the coordinator carries out (:mod:`fleet.runtime.coordinator`). What is heard
alone decides, so a run can be repeated from what it has heard, and tried a thousand times in a second.

Each group is in one phase of its life (:mod:`fleet.ensemble.group`). What cannot be heard in that phase is an error,
which tells what was heard before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fleet.comm.messages import (
    Bad,
    Built,
    Converged,
    EpochDone,
    Exit,
    Failed,
    FellBack,
    Forget,
    Joined,
    Measured,
    Pace,
    Paused,
    Prepared,
    Ready,
    Regrouped,
    Stopped,
    Tag,
    Throughput,
    Warned,
)
from fleet.domain.events import (
    BestLost,
    FirstStep,
    GroupChanged,
    GroupStarted,
    GroupStopped,
    Interrupted,
    Planned,
    PlannedGroup,
    RankLost,
    RanksReady,
    RateMeasured,
    RoundStarted,
    TooLate,
)
from fleet.domain.network import Standing
from fleet.ensemble.building import DEAF_S, Building, Buildings
from fleet.ensemble.complaints import Complaints
from fleet.ensemble.effects import (
    Admitted,
    CheckpointRead,
    Consulted,
    ConsultFailed,
    Effect,
    EndAsked,
    Fail,
    Finish,
    Heard,
    Leased,
    NodesAsked,
    Outbox,
    RanksDied,
    Ruled,
)
from fleet.ensemble.group import Group, Phase
from fleet.ensemble.groups import Groups
from fleet.ensemble.history import History, Impossible
from fleet.ensemble.leaving import Leaving, Offer
from fleet.ensemble.networks import Networks
from fleet.ensemble.production import Production
from fleet.ensemble.rate_check import RateCheck
from fleet.ensemble.rates import LearnedRates, MeasuredRates, Rates, Shared
from fleet.ensemble.searching import Searching
from fleet.ensemble.setup import Ask, Decision, Setup
from fleet.ensemble.startup import StartupTimes
from fleet.ensemble.supply import Supply
from fleet.ensemble.survey import Survey
from fleet.errors import ExitStatus, InfrastructureError, UserError
from fleet.search.mind import Decision as MindDecision
from fleet.search.mind import Mind
from fleet.search.searcher import End
from fleet.units import counted, format_duration
from scheduler.base import Progress, RateTable, Round
from scheduler.ensemble.moves import Dismiss, Grow, Move, Recruit, Shrink, Start, Stop
from scheduler.ensemble.online import OnlineRates


class Ensemble:
    """The networks of a run, the groups that train them, and what is to be done next.

    Args:
        standings: how far earlier launches of this run have brought the networks.
        survey: the measurements to make before anything trains, where nothing else says how fast networks are.
        rates: that are given instead.
        ask: the policy.
        mind: of the searches of the run, and of the rule by which networks are pruned.
        online: learns rates from training instead.
        begun: what has followed from the log of earlier launches for the mind.

    Attributes:
        status: how the launch ends, once it does; then nothing more is heard.
    """

    def __init__(self, setup: Setup, standings: Mapping[str, Standing], survey: Survey, rates: RateTable | None,
                 ask: Ask, mind: Mind, online: OnlineRates | None = None,
                 begun: Sequence[MindDecision] = ()) -> None:
        spec, roles, self._outbox = setup.spec, setup.roles, Outbox()
        self._setup, self._survey, self._ask = setup, survey, ask
        self._production = Production(setup.layout, roles.preprocessors, setup.first_epoch, setup.replayed,
                                      setup.replayed_batches)
        self._networks = Networks(spec.networks, standings, spec.document.retries, self._outbox, setup.elsewhere,
                                  setup.alone)
        self._searching = Searching(mind, begun, spec.document.open_for, self._networks, self._outbox)
        self._groups = Groups(roles, setup.outlives, self._production, self._outbox)
        self._leaving = Leaving(setup, self._groups, self._networks, self._outbox)
        is_file = spec.schedule.rates is not None
        check = RateCheck(survey.keys, not is_file) if spec.engine.learns and (
            is_file or rates is None) else None  # otherwise nobody has said how fast networks are
        shared, scale = Shared.of(setup, rates), spec.resources.time_scale
        self._rates: Rates = (
            Rates(rates, survey.keys, check, self._outbox, shared, scale) if rates is not None else
            MeasuredRates(survey, check, self._outbox, shared) if online is None else
            LearnedRates(online, survey.keys, survey.known, check, self._outbox, shared))
        self._supply = Supply(self._production, scale, self._outbox)
        self._starts, self._history, self._buildings = StartupTimes(setup.ends_s), History(), Buildings()
        self._complaints = Complaints(setup, self._outbox)
        self._arrived: set[int] = set()  # the devices whose trainers have said that they are there
        self._are_ready = self._has_stepped = False  # all of them; and any group
        self._has_news = True  # whether the policy might answer otherwise than it did
        self._deciding_s = 0.0  # that the policy has taken since it last wanted something else
        self._round = 0
        self._is_cut = False  # whether ranks are left that do not listen
        self._is_late = False  # whether that has been noted
        self._ends = ""  # why the launch ends before its networks are done, once it does
        self._ends_s = float("inf")  # and since when
        self._now_s, self._wakes_s = 0.0, float("-inf")
        self.status: ExitStatus | None = None

    @property
    def pace(self) -> str:
        """How groups depend on each other's pace, as :func:`fleet.units.parse_stream` reads it."""
        return self._production.pace

    @property
    def training(self) -> frozenset[str]:
        """The networks that have a group."""
        return frozenset(group.name for group in self._groups)

    def offer(self, nodes: int, within_s: float, now_s: float) -> Offer:
        """See :meth:`fleet.ensemble.leaving.Leaving.offer`; :class:`fleet.ensemble.effects.NodesAsked` has it done.

        Raises:
            UserError: the launch cannot do without so many.
        """
        return self._leaving.offer(nodes, within_s, now_s)

    def handle(self, now_s: float, heard: Heard | None = None) -> list[Effect]:
        """Hear of something, or only of the time, and decide.

        Args:
            now_s: seconds of a clock that does not go back.
            heard: a message, or what else has happened.

        Returns:
            What is to be done, in this order.

        Raises:
            TransitionError: that cannot be.
        """
        if self.status is not None or (heard is None and now_s < self._wakes_s):
            return []
        self._now_s = now_s
        # Of the many that tell of a group's pace, only few have any effect here.
        matters = not isinstance(heard, Pace) or heard.rate.rate > 0 or self._starts.is_awaited(heard.network)
        try:
            if heard is not None:
                self._hear(heard)
            self._decide()
        except Impossible as error:
            self._history.add(now_s, heard, self._outbox.take())
            raise self._history.error(str(error)) from error
        effects = self._outbox.take()
        if matters:
            self._history.add(now_s, heard, effects)
        return effects

    # ---- hear ----

    def _hear(self, heard: Heard) -> None:
        if isinstance(heard, _OF_GROUPS):
            group = self._groups.get(heard.network)
            if group is None and self._groups.lost:
                return  # the last word of a rank that has died
            if group is None:
                raise Impossible(f"{heard.network} has no group, and yet there is {heard}")
            group.advance(heard)
            if not isinstance(heard, Joined):  # that is said before
                self._buildings.end(heard.network)
            if group.phase is Phase.STRUCK:
                return
        if (handler := _HANDLERS.get(type(heard))) is None:
            raise Impossible(f"a coordinator is not told {heard}")
        handler(self, heard)
        self._has_news |= isinstance(heard, _NEWS)

    # ---- of groups ----

    def _on_joined(self, joined: Joined) -> None:
        self._has_met(self._groups[joined.network])

    def _on_regrouped(self, regrouped: Regrouped) -> None:
        group = self._groups[regrouped.network]
        self._outbox.note(GroupChanged(group.name, group.before, group.devices, regrouped.position,
                                       regrouped.seconds))
        self._has_met(group)

    def _has_met(self, group: Group) -> None:
        group.joins = None
        self._produce()
        if self._ends:
            self._groups.pause(group, ends=True)

    def _on_pace(self, pace: Pace) -> None:
        self._has_trained(pace.network)
        self._leaving.paced(pace)
        self._rates.observe(pace.network, len(self._groups[pace.network].devices), pace.rate)
        # What a group shows inside an epoch matters at once only where devices wait for it to be shown.
        self._has_news |= self._rates.may_grow and self._groups.wanted.gpus < self._groups.cluster.gpus

    def _has_trained(self, network: str) -> None:
        self._starts.trained(network, self._now_s)
        if not self._has_stepped:
            self._has_stepped = True
            self._outbox.note(FirstStep(network, self._starts.build_s(network)))

    def _on_epoch_done(self, done: EpochDone) -> None:
        self._has_trained(done.network)
        self._networks.end_epoch(done)
        self._searching.epoch_ended(done)
        self._leaving.saved(done.network, self._now_s)
        group = self._groups[done.network]
        self._rates.observe(done.network, done.record.gpus, done.rate)
        group.next_epoch = group.reads_next = self._production.epoch_after(
            group.next_epoch, self._networks.history(group.name))

    def _on_converged(self, converged: Converged) -> None:
        self._starts.trained(converged.network, self._now_s)
        self._networks.finish(converged.network, converged.reason)
        self._searching.over(converged.network, End.FINISHED)

    def _on_paused(self, paused: Paused) -> None:
        group = self._groups[paused.network]
        # An epoch that was begun in an earlier launch is not the one that was granted.
        group.reads_next = group.next_epoch + (paused.stream_epoch == group.next_epoch)

    def _on_stopped(self, stopped: Stopped) -> None:
        self._leaving.stopped(stopped)
        self._groups.remove(stopped.network)
        self._outbox.note(GroupStopped(stopped.network, stopped.checkpoint_s, stopped.export_s))
        if stopped.damage:
            self._outbox.note(BestLost(stopped.network, stopped.damage))
        if stopped.tested is not None:
            self._networks.test(stopped.network, stopped.tested, stopped.test_s)

    def _on_failed(self, failed: Failed) -> None:
        self._groups.remove(failed.network)
        if self._networks.is_isolated(failed, self._groups.cluster.slots):
            return
        if self._networks.may_retry(failed):
            self._networks.rest(failed.network, self._now_s)
        else:
            self._fail(failed.network, failed.reason, failed.detail, failed.may_pass)

    def _fail(self, name: str, reason: str, detail: str = "", may_pass: bool = False) -> None:
        self._networks.fail(name, reason, detail, may_pass)
        self._searching.over(name, End.FAILED)

    # ---- of ranks ----

    def _on_ready(self, ready: Ready) -> None:
        self._groups.ready(ready)
        self._arrived.add(self._setup.roles.device_of[ready.rank])
        self._see_who_is_there()

    def _see_who_is_there(self) -> None:
        if not self._are_ready and self._arrived and self._arrived.issuperset(self._groups.cluster.devices):
            self._are_ready = True
            self._outbox.note(RanksReady())

    def _on_built(self, built: Built) -> None:
        self._buildings.end_of(self._setup.roles.device_of[built.rank])
        self._groups.built(built)
        self._starts.built(built.network, self._now_s)
        if built.parameters is not None:
            self._networks.build(built.network, built.parameters)

    def _on_measured(self, measured: Measured) -> None:
        self._buildings.end(measured.network, measured.gpus)
        if (task := self._groups.measured(measured)) is None:
            return
        if self._networks.may_retry(measured):
            self._survey.again(task)
            return
        found = self._survey.hear(task, measured)
        self._outbox.note(RateMeasured(task.network, task.gpus, found.rate, measured.seconds,
                                       done=self._survey.measured, total=self._survey.total, reason=measured.reason,
                                       spread=found.spread, steps=found.steps, timed=measured.timed,
                                       parameters=measured.parameters))

    def _on_ranks_died(self, died: RanksDied) -> None:
        for rank in sorted(set(died.ranks) - self._groups.lost):
            self._groups.lost.add(rank)
            if self._setup.replayed:
                self._outbox.add(Fail(InfrastructureError(f"rank {rank} has died")))
            device = self._setup.roles.device_of.get(rank)
            self._outbox.note(RankLost(rank, device))
            if device is not None:
                self._buildings.lose([device])
            if device is not None:  # otherwise trainers prepare their samples themselves from now on
                for task in self._groups.lose(rank, died):
                    self._survey.again(task)
                self._rates.lose(self._groups.cluster.whole_gpus)
        self._see_who_is_there()
        self._produce()  # which no struck group holds back
        if not self._groups.cluster.devices:
            self._end_early("all trainers have died")

    # ---- of the launch ----

    def _on_checkpoint_read(self, read: CheckpointRead) -> None:
        self._networks.take_up(read)
        self._searching.read(read.network)

    def _on_admitted(self, admitted: Admitted) -> None:
        self._rates.add(admitted)
        self._searching.admitted(admitted)

    def _on_nodes_asked(self, asked: NodesAsked) -> None:
        self._leaving.ask(asked, self._now_s)
        self._rates.lose(self._groups.cluster.whole_gpus)

    # ---- decide ----

    def _decide(self) -> None:
        for building in self._buildings.deaf(self._now_s, self._ends_s):
            self._give_up_on(building)
        for group in self._groups.struck:
            self._groups.remove(group.name)
            self._networks.strike(group.name)
            self._has_news = True  # it gets no devices before its checkpoint is read
        if not self._ends:
            self._leaving.decide(self._now_s)
            self._has_news |= self._searching.decide(group.name for group in self._groups)
            if isinstance(self._rates, MeasuredRates) and self._rates.table is None:
                self._measure(self._rates)
            if self._rates.table is not None and self._production.is_known(self._groups.lost):
                self._carry_out()
        if self._ends:
            self._wind_up()
        rested_s = float("inf") if self._ends else min(self._networks.wakes_s, self._searching.closes_s)
        self._wakes_s = min(rested_s, self._buildings.wakes_s(self._ends_s))

    def _measure(self, rates: MeasuredRates) -> None:
        """Give idle devices something to measure, until all rates are known."""
        rates.begin(self._now_s)
        while (task := self._survey.next(len(self._groups.free_whole))) is not None:
            network, batches = self._networks.specs[task.network], self._survey.batches(task)
            self._buildings.begin(network, self._groups.measure(network, task.gpus, batches), self._now_s)
        if self._survey.is_done:
            for name, outcome in self._survey.conclude().items():
                self._fail(name, outcome.reason, may_pass=outcome.may_pass)
            rates.end(self._now_s, self._setup.samples)

    def _carry_out(self) -> None:
        """Bring what runs nearer to what should run, or end."""
        if not (self._networks.has_left or self._groups) and self._searching.is_over:
            self._has_news |= self._searching.idle(self._now_s)
            if self._networks.are_over and not self._searching.is_open:
                self._end()
            if not self._networks.has_left:
                return
        self._searching.idle_since_s = None
        self._has_news |= self._networks.wake(self._now_s)
        if self._has_news:
            self._ask_policy()
        held_back = self._groups.held_back | self._searching.awaited
        found = self._groups.moves(held_back, self._leaving.groups, self._networks.alone)
        for move in found:
            self._make(move)
        for group in self._groups:
            if group.stands_still and group.name not in held_back:
                self._go_on(group)
        if starts := [move for move in found if isinstance(move, Start)]:
            self._start(starts)
        if self._networks.has_left and not (self._groups or self._groups.wanted.members or self._networks.away):
            self._give_up()

    def _ask_policy(self) -> None:
        rates = self._supply.told(self._rates, self._groups.cluster, self._groups.lost)
        progress = Progress(
            running=self._groups.running(self._leaving.groups),
            epochs_done=self._networks.epochs_done,
            finished=self._networks.unavailable,
            wanted=self._groups.wanted, rates_changed=self._rates.has_changed or self._supply.has_changed,
            alone=frozenset(self._networks.alone),
            guessed=frozenset() if self._production.is_lockstep else self._rates.guessed, ahead=self._searching.ahead)
        decision = self._ask(rates, progress, self._groups.cluster) if self._networks.has_left else Decision(Round())
        self._has_news = False
        self._rates.planned(decision.round != self._groups.wanted, decision.tried, self._networks.is_over)
        self._deciding_s += decision.seconds
        if decision.round != self._groups.wanted:
            self._groups.wanted = decision.round
            self._outbox.note(Planned(tuple(PlannedGroup(member.name, member.gpus, member.devices, member.batch or 0)
                                            for member in self._groups.wanted.members), self._deciding_s))
            self._deciding_s = 0.0

    # ---- moves ----

    def _make(self, move: Move) -> None:
        """Make a move of a group that runs; one that is to change inside its epoch is asked to stand still first."""
        if (group := self._groups.get(move.name)) is None:
            return  # to start groups comes last
        match move:
            case Recruit():
                self._groups.recruit(group, move.devices)
                for device in move.devices:
                    self._buildings.begin(group.network, [device], self._now_s, is_recruit=True)
            case Dismiss():
                self._groups.dismiss(group, move.devices)
            case Grow() | Shrink() if group.stands_still:
                self._groups.regroup(group, move.devices)
                self._grant(group.next_epoch)
            case Grow() if group.phase is Phase.TRAINING:
                self._groups.pause(group, ends=False)
            case Stop() if not self._starts.is_too_late(self._now_s):  # else no other is started in its place
                self._groups.stop(group, self._networks.is_final(group.name))

    def _go_on(self, group: Group) -> None:
        if self._networks.is_over(group.name) or self._networks.is_paused(group.name):
            self._groups.stop(group, self._networks.is_final(group.name))
        else:
            self._groups.go_on(group)
            self._grant(group.next_epoch)

    def _start(self, starts: Sequence[Start]) -> None:
        """Start groups, unless it is too late for that, or a moment too early.

        Groups that could start together should: each that comes later is given a later epoch of the stream, and the
        window keeps it from training on that before the others are near.
        """
        if self._starts.is_too_late(self._now_s):
            self._do_not_start(starts)
            return
        if self._production.is_in_step and self._groups.returning:
            return
        self._begin_production()
        if all(group.phase is Phase.STOPPING for group in self._groups):
            self._round += 1
            self._outbox.note(RoundStarted(self._round, tuple(start.name for start in starts)))
        fresh = self._production.fresh
        for start in starts:
            epoch = self._production.next_epoch(self._networks.history(start.name))
            self._groups.start(self._networks.specs[start.name], start.devices, epoch)
            self._buildings.begin(self._networks.specs[start.name], start.devices, self._now_s)
            self._starts.started(start.name, self._now_s)
            self._leaving.saved(start.name, self._now_s)
            self._outbox.note(GroupStarted(start.name, start.devices, epoch, self._round))
        self._grant(fresh)

    def _do_not_start(self, starts: Sequence[Start]) -> None:
        """Start nothing any more; end once nothing runs."""
        if not self._is_late:
            self._is_late = True
            self._outbox.note(TooLate(tuple(start.name for start in starts), self._starts.left_s(self._now_s) or 0.0,
                                      self._starts.longest_s or 0.0))
        if not self._groups:
            self._end_early("too little of the walltime is left for another group")

    def _give_up(self) -> None:
        """Nothing runs, and the policy starts nothing."""
        left, cluster = ", ".join(self._networks.left), self._groups.cluster
        if self._leaving.has_left or self._groups.lost:
            few = f"{counted(cluster.gpus, 'trainer')} {'is' if cluster.gpus == 1 else 'are'}"
            died = f"{counted(len(self._groups.lost), 'rank')} died"
            self._end_early(f"{'nodes were given back' if self._leaving.has_left else died}, and {few} too few for "
                            f"{left}")
        else:
            self._outbox.add(Fail(UserError(
                f"schedule.policy: {self._setup.spec.schedule.policy} leaves {left} waiting while nothing runs; it "
                "must give devices to a network that waits whenever all are free")))

    # ---- the stream ----

    def _begin_production(self) -> None:
        if self._setup.roles.shared and not self._production.turns:
            resources = self._setup.spec.resources
            rates = self._rates.table if self._rates.are_absolute else None
            self._outbox.note(self._production.begin(rates, resources.time_scale, resources.preprocessors == "auto",
                                                     self._setup.spec.schedule.policy))

    def _grant(self, epoch: int) -> None:
        """Let groups train on an epoch of the stream."""
        self._production.grant(epoch)
        self._produce()

    def _produce(self) -> None:
        """Tell preprocessors how far the stream is wanted, where that has changed."""
        if (order := self._production.order(self._groups.joining)) is not None:
            self._outbox.tell(self._setup.roles.preprocessors, Tag.PREPROCESSOR, order)

    # ---- end ----

    def _give_up_on(self, building: Building) -> None:
        """Wait no longer for ranks that do not come back from building a network: the launch ends without them."""
        network, is_late = building.network, self._now_s >= building.until_s + DEAF_S
        ranks = self._groups.give_up(building.devices)
        self._buildings.lose(building.devices)
        self._outbox.tell(self._setup.roles.preprocessors, Tag.PREPROCESSOR, Forget(ranks))
        who = f"{'ranks' if len(ranks) > 1 else 'rank'} {', '.join(map(str, ranks))}"
        if is_late and not building.is_recruit and not self._networks.is_over(network.name):
            limit = format_duration(network.train.build_timeout)
            self._fail(network.name, f"building took longer than {limit} (train.build_timeout), and Python "
                                              f"cannot interrupt it on {who}")
        self._is_cut = True
        self._end_early(f"{who} did not come back from building {network.name}")

    def _end_early(self, reason: str) -> None:
        """Have all groups save and let go, wherever in an epoch they are."""
        if self._ends:
            return
        self._ends, self._ends_s = reason, self._now_s
        self._outbox.note(Interrupted(reason, replay=bool(self._setup.replayed)))
        for group in self._groups:
            if group.phase in (Phase.TRAINING, Phase.PAUSING):
                self._groups.pause(group, ends=True)

    def _wind_up(self) -> None:
        """End once every trainer has let go, and what is being measured has been."""
        for group in self._groups:
            if group.stands_still:
                self._groups.stop(group, self._networks.is_final(group.name))
        if self._groups.are_all_idle and not self._networks.fallen:
            self._end()

    def _status(self) -> ExitStatus:
        status = self._networks.status
        if self._ends and status is not ExitStatus.RESUMABLE and not self._searching.is_over:
            return ExitStatus.RESUMABLE
        return ExitStatus.NETWORK_FAILED if status is ExitStatus.OK and self._searching.has_failed else status

    def _end(self) -> None:
        self.status = self._status()
        self._rates.keep()
        self._outbox.tell(self._setup.roles.trainers, Tag.TRAINER, Exit())
        self._outbox.tell(self._setup.roles.preprocessors, Tag.PREPROCESSOR, Exit())
        self._outbox.add(Finish(self.status, self._is_cut))


# What a group's master says of the group.
_OF_GROUPS = (Joined, FellBack, Pace, EpochDone, Paused, Converged, Regrouped, Stopped, Failed)

# After these the policy is asked again.
_NEWS = (EpochDone, Converged, Stopped, Failed, RanksDied, CheckpointRead, Leased, Admitted, NodesAsked)

_HANDLERS: Mapping[type, Callable[[Ensemble, Any], None]] = {
    Joined: Ensemble._on_joined,
    Regrouped: Ensemble._on_regrouped,
    FellBack: lambda self, fallen: self._networks.fall_back(fallen),
    Pace: Ensemble._on_pace,
    EpochDone: Ensemble._on_epoch_done,
    Converged: Ensemble._on_converged,
    Paused: Ensemble._on_paused,
    Stopped: Ensemble._on_stopped,
    Failed: Ensemble._on_failed,
    Ready: Ensemble._on_ready,
    Built: Ensemble._on_built,
    Throughput: lambda self, said: self._production.hear(said),
    Prepared: lambda self, said: self._production.hear_prepared(said),
    Measured: Ensemble._on_measured,
    Warned: lambda self, warned: self._complaints.warned(warned),
    Bad: lambda self, bad: self._complaints.bad(bad),
    RanksDied: Ensemble._on_ranks_died,
    CheckpointRead: Ensemble._on_checkpoint_read,
    EndAsked: lambda self, asked: self._end_early(asked.reason),
    NodesAsked: Ensemble._on_nodes_asked,
    Leased: lambda self, leased: self._networks.lease(leased),
    Admitted: Ensemble._on_admitted,
    Consulted: lambda self, answer: self._searching.answered(answer),
    ConsultFailed: lambda self, answer: self._searching.answered(answer),
    Ruled: lambda self, ruled: self._searching.ruled(ruled),
}
