"""The coordinator, on rank 0: receive, decide, send.

It asks a policy what should run now and makes it so: groups that should not run are stopped at their
epoch's end, groups that should run are started as soon as their devices are free. A group that goes on
with other devices lets go of some at its epoch's end, and takes others in at any step, once they have
built its network; so it is where a group waits for orders that all is decided. The coordinator never blocks:
:meth:`Coordinator.step` does a bounded piece of work, so that rank 0 can prepare samples, or train.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fleet.comm.base import World
from fleet.comm.messages import (
    NO_LIMIT,
    Bad,
    Built,
    Converged,
    EpochDone,
    Exit,
    Failed,
    FellBack,
    GoOn,
    Join,
    Joined,
    Measure,
    Measured,
    Message,
    Pace,
    Pause,
    Paused,
    Produce,
    Ready,
    Regroup,
    Regrouped,
    Start,
    Stop,
    Stopped,
    Tag,
    Throughput,
)
from fleet.comm.roles import Roles
from fleet.errors import ExitStatus, InfrastructureError, UserError
from fleet.monitor.overheads import Overheads
from fleet.runtime.interrupt import Interruption, StartupTimes
from fleet.runtime.survey import Survey, Task
from fleet.spec import Spec
from fleet.storage.event_log import EventLog
from fleet.storage.events import (
    BadSample,
    BestLost,
    EpochEnded,
    Event,
    GroupChanged,
    GroupStarted,
    GroupStopped,
    GroupStruck,
    Interrupted,
    NetworkFailed,
    NetworkFellBack,
    NetworkFinished,
    NetworkRetried,
    Planned,
    PlannedGroup,
    Profiled,
    RankLost,
    RateMeasured,
    RatesGiven,
    RoundStarted,
    ScheduleOptions,
    Started,
    StreamStarted,
    TooLate,
)
from fleet.storage.files import write_json
from fleet.storage.results import Results, take_up
from fleet.storage.state import EpochRecord
from fleet.stream.layout import Layout
from scheduler.base import Cluster, Member, Progress, RateTable, Round
from scheduler.ensemble.rates import preprocessors_needed
from scheduler.ensemble.rates_file import write_rates

log = logging.getLogger("fleet.runtime.coordinator")

_REST_S = 5.0  # before a network is tried again; twice as long each time


class Observer(Protocol):
    """Who is shown what happens: the live view, TensorBoard, files."""

    def on_event(self, event: Event) -> None:
        """Something was decided or done; the same that goes into the event log."""

    def on_pace(self, network: str, samples: int, samples_per_s: float) -> None:
        """How far a group is."""


@dataclass
class RunningGroup:
    """A training group, from its start until its ranks are free again.

    Attributes:
        member: the network and its devices.
        next_epoch: of the stream: what it is granted when it has none in hand.
        reads_from: device -> the epoch from which on it reads the stream.
        joins: the epoch from which on devices will read that have not told the stream so yet.
        is_pausing: whether it was asked to wait for orders, and does not yet.
        coming: the devices that will join it -> whether they have built the network.
        before: the devices that it had before it changed for ``member``.
        is_struck: whether one of its ranks has died; the others are letting go of the network.
    """

    member: Member
    next_epoch: int
    reads_from: dict[int, int]
    joins: int | None
    is_stopping: bool = False
    is_struck: bool = False
    is_pausing: bool = False
    coming: dict[int, bool] = field(default_factory=dict)
    before: tuple[int, ...] = ()


class Coordinator:
    """See the module.

    Args:
        layout: of the stream; None where every trainer prepares its own samples, or finishes those that are kept.
        survey: the measurements to make.
        rates: instead of measuring.
        interruption: says when to stop before the end.
        results: of the networks, as far as earlier launches of this run have come.
        profile: the file where measured rates are written.
        replayed: the stream epochs to train on, one after another, where one network is trained again.
        first_epoch: of the stream, in this launch.
        unlogged: epochs of earlier launches that are in checkpoints and not in the event log.
    """

    def __init__(self, world: World, spec: Spec, roles: Roles, layout: Layout | None, survey: Survey,
                 rates: RateTable | None, results: Results, events: EventLog, profile: Path,
                 observers: Sequence[Observer], interruption: Interruption, first_epoch: int = 0,
                 replayed: Sequence[int] = (), unlogged: Sequence[tuple[str, EpochRecord]] = ()) -> None:
        self._world, self._spec, self._roles, self._layout = world, spec, roles, layout
        self._survey, self._rates, self._results, self._events = survey, rates, results, events
        self._profile = profile  # where measured rates are written
        self._observers, self._replayed, self._unlogged = tuple(observers), tuple(replayed), unlogged
        self._policy, self._options = spec.policy, spec.options
        self._cluster = Cluster(tuple(sorted(roles.rank_of)), roles.gpus_per_node)
        self._idle: set[int] = set()  # devices whose trainer waits for work
        self._groups: dict[str, RunningGroup] = {}
        self._lost: set[int] = set()  # ranks that died
        self._measuring: dict[tuple[int, ...], Task] = {}  # devices -> what they measure
        self._ended: list[str] = []  # groups at an epoch's end that have not been answered
        self._wanted = Round()
        self._is_stale = True  # whether something happened since the policy was asked
        self._first = first_epoch
        # Whether networks consume the epochs of one stream, or each counts its own.
        self._in_step = layout is not None and not layout.is_ring
        self._granted = first_epoch - 1  # the latest epoch of the stream that any group may train on
        self._produced: Produce | None = None
        self._throughput: list[float] = []
        self._round = 0
        self._group_number = 0
        self._measure_began: float | None = None
        self._deciding_s = 0.0  # that the policy has taken since it last wanted something else
        self._interruption, self._starts = interruption, StartupTimes(interruption)
        self._was_too_late = False
        self._interrupted = ""  # why, once it is
        self._failures: Counter[str] = Counter()  # of each network, for reasons that may pass
        self._passing: dict[str, bool] = {}  # whether what failed a network's measurement may pass
        self._resting: dict[str, float] = {}  # network -> when it is tried again, in seconds of the event log
        self._overheads = Overheads()
        self.status: ExitStatus | None = None

    # ---- the four steps of a role's life ----

    def start(self) -> None:
        """Say what begins, and what an earlier launch did not come to say."""
        options = self._options
        self._note(Started(
            networks=len(self._spec.networks), trainers=len(self._roles.trainers),
            preprocessors=len(self._roles.preprocessors), nodes=self._roles.nodes,
            gpus_per_node=self._roles.gpus_per_node, policy=self._spec.schedule.policy,
            finished=tuple(sorted(self._results.finished())), first_stream_epoch=self._first,
            samples=self._results.samples, devices=self._cluster.devices, stream=self._pace(),
            options=ScheduleOptions(options.alpha, str(options.delta), options.peak_limited, options.seed),
            bounds={network.name: (network.min_gpus, network.max_gpus) for network in self._spec.networks},
            time_scale=self._spec.resources.time_scale))
        if self._spec.schedule.rates is not None and self._rates is not None:
            self._note(RatesGiven({network.name: network.rates for network in self._rates.models}))
        for network, record in self._unlogged:
            self._note(EpochEnded(network, record))

    def step(self) -> bool:
        """Receive a message if there is one, decide, send; returns whether anything happened."""
        if self.status is not None:
            return False
        message = self._world.hear(Tag.COORDINATOR)
        if message is not None:
            self._receive(message)
        else:
            self._drop_dead_ranks()  # when all that the dead have said is heard
        if not self._interrupted and (reason := self._interruption.reason()):
            self._interrupt(reason)
        self._answer_ended()
        if self._interrupted:
            self._wind_up()
        elif self._rates is None:
            self._measure()
        elif self._may_train():
            self._direct()
        return message is not None

    def stop(self) -> None:
        """Say what ends."""
        self._note(self._overheads.ended(int(self.status or 0), self._events.now()))

    def summary(self) -> str:
        """How long the run took, and the shares of what is not training ([FLEET] Table 4)."""
        return self._overheads.summary(self._events.now())

    def _pace(self) -> str:
        """How groups depend on each other's pace, as :func:`fleet.units.parse_stream` reads it."""
        if self._layout is None or self._layout.slots >= self._layout.chunks:
            return "free"
        return f"ring:{self._layout.slots / self._layout.chunks:.2%}" if self._layout.is_ring else "lockstep"

    # ---- receive ----

    def _receive(self, message: Message) -> None:
        group = self._groups.get(getattr(message, "network", ""))
        if group is not None and group.is_struck:
            return  # how far the network has come will be read from its checkpoint
        if isinstance(message, Pace | EpochDone | Converged):
            self._starts.trained(message.network)
        if isinstance(message, Ready):
            self._idle.add(self._roles.device_of[message.rank])
        elif isinstance(message, Measured):
            self._on_measured(message)
        elif isinstance(message, Joined):
            self._groups[message.network].joins = None
            self._allow_production()
        elif isinstance(message, Built):
            self._on_built(message)
        elif isinstance(message, Pace):
            for observer in self._observers:
                observer.on_pace(*message)
        elif isinstance(message, EpochDone):
            self._on_epoch_done(message)
        elif isinstance(message, Paused):
            self._on_paused(message)
        elif isinstance(message, Regrouped):
            self._on_regrouped(message)
        elif isinstance(message, Converged):
            self._finish(message.network, message.reason)
            self._stop(self._groups[message.network])
        elif isinstance(message, FellBack):
            self._on_fell_back(message)
        elif isinstance(message, Stopped):
            self._on_stopped(message)
        elif isinstance(message, Failed):
            self._on_failed(message)
        elif isinstance(message, Throughput):
            self._throughput.append(message.samples_per_s)
        elif isinstance(message, Bad):
            self._on_bad(message)
        else:
            raise InfrastructureError(f"the coordinator did not expect {message}")

    def _on_epoch_done(self, done: EpochDone) -> None:
        group = self._groups[done.network]
        self._results.add_epoch(done.network, done.record)
        self._note(EpochEnded(done.network, done.record, done.blocked_s))
        if self._in_step:
            group.next_epoch += done.record.stream_epoch == group.next_epoch
        else:  # beyond all that the network has consumed
            group.next_epoch = self._next_own_epoch(done.network)
        self._is_stale = True
        if done.final:
            self._finish(done.network, done.final)
        self._ended.append(done.network)

    def _finish(self, network: str, reason: str) -> None:
        self._results.finish(network, reason)
        self._note(NetworkFinished(network, reason, epochs=len(self._results.histories[network])))

    def _answer_ended(self) -> None:
        """Tell the groups at an epoch's end what to do.

        In lockstep all end an epoch nearly together. They are answered together: the first would otherwise go on into
        another epoch when the last of them, a moment later, ends the round.
        """
        self._ended = [name for name in self._ended if name in self._groups and not self._groups[name].is_struck]
        ahead = max((self._groups[name].next_epoch for name in self._ended), default=0)
        if self._pace() == "lockstep" and not self._interrupted and any(
                group.next_epoch < ahead and not (group.is_stopping or group.is_struck)
                for group in self._groups.values()):
            return
        if self._ended:
            self._ask_policy()
        while self._ended:
            self._decide_on(self._ended.pop(0))

    def _decide_on(self, network: str) -> None:
        group = self._groups[network]
        devices = self._devices_at_end(group)
        if not devices:
            self._stop(group)
        else:
            self._go_on(group, devices, group.next_epoch)

    def _on_paused(self, paused: Paused) -> None:
        group = self._groups[paused.network]
        if self._interrupted:
            self._stop(group)
            return
        # An epoch that was begun in an earlier launch is not the one that was granted.
        following = group.next_epoch + (paused.stream_epoch == group.next_epoch)
        self._go_on(group, (*group.member.devices, *group.coming) if self._may_grow(group) else group.member.devices,
                    following)

    def _on_built(self, built: Built) -> None:
        group, device = self._groups.get(built.network), self._roles.device_of[built.rank]
        if group is not None and device in group.coming:  # else it comes too late, and has been told
            group.coming[device] = True

    def _on_regrouped(self, regrouped: Regrouped) -> None:
        group = self._groups[regrouped.network]
        group.joins = None
        self._note(GroupChanged(regrouped.network, group.before, group.member.devices, regrouped.position,
                                regrouped.seconds))
        self._allow_production()

    def _on_fell_back(self, fallen: FellBack) -> None:
        self._results.fall_back(fallen.network, fallen.history)
        self._note(NetworkFellBack(fallen.network, fallen.damage, len(fallen.history), fallen.position))

    def _on_stopped(self, stopped: Stopped) -> None:
        del self._groups[stopped.network]
        self._note(GroupStopped(stopped.network, stopped.checkpoint_s, stopped.export_s))
        if stopped.damage:
            self._note(BestLost(stopped.network, stopped.damage))
        self._is_stale = True

    def _on_failed(self, failed: Failed) -> None:
        self._dismiss(self._groups.pop(failed.network))
        if self._may_retry(failed):
            self._results.reopen(failed.network)  # it may have failed in its export
            self._resting[failed.network] = self._events.now() + _REST_S * 2 ** (self._failures[failed.network] - 1)
            self._is_stale = True
        else:
            self._fail(failed.network, failed.reason, failed.detail, failed.may_pass)

    def _may_retry(self, failed: Failed | Measured) -> bool:
        """Whether a network may be tried again; then that is logged, and counted."""
        if not failed.may_pass or self._failures[failed.network] >= self._spec.document.retries:
            return False
        self._failures[failed.network] += 1
        self._note(NetworkRetried(failed.network, failed.reason, retry=self._failures[failed.network],
                                  retries=self._spec.document.retries))
        return True

    def _fail(self, network: str, reason: str, detail: str = "", may_pass: bool = False) -> None:
        self._results.fail(network, reason, may_pass)
        self._note(NetworkFailed(network, reason, detail))
        self._is_stale = True

    def _on_bad(self, bad: Bad) -> None:
        if bad.name in self._results.bad:  # other ranks, or other epochs, have met it too
            return
        self._results.add_bad(bad.name, bad.reason)
        self._note(BadSample(bad.name, bad.reason, bad.training))
        share = len(self._results.bad) / self._results.samples
        if share > self._spec.data.max_bad:
            raise UserError(f"{len(self._results.bad)} of {self._results.samples} samples cannot be read, more than "
                            f"data.max_bad: {self._spec.data.max_bad:.2%}; the latest: {bad.name}: {bad.reason}")

    # ---- survive ----

    def _drop_dead_ranks(self) -> None:
        """Take ranks that died out of what is planned with, and plan what they did anew."""
        for rank in sorted(self._world.lost - self._lost):
            self._lost.add(rank)
            if self._replayed:
                raise InfrastructureError(f"rank {rank} has died")
            if rank not in self._roles.device_of:  # trainers prepare their samples themselves from now on
                self._note(RankLost(rank, device=None))
                continue
            device = self._roles.device_of[rank]
            self._idle.discard(device)
            self._cluster = self._cluster.without([device])
            self._is_stale = True
            self._note(RankLost(rank, device))
            for group in self._groups.values():
                group.is_struck |= device in group.member.devices
            for devices in [devices for devices in self._measuring if device in devices]:
                self._survey.again(self._measuring.pop(devices))
            self._survey.lose(self._cluster.gpus)
            if self._produced:
                self._allow_production()  # which no struck group holds back
            if not self._cluster.devices and not self._interrupted:
                self._interrupt("all trainers have died")
        for name, group in list(self._groups.items()):
            if group.is_struck and self._idle.issuperset(self._cluster.only(group.member.devices)):
                self._fall_back(name)

    def _fall_back(self, name: str) -> None:
        """A struck group has let go of its network, which goes back to its last checkpoint."""
        del self._groups[name]
        had = {(record.epoch, record.stream_epoch) for record in self._results.histories.get(name, ())}
        state = take_up(self._results, self._spec.by_name[name])
        history = self._results.histories.get(name, ())
        for record in history:
            if (record.epoch, record.stream_epoch) not in had:  # saved, and then the master died
                self._note(EpochEnded(name, record))
        self._results.write()
        self._is_stale = True
        self._note(GroupStruck(name, epochs=len(history), position=state.position if state else 0))

    # ---- measure ----

    def _measure(self) -> None:
        if self._measure_began is None:
            self._measure_began = time.perf_counter()
        while (task := self._survey.next(len(self._idle))) is not None:
            devices = _close_together(sorted(self._idle), task.gpus, self._cluster.gpus_per_node)
            self._idle -= set(devices)
            ranks = self._ranks(devices)
            order = Measure(task.network, ranks, self._next_group())
            for rank in ranks:
                self._world.tell(rank, Tag.TRAINER, order)
            self._measuring[devices] = task
        if self._survey.is_done:
            seconds = time.perf_counter() - self._measure_began
            self._rates = self._survey.table(self._results.samples)
            for network, reason in self._survey.failed.items():
                if network not in self._results.finished():
                    self._fail(network, reason, may_pass=self._passing[network])
            self._note(Profiled(self._survey.measured, seconds,
                                {network.name: network.rates for network in self._rates.models}))
            write_json(self._profile, write_rates(self._rates))

    def _on_measured(self, measured: Measured) -> None:
        task = Task(measured.network, measured.gpus)
        self._measuring = {devices: other for devices, other in self._measuring.items() if other != task}
        if self._may_retry(measured):
            self._survey.again(task)
            return
        self._survey.add(task, measured.rate, measured.reason)
        self._passing[measured.network] = measured.may_pass
        self._note(RateMeasured(measured.network, measured.gpus, measured.rate, measured.seconds,
                                done=self._survey.measured, total=self._survey.total, reason=measured.reason))

    # ---- decide ----

    def _may_train(self) -> bool:
        """Whether all preprocessors have said how fast they are."""
        return len(self._throughput) >= len(set(self._roles.preprocessors) - self._lost)

    def _ask_policy(self) -> None:
        assert self._rates is not None
        began = time.perf_counter()
        progress = Progress(
            running=tuple(group.member for group in self._groups.values() if not group.is_struck),
            epochs_done=self._results.epochs_done(), finished=self._results.finished() | self._resting.keys(),
            wanted=self._wanted)
        wanted = self._policy.decide(self._rates, progress, self._cluster, self._options)
        self._deciding_s += time.perf_counter() - began
        self._is_stale = False
        if wanted != self._wanted:
            self._wanted = wanted
            self._note(Planned(tuple(PlannedGroup(member.name, member.gpus, member.devices)
                                     for member in wanted.members), self._deciding_s))
            self._deciding_s = 0.0

    def _direct(self) -> None:
        """Make what runs like what should run."""
        if len(self._results.finished()) == len(self._spec.networks):
            if not self._groups:
                self._end()
            return
        for network in [name for name, until in self._resting.items() if self._events.now() >= until]:
            del self._resting[network]
            self._is_stale = True
        if self._is_stale:
            self._ask_policy()
        startable = [member for member in self._wanted.members
                     if member.name not in self._groups and set(member.devices) <= self._idle]
        if startable and self._starts.is_too_late():
            self._hold_back(startable)
        elif startable and not self._is_about_to_be_ready():
            self._start(startable)
        for group in self._groups.values():
            if not (group.is_stopping or group.is_struck):
                self._recruit(group)
        if not self._groups and not self._wanted.members and not self._resting:
            left = sorted({network.name for network in self._spec.networks} - self._results.finished())
            if self._lost:
                few = "1 trainer is" if self._cluster.gpus == 1 else f"{self._cluster.gpus} trainers are"
                self._interrupt(f"{len(self._lost)} ranks have died, and {few} too few for {', '.join(left)}")
                return
            raise InfrastructureError(f"the policy {self._spec.schedule.policy} leaves {', '.join(left)} waiting "
                                      "while nothing runs")

    def _is_about_to_be_ready(self) -> bool:
        """Whether a trainer of no group has not said yet that it waits.

        Groups that could start together should: each that comes later is given a later epoch of the stream, and the
        window keeps it from training on that before the others are near.
        """
        held = sum(group.member.gpus + len(group.coming) for group in self._groups.values())
        return self._in_step and held + len(self._idle) < self._cluster.gpus

    def _start(self, members: Sequence[Member]) -> None:
        if all(group.is_stopping for group in self._groups.values()):
            self._round += 1
            self._note(RoundStarted(self._round, tuple(member.name for member in members)))
        epoch = self._granted + 1
        for member in members:
            self._starts.started(member.name)
            own = epoch if self._in_step else self._next_own_epoch(member.name)
            self._groups[member.name] = RunningGroup(member, own, dict.fromkeys(member.devices, own), joins=own)
            self._idle -= set(member.devices)
            ranks = self._ranks(member.devices)
            order = Start(member.name, ranks, self._next_group(), self._stream_epoch(own))
            for rank in ranks:
                self._world.tell(rank, Tag.TRAINER, order)
            self._note(GroupStarted(member.name, member.devices, own, self._round))
        self._grant(epoch)

    def _hold_back(self, members: Sequence[Member]) -> None:
        """Start nothing any more; end once nothing runs."""
        if not self._was_too_late:
            self._was_too_late = True
            self._note(TooLate(tuple(member.name for member in members), self._interruption.seconds_left() or 0.0,
                               self._starts.longest_s or 0.0))
        if not self._groups:
            self._interrupt("too little of the walltime is left for another group")

    # ---- groups that change ----

    def _wanted_devices(self, group: RunningGroup) -> tuple[int, ...]:
        return next((member.devices for member in self._wanted.members if member.name == group.member.name), ())

    def _kept(self, group: RunningGroup) -> tuple[int, ...]:
        """The devices that a group keeps on its way to what is wanted; none where it has to be started anew."""
        network = self._spec.by_name[group.member.name]
        wanted = self._wanted_devices(group)
        kept = tuple(device for device in group.member.devices if device in wanted)
        # Where ranks may die, one could while it leaves, and those that are new would wait for the others.
        may_change = (network.train.batch.when_scaled == "fixed" and len(kept) >= network.min_gpus
                      and not self._world.outlives)
        return kept if may_change or set(wanted) == set(group.member.devices) else ()

    def _devices_at_end(self, group: RunningGroup) -> tuple[int, ...]:
        """The devices with which a group goes on at its epoch's end; none when it stops."""
        if self._interrupted or group.member.name in self._results.finished():
            return ()
        kept = self._kept(group)
        if not kept and self._starts.is_too_late():  # no other group would be started in its place
            return group.member.devices
        new = tuple(device for device in self._wanted_devices(group) if device not in kept)
        return (*kept, *new) if kept and all(map(group.coming.get, new)) else kept

    def _may_grow(self, group: RunningGroup) -> bool:
        """Whether a group keeps all its devices, and those that it is to get are ready."""
        grown = {*group.member.devices, *group.coming}
        return bool(group.coming) and all(group.coming.values()) and grown == set(self._wanted_devices(group))

    def _recruit(self, group: RunningGroup) -> None:
        """Have devices prepare to join a group, and tell it when they are ready."""
        self._dismiss(group, keep=self._wanted_devices(group))
        if self._kept(group):
            # A device of its own is idle where the group has been struck, and nobody here knows of that yet.
            new = set(self._wanted_devices(group)) - set(group.member.devices)
            for device in sorted(new & self._idle):
                self._idle.remove(device)
                group.coming[device] = False
                self._world.tell(self._roles.rank_of[device], Tag.TRAINER,
                                 Join(group.member.name, self._next_group()))
        # The path through a ring is the whole group's, and nobody else can take it up within an epoch.
        within = self._layout is None or not self._layout.is_ring
        if within and self._may_grow(group) and not group.is_pausing:
            self._pause(group)

    def _dismiss(self, group: RunningGroup, keep: Sequence[int] = ()) -> None:
        """Let devices go that were to join a group."""
        for device in [device for device in group.coming if device not in keep]:
            del group.coming[device]
            self._world.tell(self._roles.rank_of[device], Tag.TRAINER, Stop(final=False))

    def _pause(self, group: RunningGroup) -> None:
        group.is_pausing = True
        self._tell_master(group, Pause(ends=bool(self._interrupted)))

    def _stop(self, group: RunningGroup) -> None:
        """Answer a group that waits for orders: let go."""
        self._dismiss(group)
        group.is_stopping = True
        self._tell_master(group, Stop(final=group.member.name in self._results.finished()))

    def _go_on(self, group: RunningGroup, devices: tuple[int, ...], following: int) -> None:
        """Answer a group that waits for orders: train on, with these devices.

        Args:
            following: the epoch whose first sample it will read next.
        """
        group.is_pausing = False
        epoch = self._stream_epoch(group.next_epoch)
        if devices == group.member.devices:
            self._grant(group.next_epoch)
            self._tell_master(group, GoOn(epoch))
            return
        stay = [device for device in devices if device in group.member.devices]
        # Where networks share the stream's epochs, the first that it has left behind on no node.
        fresh = self._granted + 1 if self._in_step else 0
        order = Regroup(self._ranks(devices), len(stay), self._next_group(), epoch, reads_from=fresh)
        self._tell_master(group, order)
        group.reads_from = {device: group.reads_from[device] for device in stay}
        for device in devices[len(stay):]:
            # What those that stay will read next is protected on their nodes.
            held = [group.reads_from[mate] for mate in stay if self._cluster.node(mate) == self._cluster.node(device)]
            group.reads_from[device] = max(following, min(held, default=fresh)) if self._in_step else 0
            self._world.tell(self._roles.rank_of[device], Tag.TRAINER,
                             order._replace(reads_from=group.reads_from[device]))
            del group.coming[device]
        group.before, group.member = group.member.devices, Member(group.member.name, devices)
        group.joins = fresh if len(devices) > len(stay) else None
        self._grant(group.next_epoch)

    # ---- end ----

    def _interrupt(self, reason: str) -> None:
        """Have all groups save and let go, wherever in an epoch they are."""
        self._interrupted = reason
        self._note(Interrupted(reason, replay=bool(self._replayed)))
        for group in self._groups.values():
            if not group.is_stopping:
                self._pause(group)

    def _wind_up(self) -> None:
        """End once every trainer has let go, and what is being measured has been."""
        if not self._groups and len(self._idle) == self._cluster.gpus:
            self._end()

    def _end(self) -> None:
        if len(self._results.finished()) < len(self._spec.networks):
            self.status = ExitStatus.RESUMABLE
        else:
            self.status = ExitStatus.NETWORK_FAILED if self._results.failed() else ExitStatus.OK
        for rank in self._roles.trainers:
            self._world.tell(rank, Tag.TRAINER, Exit())
        for rank in self._roles.preprocessors:
            self._world.tell(rank, Tag.PREPROCESSOR, Exit())

    # ---- the stream ----

    def _next_own_epoch(self, network: str) -> int:
        """What a network trains on next, where each counts its own epochs: a replay counts those that it repeats."""
        if self._replayed:
            return len(self._results.histories.get(network, ()))
        return self._results.next_own_epoch(network)

    def _stream_epoch(self, number: int) -> int:
        """The stream epoch behind a granted number: itself, or the one that a replay repeats."""
        return self._replayed[number] if self._replayed and number < len(self._replayed) else number

    def _grant(self, epoch: int) -> None:
        """Let groups train on an epoch of the stream."""
        self._granted = max(self._granted, epoch)
        self._allow_production()

    def _allow_production(self) -> None:
        """Tell preprocessors how far the stream is wanted, and what late joiners still need.

        One epoch more than was granted is allowed, so that nobody waits at an epoch's start; the
        layout's lookahead keeps it to what is needed soon.
        """
        if not self._roles.shared:
            return
        chunks = self._layout.chunks if self._layout is not None else 0
        limit = hold = NO_LIMIT
        if self._in_step:
            joining = [group.joins for group in self._groups.values()
                       if group.joins is not None and not group.is_struck]
            limit, hold = (self._granted + 2) * chunks, min([*joining, self._granted + 1]) * chunks
        order = Produce(limit, hold, first=self._first * chunks,
                        turns=self._produced.turns if self._produced else self._choose_turns())
        if order != self._produced:
            self._produced = order
            for rank in self._roles.preprocessors:
                self._world.tell(rank, Tag.PREPROCESSOR, order)

    def _choose_turns(self) -> tuple[int, ...]:
        """The preprocessors that are needed: the least whose throughput meets what trainers can take.

        Samples are shared, so the demand is that of the fastest network alone, not the sum of all. Samples that are
        kept are prepared once, as fast as can be.
        """
        assert self._rates is not None
        demand = max(rate for network in self._rates.models for rate in network.rates)
        demand /= self._spec.resources.time_scale
        if self._spec.resources.preprocessors == "auto" and self._layout is not None:
            reached = [sum(self._throughput[:count + 1]) for count in range(len(self._throughput))]
            needed = max(preprocessors_needed(reached, demand), 1)
        else:
            needed = len(self._roles.preprocessors)
        supply = sum(self._throughput[:needed])
        self._note(StreamStarted(
            needed, len(self._roles.preprocessors), self._spec.schedule.policy,
            pace="shared" if self._in_step else "own", kept=self._layout is None, supply_samples_per_s=supply,
            demand_samples_per_s=demand, bottleneck="input" if supply < demand else "training"))
        return self._roles.preprocessors[:needed]

    # ---- small things ----

    def _ranks(self, devices: Sequence[int]) -> tuple[int, ...]:
        return tuple(self._roles.rank_of[device] for device in devices)

    def _next_group(self) -> int:
        self._group_number += 1
        return self._group_number

    def _tell_master(self, group: RunningGroup, message: Message) -> None:
        self._world.tell(self._roles.rank_of[group.member.devices[0]], Tag.TRAINER, message)

    def _note(self, event: Event) -> None:
        self._overheads.add(event)
        self._events.add(event)
        log.info("%s", event)
        for observer in self._observers:
            observer.on_event(event)


def _close_together(devices: Sequence[int], count: int, gpus_per_node: int) -> tuple[int, ...]:
    """Some of the devices, on as few nodes as can be.

    >>> _close_together([1, 4, 5, 6], 2, gpus_per_node=4)
    (4, 5)
    """
    runs = [tuple(devices[start:start + count]) for start in range(len(devices) - count + 1)]
    return min(runs, key=lambda run: len({device // gpus_per_node for device in run}))
