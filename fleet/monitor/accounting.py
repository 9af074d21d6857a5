"""What a run's event log says: who trained when, where the time went, and what it should have taken.

Its events alone say it, so a run can be looked at while it goes on, after it was killed, and on another machine.
A run that was resumed has several launches; they follow each other here as if nothing had been between them. Those
that were at work at the same time are side by side.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from fleet.domain.events import EpochEnded, GroupStarted, LaunchStarted
from fleet.domain.run import RunEpoch, RunLaunch, RunState
from fleet.errors import UserError
from fleet.monitor.overheads import mean_s
from fleet.monitor.timeline import are_concurrent
from fleet.plugins import find_policy
from fleet.units import parse_delta, parse_stream
from scheduler.base import InputError, Network, Options, RateTable
from scheduler.ensemble.costs import Costs
from scheduler.simulation.ensemble import Stint
from scheduler.simulation.replay_run import ReplayedRun, replay, stints_of


@dataclass(frozen=True)
class TimeSpent:
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
        first_signal_s: when every network had ended its first epoch, so that they could be compared; None before that.
    """

    seconds: float
    policy: str
    devices: tuple[int, ...]
    gpus: int
    gpus_per_node: int
    slots: int
    launches: int
    stints: tuple[Stint, ...]
    spent: TimeSpent
    costs: Costs
    replay: ReplayedRun | None
    time_scale: float
    startup: tuple[tuple[str, float], ...] = ()
    device: str = "GPU"
    first_signal_s: float | None = None

    @property
    def measured_s(self) -> float | None:
        """From the first group to the last."""
        if self.replay is None:
            return None
        return self.replay.measured_s * self.time_scale

    @property
    def simulated_s(self) -> float | None:
        """What that should have taken."""
        if self.replay is None:
            return None
        return self.replay.simulated.makespan_s * self.time_scale

    @property
    def ratio(self) -> float | None:
        """How many times as long as simulated the run took."""
        if self.replay is None:
            return None
        return self.replay.measured_s / self.replay.simulated.makespan_s


def account(run: RunState) -> Account | None:
    """What there is to say of the time of a run.

    Returns:
        None where no launch has come as far as to begin.

    Raises:
        InputError: the log is of no run: its times go back, or its numbers cannot be.
        ValueError: the same.
    """
    launches = run.launches
    if not launches:
        return None
    start = launches[-1].start
    beside = are_concurrent(launches)
    shown = launches if beside else launches[-1:]
    devices = tuple(sorted({device for launch in shown for device in launch.start.devices}))
    gpus = len({gpu for launch in shown for gpu in launch.gpus})
    stints = stints_of(run.records)
    costs = _costs(run, is_lockstep=start.stream == "lockstep")
    simulated = None if beside else _replay(start, run, costs)
    return Account(
        max(launch.ended_s for launch in launches),
        start.policy,
        devices,
        gpus,
        start.gpus_per_node // start.slots,
        start.slots,
        len(launches),
        stints,
        _spent(run, stints),
        costs,
        simulated,
        start.time_scale,
        _startup(launches[-1]),
        start.device,
        _first_signal_s(run),
    )


def _first_signal_s(run: RunState) -> float | None:
    """When every network had ended its first epoch, but for those that never will; None as long as one has not."""
    first: dict[str, float] = {}
    for epoch in run.epochs:
        first.setdefault(epoch.network, epoch.t_s)
    missing = (network for name, network in run.networks.items() if name not in first)
    are_all_known = first and len(run.networks) >= run.launches[-1].start.networks
    if are_all_known and all(one.status.outcome for one in missing):
        return max(first.values())
    return None


