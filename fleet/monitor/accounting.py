"""Account for the time of a run from its event log: who trained when, and where the time went.

The events suffice, so a run can be examined while it goes on, after it was killed, and on another
machine. Launches of a resumed run follow each other without gaps; concurrent launches are side by
side.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from fleet.domain.events import EpochEnded, GroupStarted, LaunchStarted
from fleet.domain.overheads import mean_s
from fleet.domain.run import RunEpoch, RunState
from fleet.domain.run_launch import RunLaunch
from fleet.domain.timeline import are_concurrent
from fleet.errors import UserError
from fleet.plugins import find_policy
from fleet.units import parse_stream
from launch.errors import InputError
from scheduler.base import Network, Options, RateTable
from scheduler.ensemble.costs import Costs
from scheduler.simulation.ensemble import Stint
from scheduler.simulation.replay_run import ReplayedRun, replay, stints_of

# Activity -> its label in reports.
ACTIVITIES = {
    "training": "training",
    "data": "waiting for data",
    "waiting": "idle",
    "checkpointing": "checkpointing",
    "moving": "starting and regrouping",
    "scheduling": "scheduling",
    "profiling": "measuring rates",
}


@dataclass(frozen=True)
class TimeSpent:
    """GPU-seconds by activity, which add up to the total; networks on one GPU share it equally.

    Attributes:
        training: steps and validation.
        data: waiting for samples.
        checkpointing: training blocked by a checkpoint.
        moving: groups that have devices but do not train: they start, change, wait for orders,
            export a network, or repeat what a kill undid.
        waiting: GPUs without a group on any of their slots.
        scheduling, profiling: all GPUs wait for these.
    """

    training: float = 0.0
    data: float = 0.0
    checkpointing: float = 0.0
    moving: float = 0.0
    waiting: float = 0.0
    scheduling: float = 0.0
    profiling: float = 0.0

    @property
    def shares(self) -> dict[str, float]:
        """Shares of all GPU-seconds; 0 if there are none."""
        seconds = dataclasses.asdict(self)
        total = sum(seconds.values()) or 1.0
        return {name: spent / total for name, spent in seconds.items()}


@dataclass(frozen=True)
class Account:
    """The account of a run's time.

    Attributes:
        seconds: time in which a launch was active.
        policy: policy of the last launch.
        devices: devices of the last launch, or of all concurrent ones.
        gpus: number of whole GPUs among them.
        gpus_per_node, slots: whole GPUs per node and slots per GPU in the last launch.
        launches: number of launches.
        stints: which network trained when on which devices.
        spent: GPU-seconds by activity.
        costs: costs of moves in this run, as a simulation uses them.
        replay: the same run simulated; None for concurrent launches, or without rates or epochs.
        time_scale: seconds per second of training; not 1 if training was emulated.
        startup: (activity, seconds) from the command to the first step of the last launch, in
            order; empty before the first step.
        device: what the last launch trained on, such as GPU.
        first_signal_s: time at which every network had finished an epoch, so that they could be
            compared; None before that.
    """

    seconds: float
    policy: str
    devices: tuple[int, ...] = ()
    gpus: int = 0
    gpus_per_node: int = 1
    slots: int = 1
    launches: int = 0
    stints: tuple[Stint, ...] = ()
    spent: TimeSpent = TimeSpent()  # noqa: RUF009 - frozen
    costs: Costs = Costs()  # noqa: RUF009 - frozen
    replay: ReplayedRun | None = None
    time_scale: float = 1.0
    startup: tuple[tuple[str, float], ...] = ()
    device: str = "GPU"
    first_signal_s: float | None = None

    @property
    def measured_s(self) -> float | None:
        """Measured seconds from the first group to the last."""
        if self.replay is None:
            return None
        return self.replay.measured_s * self.time_scale

    @property
    def simulated_s(self) -> float | None:
        """Simulated seconds of the same part."""
        if self.replay is None:
            return None
        return self.replay.simulated.makespan_s * self.time_scale

    @property
    def ratio(self) -> float | None:
        """Measured over simulated time."""
        if self.replay is None:
            return None
        return self.replay.measured_s / self.replay.simulated.makespan_s


def account(run: RunState) -> Account | None:
    """Return the account of a run, or None if no launch has started.

    Raises:
        InputError: the log is damaged: times decrease, or numbers are impossible.
        ValueError: the log is damaged.
    """
    launches = run.launches
    if not launches:
        return None
    start = launches[-1].start
    are_beside = are_concurrent(launches)
    counted_launches = launches if are_beside else launches[-1:]
    devices = tuple(
        sorted({device for launch in counted_launches for device in launch.start.devices})
    )
    gpus = len({gpu for launch in counted_launches for gpu in launch.gpus})
    stints = stints_of(run.records)
    costs = _costs(run, is_lockstep=start.stream == "lockstep")
    simulated = None if are_beside else _replay(start, run, costs)
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
    """Return when every network that can had finished its first epoch; None before that."""
    first: dict[str, float] = {}
    for epoch in run.epochs:
        first.setdefault(epoch.network, epoch.t_s)
    missing = (network for name, network in run.networks.items() if name not in first)
    are_all_known = first and len(run.networks) >= run.launches[-1].start.networks
    if are_all_known and all(network.status.outcome for network in missing):
        return max(first.values())
    return None


def _startup(launch: RunLaunch) -> tuple[tuple[str, float], ...]:
    """Return the parts of a start-up, from before the log to the first step."""
    if launch.first_step is None:
        return ()
    stepped_s, first, formed_s = launch.first_step
    return (
        *launch.start.before_s.items(),
        ("loading the engine", formed_s - launch.began_s),
        (f"building {first.network}", first.build_s),
        ("its first step", max(0.0, stepped_s - formed_s - first.build_s)),
    )


# ---- time by activity --------------------------------------------------------------------------


def _spent(run: RunState, stints: Sequence[Stint]) -> TimeSpent:
    launches = run.launches
    training = 0.0
    data = 0.0
    scheduling = sum(launch.scheduling_s * len(launch.gpus) for launch in launches)
    profiling = sum(launch.profiling_s * len(launch.gpus) for launch in launches)
    checkpointing = sum(launch.checkpointing_s for launch in launches)
    shares = _gpu_parts(launches, stints)
    for epoch in run.epochs:
        took = epoch.record.seconds
        waited = epoch.record.waited_s
        gpu_s = sum(
            part.gpu_seconds(epoch.t_s - took, epoch.t_s) for part in shares.get(epoch.network, ())
        )
        training += gpu_s * (took - waited) / max(took, 1e-9)
        data += gpu_s * waited / max(took, 1e-9)
    gpu_s = sum(part.gpu_seconds() for parts in shares.values() for part in parts)
    moving = max(0.0, gpu_s - training - data - checkpointing)
    waiting = max(
        0.0, sum(launch.gpu_seconds for launch in launches) - gpu_s - scheduling - profiling
    )
    return TimeSpent(training, data, checkpointing, moving, waiting, scheduling, profiling)


@dataclass(frozen=True)
class _Part:
    """The share of a GPU that a network had for some time."""

    share: float
    start_s: float
    end_s: float

    def gpu_seconds(self, begin: float = -math.inf, end: float = math.inf) -> float:
        """Return the GPU-seconds between two times."""
        return self.share * max(0.0, min(end, self.end_s) - max(begin, self.start_s))


def _launch_of(stint: Stint, launches: Sequence[RunLaunch]) -> int:
    """Return the index of the launch in which a network had its devices."""
    for index in reversed(range(len(launches))):
        launch = launches[index]
        if launch.began_s <= stint.start_s <= launch.ended_s and launch.devices.issuperset(
            stint.devices
        ):
            return index
    raise InputError(
        f"at {stint.start_s} s: {stint.name} on devices {list(stint.devices)}, which belonged to "
        "no launch at that time"
    )


def _gpu_parts(
    launches: Sequence[RunLaunch], stints: Iterable[Stint]
) -> Mapping[str, Sequence[_Part]]:
    """Return the parts of GPUs that each network had; concurrent networks share a GPU equally."""
    stints_by_gpu: defaultdict[tuple[int, int], list[Stint]] = defaultdict(list)
    for stint in stints:
        index = _launch_of(stint, launches)
        for device in stint.devices:
            stints_by_gpu[index, launches[index].gpu(device)].append(stint)
    shares: defaultdict[str, list[_Part]] = defaultdict(list)
    for sharing in stints_by_gpu.values():
        times = sorted({time for stint in sharing for time in (stint.start_s, stint.end_s)})
        now = list[Stint]()
        # In the order of their starts.
        coming = deque(sharing)
        for begin, end in pairwise(times):
            now = [stint for stint in now if stint.end_s > begin]
            while coming and coming[0].start_s <= begin:
                now.append(coming.popleft())
            for stint in now:
                shares[stint.name].append(_Part(1 / len(now), begin, end))
    return shares


# ---- costs of moves ----------------------------------------------------------------------------


def _costs(run: RunState, is_lockstep: bool) -> Costs:
    """Return the mean costs of moves and of ends of epochs."""
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
    """Return the mean seconds between two epochs of an unchanged group.

    In lockstep groups wait for the slowest one, so only the shortest pause per epoch is a cost.
    """
    between: dict[object, float] = {}
    for epoch in epochs:
        if epoch.previous_event is EpochEnded:
            if is_lockstep:
                key: object = epoch.record.stream_epoch
            else:
                key = (epoch.network, epoch.record.epoch)
            between[key] = min(epoch.gap_s, between.get(key, epoch.gap_s))
    return mean_s(list(between.values()))


# ---- the simulation ----------------------------------------------------------------------------


def _replay(start: LaunchStarted, run: RunState, costs: Costs) -> ReplayedRun | None:
    """Simulate the run, in the time scale of its emulation."""
    scale = start.time_scale
    known_rates = _policy_rates(run.launches) or _observed_rates(
        run.epochs, scale, len(start.devices)
    )
    spread_rates = {
        name: rates for launch in run.launches for name, rates in launch.spread_rates.items()
    }
    rates = RateTable(
        start.samples,
        start.gpus_per_node,
        tuple(
            Network(
                name,
                tuple(rates),
                min_gpus=start.bounds[name][0],
                max_gpus=start.bounds[name][1],
                spread_rates=spread_rates.get(name, ()),
            )
            for name, rates in known_rates.items()
            if name in start.bounds
        ),
        sharing=run.sharing,
    )
    scaled = Costs(**{name: seconds / scale for name, seconds in dataclasses.asdict(costs).items()})
    records = [record._replace(t_s=record.t_s / scale) for record in run.records]
    # The input of the last launch that prepared samples, if any.
    supply = next(
        (launch.supply for launch in reversed(run.launches) if launch.stream or launch.supply), None
    )
    try:
        stream = parse_stream(start.stream)
        if supply is not None:
            stream = dataclasses.replace(stream, rate=supply.supply_samples_per_s * scale)
        return replay(
            records,
            rates,
            start.cluster,
            find_policy(start.policy),
            Options(**vars(start.options)),
            scaled,
            stream,
        )
    # No epoch has ended yet, a network has no rates, or a custom policy is not installed here.
    except (InputError, UserError):
        return None


def _policy_rates(launches: Iterable[RunLaunch]) -> Mapping[str, Sequence[float]]:
    """Return the latest rates that the policy used; a launch measures only unfinished networks."""
    return {name: rates for launch in launches for name, rates in launch.rates.items()}


def _observed_rates(
    epochs: Iterable[RunEpoch], scale: float, devices: int
) -> Mapping[str, Sequence[float]]:
    """Return rates observed in epochs, if the policy had none: one group size per network.

    Args:
        epochs: the epochs of the run.
        scale: seconds per second of training.
        devices: the largest group size to return rates for.
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
            scale * samples[name] / max(seconds[name], 1e-9) * size / group_size
            for size in range(1, min(group_size, devices) + 1)
        ]
        for name, group_size in gpus.items()
    }
