"""Estimate when a run will end, as a range, from rates, finished epochs and stopping rules (pure).

The rest of the run is simulated twice under its policy: once with few, and once with many of the
epochs that the stopping rule of each network allows. Epochs are stretched by the ratio of measured
to expected time of the network's own epochs, which accounts for validation, checkpoints and a busy
machine; networks without epochs use the ratios of the others. If many networks wait, only a sample
is simulated, as if it came last; until then the others keep all devices busy. If none waits, groups
continue unchanged and nothing is simulated. Of all observations (epochs, times to form groups) the
faster ones count for the lower end and the slower ones for the upper end. Time already spent in
current epochs is subtracted. The reported range has the middle of both ends; its width is limited
so that it is neither often wrong nor meaningless.

Future trials of a search are assumed to resemble earlier ones, and to train as many epochs as the
trials that were pruned, paused or finished, and as a pruner with rungs lets them train on average.
A few stand-ins represent all of them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fleet.domain.events import TimeLeftEstimated
from fleet.domain.network import EpochRecord, remaining_epochs, training_time
from fleet.domain.overheads import mean_s
from fleet.domain.remaining_work import ExpectedTrials, RemainingWork
from fleet.domain.run import RunState
from fleet.domain.run_launch import RunGroup, RunLaunch
from fleet.errors import UserError
from fleet.spec import NetworkSpec, Spec, Stopping
from fleet.units import parse_stream
from launch.errors import InputError
from scheduler.base import Cluster, Network, RateTable, Span
from scheduler.ensemble.costs import Costs
from scheduler.ensemble.pace import Stream
from scheduler.ensemble.rates import rate
from scheduler.ensemble.sharing import speedup
from scheduler.simulation.ensemble import simulate

_EPOCHS = 300  # maximum number of simulated epochs; beyond, several count as one
_WAITING = 150  # maximum number of simulated waiting networks, or one per device
_DEVICES = 64  # minimum number of simulated devices; larger clusters are sampled
_OWN = 0.1  # minimum relative error of epoch times of a network with finished epochs
_OTHERS = 0.5  # the same for a network without, while few networks have finished epochs
_FORMING = 0.25  # relative error of forming times of other groups
_RECENT = 10  # number of recent epochs that stretches are computed from
# Bounds of high / low; in recorded runs the actual time is inside the range in four of five cases.
_WIDEST = 3.0
_NARROWEST = 2.4
_FEW = 0.25  # share of networks below the low, and above the high, number of epochs
_UNKNOWN = (1.0,)  # samples/s without any measurement; stretches of epochs correct it


_NOTHING = RemainingWork()


@dataclass(frozen=True)
class _StandIn:
    """A stand-in for several future trials, one after the other.

    Attributes:
        like: the network that they are assumed to resemble.
        networks: mean number of trials per stand-in.
    """

    like: str
    networks: float


class Estimator:
    """Estimates how long a run will go on.

    The first epoch of a group traces and compiles, so its excess over the next one counts as
    forming.

    Args:
        spec: the spec of the run.
        networks: networks by name; grows.
        run: the state of the run.
    """

    def __init__(self, spec: Spec, networks: Mapping[str, NetworkSpec], run: RunState) -> None:
        self._spec = spec
        self._networks = networks
        self._run = run
        self._now_s = 0.0
        self._typical = _UNKNOWN  # rates of an unmeasured network
        self._coming: dict[str, _StandIn] = {}  # by unused names

    # ---- observations ----

    @property
    def _launch(self) -> RunLaunch:
        assert self._run.launch is not None
        return self._run.launch

    def _group(self, name: str) -> RunGroup | None:
        """Return the group of a network in this launch, or None."""
        group = None if name in self._coming else self._run.networks[name].group
        if group is not None and group.launch is self._launch:
            return group
        return None

    def _expected_rate(self, name: str, gpus: int, span: Span = Span.ANY) -> float:
        """Return the samples/s of a network on GPUs that lie so, by the current rates."""
        spread_rates = self._launch.spread_rates.get(self._like(name), ())
        return rate(Network(name, self._rates_of(name), spread_rates=spread_rates), gpus, span)

    def _rates_of(self, name: str) -> tuple[float, ...]:
        """Return the rates of a network, or typical rates if it is unmeasured."""
        rates = self._launch.rates
        return rates.get(self._like(name)) or self._typical

    def _like(self, name: str) -> str:
        if name in self._coming:
            return self._coming[name].like
        return name

    def _stretches(self, name: str) -> list[float]:
        """Return measured over expected times of a network's recent epochs."""
        waits = bool(self._stream().count)  # waits for other networks are simulated
        return [
            max(record.seconds - waits * record.waited_s, 1e-6)
            / record.samples
            * self._expected_rate(name, record.gpus, span)
            for record, span in list(
                zip(self._launch.timed[name], self._launch.timed_spans[name], strict=True)
            )[-_RECENT:]
        ]

    def _stream(self) -> Stream:
        stream = parse_stream(self._launch.start.stream)
        if self._supply:
            return replace(stream, rate=self._supply)
        return stream

    @property
    def _supply(self) -> float | None:
        """The samples/s of preprocessors that prepare samples for all networks, or None."""
        if self._launch.supply is None:
            return None
        return self._launch.supply.supply_samples_per_s

    # ---- estimate ----

    def estimate(
        self, now_s: float | None = None, remaining: RemainingWork = _NOTHING
    ) -> TimeLeftEstimated | None:
        """Return the estimated remaining time; None if it cannot be estimated yet.

        Args:
            now_s: time on the clock of the events; that of the newest event by default.
            remaining: what searches will still propose.
        """
        launch = self._run.launch
        if launch is None:
            return None
        self._now_s = max(self._now_s, launch.ended_s, now_s or 0.0)
        if launch.rates:
            self._typical = (statistics.median(rates[0] for rates in launch.rates.values()),)
        # Without epochs, both rates and start-up times are necessary.
        if not (launch.timed or (launch.rates and launch.building)):
            return None
        epochs_left = {
            name: self._epochs_left(name, remaining)
            for name, network in self._run.networks.items()
            if name in self._networks
            and network.status.outcome is None
            and not network.status.is_paused
        }
        epochs_left = {name: epochs for name, epochs in epochs_left.items() if epochs[1]}
        networks = len(epochs_left)
        self._coming = {}
        for coming in remaining.searches:
            epochs_left |= self._stand_ins(coming, remaining)
            networks += int(coming.networks)
        if not epochs_left:
            return None
        low, high = (
            self._left_s({name: epochs[end] for name, epochs in epochs_left.items()}, sign)
            for end, sign in enumerate((-1, 1))
        )
        if low is None or high is None:
            return None
        limits = [
            (
                self._networks[self._like(name)],
                () if name in self._coming else self._run.networks[name].status.history,
                self._coming[name].networks if name in self._coming else 1.0,
            )
            for name in epochs_left
        ]
        latest = _latest_end_s(limits, self._cluster.gpus)
        return TimeLeftEstimated(*useful_range(min(low, latest), min(high, latest)), networks)

    def _epochs_left(self, name: str, remaining: RemainingWork) -> tuple[int, int]:
        """Return the minimum and maximum epochs left of a network; it may end at its next rung."""
        history = self._run.networks[name].status.history
        low, high = _likely_left(history, self._networks[name].train.stopping)
        if not history:
            epoch_s = self._launch.start.samples / self._expected_rate(name, 1)
            limit = self._networks[name].train.stopping.max_epochs_of(epoch_s)
            low, high = min(low, limit), min(high, limit)
        rung = remaining.next_rung(name, len(history))
        return (low if rung is None else min(low, rung - len(history))), high

    def _stand_ins(
        self, coming: ExpectedTrials, remaining: RemainingWork
    ) -> dict[str, tuple[int, int]]:
        """Return stand-ins for future trials with the minimum and maximum epochs of each."""
        before = sorted(
            (name for name in coming.proposed if name in self._networks),
            key=lambda name: self._rates_of(name)[0],
        )
        if not before or coming.networks < 1:
            return {}
        like = before[len(before) // 2]
        epochs_per_trial = self._epochs_of_one(like, coming.proposed, remaining)
        low, high = (min(coming.epochs, coming.networks * epochs) for epochs in epochs_per_trial)
        count = int(min(coming.networks, coming.max_concurrent, self._cluster.gpus))
        if not count or low < 1:
            return {}
        names = [f"{like}+{number + 1}" for number in range(count)]
        self._coming |= dict.fromkeys(
            names, _StandIn(like, max(1.0, low / epochs_per_trial[0] / count))
        )
        return dict.fromkeys(names, (math.ceil(low / count), math.ceil(high / count)))

    def _epochs_of_one(
        self, like: str, before: Mapping[str, int | None], remaining: RemainingWork
    ) -> tuple[float, float]:
        """Return low and high means of the epochs of a future trial."""
        epoch_s = self._launch.start.samples / self._expected_rate(like, 1)
        max_epochs = self._networks[like].train.stopping.max_epochs_of(epoch_s)
        observed = [epochs for epochs in before.values() if epochs is not None]
        rung = remaining.next_rung(like, 0)
        expected = remaining.expected(max_epochs)
        if not observed:
            return min(
                max_epochs, rung or remaining_epochs((), self._networks[like].train.stopping)[0]
            ), max_epochs
        low = min(statistics.fmean(observed), expected or max_epochs) * (1 - _OTHERS)
        high = max(
            statistics.fmean(
                max_epochs if epochs is None else epochs for epochs in before.values()
            ),
            expected or 0.0,
        )
        return max(1, min(observed), low), min(max_epochs, high * (1 + _OTHERS))

    def _left_s(self, epochs_left: Mapping[str, int], sign: int) -> float | None:
        """Return the remaining seconds, low (sign -1) or high (1), or None."""
        running = {name: epochs for name, epochs in epochs_left.items() if self._group(name)}
        waiting = {name: epochs for name, epochs in epochs_left.items() if name not in running}
        if waiting:
            seconds = self._simulated_s(epochs_left, sign)
        else:
            seconds = self._going_on_s(running, sign)
        cluster = self._cluster
        busy = {
            cluster.gpu(device)
            for group in self._launch.groups.values()
            for device in group.devices
        }
        has_idle = cluster.whole_gpus > len(busy)
        has_begun = all(
            group.ended_s is not None for name in running if (group := self._group(name))
        )
        if (
            sign < 0
            or seconds is None
            or not (running and waiting.keys() - self._coming.keys() and has_idle and has_begun)
        ):
            return seconds
        # Devices are idle while networks wait, so the policy has rounds, and the simulation does
        # not know the current one.
        round_s = self._simulated_s(running, sign)
        waiting_s = self._simulated_s(waiting, sign)
        if round_s is None or waiting_s is None:
            return seconds
        return max(seconds, round_s + waiting_s)

    def _going_on_s(self, running: Mapping[str, int], sign: int) -> float:
        """Return the seconds until the running groups end, if nothing else is left."""
        stretches = self._stretches_of(running, sign)
        regroup_s = self._costs(sign).regroup_s
        ends = []
        ending_s = self._ending_s(is_over=True)
        for name, epochs in running.items():
            group = self._group(name)
            assert group is not None
            span = self._launch.span_of(group.devices)
            expected = self._expected_rate(name, len(group.devices), span)
            samples_per_s = expected / stretches[name]
            training_s = epochs * self._launch.start.samples / samples_per_s
            ends.append(regroup_s + training_s + ending_s - self._done_s([name], regroup_s, sign))
        return max(0.0, *ends)

    @property
    def _cluster(self) -> Cluster:
        """The devices that can be used."""
        return self._launch.start.cluster.without(self._launch.removed_devices)

    def _stretches_of(self, names: Iterable[str], sign: int) -> dict[str, float]:
        """Return measured over expected epoch times by network, low (sign -1) or high (1)."""
        usual = self._usual_stretch(sign)
        return {
            name: _own_stretch(self._stretches(name), sign) if name in self._launch.timed else usual
            for name in names
        }

    def _usual_stretch(self, sign: int) -> float:
        """Return the stretch of a network without finished epochs."""
        medians = [statistics.median(self._stretches(name)) for name in self._launch.timed]
        if len(medians) >= 4:
            return _quartile(medians, sign) * (1 + sign * _OWN)
        if medians:
            typical = statistics.median(medians)
        else:
            typical = self._launch.start.time_scale
        return typical * (1 + _OTHERS) ** sign

    def _simulated_s(self, epochs_left: Mapping[str, int], sign: int) -> float | None:
        """Return the simulated seconds of networks, low (sign -1) or high (1), or None."""
        launch = self._launch
        start = self._launch.start
        stretches = self._stretches_of(epochs_left, sign)
        sampled_networks, cluster = self._part(epochs_left, self._cluster)
        epochs_left = self._sampled(sampled_networks, cluster)
        # Several epochs may be simulated as one.
        epochs_per_step = max(1, math.ceil(sum(epochs_left.values()) / _EPOCHS))
        costs = self._costs(sign)
        export_s = self._ending_s(is_over=True)

        def slowed(
            name: str, epochs: int, more_s: float, rates: Sequence[float]
        ) -> tuple[float, ...]:
            return tuple(
                _slowed(rate / stretches[name], start.samples * epochs, more_s) for rate in rates
            )

        def table(more_s: Mapping[str, float]) -> RateTable:
            return RateTable(
                start.samples * epochs_per_step,
                start.gpus_per_node,
                tuple(
                    Network(
                        name,
                        slowed(name, epochs, more_s.get(name, 0.0), self._rates_of(name)),
                        epochs=math.ceil(epochs / epochs_per_step),
                        min_gpus=self._networks[self._like(name)].min_gpus,
                        max_gpus=self._networks[self._like(name)].max_gpus,
                        spread_rates=slowed(
                            name,
                            epochs,
                            more_s.get(name, 0.0),
                            launch.spread_rates.get(self._like(name), ()),
                        ),
                    )
                    for name, epochs in epochs_left.items()
                ),
                sharing=self._run.sharing,
            )

        # Groups that took longer to form than others will do so again, unless they already train.
        more_s = {
            name: _quartile(forming, sign) + export_s - costs.regroup_s
            for name, forming in launch.forming.items()
            if (group := self._group(name)) is None or group.ended_s is None
        }
        more_s |= {
            name: (stand_in.networks - 1) * (costs.regroup_s + costs.checkpoint_s)
            for name, stand_in in self._coming.items()
        }
        try:
            simulated = simulate(
                table(more_s),
                cluster,
                self._spec.policy,
                self._spec.options,
                costs,
                self._stream(),
                policy_rates=table({}),
            )
        # A network may not fit on the remaining devices, or the policy may give up.
        except (InputError, UserError):
            return None
        unsimulated = {
            name: epochs for name, epochs in sampled_networks.items() if name not in epochs_left
        }
        before_s = self._busy_s(unsimulated, stretches, costs.regroup_s) / (
            cluster.whole_gpus
            * max(speedup(self._run.sharing, count) for count in range(1, cluster.slots + 1))
        )
        return max(
            0.0,
            before_s
            + simulated.makespan_s
            + export_s
            - self._done_s(epochs_left, costs.regroup_s, sign),
        )

    def _ending_s(self, is_over: bool) -> float:
        """Return the seconds that it takes to free the devices of a network, finished or not."""
        return mean_s(
            [
                stopped.checkpoint_s + stopped.export_s
                for stopped, outcome in self._launch.stops
                if (outcome is not None) == is_over
            ]
        )

    def _costs(self, sign: int) -> Costs:
        forming_times = [
            seconds for forming in self._launch.forming.values() for seconds in forming
        ]
        forming_times = forming_times or self._launch.building
        if len(forming_times) < 4:
            forming_s = _quartile(forming_times, sign)
        else:
            forming_s = statistics.median(forming_times) * (1 + sign * _FORMING)
        return Costs(
            checkpoint_s=self._ending_s(is_over=False),
            regroup_s=forming_s + self._ending_s(is_over=True),
        )

    def _part(
        self, epochs_left: Mapping[str, int], cluster: Cluster
    ) -> tuple[Mapping[str, int], Cluster]:
        """Sample networks and a part of a large cluster, which is quicker to simulate."""
        min_gpus = max(
            (self._networks[self._like(name)].min_gpus for name in epochs_left), default=1
        )
        stride = cluster.gpus // max(_DEVICES, min_gpus * cluster.slots)
        if stride < 2:
            return epochs_left, cluster
        part = replace(cluster, devices=cluster.devices[: -(-cluster.gpus // stride)])
        # Shift the sampled index, because spaces are often enumerated periodically.
        return {
            name: epochs_left[name]
            for index, name in enumerate(epochs_left)
            if index % stride == index // stride % stride
        }, part

    def _sampled(self, epochs_left: Mapping[str, int], cluster: Cluster) -> Mapping[str, int]:
        """Return the networks to simulate: with a group, stand-ins, a sample of waiting ones."""
        waiting = [
            name for name in epochs_left if not self._group(name) and name not in self._coming
        ]
        skipped = set(waiting) - set(
            waiting[:: -(-len(waiting) // max(_WAITING, cluster.gpus)) or 1]
        )
        return {name: epochs for name, epochs in epochs_left.items() if name not in skipped}

    def _busy_s(
        self, epochs_left: Mapping[str, int], stretches: Mapping[str, float], regroup_s: float
    ) -> float:
        """Return the GPU-seconds of networks that are not simulated, each on its fewest GPUs."""
        busy_s = 0.0
        for name, epochs in epochs_left.items():
            min_gpus = self._networks[name].min_gpus
            samples_per_s = min(
                self._expected_rate(name, min_gpus) / stretches[name], self._supply or math.inf
            )
            busy_s += min_gpus * (self._launch.start.samples * epochs / samples_per_s + regroup_s)
        return busy_s

    def _done_s(self, names: Iterable[str], regroup_s: float, sign: int) -> float:
        """Return the seconds of the simulation that have already passed."""
        done = []
        for name in names:
            group = self._group(name)
            if group is None:
                continue
            if group.ended_s is None:
                done.append(min(self._now_s - group.began_s, regroup_s))
            else:
                history = self._run.networks[name].status.history
                done.append(
                    regroup_s
                    + min(self._now_s - group.ended_s, history[-1].seconds if history else 0.0)
                )
        return (max if sign < 0 else min)(done, default=0.0)


def useful_range(low: float, high: float) -> tuple[float, float]:
    """Limit the width of a range around its middle.

    >>> [tuple(round(end, 2) for end in useful_range(*ends)) for ends in (
    ...     (1.0, 4.0), (2.0, 2.0), (0.0, 5.0), (0.0, 0.0))]
    [(1.15, 3.46), (1.29, 3.1), (1.67, 5.0), (0.0, 0.0)]
    """
    low = min(low, high)
    if low * _WIDEST**2 <= high:  # also if both are 0
        return high / _WIDEST, high
    middle = math.sqrt(low * high)
    width = math.sqrt(min(max(high / low, _NARROWEST), _WIDEST))
    return middle / width, middle * width


def _slowed(rate: float, samples: int, more_s: float) -> float:
    """Return the rate at which some samples take `more_s` longer."""
    return samples / (samples / rate + max(0.0, more_s))


def _latest_end_s(
    networks: Iterable[tuple[NetworkSpec, Sequence[EpochRecord], float]], gpus: int
) -> float:
    """Return a bound of the time left if all networks have time limits; else infinity.

    Graham (1969): without idle GPUs, no schedule takes longer than the mean load of a GPU and the
    longest network together.

    Args:
        networks: networks with their finished epochs, and how many networks each stands for.
        gpus: number of GPUs.
    """
    load = longest = 0.0
    for network, history, count in networks:
        if network.train.stopping.max_time is None:
            return math.inf
        left_s = max(0.0, network.train.stopping.max_time - training_time(history))
        load += count * left_s * network.min_gpus
        longest = max(longest, left_s)
    return load / gpus + longest


def _likely_left(history: Sequence[EpochRecord], stopping: Stopping) -> tuple[int, int]:
    """Return likely low and high numbers of epochs that a network still trains.

    With early stopping, the square root of the last improvement's epoch is assumed to be uniform
    over the remaining range, so early epochs are more likely. The values are quartiles plus
    patience.
    """
    min_epochs, max_epochs = remaining_epochs(history, stopping)
    if min_epochs == max_epochs:
        return min_epochs, max_epochs
    patience = stopping.patience or 0
    done = len(history)
    first = math.sqrt(max(1, done + min_epochs - patience))
    last = math.sqrt(stopping.max_epochs)
    few, many = (
        min(
            max_epochs,
            max(min_epochs, round((first + share * (last - first)) ** 2) + patience - done),
        )
        for share in (_FEW, 1 - _FEW)
    )
    return few, many


def _quartile(values: Sequence[float], sign: int) -> float:
    """Return the lower (sign -1) or upper (1) quartile; the extreme of fewer than four values.

    >>> _quartile([3.0, 1.0, 2.0], -1), _quartile([1.0, 2.0, 3.0, 4.0, 9.0], 1)
    (1.0, 4.0)
    """
    if not values:
        return 0.0
    ordered = sorted(values)
    left_out = len(values) // 4
    if sign < 0:
        return ordered[left_out]
    return ordered[-1 - left_out]


def _own_stretch(stretches: Sequence[float], sign: int) -> float:
    """Return the low (sign -1) or high (1) stretch of a network with finished epochs."""
    usual = statistics.median(stretches) * (1 + sign * _OWN)
    return sign * max(sign * usual, sign * _quartile(stretches, sign))


@dataclass
class EstimateSchedule:
    """When to estimate again: rarely at first, more often towards the end.

    Args:
        least_s: minimum seconds between two estimates.
    """

    least_s: float = 10.0
    _next_s: float = -math.inf

    def is_due(self, now_s: float) -> bool:
        """Return True if it is time to estimate."""
        return now_s >= self._next_s

    def record(self, now_s: float, took_s: float, estimated: TimeLeftEstimated | None) -> None:
        """Record an estimate and the seconds that it took."""
        wait_s = 50 * took_s
        if estimated is not None:
            wait_s = max(wait_s, self.least_s, 0.05 * estimated.high_s)
        self._next_s = now_s + wait_s
