"""When a run will be over: a range, from the rates, the epochs that are done and the convergence rules (pure).

The run that is left is simulated twice, under the policy of the run: once with the fewest epochs that each network may
still train by its rule, once with the most. The seconds of a network's epochs are stretched as those of its epochs that
have ended were, so that validation, checkpoints and a busy machine count; those of a network that has shown none as
those of the others were, the quicker ones for the one end of the range and the slower ones for the other.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fleet.errors import UserError
from fleet.spec import Spec
from fleet.storage.events import (
    EpochEnded,
    Estimated,
    Event,
    GroupStarted,
    GroupStopped,
    GroupStruck,
    NetworkFailed,
    NetworkFellBack,
    NetworkFinished,
    Profiled,
    RankLost,
    RateMeasured,
    RatesGiven,
    Started,
    StreamStarted,
)
from fleet.storage.state import EpochRecord, epochs_left
from fleet.units import parse_stream
from scheduler.base import Cluster, InputError, Network, RateTable
from scheduler.ensemble.costs import Costs
from scheduler.ensemble.pace import Stream
from scheduler.ensemble.rates import rate
from scheduler.ensemble.simulation import simulate

_EPOCHS = 300  # that are simulated at most; of more, several are taken for one
_OWN = 0.1  # how far the durations of a network's epochs may be off that has shown some, as a share
_OTHERS = 0.5  # and of one that has not, as long as few have
_RECENT = 10  # epochs of a network say how far durations are from what rates promise
_UNKNOWN = (1.0,)  # samples/s of a network whose rate nobody has measured: what its epochs show says all


class Estimator:
    """Hears of a run's events, and says how long it will go on.

    The first epoch of a group traces and compiles, so what it takes beyond the next one counts as the group's forming.

    Args:
        histories: of the networks, as far as earlier launches have come.
    """

    def __init__(self, spec: Spec, histories: Mapping[str, Sequence[EpochRecord]]) -> None:
        self._spec = spec
        self._histories = {name: list(histories.get(name, ())) for name in spec.by_name}
        self._over: set[str] = set()
        self._rates: dict[str, tuple[float, ...]] = {}
        self._stretches: dict[str, list[float]] = {}  # network -> how many times as long as promised its epochs took
        self._start: Started | None = None
        self._supply: float | None = None  # samples/s of the preprocessors
        self._lost: set[int] = set()
        self._began: dict[str, float] = {}  # network -> when its group started, until the first epoch ends
        self._first: dict[str, float] = {}  # network -> seconds from there to that end, until the second one ends
        self._running: set[str] = set()
        self._building: list[float] = []  # seconds, of networks that were measured, and of first epochs
        self._forming: list[float] = []  # seconds, of groups
        self._stopping: list[float] = []

    # ---- hear ----

    def add(self, event: Event, now_s: float) -> None:
        """Take in what happened."""
        match event:
            case Started():
                self._start = event
                self._over |= set(event.finished)
            case RatesGiven() | Profiled():
                self._rates |= {name: tuple(rates) for name, rates in event.rates.items()}
            case StreamStarted():
                self._supply = event.supply_samples_per_s
            case RateMeasured() if event.rate > 0:
                self._add_measurement(event)
            case GroupStarted():
                self._began[event.network] = now_s
                self._running.add(event.network)
            case EpochEnded():
                self._add_epoch(event.network, event.record, now_s)
            case GroupStopped():
                self._running.discard(event.network)
                self._stopping.append(event.checkpoint_s + event.export_s)
            case NetworkFinished() | NetworkFailed():
                self._over.add(event.network)
                self._running.discard(event.network)
            case NetworkFellBack() | GroupStruck():
                del self._histories[event.network][event.epochs:]
                self._over.discard(event.network)
                self._running.discard(event.network)
            case RankLost() if event.device is not None:
                self._lost.add(event.device)

    def _add_measurement(self, event: RateMeasured) -> None:
        """What it took to build and trace a network is what it will take to form its group."""
        batch = self._spec.by_name[event.network].global_batch(event.gpus)
        self._building.append(max(0.0, event.seconds - self._spec.profile.batches * batch / event.rate))

    def _add_epoch(self, name: str, record: EpochRecord, now_s: float) -> None:
        history = self._histories[name]
        if record.epoch <= len(history):  # of an earlier launch, logged in this one
            return
        history.append(record)
        promised = rate(Network(name, self._rates.get(name, _UNKNOWN)), record.gpus)
        if (began := self._began.pop(name, None)) is not None:
            self._first[name] = now_s - began
            if name in self._rates and self._start is not None:  # until it is known better
                epoch_s = self._start.time_scale * record.samples / promised
                self._building.append(max(0.0, now_s - began - epoch_s))
            return
        if (first := self._first.pop(name, None)) is not None:
            self._forming.append(max(0.0, first - record.seconds))
        waited_s = record.waited_s if self._stream().count else 0.0  # for others: that is simulated
        if record.samples:
            stretch = max(record.seconds - waited_s, 1e-6) * promised / record.samples
            self._stretches.setdefault(name, []).append(stretch)

    def _stream(self) -> Stream:
        stream = parse_stream(self._start.stream) if self._start is not None else Stream()
        return replace(stream, rate=self._supply) if stream.count and self._supply else stream

    # ---- say ----

    def estimate(self) -> Estimated | None:
        """How long it will take from now on; None as long as nobody can tell."""
        left = {name: epochs_left(self._histories[name], self._spec.by_name[name].train.converge)
                for name in self._histories if name not in self._over}
        left = {name: epochs for name, epochs in left.items() if epochs[1]}
        is_known = self._stretches or (self._rates and self._building)  # how fast, and how long until it begins
        if self._start is None or not left or not is_known:
            return None
        times = []
        for end, sign in enumerate((-1, 1)):
            stretches = {name: self._stretch(name, sign) for name in left}
            times.append(self._simulated_s({name: epochs[end] for name, epochs in left.items()}, stretches))
        low, high = times
        return None if low is None or high is None else Estimated(min(low, high), high, len(left))

    def _stretch(self, name: str, sign: int) -> float:
        """How many times as long as its rate promises a network's epochs take, at least (sign -1) or at most (1)."""
        assert self._start is not None
        if own := self._stretches.get(name):
            return statistics.median(own[-_RECENT:]) * (1 + sign * _OWN)
        others = sorted(statistics.median(shown[-_RECENT:]) for shown in self._stretches.values())
        if len(others) >= 4:
            return others[len(others) // 4 if sign < 0 else -1 - len(others) // 4] * (1 + sign * _OWN)
        typical = statistics.median(others) if others else self._start.time_scale
        return typical * (1 + _OTHERS) ** sign

    def _simulated_s(self, left: Mapping[str, int], stretches: Mapping[str, float]) -> float | None:
        """Seconds of the run that is left; None where it cannot be simulated."""
        assert self._start is not None
        start = self._start
        several = max(1, math.ceil(sum(left.values()) / _EPOCHS))  # epochs that are taken for one
        rates = RateTable(start.samples * several, start.gpus_per_node, tuple(
            Network(name, tuple(one / stretches[name] for one in self._rates.get(name, _UNKNOWN)),
                    epochs=math.ceil(epochs / several), min_gpus=start.bounds[name][0], max_gpus=start.bounds[name][1])
            for name, epochs in left.items()))
        cluster = Cluster(tuple(device for device in start.devices if device not in self._lost), start.gpus_per_node)
        costs = Costs(checkpoint_s=_mean(self._stopping), regroup_s=_mean(self._forming or self._building))
        try:
            found = simulate(rates, cluster, self._spec.policy, self._spec.options, costs, self._stream())
        except (InputError, UserError):  # a network that does not fit on what is left, a policy that gives up
            return None
        has_formed = bool(self._running - self._began.keys())  # then the simulated start of the first groups is over
        return max(0.0, found.makespan_s - has_formed * costs.regroup_s)


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0


class EstimateTimes:
    """When to estimate again: seldom at first, more often towards the end, and never so that it would take time.

    Args:
        least_s: between two estimates.
    """

    def __init__(self, least_s: float = 10.0) -> None:
        self._least_s, self._next_s = least_s, -math.inf

    def is_due(self, now_s: float) -> bool:
        """Whether to estimate."""
        return now_s >= self._next_s

    def made(self, now_s: float, took_s: float, estimated: Estimated | None) -> None:
        """An estimate was made, and took some seconds itself."""
        wait_s = 50 * took_s
        if estimated is not None:
            wait_s = max(wait_s, self._least_s, 0.05 * estimated.high_s)
        self._next_s = now_s + wait_s
