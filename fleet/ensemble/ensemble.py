"""The mind of the coordinator: it is told what happens, and says what is to be done (pure).

:class:`Ensemble` hands what is heard to those whom it concerns, and then has each decide: who leaves
(:mod:`fleet.ensemble.leaving`), what searches want (:mod:`fleet.ensemble.searching`), what is measured
(:mod:`fleet.ensemble.rates`), who trains where (:mod:`fleet.ensemble.placement`), and whether the launch ends
(:mod:`fleet.ensemble.ending`). They share the parts of a launch (:mod:`fleet.ensemble.launch`). None of them knows MPI,
a clock or a disk: :meth:`Ensemble.handle` is given the time and what was heard, and returns effects, which the
coordinator carries out (:mod:`fleet.runtime.coordinator`). What is heard alone decides, so a run can be repeated from
what it has heard, and tried a thousand times in a second.

Each group is in one phase of its life (:mod:`fleet.ensemble.group`). What cannot be heard in that phase is an error,
which tells what was heard before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from fleet.comm import messages as m
from fleet.domain import events
from fleet.domain.network import Standing
from fleet.domain.outlook import Outlook
from fleet.ensemble import effects as e
from fleet.ensemble.complaints import Complaints
from fleet.ensemble.ending import Ending
from fleet.ensemble.group import SAID, Phase, TrainingGroup
from fleet.ensemble.history import History, Impossible
from fleet.ensemble.launch import Ask, Parts, Setup, Speeds
from fleet.ensemble.leaving import Leaving
from fleet.ensemble.placement import Placement
from fleet.ensemble.rates import make_rates
from fleet.ensemble.searching import Searching
from fleet.errors import ExitStatus, InfrastructureError
from fleet.search.mind import Decision, Mind
from fleet.search.searcher import End


class Ensemble:
    """The networks of a run, the groups that train them, and what is to be done next.

    Args:
        standings: how far earlier launches of this run have brought the networks.
        speeds: what is known of how fast they are.
        ask: the policy.
        mind: of the searches of the run, and of the rule by which networks are pruned; nobody else uses it.
        begun: what has followed from the log of earlier launches for the mind.
    """

    def __init__(self, setup: Setup, standings: Mapping[str, Standing], speeds: Speeds, ask: Ask, mind: Mind,
                 begun: Sequence[Decision] = ()) -> None:
        self._launch = launch = Parts.of(setup, standings)
        self._outbox, self._groups, self._networks = launch.outbox, launch.groups, launch.networks
        self._production, self._startup, self._buildings = launch.production, launch.startup, launch.buildings
        self._rates, self._complaints = make_rates(speeds, launch), Complaints(setup, launch.outbox)
        self._searching, self._leaving = Searching(mind, begun, launch, self._rates), Leaving(launch)
        self._ending = Ending(launch, self._rates, self._searching)
        self._placement = Placement(launch, self._rates, self._searching, self._leaving, self._ending, ask)
        self._history, self._wakes_s = History(), float("-inf")
        self._undecided = 0  # what has been heard since it decided

    @property
    def status(self) -> ExitStatus | None:
        """How the launch ends, once it does; then nothing more is heard."""
        return self._ending.status

    @property
    def pace(self) -> str:
        """How groups depend on each other's pace, as :func:`fleet.units.parse_stream` reads it."""
        return self._production.pace

    @property
    def training(self) -> AbstractSet[str]:
        """The networks that have a group; a view."""
        return self._groups.names

    @property
    def outlook(self) -> Outlook:
        """What searches may yet bring."""
        return self._searching.mind.outlook

    def offer(self, nodes: int, within_s: float, now_s: float) -> e.Offer:
        """See :meth:`fleet.ensemble.leaving.Leaving.offer`; :class:`fleet.ensemble.effects.NodesAsked` has it done.

        Raises:
            UserError: the launch cannot do without so many.
        """
        return self._leaving.offer(nodes, within_s, now_s)

    @property
    def patience(self) -> int:
        """How many messages may be heard before it decides, where so many wait.

        To decide takes a time that grows with the devices; a group waits for its orders as long as these messages take.
        """
        devices = self._groups.cluster.gpus
        return max(_FEWEST, devices // 8) if devices >= _MANY else 1

    def handle(self, now_s: float, heard: e.Heard | None = None, more_wait: bool = False) -> list[e.Effect]:
        """Hear of something, or only of the time, and decide.

        Args:
            now_s: seconds of a clock that does not go back.
            heard: a message, or what else has happened.
            more_wait: whether more is about to be heard, so that it may decide after that.

        Returns:
            What is to be done, in this order.

        Raises:
            TransitionError: that cannot be.
        """
        is_late = now_s >= self._wakes_s
        if self.status is not None or (heard is None and not is_late and not self._undecided):
            return []
        self._outbox.now_s = now_s
        # Of the many that tell of a group's pace, only few have any effect here.
        matters = not isinstance(heard, m.Pace) or heard.rate.rate > 0 or self._startup.is_awaited(heard.network)
        try:
            if heard is not None:
                had_news = self._placement.has_news
                self._hear(heard)
                self._undecided += matters or self._placement.has_news > had_news
            if is_late or (self._undecided and not (more_wait and self._undecided < self.patience)):
                self._undecided = 0
                self._decide()
        except Impossible as error:
            self._history.add(now_s, heard, self._outbox.take())
            raise self._history.error(str(error)) from error
        effects = self._outbox.take()
        if matters:
            self._history.add(now_s, heard, effects)
        return effects

    # ---- decide ----

    def _decide(self) -> None:
        ending, ends_s = self._ending, self._ending.since_s
        for building in self._buildings.deaf(self._outbox.now_s, ends_s):
            ending.give_up_on(building)
        for group in self._groups.struck:
            self._groups.remove(group.name)
            self._networks.strike(group.name)
            self._placement.has_news = True  # it gets no devices before its checkpoint is read
        if not ending.has_begun:
            self._leaving.decide()
            self._placement.has_news |= self._searching.decide()
            self._rates.measure(self._searching.fail)
            if self._rates.table is not None and self._production.is_known(self._groups.lost):
                self._train()
        if ending.has_begun:
            ending.wind_up()
        rested_s = float("inf") if ending.has_begun else min(self._networks.wakes_s, self._searching.closes_s)
        self._wakes_s = min(rested_s, self._buildings.wakes_s(ending.since_s))

    def _train(self) -> None:
        """Bring what runs nearer to what should run, or end."""
        if self._networks.has_left or self._groups or not self._searching.is_over:
            self._searching.idle_since_s = None
        else:
            self._placement.has_news |= self._searching.close()
            if self._networks.are_over and not self._searching.mind.is_open:
                self._ending.finish()
            if not self._networks.has_left:
                return
        self._placement.decide()

    # ---- hear ----

    def _hear(self, heard: e.Heard) -> None:
        if isinstance(heard, SAID):
            group = self._groups.get(heard.network)
            if group is None and self._groups.lost:
                return  # the last word of a rank that has died
            if group is None:
                raise Impossible(f"{heard.network} has no group, and yet there is {heard}")
            self._groups.advance(group, heard)
            if not isinstance(heard, m.Joined):  # that is said before
                self._buildings.end(heard.network)
            if group.phase is Phase.STRUCK:
                return
        if (handler := _HANDLERS.get(type(heard))) is None:
            raise Impossible(f"a coordinator is not told {heard}")
        handler(self, heard)
        self._placement.has_news |= isinstance(heard, _NEWS)

    def _on_joined(self, joined: m.Joined) -> None:
        self._has_met(self._groups[joined.network])

    def _on_regrouped(self, regrouped: m.Regrouped) -> None:
        group = self._groups[regrouped.network]
        self._outbox.note(events.GroupChanged(group.name, group.before, group.devices, regrouped.position,
                                              regrouped.seconds))
        self._has_met(group)

    def _has_met(self, group: TrainingGroup) -> None:
        self._groups.have_met(group)
        self._launch.produce()
        if self._ending.has_begun:
            self._groups.pause(group, ends=True)

    def _on_prepared(self, said: m.Prepared) -> None:
        if (changed := self._production.hear_prepared(said)) is not None:
            self._outbox.note(changed)

    def _on_pace(self, pace: m.Pace) -> None:
        self._startup.stepped(pace.network, self._outbox.now_s)
        self._leaving.paced(pace)
        self._rates.observe(pace.network, len(self._groups[pace.network].devices), pace.rate)
        # What a group shows inside an epoch matters at once only where devices wait for it to be shown.
        self._placement.has_news |= self._rates.may_grow and self._groups.wanted.gpus < self._groups.cluster.gpus

    def _on_epoch_done(self, done: m.EpochDone) -> None:
        self._startup.stepped(done.network, self._outbox.now_s)
        self._networks.end_epoch(done)
        self._searching.epoch_ended(done.network, done.record, is_done=bool(done.final))
        self._leaving.saved(done.network)
        group = self._groups[done.network]
        self._rates.observe(done.network, done.record.gpus, done.rate)
        group.next_epoch = group.reads_next = self._production.epoch_after(
            group.next_epoch, self._networks.history(group.name))

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
        self._outbox.note(events.GroupStopped(stopped.network, stopped.checkpoint_s, stopped.export_s))
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
        if (task := self._groups.measured(measured)) is not None:
            self._rates.measured(task, measured)

    def _on_ranks_died(self, died: e.RanksDied) -> None:
        for rank in sorted(set(died.ranks) - self._groups.lost):
            self._groups.lost.add(rank)
            if self._launch.setup.replayed:
                self._outbox.add(e.Fail(InfrastructureError(f"rank {rank} has died")))
            device = self._launch.setup.roles.device_of.get(rank)
            self._outbox.note(events.RankLost(rank, device))
            if device is not None:  # otherwise trainers prepare their samples themselves from now on
                self._buildings.lose([device])
                tasks = self._groups.lose(rank, died)
                self._rates.lose(self._groups.cluster.whole_gpus, tasks)
        self._groups.see_who_is_there()
        self._launch.produce()  # which no struck group holds back
        if not self._groups.cluster.devices:
            self._ending.begin("all trainers have died")

    def _on_checkpoint_read(self, read: e.CheckpointRead) -> None:
        self._networks.take_up(read)
        self._searching.read(read.network)

    def _on_admitted(self, admitted: e.Admitted) -> None:
        self._rates.add(admitted)
        self._searching.admitted(admitted)

    def _on_nodes_asked(self, asked: e.NodesAsked) -> None:
        self._leaving.ask(asked)
        self._rates.lose(self._groups.cluster.whole_gpus)


_MANY = 16  # with fewer devices each message is followed by a decision
_FEWEST = 8  # messages that may be heard first with more

# After these the policy is asked again.
_NEWS = (m.EpochDone, m.Converged, m.Stopped, m.Failed, e.RanksDied, e.CheckpointRead, e.Leased, e.Admitted,
         e.NodesAsked)

_HANDLERS: Mapping[type, Callable[[Ensemble, Any], None]] = {
    m.Joined: Ensemble._on_joined,
    m.Regrouped: Ensemble._on_regrouped,
    m.FellBack: lambda self, fallen: self._networks.fall_back(fallen),
    m.Pace: Ensemble._on_pace,
    m.EpochDone: Ensemble._on_epoch_done,
    m.Converged: Ensemble._on_converged,
    m.Paused: Ensemble._on_paused,
    m.Stopped: Ensemble._on_stopped,
    m.Failed: Ensemble._on_failed,
    m.Ready: lambda self, ready: self._groups.ready(ready),
    m.Built: Ensemble._on_built,
    m.Throughput: lambda self, said: self._production.hear(said),
    m.Prepared: Ensemble._on_prepared,
    m.Measured: Ensemble._on_measured,
    m.Warned: lambda self, warned: self._complaints.warned(warned),
    m.Bad: lambda self, bad: self._complaints.bad(bad),
    e.RanksDied: Ensemble._on_ranks_died,
    e.CheckpointRead: Ensemble._on_checkpoint_read,
    e.EndAsked: lambda self, asked: self._ending.begin(asked.reason),
    e.NodesAsked: Ensemble._on_nodes_asked,
    e.Leased: lambda self, leased: self._networks.lease(leased),
    e.Admitted: Ensemble._on_admitted,
    e.Consulted: lambda self, answer: self._searching.answered(answer),
    e.ConsultFailed: lambda self, answer: self._searching.answered(answer),
    e.Ruled: lambda self, ruled: self._searching.ruled(ruled),
}