def empty_account(policy: str) -> Account:
    """That of a run before its first launch."""
    return Account(
        0.0,
        policy,
        (),
        0,
        1,
        1,
        0,
        (),
        TimeSpent(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
        Costs(),
        None,
        1.0,
    )


def _startup(launch: RunLaunch) -> tuple[tuple[str, float], ...]:
    """The parts of a start-up: those before the log, waiting for a trainer, building the first network, its step."""
    if launch.first_step is None:
        return ()
    stepped_s, first, formed_s = launch.first_step
    return (
        *launch.start.before_s.items(),
        ("loading the engine", formed_s - launch.began_s),
        (f"building {first.network}", first.build_s),
        ("its first step", max(0.0, stepped_s - formed_s - first.build_s)),
    )


# ---- where the time went -----------------------------------------------------------------------


def _spent(run: RunState, stints: Sequence[Stint]) -> TimeSpent:
    launches = run.launches
    training = 0.0
    data = 0.0
    scheduling = sum(launch.scheduling_s * len(launch.gpus) for launch in launches)
    profiling = sum(launch.profiling_s * len(launch.gpus) for launch in launches)
    checkpointing = sum(launch.checkpointing_s for launch in launches)
    had = _had(launches, stints)
    for epoch in run.epochs:
        took = epoch.record.seconds
        waited = epoch.record.waited_s
        held = sum(
            part.gpu_seconds(epoch.t_s - took, epoch.t_s) for part in had.get(epoch.network, ())
        )
        training += held * (took - waited) / max(took, 1e-9)
        data += held * waited / max(took, 1e-9)
    held = sum(part.gpu_seconds() for parts in had.values() for part in parts)
    moving = max(0.0, held - training - data - checkpointing)
    waiting = max(
        0.0, sum(launch.gpu_seconds for launch in launches) - held - scheduling - profiling
    )
    return TimeSpent(training, data, checkpointing, moving, waiting, scheduling, profiling)


@dataclass(frozen=True)
class _Part:
    """What a network had of a GPU, from one moment to another."""

    share: float
    start_s: float
    end_s: float

    def gpu_seconds(self, begin: float = -math.inf, end: float = math.inf) -> float:
        """What lies between two moments."""
        return self.share * max(0.0, min(end, self.end_s) - max(begin, self.start_s))


def _launch_of(stint: Stint, launches: Sequence[RunLaunch]) -> int:
    """The place of the launch in which a network had its devices."""
    for place in reversed(range(len(launches))):
        launch = launches[place]
        if launch.began_s <= stint.start_s <= launch.ended_s and launch.devices.issuperset(
            stint.devices
        ):
            return place
    raise InputError(
        f"at {stint.start_s} s: {stint.name} on devices {list(stint.devices)}, which no launch had then"
    )


def _had(launches: Sequence[RunLaunch], stints: Iterable[Stint]) -> Mapping[str, Sequence[_Part]]:
    """What each network had of all GPUs: of one that several shared, equal parts."""
    tenants: defaultdict[tuple[int, int], list[Stint]] = defaultdict(list)
    for stint in stints:
        place = _launch_of(stint, launches)
        for device in stint.devices:
            tenants[place, launches[place].gpu(device)].append(stint)
    had: defaultdict[str, list[_Part]] = defaultdict(list)
    for sharing in tenants.values():
        times = sorted({time for stint in sharing for time in (stint.start_s, stint.end_s)})
        # in order of their start
        now = list[Stint]()
        coming = deque(sharing)
        for begin, end in pairwise(times):
            now = [stint for stint in now if stint.end_s > begin]
            while coming and coming[0].start_s <= begin:
                now.append(coming.popleft())
            for stint in now:
                had[stint.name].append(_Part(1 / len(now), begin, end))
    return had


# ---- what moves cost ---------------------------------------------------------------------------


def _costs(run: RunState, is_lockstep: bool) -> Costs:
    """What moves, and ends of epochs, cost on average."""
    forming = [epoch.gap_s for epoch in run.epochs if epoch.previous_event is GroupStarted]
    stopping = [
        stopped.checkpoint_s
        for launch in run.launches
        for stopped, outcome in launch.stops
        if outcome is None or outcome.is_pruned
    ]
    plans = sum(launch.plans for launch in run.launches)
    return Costs(
        checkpoint_s=mean_s(stopping),
        regroup_s=mean_s([*forming, *run.regrouped]),
        scheduling_s=sum(launch.scheduling_s for launch in run.launches) / max(plans, 1),
        epoch_s=_between_epochs(run.epochs, is_lockstep),
    )


def _between_epochs(epochs: Iterable[RunEpoch], is_lockstep: bool) -> float:
    """What passed between two epochs of a group that went on as it was, on average.

    In lockstep groups wait for the slowest at an epoch's end: only what passed for that one is a cost.
    """
    between: dict[object, float] = {}
    for epoch in epochs:
        if epoch.previous_event is EpochEnded:
            if is_lockstep:
                which: object = epoch.record.stream_epoch
            else:
                which = (epoch.network, epoch.record.epoch)
            between[which] = min(epoch.gap_s, between.get(which, epoch.gap_s))
    return mean_s(list(between.values()))


# ---- beside the simulation ---------------------------------------------------------------------


def _replay(start: LaunchStarted, run: RunState, costs: Costs) -> ReplayedRun | None:
    """The run simulated, in the time of what was emulated."""
    scale = start.time_scale
    known = _policy_rates(run.launches) or _observed_rates(run.epochs, scale, len(start.devices))
    rates = RateTable(
        start.samples,
        start.gpus_per_node,
        tuple(
            Network(
                name, tuple(rates), min_gpus=start.bounds[name][0], max_gpus=start.bounds[name][1]
            )
            for name, rates in known.items()
            if name in start.bounds
        ),
        sharing=run.sharing,
    )
    asked = start.options
    delta = start.options.delta
    # until 0.1.0 samples/s were written without it
    if delta.endswith(("%", "/s")):
        unit = ""
    else:
        unit = "/s"
    options = Options(asked.alpha, parse_delta(delta + unit), asked.peak_limited, asked.seed)
    scaled = Costs(**{name: seconds / scale for name, seconds in dataclasses.asdict(costs).items()})
    records = [record._replace(t_s=record.t_s / scale) for record in run.records]
    # The input of the last launch that has begun to prepare samples, if any did.
    fed = next(
        (launch.supply for launch in reversed(run.launches) if launch.stream or launch.supply), None
    )
    try:
        stream = parse_stream(start.stream)
        if fed is not None:
            stream = dataclasses.replace(stream, rate=fed.supply_samples_per_s * scale)
        return replay(
            records, rates, start.cluster, find_policy(start.policy), options, scaled, stream
        )
    except InputError:  # no network has ended an epoch yet, or one has no rates
        return None
    except UserError:  # a policy of the user's own that is not here
        return None


def _policy_rates(launches: Iterable[RunLaunch]) -> Mapping[str, Sequence[float]]:
    """The rates that the policy was told last; a launch finds out those of networks that are not done."""
    return {name: rates for launch in launches for name, rates in launch.rates.items()}


def _observed_rates(
    epochs: Iterable[RunEpoch], scale: float, devices: int
) -> Mapping[str, Sequence[float]]:
    """The rates that networks showed, where the policy was told none: then each has one group size only.

    Args:
        scale: seconds that a second of training took.
        devices: the largest group that rates are wanted for.
    """
    samples: dict[str, float] = {}
    seconds: dict[str, float] = {}
    gpus: dict[str, int] = {}
    for epoch in epochs:
        name = epoch.network
        record = epoch.record
        samples[name] = samples.get(name, 0.0) + record.samples
        seconds[name] = seconds.get(name, 0.0) + record.seconds - record.waited_s
        gpus[name] = record.gpus
    return {
        name: [
            scale * samples[name] / max(seconds[name], 1e-9) * size / most
            for size in range(1, min(most, devices) + 1)
        ]
        for name, most in gpus.items()
    }
