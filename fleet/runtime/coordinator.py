"""The coordinator, on rank 0: receive, decide, send.

All that decides is an :class:`fleet.ensemble.ensemble.Ensemble`, which only returns what is to be done. Here it is
told what MPI, the clock and signals bring, and what it wants is done: messages are sent, events logged and shown, and
results written. The coordinator never blocks: :meth:`Coordinator.step` does a bounded piece of work, so that rank 0 can
prepare samples, or train.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from fleet.comm.base import World
from fleet.comm.messages import Pace, Tag
from fleet.domain.events import (
    BadSample,
    EpochEnded,
    Event,
    GroupStarted,
    RatesGiven,
    RatesRemembered,
    ScheduleOptions,
    Started,
)
from fleet.domain.network import EpochRecord
from fleet.domain.run import Launch, RunState
from fleet.ensemble.effects import (
    Admit,
    CheckpointRead,
    Consult,
    Effect,
    EndAsked,
    Fail,
    Finish,
    Heard,
    Keep,
    KeepParameters,
    KeepRates,
    Note,
    RanksDied,
    ReadCheckpoint,
    Tell,
)
from fleet.ensemble.ensemble import Decision, Ensemble
from fleet.ensemble.history import TransitionError
from fleet.ensemble.leaving import Offer
from fleet.ensemble.rates import known_sharing
from fleet.ensemble.setup import Setup
from fleet.ensemble.survey import Survey
from fleet.errors import ExitStatus
from fleet.monitor.eta import EstimateTimes, Estimator
from fleet.monitor.overheads import ended, summary
from fleet.runtime.admission import Admission
from fleet.runtime.harvest import Harvest
from fleet.runtime.interrupt import Interruption
from fleet.runtime.known_rates import Profile
from fleet.runtime.outside.clerk import Clerk
from fleet.runtime.searchers import Searchers
from fleet.runtime.searches import make_mind, outlook
from fleet.runtime.start import Laps
from fleet.search.mind import Mind
from fleet.spec import Spec
from fleet.storage.event_log import EventLog
from fleet.storage.lease import Fence
from fleet.storage.results import Results, look_up
from scheduler.base import Cluster, Progress, RateTable
from scheduler.ensemble.online import OnlineRates
from scheduler.ensemble.planning import plan
from scheduler.ensemble.probing import probes_of_plan

log = logging.getLogger("fleet.runtime.coordinator")

_LEASE_S = 1.0  # between two looks at the lease; checkpoints look for themselves


class Observer(Protocol):
    """Who is shown what happens: the live view, TensorBoard, files."""

    def on_event(self, event: Event) -> None:
        """Something was decided or done; the same that goes into the event log."""

    def on_pace(self, network: str, samples: int, samples_per_s: float) -> None:
        """How far a group is."""


@dataclass(frozen=True)
class Search:
    """What asks for networks, prunes them, and looks at those that come.

    Attributes:
        mind: that has heard nothing yet.
        searchers: that are called.
        admission: None where no network can come.
        log: of earlier launches.
        clerk: takes up what others want of the launch; None where nobody may want anything.
    """

    mind: Mind
    searchers: Searchers
    admission: Admission | None = None
    log: tuple[Event, ...] = ()
    clerk: Clerk | None = None

    @classmethod
    def without(cls, spec: Spec) -> Search:
        """Nothing of the kind."""
        return cls(make_mind(spec, replace(spec, networks=()), {}, 0, judges=False), Searchers({}))


class Coordinator:
    """See the module.

    Args:
        survey: the measurements to make.
        rates: instead of measuring.
        online: learns them from training, instead of measuring before it.
        results: of the networks, as far as earlier launches of this run have come.
        events: the log; its clock is the one by which is decided.
        profile: where rates are written that are found out.
        interruption: says when to stop before the end.
        unlogged: epochs of earlier launches that are in checkpoints and not in the event log.
        remembered: the rates of earlier launches that are used.
        changes: what was done, and chosen, before this launch, for the event log.
        fence: this launch's right to write.
        harvest: the networks that it holds, where several launches work at a time.
        search: what asks for networks and prunes them; None where nothing does.
        laps: of the start-up, which ends when the launch is said to begin.
        run: what the run is by its events; it takes in those of this launch.

    Attributes:
        status: how the launch ends, once it is over.
        is_cut: whether ranks are left then that do not listen.
    """

    def __init__(self, world: World, setup: Setup, survey: Survey, rates: RateTable | None, results: Results,
                 events: EventLog, profile: Profile, observers: Sequence[Observer], interruption: Interruption,
                 unlogged: Sequence[tuple[str, EpochRecord]] = (), remembered: RatesRemembered | None = None,
                 changes: Sequence[Event] = (), fence: Fence | None = None,
                 online: OnlineRates | None = None, harvest: Harvest | None = None,
                 search: Search | None = None, laps: Laps | None = None, run: RunState | None = None) -> None:
        self._world, self._setup, self._rates, self._results = world, setup, rates, results
        self._events, self._profile, self._observers = events, profile, tuple(observers)
        self._interruption, self._unlogged, self._remembered = interruption, unlogged, remembered
        self._changes, self._laps, self._online = tuple(changes), laps, online
        self._policy, self._options = setup.spec.policy, setup.spec.options
        self._fence, self._checked_s, self._harvest = fence, 0.0, harvest
        self._search = search or Search.without(setup.spec)
        begun = self._search.mind.restore(
            [*self._search.log, *(EpochEnded(network, record) for network, record in unlogged)], results.standings)
        self._ensemble = Ensemble(setup, results.standings, survey, rates, self._ask, self._search.mind, online, begun)
        self._lost: frozenset[int] = frozenset()  # the deaths that the ensemble has heard of
        self._is_interrupted = False
        self._run = RunState(setup.spec) if run is None else run
        self._found = {} if harvest is not None else self._run.differing(results.standings)
        self._run.take_up(results.standings)
        self._before_s = 0.0 if self._run.launch is None else self._run.launch.ended_s  # of earlier launches
        self._estimator = Estimator(setup.spec, results.networks, self._run)
        self._estimate_times = EstimateTimes()
        self.status: ExitStatus | None = None
        self.is_cut = False

    # ---- the four steps of a role's life ----

    def start(self) -> None:
        """Say what begins, and what an earlier launch did not come to say."""
        spec, roles, options = self._setup.spec, self._setup.roles, self._setup.spec.options
        if self._laps is not None:
            self._laps.end("setting up")
        over = (name for name, standing in self._results.standings.items() if standing.outcome is not None)
        self._note(Started(
            networks=len(spec.networks), trainers=len(roles.trainers), preprocessors=len(roles.preprocessors),
            nodes=roles.nodes, gpus_per_node=roles.gpus_per_node, policy=spec.schedule.policy,
            finished=tuple(sorted(over)), first_stream_epoch=self._setup.first_epoch, samples=self._setup.samples,
            devices=tuple(sorted(roles.rank_of)), stream=self._ensemble.pace,
            options=ScheduleOptions(options.alpha, str(options.delta), options.peak_limited, options.seed),
            bounds={network.name: (network.min_gpus, network.max_gpus) for network in spec.networks},
            time_scale=spec.resources.time_scale, date=self._events.date(),
            before_s={} if self._laps is None else self._laps.seconds, slots=roles.slots, fills=roles.fills,
            device=roles.unit, found=self._found, beside=None if self._harvest is None else self._harvest.is_beside))
        if spec.schedule.rates is not None and self._rates is not None:
            self._note(RatesGiven({network.name: network.rates for network in self._rates.models}))
        if self._remembered is not None:
            self._note(self._remembered)
        if (known := known_sharing(self._setup)) is not None:
            self._note(known)
        for network, record in self._unlogged:
            self._note(EpochEnded(network, record))
        for change in self._changes:
            self._note(change)

    def step(self) -> bool:
        """Receive a message if there is one, decide, send; returns whether anything happened."""
        if self.status is not None:
            return False
        self._check_lease()
        self._results.write_if_due()
        self._profile.write_if_due()
        if not self._is_interrupted and (reason := self._interruption.reason()):
            self._is_interrupted = True
            self._handle(EndAsked(reason))
        if self._harvest is not None:
            for heard in self._harvest.look(self._events.now(), self._ensemble.training, self._is_interrupted):
                self._handle(heard)
        if self._search.clerk is not None and not self._is_interrupted:
            self._search.clerk.look(self._note, self._handle, lambda: self.status is None, self._offer)
        self._admit()
        answer = self._search.searchers.heard()
        if answer is not None:
            self._handle(answer)
        message = self._world.hear(Tag.COORDINATOR)
        if isinstance(message, Pace):
            for observer in self._observers:
                observer.on_pace(message.network, message.samples, message.samples_per_s)
        if message is None and self._world.lost > self._lost:  # when all that the dead have said is heard
            died, self._lost = self._world.lost - self._lost, self._world.lost
            self._handle(RanksDied(tuple(sorted(died))))
        else:
            self._handle(message)
        return message is not None or answer is not None

    def stop(self) -> None:
        """Say what ends.

        Raises:
            LeaseLost: another launch says it instead.
        """
        self._search.searchers.close()
        if self._search.clerk is not None:
            self._search.clerk.refuse("the run is being stopped; the same command resumes it"
                                      if self.status is ExitStatus.RESUMABLE else "the run has ended")
        self._check_rights()
        self._note(ended(self._launch, int(self.status or 0), self._events.now()))

    def summary(self) -> str:
        """How long the run took, and the shares of what is not training ([FLEET] Table 4)."""
        return summary(self._launch, self._events.now())

    @property
    def _launch(self) -> Launch:
        assert self._run.launch is not None
        return self._run.launch

    # ---- decide ----

    def _handle(self, heard: Heard | None) -> None:
        try:
            effects = self._ensemble.handle(self._events.now(), heard)
        except TransitionError as error:
            log.critical("all that was heard, and what was done about it:\n%s", error.report())
            raise
        for effect in effects:
            self._carry_out(effect)

    def _ask(self, rates: RateTable, progress: Progress, cluster: Cluster) -> Decision:
        began = time.perf_counter()
        wanted = plan(self._policy, rates, progress, cluster, self._options)
        tried = frozenset() if self._online is None else probes_of_plan(
            self._policy, rates, self._online.least, progress, cluster, self._options, wanted)
        return Decision(wanted, time.perf_counter() - began, tried)

    def _offer(self, nodes: int, within_s: float) -> Offer:
        return self._ensemble.offer(nodes, within_s, self._events.now())

    def _check_lease(self) -> None:
        """Look now and then whether this launch is still the one that writes here.

        Raises:
            LeaseLost: it was stopped for so long that another has taken over.
        """
        if (now := time.monotonic()) >= self._checked_s + _LEASE_S:
            self._checked_s = now
            self._check_rights()

    def _check_rights(self) -> None:
        for right in (self._fence, self._harvest):
            if right is not None:
                right.check()

    # ---- do ----

    def _carry_out(self, effect: Effect) -> None:
        self._check_lease()
        match effect:
            case Tell(rank, tag, message):
                self._world.tell(rank, tag, message if self._harvest is None else self._harvest.fenced(message))
            case Note(event):
                self._note(event)
            case Keep(network, standing):
                self._results.keep(network, standing)
            case KeepParameters(network, parameters):
                self._results.count(network, parameters)
            case KeepRates(rates):
                self._profile.keep(rates)
            case ReadCheckpoint(network):
                standing, state = look_up(self._results, self._results.networks[network])
                self._handle(CheckpointRead(network, standing, 0 if state is None else state.position))
            case Consult(entry, call):
                self._search.searchers.consult(entry, call)
            case Admit(asked):
                assert self._search.admission is not None  # nothing is asked for without it
                self._search.admission.ask(asked)
                self._admit()
            case Fail(error):
                raise error
            case Finish(status, is_cut):
                self._profile.write()
                self.status, self.is_cut = status, is_cut

    def _admit(self) -> None:
        """Let networks come that were asked for."""
        if self._search.admission is not None:
            for admitted in self._search.admission.asked(self._ensemble.training, self._events.now()):
                self._handle(admitted)

    def _note(self, event: Event) -> None:
        self._run.apply(self._before_s + self._events.now(), event)
        self._events.add(event)
        log.info("%s", event)
        if isinstance(event, BadSample):
            self._results.add_bad(event.name, event.reason)
        for observer in self._observers:
            observer.on_event(event)
        if isinstance(event, EpochEnded | GroupStarted):
            self._estimate()

    def _estimate(self) -> None:
        """Say how long the run will go on, if that was not said a moment ago."""
        now = self._events.now()
        if self._is_interrupted or not self._estimate_times.is_due(now):
            return
        began = time.perf_counter()
        estimated = self._estimator.estimate(self._before_s + now, outlook(self._search.mind))
        self._estimate_times.made(now, time.perf_counter() - began, estimated)
        if estimated is not None:
            self._note(estimated)
