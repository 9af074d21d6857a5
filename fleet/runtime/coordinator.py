"""The coordinator, on rank 0: receive, decide, send.

A :class:`fleet.control.controller.Controller` makes all decisions and returns them as effects. The
coordinator passes it what MPI, the clock and signals report, and carries out its effects: it sends
messages, logs and displays events, and writes results. It never blocks: :meth:`Coordinator.step`
does a bounded amount of work, so that rank 0 can prepare samples, or train.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from fleet.comm.messages import Join, Pace, Start, Tag
from fleet.comm.protocols import World
from fleet.comm.trainer_threads import address
from fleet.control import effects as e
from fleet.control.controller import Controller
from fleet.control.history import ProtocolViolation
from fleet.control.launch_state import LaunchConfig, PriorRates
from fleet.control.node_release import NodeRelease
from fleet.control.rates import check_sharing_limit
from fleet.domain import events
from fleet.domain.run_launch import RunLaunch
from fleet.errors import ExitStatus
from fleet.gc_pause import collect_rarely
from fleet.hooks import find_hook
from fleet.monitor.eta import EstimateSchedule, Estimator
from fleet.runtime.admission import Admission
from fleet.runtime.external.command_handler import CommandHandler
from fleet.runtime.external.tracking import Tracking
from fleet.runtime.interrupt import Interruption
from fleet.runtime.known_rates import ProfileFile
from fleet.runtime.run_sharing import RunSharing
from fleet.runtime.searchers import Searchers
from fleet.search.controller import SearchController
from fleet.storage.checkpoint import complete_history
from fleet.storage.event_log import EventLog
from fleet.storage.files import storage_errors, with_retries
from fleet.storage.lease import Fence
from fleet.storage.recovery import read_network_status
from fleet.storage.results import Results
from scheduler.ensemble.planning import plan
from scheduler.ensemble.probing import Probes, find_probes_of_plan, try_spans

log = logging.getLogger("fleet.runtime.coordinator")

_LEASE_CHECK_S = 1.0  # between two checks of the lease; writers of checkpoints check it themselves
_RECEIVE_S = 0.01  # longest time for messages before rank 0 does other work


@dataclass(eq=False)
class Coordinator:
    """Runs the controller on rank 0; see the module.

    Effects are carried out in order. Inputs that arise meanwhile, such as the state of a checkpoint
    that an effect asked for, wait until all effects are done.

    Attributes:
        config: the configuration of the launch.
        prior_rates: the known rates of networks.
        results: the run's results and state, which the events of this launch update.
        event_log: the event log, whose clock the controller uses.
        profile: the file of measured rates.
        fence: the fence of this launch's lease.
        tracking: the process that writes the run to trackers.
        show: functions that receive every logged event.
        show_pace: is called after each message about the progress of a group.
        interruption: says when to stop early.
        search: the search controller, restored from the log, before any input.
        searchers: calls the searchers.
        admission: admits networks that are added.
        command_handler: handles users' commands; None if the launch takes none.
        sharing: the networks that this launch holds.
        status: the exit status of the launch; None before its end.
        is_cut: whether unresponsive ranks are left at the end.
        ending: the thread that ends this process, because the main thread is stuck; None otherwise.
    """

    world: World
    config: LaunchConfig
    prior_rates: PriorRates
    results: Results
    event_log: EventLog
    profile: ProfileFile
    fence: Fence
    tracking: Tracking
    show: Sequence[Callable[[events.Event], None]]
    show_pace: Callable[[], None]
    interruption: Interruption
    search: SearchController
    searchers: Searchers
    admission: Admission
    command_handler: CommandHandler | None
    sharing: RunSharing
    status: ExitStatus | None = field(init=False, default=None)
    is_cut: bool = field(init=False, default=False)
    ending: threading.Thread | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._run = run = self.results.run
        self._checked_s = 0.0
        self._controller = Controller(
            self.config,
            run,
            self.prior_rates,
            self.search,
            find_hook("node release", NodeRelease),
        )
        self._queue: deque[e.Input] = deque()  # inputs that the controller has not handled
        self._handled_deaths: frozenset[int] = frozenset()  # deaths that the controller has handled
        self._is_interrupted = False
        self._has_failed = False
        self._before_s = 0.0 if run.launch is None else run.launch.ended_s  # of earlier launches
        self._estimator = Estimator(self.config.spec, self.results.networks, run)
        self._estimate_times = EstimateSchedule()

    # ---- the four steps of a role's life ----

    def start(
        self,
        first: Iterable[events.Event] = (),
        checkpoint_statuses: Mapping[str, events.CheckpointStatus] = MappingProxyType({}),
        before_s: Mapping[str, float] = MappingProxyType({}),
        folders: tuple[str, ...] = (),
        origin: events.LaunchOrigin | None = None,
    ) -> None:
        """Log the start of the launch.

        Args:
            first: events to log next, among them what earlier launches did not log.
            checkpoint_statuses: network -> its status in its checkpoint, where it differs from the
                logs.
            before_s: part of the start-up -> its seconds.
            folders: folders from which the spec's modules are imported.
            origin: where the launch comes from.
        """
        if 0 not in self.config.roles.trainers:  # networks leave large garbage
            collect_rarely()
        spec = self.config.spec
        roles = self.config.roles
        options = spec.options
        finished = (name for name in self.results.networks if self._run.status_of(name).is_final)
        self._log_event(
            events.LaunchStarted(
                networks=len(spec.networks),
                trainers=len(roles.trainers),
                preprocessors=len(roles.preprocessors),
                nodes=roles.nodes,
                gpus_per_node=roles.gpus_per_node,
                policy=spec.schedule.policy,
                finished=tuple(sorted(finished)),
                first_stream_epoch=self.config.first_epoch,
                samples=self.config.samples,
                devices=tuple(sorted(roles.rank_of)),
                stream=self._controller.launch.grants.pace,
                options=events.ScheduleOptions(
                    options.alpha, options.delta, options.peak_limited, options.seed
                ),
                bounds={
                    network.name: (network.min_gpus, network.max_gpus) for network in spec.networks
                },
                time_scale=spec.resources.time_scale,
                date=self.event_log.date(),
                before_s=before_s,
                slots=roles.slots,
                fills=roles.fills,
                fused=roles.fused,
                device=roles.unit,
                found=checkpoint_statuses,
                beside=self.sharing.has_others,
                folders=folders,
                origin=origin,
            )
        )
        if spec.schedule.rates is not None and self.prior_rates.table is not None:
            self._log_event(
                events.RatesLoaded(
                    {network.name: network.rates for network in self.prior_rates.table.models},
                    {
                        network.name: network.spread_rates
                        for network in self.prior_rates.table.models
                        if network.spread_rates
                    },
                )
            )
        for event in first:
            self._log_event(event)
        warning = check_sharing_limit(self.config)
        if warning is not None:
            self._log_event(warning)

    def step(self) -> bool:
        """Receive waiting messages, decide, send; returns whether anything happened.

        After an error nothing more happens, whichever thread calls it: effects of a decision are
        missing, and the log would have a gap.
        """
        if self.status is not None or self._has_failed:
            return False
        try:
            return self._step()
        except BaseException:
            self._has_failed = True
            raise

    def _step(self) -> bool:
        self._check_lease()
        self.results.write_if_due()
        self.profile.write_if_due()
        for failed in self.tracking.failures():
            self._log_event(failed)
        if not self._is_interrupted and (reason := self.interruption.reason()):
            self._is_interrupted = True
            self._handle(e.EndRequested(reason, self.interruption.patience_s))
        for message in self.sharing.poll(
            self.event_log.now(), self._controller.launch.groups.names, self._is_interrupted
        ):
            self._handle(message)
        if self.command_handler is not None and not self._is_interrupted:
            self.command_handler.handle_commands(
                self._log_event,
                self._handle,
                lambda: self.status is None,
                lambda command, content: self._controller.node_release.choose(
                    command, content, self.event_log.now()
                ),
            )
        for admitted in self._admitted():
            self._handle(admitted)
        answer = self.searchers.poll_answer()
        if answer is not None:
            self._handle(answer)
        has_received, is_all = self._receive_messages()
        # Deaths are handled after all messages of the dead ranks. Later ones belong to groups that
        # exist no more.
        dead_ranks = self.world.dead_ranks
        dead = self.config.roles.with_trainers(dead_ranks)
        if is_all and dead > self._handled_deaths:
            self.world.ignore(dead_ranks)
            died = dead - self._handled_deaths
            self._handled_deaths = dead
            self._handle(e.RanksDied(tuple(sorted(died))))
        else:
            self._handle(None, more_wait=not is_all)
        return has_received or answer is not None

    def _receive_messages(self) -> tuple[bool, bool]:
        """Receive waiting messages for a limited time.

        Returns:
            Whether there were any, and whether none is left.
        """
        has_received = False
        until_s = time.monotonic() + _RECEIVE_S
        while self.status is None and not (has_received and time.monotonic() >= until_s):
            message = self.world.receive(Tag.COORDINATOR)
            if message is None:
                return has_received, True
            has_received = True
            if isinstance(message, Pace):
                self._run.record_pace(message.network, message.samples, message.samples_per_s)
                self.show_pace()
            self._handle(message, more_wait=True)
        return has_received, False

    def stop(self) -> None:
        """Log the end of the launch.

        Raises:
            LeaseLost: another launch has taken over and logs it instead.
        """
        self.searchers.close()
        if self.command_handler is not None:
            reason = "the run has ended"
            if self.status is ExitStatus.RESUMABLE:
                reason = "the run is being stopped; the same command resumes it"
            self.command_handler.refuse_all(reason)
        self._check_rights()
        self._log_event(self._launch.make_end_event(int(self.status or 0), self.event_log.now()))

    def summary(self) -> str:
        """Return the run's duration and the shares of overheads ([FLEET] Table 4)."""
        return self._launch.summary(self.event_log.now())

    @property
    def _launch(self) -> RunLaunch:
        assert self._run.launch is not None
        return self._run.launch

    # ---- decide ----

    def _handle(self, message: e.Input | None, more_wait: bool = False) -> None:
        """Pass one input or a clock tick to the controller, then all queued answers."""
        self._decide(message, more_wait)
        while self._queue:
            self._decide(self._queue.popleft())

    def _decide(self, message: e.Input | None, more_wait: bool = False) -> None:
        try:
            effects = self._controller.handle(self.event_log.now(), message, more_wait)
        except ProtocolViolation as error:
            log.critical("inputs and effects of the controller:\n%s", error.report())
            raise
        self._carry_out_all(effects)

    def _read_checkpoint(self, network: str) -> e.CheckpointRead:
        """Read the checkpoint of a network whose master may have died before it wrote the table."""
        status, state = read_network_status(self.results, self.results.networks[network])
        fence = self.sharing.fence_of(network) or self.fence
        path = self.results.paths.history(network)
        with_retries(lambda: complete_history(path, status.history, fence))
        return e.CheckpointRead(network, status, 0 if state is None else state.position)

    def _call_policy(self, question: e.AskPolicy) -> e.PolicyAnswered:
        began = time.perf_counter()
        policy = self.config.spec.policy
        options = self.config.spec.options
        answer = plan(policy, question.rates, question.progress, question.cluster, options)
        probes: Probes = frozenset()
        if question.rate_floor is not None:
            probes = find_probes_of_plan(
                policy,
                question.rates,
                question.rate_floor,
                question.progress,
                question.cluster,
                options,
                answer,
            )
        if question.is_span_untried is not None:
            answer, moved = try_spans(
                policy,
                question.rates,
                question.is_span_untried,
                question.progress,
                question.cluster,
                answer,
            )
            probes |= moved
        if answer == question.progress.target:  # the controller keeps the answers of a while
            answer = question.progress.target
        return e.PolicyAnswered(answer, time.perf_counter() - began, probes)

    def _check_lease(self) -> None:
        """Check regularly that this launch still holds its lease.

        Raises:
            LeaseLost: the lease expired, and another launch has taken over.
        """
        now = time.monotonic()
        if now >= self._checked_s + _LEASE_CHECK_S:
            self._checked_s = now
            self._check_rights()

    def _check_rights(self) -> None:
        def check() -> None:
            with storage_errors(self.fence.folder):
                self.fence.check()
                self.sharing.check()

        with_retries(check)

    # ---- effects ----

    def _carry_out_all(self, effects: Iterable[e.Effect]) -> None:
        can_estimate = False
        for effect in effects:
            self._carry_out(effect)
            can_estimate |= isinstance(effect, e.LogEvent) and isinstance(
                effect.event, events.EpochEnded | events.GroupStarted
            )
        if can_estimate and self.status is None:
            self._estimate()

    def _carry_out(self, effect: e.Effect) -> None:
        if self.ending not in (None, threading.current_thread()):
            threading.Event().wait()  # until the process ends
        self._check_lease()
        match effect:
            case e.SendMessage(rank, tag, message):
                self.event_log.sync()
                if isinstance(message, Start | Join):
                    fence = self.sharing.fence_of(message.network.name)
                    if fence is not None:
                        message = message._replace(fence=fence)
                process, message = address(self.config.roles, rank, message)
                self.world.send(process, tag, message)
            case e.LogEvent(event, t_s):
                self.results.on_event(event)
                self.event_log.add(event, t_s)
                log.info("%s", event)
                for show in self.show:
                    show(event)
            case e.SaveRates(rates):
                self.profile.keep(rates)
            case e.SaveDeath(network, death):
                self.results.deaths.record(network, death)
            case e.ReadCheckpoint(network):
                self._queue.append(self._read_checkpoint(network))
            case e.AskPolicy():
                # First, so that no other answer makes this one obsolete.
                self._queue.appendleft(self._call_policy(effect))
            case e.CallSearcher(entry, call):
                self.searchers.consult(entry, call)
            case e.AddNetwork():
                self.admission.request(effect)
                self._queue += self._admitted()
            case e.AbortLaunch(error):
                raise error
            case e.EndLaunch(exit_status, is_cut):
                self.profile.write()
                self.status = exit_status
                self.is_cut = is_cut

    def _admitted(self) -> Sequence[e.NetworkAdmitted]:
        """Return requested networks that were admitted."""
        return self.admission.pop_ready(self._controller.launch.groups.names, self.event_log.now())

    def _log_event(self, event: events.Event) -> None:
        self._carry_out_all(self._controller.log(self.event_log.now(), event))

    def _estimate(self) -> None:
        """Log an estimate of the remaining time, unless one was logged recently."""
        now = self.event_log.now()
        if self._is_interrupted or not self._estimate_times.is_due(now):
            return
        began = time.perf_counter()
        estimated = self._estimator.estimate(self._before_s + now, self.search.remaining_work)
        self._estimate_times.record(now, time.perf_counter() - began, estimated)
        if estimated is not None:
            self._log_event(estimated)
