"""A launch of a run with its groups, as they follow from its events (pure)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from fleet.domain import events as e
from fleet.domain.network import EpochRecord, Outcome
from fleet.spec import Spec
from fleet.units import format_duration
from launch.errors import pluralize
from scheduler.base import Cluster, GroupShape, Network, Span
from scheduler.ensemble.rates import rate


@dataclass
class RunLaunch:
    """A launch, from its start to its latest event.

    Attributes:
        began_s, ended_s: times of its first and its newest event, in seconds of the run.
        rounds: rounds that have begun.
        plans: number of plans of the policy.
        profiling_s, scheduling_s: seconds for which all devices waited for rates, and for the
            policy.
        checkpointing_s: GPU-seconds for which checkpoints blocked training.
        regrouping_s: GPU-seconds for which groups were paused to change their devices.
        rates: network -> samples/s on 1, 2, ... GPUs, as the policy was last given.
        spread_rates: network -> the same on GPUs that lie on more nodes than necessary, where that
            is known to differ.
        stream, supply: how its input began, and its rate; None without preprocessors.
        first_step: when the first step was, the event, and when its group had formed.
        corrected: number of rates that were corrected.
        removed_devices: devices whose ranks died or were released.
        building: seconds for building a network, from measurements and first epochs.
        forming: network -> seconds for forming each of its groups, beyond its first epoch.
        stops: each stopped group with the outcome of its network at that time, or None.
        timed: network -> the epochs of its groups without the first of each, which forms the group.
        timed_spans: network -> how the GPUs of its group lay in each of them.
        time_left: when the time left was last estimated, and the estimate; None before.
        has_ended: whether it has logged its end.
        has_begun: whether it is past its first events, among which epochs are logged late.
        groups: network -> the group that trains it.
    """

    start: e.LaunchStarted
    began_s: float
    ended_s: float
    rounds: int = 0
    plans: int = 0
    profiling_s: float = 0.0
    scheduling_s: float = 0.0
    checkpointing_s: float = 0.0
    regrouping_s: float = 0.0
    rates: dict[str, tuple[float, ...]] = field(default_factory=dict)
    spread_rates: dict[str, tuple[float, ...]] = field(default_factory=dict)
    stream: e.StreamStarted | None = None
    supply: e.SupplyChanged | None = None
    first_step: tuple[float, e.FirstStep, float] | None = None
    corrected: int = 0
    removed_devices: set[int] = field(default_factory=set)
    building: list[float] = field(default_factory=list)
    forming: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    stops: list[tuple[e.GroupStopped, Outcome | None]] = field(default_factory=list)
    timed: defaultdict[str, list[EpochRecord]] = field(default_factory=lambda: defaultdict(list))
    timed_spans: defaultdict[str, list[Span]] = field(default_factory=lambda: defaultdict(list))
    time_left: tuple[float, e.TimeLeftEstimated] | None = None
    has_ended: bool = False
    has_begun: bool = False
    _before: RunLaunch | None = None
    # network -> index in the run's records
    _killed: Mapping[str, int] = field(default_factory=dict)
    groups: dict[str, RunGroup] = field(default_factory=dict)
    _networks_on_gpu: Counter[int] = field(default_factory=Counter)  # GPU -> how many networks

    @cached_property
    def devices(self) -> frozenset[int]:
        """The devices of its trainers."""
        return frozenset(self.start.devices)

    @cached_property
    def gpus(self) -> frozenset[int]:
        """Its GPUs, by their first device; one with several slots counts once."""
        return frozenset(map(self.gpu, self.devices))

    def gpu(self, device: int) -> int:
        """Return the GPU of a device, by the number of its first slot."""
        offset = device % self.start.gpus_per_node
        return device - offset + offset % (self.start.gpus_per_node // self.start.slots)

    @property
    def gpu_seconds(self) -> float:
        """The time of all its GPUs, in GPU-seconds."""
        return (self.ended_s - self.began_s) * len(self.gpus)

    def share(self, devices: Iterable[int]) -> float:
        """Return how many GPUs these devices are; networks on one GPU share it equally."""
        return sum(1 / self._networks_on_gpu[self.gpu(device)] for device in devices)

    def apply_rates(
        self,
        event: e.RatesLoaded
        | e.ProfilingFinished
        | e.RatesEstimated
        | e.RateMeasured
        | e.RateMismatch,
        spec: Spec | None,
    ) -> None:
        """Apply an event about rates.

        Args:
            event: the event.
            spec: the spec of the run, if known.
        """
        match event:
            case e.RateMismatch():
                self.corrected += event.corrected
            case e.RateMeasured():
                network = None if spec is None else spec.by_name.get(event.network)
                # The rest of the measurement is building and tracing, as in forming a group.
                if spec is not None and network is not None and event.rate > 0:
                    batches = spec.profile.batches * network.global_batch(event.gpus)
                    self.building.append(max(0.0, event.seconds - batches / event.rate))
            case e.RatesEstimated(seen=0):
                pass  # they only compare networks
            case _:
                self.rates |= event.rates
                if isinstance(event, e.ProfilingFinished):
                    self.profiling_s += event.seconds
                else:
                    for name in event.rates:
                        self.spread_rates.pop(name, None)
                    self.spread_rates |= event.spread_rates

    def time_epoch(
        self, t_s: float, name: str, record: EpochRecord, group: RunGroup | None
    ) -> None:
        """Record how long an epoch took; the first of a group includes tracing and compiling.

        Args:
            t_s: time of its end, in seconds of the run.
            name: the network.
            record: the epoch.
            group: the group that trained it, if known.
        """
        is_first = group is not None and group.ended_s is None
        if group is not None:
            group.ended_s = t_s
        if group is not None and is_first:
            group.first_s = t_s - group.began_s
            if name in self.rates:  # a first estimate
                span = self.span_of(group.devices)
                samples_per_s = rate(self.network_rates(name), record.gpus, span)
                epoch_s = self.start.time_scale * record.samples / samples_per_s
                self.building.append(max(0.0, group.first_s - epoch_s))
            return
        if group is not None and group.first_s is not None:
            self.forming[name].append(max(0.0, group.first_s - record.seconds))
            group.first_s = None
        if record.samples:
            self.timed[name].append(record)
            self.timed_spans[name].append(
                Span.ANY if group is None else self.span_of(group.devices)
            )

    @cached_property
    def cluster(self) -> Cluster:
        """The devices with which it began."""
        return self.start.cluster

    def span_of(self, devices: Collection[int]) -> Span:
        """Return how the GPUs of a group lie."""
        return GroupShape.of(devices, self.cluster).span

    def network_rates(self, name: str) -> Network:
        """Return a network with the rates that the policy was last given."""
        return Network(name, self.rates[name], spread_rates=self.spread_rates.get(name, ()))

    def make_end_event(self, status: int, seconds: float) -> e.LaunchEnded:
        """Return the event that ends it.

        Args:
            status: the exit status (:class:`fleet.errors.ExitStatus`).
            seconds: duration of the launch.
        """
        return e.LaunchEnded(
            status,
            seconds,
            self.rounds,
            self.profiling_s,
            self.scheduling_s,
            self.checkpointing_s,
            self.regrouping_s,
        )

    def summary(self, seconds: float) -> str:
        """Return its duration and the shares of overheads in one line ([FLEET] Table 4).

        Args:
            seconds: duration of the launch.
        """
        total = max(seconds, 1e-9)
        gpu_seconds = total * max(self.start.cluster.whole_gpus, 1)
        return (
            f"{format_duration(total)} in {pluralize(self.rounds, 'round')}; profiling "
            f"{self.profiling_s / total:.1%}, scheduling {self.scheduling_s / total:.3%}, "
            f"checkpointing {self.checkpointing_s / gpu_seconds:.2%}, regrouping "
            f"{self.regrouping_s / gpu_seconds:.2%} of it"
        )


@dataclass
class RunGroup:
    """The devices that train a network.

    Attributes:
        devices: the master's first.
        began_s: when it was started.
        first_s: seconds from then to the end of its first epoch, until the second one ends.
        ended_s: when its newest epoch ended.
        samples, samples_per_s: its progress in the current epoch; None before a message about it.
    """

    launch: RunLaunch
    devices: tuple[int, ...]
    began_s: float
    first_s: float | None = None
    ended_s: float | None = None
    samples: int = 0
    samples_per_s: float | None = None
    _latest: type = e.GroupStarted  # its last event, and when
    _latest_s: float = 0.0
