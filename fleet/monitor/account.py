"""What a run's event log says: who trained when, where the time went, and what it should have taken.

The log alone is read, so a run can be looked at while it goes on, after it was killed, and on another machine.
A run that was resumed has several launches; they follow each other here as if nothing had been between them. Those
that were at work at the same time are side by side.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from fleet.domain.events import (
    EpochEnded,
    FirstStep,
    GroupChanged,
    GroupStarted,
    GroupStopped,
    NetworkFinished,
    Planned,
    Profiled,
    RatesEstimated,
    RatesGiven,
    SharingLearned,
    Started,
    StreamStarted,
    SupplyFound,
)
from fleet.errors import UserError
from fleet.monitor.overheads import Overheads
from fleet.monitor.timeline import Killed, Launch, LetGo, Moment, are_side_by_side, launches_of, records_of
from fleet.plugins import find_policy
from fleet.storage.event_log import Logged
from fleet.units import parse_delta, parse_stream
from scheduler.base import Delta, InputError, Network, Options, RateTable
from scheduler.ensemble.costs import Costs
from scheduler.simulation.as_it_ran import Replay, replay, stints_of
from scheduler.simulation.ensemble import Stint


@dataclass(frozen=True)
class Spent:
    """Where GPU-seconds went; they add up to those of the whole run. Networks on one GPU have equal parts of it.

    Attributes:
        training: steps, and validation.
        data: waiting for samples.
        checkpointing: training blocked by a checkpoint.
        moving: groups that have their devices and do not train: they start, change, wait for orders between
            epochs, export a network, or did what a kill undid.
        waiting: GPUs without a group, on any of their slots.
        scheduling, profiling: all GPUs wait for these.
    """

    training: float
    data: float
    checkpointing: float
    moving: float
    waiting: float
    scheduling: float
    profiling: float

    @property
    def shares(self) -> dict[str, float]:
        """Each as a share of all GPU-seconds; 0 as long as there are none."""
        seconds = dataclasses.asdict(self)
        total = sum(seconds.values()) or 1.0
        return {name: spent / total for name, spent in seconds.items()}


@dataclass(frozen=True)
class Account:
    """A run, as its log tells it.

    Attributes:
        seconds: in which there was a launch.
        policy: of the last launch.
        devices: that the last launch had, or all that were side by side.
        gpus: how many whole ones these are.
        gpus_per_node, slots: whole GPUs of a node, and devices that share one, in the last launch.
        launches: how many there were.
        stints: who trained when on which devices.
        spent: where the time went.
        costs: what moves cost in this run, as a simulation takes them.
        replay: the same run simulated; None where rates or epochs are missing, and of launches side by side.
        time_scale: seconds that a second of training took: not 1 where it was emulated.
        startup: (what was done, seconds) from the command to the first step of the last launch, one behind the other;
            empty where it has not come to a step.
        device: what networks were trained on in the last launch, in a word, such as GPU.
    """

    seconds: float
    policy: str
    devices: tuple[int, ...]
    gpus: int
    gpus_per_node: int
    slots: int
    launches: int
    stints: tuple[Stint, ...]
    spent: Spent
    costs: Costs
    replay: Replay | None
    time_scale: float
    startup: tuple[tuple[str, float], ...] = ()
    device: str = "GPU"

    @property
    def measured_s(self) -> float | None:
        """From the first group to the last."""
        return None if self.replay is None else self.replay.measured_s * self.time_scale

    @property
    def simulated_s(self) -> float | None:
        """What that should have taken."""
        return None if self.replay is None else self.replay.simulated.makespan_s * self.time_scale

    @property
    def ratio(self) -> float | None:
        """How many times as long as simulated the run took."""
        return None if self.replay is None else self.replay.measured_s / self.replay.simulated.makespan_s


def account(log: Iterable[Logged]) -> Account | None:
    """Read a run's log, of all its launches.

    Returns:
        None where no launch has come as far as to begin.

    Raises:
        InputError: the log is of no run: its times go back, or its numbers cannot be.
        ValueError: the same.
    """
    launches = launches_of(log)
    if not launches:
        return None
    start = launches[-1].start
    beside = are_side_by_side(launches)
    moments = [moment for launch in launches for moment in launch.moments]
    if beside:
        moments.sort(key=lambda moment: moment.t_s)
    shown = launches if beside else launches[-1:]
    devices = tuple(sorted({device for launch in shown for device in launch.start.devices}))
    gpus = len({gpu for launch in shown for gpu in launch.gpus})
    stints = stints_of(records_of(moments))
    costs = _costs(moments, is_lockstep=start.stream == "lockstep")
    simulated = None if beside else _replay(start, moments, costs)
    return Account(max(launch.ended_s for launch in launches), start.policy, devices, gpus,
                   start.gpus_per_node // start.slots, start.slots, len(launches), stints, _spent(launches, stints),
                   costs, simulated, start.time_scale, _startup(launches[-1]), start.device)


def _startup(launch: Launch) -> tuple[tuple[str, float], ...]:
    """The parts of a start-up: those before the log, waiting for a trainer, building the first network, its step."""
    steps = [(moment.t_s, moment.event) for moment in launch.moments if isinstance(moment.event, FirstStep)]
    if not steps:
        return ()
    (stepped_s, first), began_s = steps[0], launch.moments[0].t_s
    formed_s = max((moment.t_s for moment in launch.moments if isinstance(moment.event, GroupStarted)
                    and moment.event.network == first.network and moment.t_s <= stepped_s), default=began_s)
    return (*launch.start.before_s.items(), ("loading the engine", formed_s - began_s),
            (f"building {first.network}", first.build_s),
            ("its first step", max(0.0, stepped_s - formed_s - first.build_s)))


# ---- where the time went -----------------------------------------------------------------------


def _spent(launches: Sequence[Launch], stints: Sequence[Stint]) -> Spent:
    scheduling = profiling = checkpointing = training = data = 0.0
    for launch in launches:
        gpus = len(launch.gpus)
        overheads = Overheads(moment.event for moment in launch.moments if not isinstance(moment.event, Killed))
        scheduling += overheads.scheduling_s * gpus
        profiling += overheads.profiling_s * gpus
        checkpointing += overheads.checkpointing_s
    had = _had(launches, stints)
    for moment in (moment for launch in launches for moment in launch.moments):
        if isinstance(moment.event, EpochEnded):
            took, waited = moment.event.record.seconds, moment.event.record.waited_s
            held = sum(part.gpu_seconds(moment.t_s - took, moment.t_s) for part in had.get(moment.event.network, ()))
            training += held * (took - waited) / max(took, 1e-9)
            data += held * waited / max(took, 1e-9)
    held = sum(part.gpu_seconds() for parts in had.values() for part in parts)
    moving = max(0.0, held - training - data - checkpointing)
    waiting = max(0.0, sum(launch.gpu_seconds for launch in launches) - held - scheduling - profiling)
    return Spent(training, data, checkpointing, moving, waiting, scheduling, profiling)


@dataclass(frozen=True)
class _Part:
    """What a network had of a GPU, from one moment to another."""

    share: float
    start_s: float
    end_s: float

    def gpu_seconds(self, begin: float = -math.inf, end: float = math.inf) -> float:
        """What lies between two moments."""
        return self.share * max(0.0, min(end, self.end_s) - max(begin, self.start_s))


def _launch_of(stint: Stint, launches: Sequence[Launch]) -> int:
    """The place of the launch in which a network had its devices."""
    for place in reversed(range(len(launches))):
        launch = launches[place]
        if launch.moments[0].t_s <= stint.start_s <= launch.ended_s and launch.devices.issuperset(stint.devices):
            return place
    raise InputError(f"at {stint.start_s} s: {stint.name} on devices {list(stint.devices)}, which no launch had then")


def _had(launches: Sequence[Launch], stints: Iterable[Stint]) -> Mapping[str, Sequence[_Part]]:
    """What each network had of all GPUs: of one that several shared, equal parts."""
    tenants: defaultdict[tuple[int, int], list[Stint]] = defaultdict(list)
    for stint in stints:
        place = _launch_of(stint, launches)
        for device in stint.devices:
            tenants[place, launches[place].gpu(device)].append(stint)
    had: defaultdict[str, list[_Part]] = defaultdict(list)
    for sharing in tenants.values():
        times = sorted({time for stint in sharing for time in (stint.start_s, stint.end_s)})
        now, coming = list[Stint](), deque(sharing)  # in order of their start
        for begin, end in pairwise(times):
            now = [stint for stint in now if stint.end_s > begin]
            while coming and coming[0].start_s <= begin:
                now.append(coming.popleft())
            for stint in now:
                had[stint.name].append(_Part(1 / len(now), begin, end))
    return had


# ---- what moves cost ---------------------------------------------------------------------------


def _costs(moments: Sequence[Moment], is_lockstep: bool) -> Costs:
    """What moves, and ends of epochs, cost on average."""
    forming = [gap for before, _, gap in _gaps(moments) if isinstance(before, GroupStarted)]
    stopping, deciding = [], []
    final: set[str] = set()
    for moment in moments:
        match moment.event:
            case GroupChanged() as changed:
                forming.append(changed.seconds)
            case NetworkFinished() as finished:
                final.add(finished.network)
            case GroupStopped() as stopped if stopped.network not in final:
                stopping.append(stopped.checkpoint_s)
            case Planned() as plan:
                deciding.append(plan.scheduling_s)
    return Costs(checkpoint_s=_mean(stopping), regroup_s=_mean(forming), scheduling_s=_mean(deciding),
                 epoch_s=_between_epochs(moments, is_lockstep))


def _between_epochs(moments: Iterable[Moment], is_lockstep: bool) -> float:
    """What passed between two epochs of a group that went on as it was, on average.

    In lockstep groups wait for the slowest at an epoch's end: only what passed for that one is a cost.
    """
    between: dict[object, float] = {}
    for before, after, gap in _gaps(moments):
        if isinstance(before, EpochEnded):
            which = after.record.stream_epoch if is_lockstep else (after.network, after.record.epoch)
            between[which] = min(gap, between.get(which, gap))
    return _mean(list(between.values()))


_OfAGroup = GroupStarted | GroupChanged | EpochEnded | LetGo


def _gaps(moments: Iterable[Moment]) -> Iterator[tuple[_OfAGroup, EpochEnded, float]]:
    """Each epoch, what its network's group did before, and the seconds from that to the epoch's begin."""
    latest: dict[str, tuple[float, _OfAGroup]] = {}
    for moment in moments:
        event = moment.event
        if not isinstance(event, _OfAGroup):
            continue
        if isinstance(event, EpochEnded) and event.network in latest and not moment.is_late:
            then_s, before = latest[event.network]
            yield before, event, moment.t_s - event.record.seconds - then_s
        latest[event.network] = moment.t_s, event


def _mean(values: Sequence[float]) -> float:
    return max(0.0, statistics.fmean(values)) if values else 0.0


# ---- beside the simulation ---------------------------------------------------------------------


def _replay(start: Started, moments: Sequence[Moment], costs: Costs) -> Replay | None:
    """The run simulated, in the time of what was emulated."""
    scale = start.time_scale
    known = _told(moments) or _shown(moments, scale, len(start.devices))
    rates = RateTable(start.samples, start.gpus_per_node, tuple(
        Network(name, tuple(rates), min_gpus=start.bounds[name][0], max_gpus=start.bounds[name][1])
        for name, rates in known.items() if name in start.bounds), sharing=_sharing(moments))
    supply = _supply(moments)
    options = Options(start.options.alpha, _delta(start.options.delta), start.options.peak_limited, start.options.seed)
    scaled = Costs(**{name: seconds / scale for name, seconds in dataclasses.asdict(costs).items()})
    records = [dataclasses.replace(record, t_s=record.t_s / scale) for record in records_of(moments)]
    try:
        stream = parse_stream(start.stream)
        if supply is not None:
            stream = dataclasses.replace(stream, rate=supply * scale)
        return replay(records, rates, start.cluster, find_policy(start.policy), options, scaled, stream)
    except InputError:  # no network has ended an epoch yet, or one has no rates
        return None
    except UserError:  # a policy of the user's own that is not here
        return None


def _supply(moments: Sequence[Moment]) -> float | None:
    """The samples/s that the input gave in the end; None where samples were kept, or nobody prepared them for all."""
    found = [moment.event for moment in moments if isinstance(moment.event, StreamStarted | SupplyFound)]
    is_kept = not found or (isinstance(found[-1], StreamStarted) and found[-1].kept)
    return None if is_kept else found[-1].supply_samples_per_s


def _sharing(moments: Sequence[Moment]) -> tuple[float, ...]:
    """What networks that shared a GPU trained together, as it was known in the end."""
    found = [moment.event.speedups for moment in moments if isinstance(moment.event, SharingLearned)]
    return found[-1] if found else (1.0,)


def _delta(text: str) -> Delta:
    """The delta of a log; until 0.1.0 samples/s were written without their unit."""
    return parse_delta(text if text.endswith(("%", "/s")) else f"{text}/s")


def _told(moments: Iterable[Moment]) -> Mapping[str, Sequence[float]]:
    """The rates that the policy was told last; a launch finds out those of networks that are not done."""
    rates: dict[str, Sequence[float]] = {}
    for moment in moments:
        if isinstance(moment.event, RatesEstimated) and not moment.event.seen:
            continue  # they only say how networks compare
        if isinstance(moment.event, RatesGiven | Profiled | RatesEstimated):
            rates |= moment.event.rates
    return rates


def _shown(moments: Iterable[Moment], scale: float, devices: int) -> Mapping[str, Sequence[float]]:
    """The rates that networks showed, where the policy was told none: then each has one group size only.

    Args:
        scale: seconds that a second of training took.
        devices: the largest group that rates are wanted for.
    """
    samples: dict[str, float] = {}
    seconds: dict[str, float] = {}
    gpus: dict[str, int] = {}
    for moment in moments:
        if isinstance(moment.event, EpochEnded):
            name, record = moment.event.network, moment.event.record
            samples[name] = samples.get(name, 0.0) + record.samples
            seconds[name] = seconds.get(name, 0.0) + record.seconds - record.waited_s
            gpus[name] = record.gpus
    return {name: [scale * samples[name] / max(seconds[name], 1e-9) * size / most
                   for size in range(1, min(most, devices) + 1)] for name, most in gpus.items()}
