"""When a run will be over: a range, from the rates, the epochs that are done and the convergence rules (pure).

The run that is left is simulated twice, under the policy of the run: with few epochs of each network, and with many of
those that its rule may still let it train. The seconds of a network's epochs are stretched as those of its epochs that
have ended were, so that validation, checkpoints and a busy machine count; those of a network that has shown none as
those of the others were. Of many networks that wait only some are simulated, as if they were the last: until they
begin, the others keep all devices busy. Where none waits, groups go on as they are, and nothing is simulated. Of all
that was seen (epochs, how long groups took to form) the quicker ones count for the one end of the range, and the slower
ones for the other. What has passed of epochs that are under way is taken off. The range that is told has the middle of
these two ends, and is neither so narrow that it would often be wrong nor so wide that it would say nothing.

Networks that a search will yet ask for are taken to be as those before them, and to train as many epochs as those did
that are pruned, paused or done, and as a rule with rungs lets them train on average. A few stand for all of them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fleet.domain.events import TimeLeftEstimated
from fleet.domain.network import EpochRecord, remaining_epochs
from fleet.domain.remaining_work import ExpectedTrials, RemainingWork
from fleet.domain.run import RunGroup, RunLaunch, RunState
from fleet.errors import UserError
from fleet.monitor.overheads import mean_s
from fleet.spec import NetworkSpec, Spec, Stopping
from fleet.units import parse_stream
from scheduler.base import Cluster, InputError, Network, RateTable
from scheduler.ensemble.costs import Costs
from scheduler.ensemble.pace import Stream
from scheduler.ensemble.rates import rate
from scheduler.ensemble.sharing import speedup
from scheduler.simulation.ensemble import simulate

_EPOCHS = 300  # that are simulated at most; of more, several are taken for one
_WAITING = 150  # networks that wait and are simulated at most, or one for each device
_DEVICES = 64  # that are simulated at least; of a cluster that has more than twice as many, a part
_OWN = 0.1  # how far the durations of a network's epochs may be off at least that has shown some, as a share
_OTHERS = 0.5  # and of one that has not, as long as few have
_FORMING = 0.25  # how far off it may be what others took to form, as a share
_RECENT = 10  # epochs of a network say how far durations are from what rates promise
# range: its end over its beginning; of recorded runs four fifths are so held
_WIDEST = 3.0
_NARROWEST = 2.4
_FEW = 0.25  # share of the networks that train fewer epochs than few ones, or more than many
_UNKNOWN = (1.0,)  # samples/s where nobody has measured any: what epochs show says all


_NOTHING = RemainingWork()


@dataclass(frozen=True)
class _Likeness:
    """Stands for several networks to come, one after the other.

    Attributes:
        like: the network that they are taken to be like.
        each: how many networks, on average.
    """

    like: str
    each: float


class Estimator:
    """Says how long a run will go on.

    The first epoch of a group traces and compiles, so what it takes beyond the next one counts as the group's forming.

    Args:
        networks: by name; grows.
        run: as it is by its events.
    """

    def __init__(self, spec: Spec, networks: Mapping[str, NetworkSpec], run: RunState) -> None:
        self._spec = spec
        self._networks = networks
        self._run = run
        self._now_s = 0.0
        self._typical = _UNKNOWN  # rates of a network that nobody has measured
        self._coming: dict[str, _Likeness] = {}  # by names that no network has

    # ---- what is known ----

    @property
    def _launch(self) -> RunLaunch:
        assert self._run.launch is not None
        return self._run.launch

    def _group(self, name: str) -> RunGroup | None:
        """The group of a network, if it is one of this launch."""
        group = None if name in self._coming else self._run.networks[name].group
        if group is not None and group.launch is self._launch:
            return group
        return None

    def _promised(self, name: str, gpus: int) -> float:
        """The samples/s that a network has on so many GPUs by the rates that are known now."""
        return rate(Network(name, self._rates_of(name)), gpus)

    def _rates_of(self, name: str) -> tuple[float, ...]:
        """What is known of a network's rates; of one that nobody has measured, what is typical of the others."""
        rates = self._launch.rates
        return rates.get(self._like(name)) or self._typical

    def _like(self, name: str) -> str:
        if name in self._coming:
            return self._coming[name].like
        return name

    def _stretches(self, name: str) -> list[float]:
        """How many times as long as promised a network's recent epochs took; rates may have become known since."""
        waits = bool(self._stream().count)  # for others: that is simulated
        return [
            max(one.seconds - waits * one.waited_s, 1e-6)
            / one.samples
            * self._promised(name, one.gpus)
            for one in self._launch.timed[name][-_RECENT:]
        ]

    def _stream(self) -> Stream:
        stream = parse_stream(self._launch.start.stream)
        if self._supply:
            return replace(stream, rate=self._supply)
        return stream

    @property
    def _supply(self) -> float | None:
        """The samples/s of the preprocessors, where these prepare them for all."""
        if self._launch.supply is None:
            return None
        return self._launch.supply.supply_samples_per_s

    # ---- say ----

    def estimate(
        self, now_s: float | None = None, outlook: RemainingWork = _NOTHING
    ) -> TimeLeftEstimated | None:
        """How long it will take from now on; None as long as nobody can tell.

        Args:
            now_s: on the clock of the events; when the newest of them came, unless given.
        """
        launch = self._run.launch
        if launch is None:
            return None
        self._now_s = max(self._now_s, launch.ended_s, now_s or 0.0)
        if launch.rates:
            self._typical = (statistics.median(rates[0] for rates in launch.rates.values()),)
        if not (
            launch.timed or (launch.rates and launch.building)
        ):  # how fast, and how long until it begins
            return None
        standings = {
            name: network.status
            for name, network in self._run.networks.items()
            if name in self._networks
        }
        left = {
            name: self._epochs_left(name, outlook)
            for name, standing in standings.items()
            if standing.outcome is None and not standing.is_paused and name not in outlook.idle
        }
        left = {name: epochs for name, epochs in left.items() if epochs[1]}
        networks = len(left)
        self._coming = {}
        for coming in outlook.searches:
            left |= self._stand_ins(coming, outlook)
            networks += int(coming.networks)
        if not left:
            return None
        times = []
        for end, sign in enumerate((-1, 1)):
            times.append(self._left_s({name: epochs[end] for name, epochs in left.items()}, sign))
        low, high = times
        if low is None or high is None:
            return None
        return TimeLeftEstimated(*useful_range(low, high), networks)

    def _epochs_left(self, name: str, outlook: RemainingWork) -> tuple[int, int]:
        """The fewest and the most epochs that a network still trains; at its next rung it may be over."""
        history = self._run.networks[name].status.history
        fewest, most = _likely_left(history, self._networks[name].train.stopping)
        rung = outlook.next_rung(name, len(history))
        return (fewest if rung is None else min(fewest, rung - len(history))), most

    def _stand_ins(
        self, coming: ExpectedTrials, outlook: RemainingWork
    ) -> dict[str, tuple[int, int]]:
        """A few networks that stand for those to come, with the fewest and the most epochs of each."""
        before = sorted(
            (name for name in coming.proposed if name in self._networks),
            key=lambda name: self._rates_of(name)[0],
        )
        if not before or coming.networks < 1:
            return {}
        like = before[len(before) // 2]
        each = self._epochs_of_one(like, coming.proposed, outlook)
        fewest, most = (min(coming.epochs, coming.networks * epochs) for epochs in each)
        count = int(min(coming.networks, coming.max_concurrent, len(self._usable)))
        if not count or fewest < 1:
            return {}
        names = [f"{like}+{place + 1}" for place in range(count)]
        self._coming |= dict.fromkeys(names, _Likeness(like, max(1.0, fewest / each[0] / count)))
        return dict.fromkeys(names, (math.ceil(fewest / count), math.ceil(most / count)))

    def _epochs_of_one(
        self, like: str, before: Mapping[str, int | None], outlook: RemainingWork
    ) -> tuple[float, float]:
        """How many epochs a network to come trains on average: by what came of those before it, and by the rule."""
        most = self._networks[like].train.stopping.max_epochs
        stood = [epochs for epochs in before.values() if epochs is not None]
        rung = outlook.next_rung(like, 0)
        expected = outlook.expected(most)
        if not stood:
            return min(
                most, rung or remaining_epochs((), self._networks[like].train.stopping)[0]
            ), most
        low = min(statistics.fmean(stood), expected or most) * (1 - _OTHERS)
        high = max(
            statistics.fmean(most if epochs is None else epochs for epochs in before.values()),
            expected or 0.0,
        )
        return max(1, min(stood), low), min(most, high * (1 + _OTHERS))

    def _left_s(self, left: Mapping[str, int], sign: int) -> float | None:
        """Seconds of the run that is left, at least (sign -1) or at most (1); None where it cannot be simulated."""
        running = {name: epochs for name, epochs in left.items() if self._group(name)}
        waiting = {name: epochs for name, epochs in left.items() if name not in running}
        if waiting:
            found = self._simulated_s(left, sign)
        else:
            found = self._going_on_s(running, sign)
        cluster = self._launch.start.cluster.without(self._launch.removed_devices)
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
            or found is None
            or not (running and waiting.keys() - self._coming.keys() and has_idle and has_begun)
        ):
            return found
        # Devices are idle and networks wait: the policy has rounds. The simulation does not know that one is under way.
        this = self._simulated_s(running, sign)
        others = self._simulated_s(waiting, sign)
        if this is None or others is None:
            return found
        return max(found, this + others)

    def _going_on_s(self, running: Mapping[str, int], sign: int) -> float:
        """Seconds until groups that train are through, where nothing else is left: they go on as they are."""
        stretches = self._stretches_of(running, sign)
        regroup_s = self._costs(sign).regroup_s
        ends = []
        ending_s = self._ending_s(is_over=True)
        for name, epochs in running.items():
            group = self._group(name)
            assert group is not None
            samples_per_s = self._promised(name, len(group.devices)) / stretches[name]
            training_s = epochs * self._launch.start.samples / samples_per_s
            ends.append(regroup_s + training_s + ending_s - self._done_s([name], regroup_s, sign))
        return max(0.0, *ends)

    @property
    def _usable(self) -> tuple[int, ...]:
        """The devices that are left."""
        return tuple(
            device
            for device in self._launch.start.devices
            if device not in self._launch.removed_devices
        )

    def _stretches_of(self, names: Iterable[str], sign: int) -> dict[str, float]:
        """How many times as long as its rate promises each network's epochs take, at least (sign -1) or at most (1)."""
        usual = self._usual_stretch(sign)
        return {
            name: self._own_stretch(name, sign) if name in self._launch.timed else usual
            for name in names
        }

    def _own_stretch(self, name: str, sign: int) -> float:
        """That of a network whose epochs have shown it."""
        own = self._stretches(name)
        usual = statistics.median(own) * (1 + sign * _OWN)
        return sign * max(sign * usual, sign * _quartile(own, sign))

    def _usual_stretch(self, sign: int) -> float:
        """That of a network that has shown none."""
        others = [statistics.median(self._stretches(shown)) for shown in self._launch.timed]
        if len(others) >= 4:
            return _quartile(others, sign) * (1 + sign * _OWN)
        if others:
            typical = statistics.median(others)
        else:
            typical = self._launch.start.time_scale
        return typical * (1 + _OTHERS) ** sign

    def _simulated_s(self, left: Mapping[str, int], sign: int) -> float | None:
        """Seconds that some networks take, at least (sign -1) or at most (1); None where it cannot be simulated."""
        launch = self._launch
        start = self._launch.start
        stretches = self._stretches_of(left, sign)
        every, cluster = self._part(left, start.cluster.without(launch.removed_devices))
        left = self._sampled(every, cluster)
        several = max(1, math.ceil(sum(left.values()) / _EPOCHS))  # epochs that are taken for one
        costs = self._costs(sign)
        export_s = self._ending_s(is_over=True)

        def table(more_s: Mapping[str, float]) -> RateTable:
            return RateTable(
                start.samples * several,
                start.gpus_per_node,
                tuple(
                    Network(
                        name,
                        tuple(
                            self._slowed(one / stretches[name], epochs, more_s.get(name, 0.0))
                            for one in self._rates_of(name)
                        ),
                        epochs=math.ceil(epochs / several),
                        min_gpus=self._networks[self._like(name)].min_gpus,
                        max_gpus=self._networks[self._like(name)].max_gpus,
                    )
                    for name, epochs in left.items()
                ),
                sharing=self._run.sharing,
            )

        # Networks whose group has taken longer to form than others will do so again; those that train have done that.
        more_s = {
            name: _quartile(forming, sign) + export_s - costs.regroup_s
            for name, forming in launch.forming.items()
            if not self._has_ended(name)
        }
        more_s |= {
            name: (one.each - 1) * (costs.regroup_s + costs.checkpoint_s)
            for name, one in self._coming.items()
        }
        try:
            found = simulate(
                table(more_s),
                cluster,
                self._spec.policy,
                self._spec.options,
                costs,
                self._stream(),
                policy_rates=table({}),
            )
        except (
            InputError,
            UserError,
        ):  # a network that does not fit on what is left, a policy that gives up
            return None
        others = {name: epochs for name, epochs in every.items() if name not in left}
        before_s = self._busy_s(others, stretches, costs.regroup_s) / (
            cluster.whole_gpus
            * max(speedup(self._run.sharing, count) for count in range(1, cluster.slots + 1))
        )
        return max(
            0.0, before_s + found.makespan_s + export_s - self._done_s(left, costs.regroup_s, sign)
        )

    def _ending_s(self, is_over: bool) -> float:
        """Seconds that it takes to let go of a network's devices, which is over or not."""
        return mean_s(
            [
                stopped.checkpoint_s + stopped.export_s
                for stopped, outcome in self._launch.stops
                if (outcome is not None) == is_over
            ]
        )

    def _costs(self, sign: int) -> Costs:
        shown = [seconds for forming in self._launch.forming.values() for seconds in forming]
        shown = shown or self._launch.building
        if len(shown) < 4:
            forming_s = _quartile(shown, sign)
        else:
            forming_s = statistics.median(shown) * (1 + sign * _FORMING)
        return Costs(
            checkpoint_s=self._ending_s(is_over=False),
            regroup_s=forming_s + self._ending_s(is_over=True),
        )

    def _has_ended(self, name: str) -> bool:
        """Whether the group of a network has ended an epoch."""
        group = self._group(name)
        return group is not None and group.ended_s is not None

    def _part(self, left: Mapping[str, int], cluster: Cluster) -> tuple[Mapping[str, int], Cluster]:
        """Every so many networks, and as small a part of the cluster: all of a large one would keep rank 0 for long."""
        least = max((self._networks[self._like(name)].min_gpus for name in left), default=1)
        stride = cluster.gpus // max(_DEVICES, least * cluster.slots)
        if stride < 2:
            return left, cluster
        part = replace(cluster, devices=cluster.devices[: -(-cluster.gpus // stride)])
        # Not always the same of each few: spaces are often gone through in turns.
        return {
            name: left[name]
            for place, name in enumerate(left)
            if place % stride == place // stride % stride
        }, part

    def _sampled(self, left: Mapping[str, int], cluster: Cluster) -> Mapping[str, int]:
        """The networks that are simulated: those that have a group or stand for others, and every so many that wait."""
        waiting = [name for name in left if not self._group(name) and name not in self._coming]
        others = set(waiting) - set(
            waiting[:: -(-len(waiting) // max(_WAITING, cluster.gpus)) or 1]
        )
        return {name: epochs for name, epochs in left.items() if name not in others}

    def _busy_s(
        self, others: Mapping[str, int], stretches: Mapping[str, float], regroup_s: float
    ) -> float:
        """GPU-seconds that networks take which are not simulated, each on its least GPUs."""
        busy_s = 0.0
        for name, epochs in others.items():
            least = self._networks[name].min_gpus
            samples_per_s = min(
                self._promised(name, least) / stretches[name], self._supply or math.inf
            )
            busy_s += least * (self._launch.start.samples * epochs / samples_per_s + regroup_s)
        return busy_s

    def _slowed(self, rate: float, epochs: int, more_s: float) -> float:
        """The rate at which a network takes some seconds more for some epochs."""
        samples = self._launch.start.samples * epochs
        return samples / (samples / rate + max(0.0, more_s))

    def _done_s(self, names: Iterable[str], regroup_s: float, sign: int) -> float:
        """Seconds of their simulation that have passed: groups that train have formed, and are within an epoch."""
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
    """The ends of a range that is neither too narrow to be true nor too wide to be of use, about the same middle.

    >>> [tuple(round(end, 2) for end in useful_range(*ends)) for ends in (
    ...     (1.0, 4.0), (2.0, 2.0), (0.0, 5.0), (0.0, 0.0))]
    [(1.15, 3.46), (1.29, 3.1), (1.67, 5.0), (0.0, 0.0)]
    """
    low = min(low, high)
    if low * _WIDEST**2 <= high:  # also where both are 0: nothing is left
        return high / _WIDEST, high
    middle = math.sqrt(low * high)
    width = math.sqrt(min(max(high / low, _NARROWEST), _WIDEST))
    return middle / width, middle * width


def _likely_left(history: Sequence[EpochRecord], converge: Stopping) -> tuple[int, int]:
    """How many epochs a network may well train yet: few and many of those that its rule allows.

    Where it stops early, the square root of the epoch of its last improvement is taken to be distributed uniformly over
    what is left: early epochs are likelier, but not by as much as their own number. These are quartiles; patience comes
    after.
    """
    fewest, most = remaining_epochs(history, converge)
    if fewest == most:
        return fewest, most
    patience = converge.patience or 0
    done = len(history)
    first = math.sqrt(max(1, done + fewest - patience))
    last = math.sqrt(converge.max_epochs)
    few, many = (
        min(most, max(fewest, round((first + share * (last - first)) ** 2) + patience - done))
        for share in (_FEW, 1 - _FEW)
    )
    return few, many


def _quartile(values: Sequence[float], sign: int) -> float:
    """The lower (sign -1) or upper (1) quartile of values, of fewer than four the least or the greatest; 0 of none.

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


class EstimateSchedule:
    """When to estimate again: seldom at first, more often towards the end, and never so that it would take time.

    Args:
        least_s: between two estimates.
    """

    def __init__(self, least_s: float = 10.0) -> None:
        self._least_s = least_s
        self._next_s = -math.inf

    def is_due(self, now_s: float) -> bool:
        """Whether to estimate."""
        return now_s >= self._next_s

    def record(self, now_s: float, took_s: float, estimated: TimeLeftEstimated | None) -> None:
        """An estimate was made, and took some seconds itself."""
        wait_s = 50 * took_s
        if estimated is not None:
            wait_s = max(wait_s, self._least_s, 0.05 * estimated.high_s)
        self._next_s = now_s + wait_s
