"""Which rates to measure, on which ranks, in which order (pure).

The procedure is that of [FLEET] appendix B.3: every network on one GPU first, then each on 2 to M_t GPUs;
measurements run side by side wherever ranks are free. A network is measured on no fewer GPUs than it will ever
have: its batch may not fit on them. A rate that was measured before, for the same network, batch and hardware, is
not measured again (:mod:`fleet.runtime.known_rates`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from fleet.comm.messages import Measured
from fleet.domain.network import Outcome, StepRate
from fleet.spec import NetworkSpec, Profile
from scheduler.base import CommTime, InputError, Network, RateTable
from scheduler.elastic.analyzer import StepTimings, analyze, batches_to_time, merge_exchanges
from scheduler.ensemble.elastic import with_best_batches
from scheduler.ensemble.rates import counts_to_measure, rate, rates_up_to_gap


@dataclass(frozen=True)
class MeasurementTask:
    """Measure a network on a number of GPUs."""

    network: str
    gpus: int


class RateMeasurement:
    """The measurements of an ensemble.

    Args:
        networks: to measure.
        keys: of each network: equal keys train at equal speed, so one of them is measured.
        profile: the spec's settings.
        devices: how many trainers there are.
        gpus_per_node: of them.
        known: key -> {gpus: samples/s}, what was measured before.
        timed: key -> the steps that were timed before, of networks whose batch the policy chooses.

    Attributes:
        measured: how many measurements have been made.
        failed: the networks that cannot be trained.
    """

    def __init__(
        self,
        networks: Sequence[NetworkSpec],
        keys: Mapping[str, str],
        profile: Profile,
        devices: int,
        gpus_per_node: int,
        known: Mapping[str, Mapping[int, float]],
        timed: Mapping[str, StepTimings] | None = None,
    ) -> None:
        self.networks = networks
        self.keys = keys
        self.profile = profile
        self.devices = devices
        self._gpus_per_node = gpus_per_node
        self.measured = 0
        self._is_scaling = False
        self.known = {key: dict(rates) for key, rates in known.items()}
        self._timed = dict(timed or {})
        self.failed: dict[str, Outcome] = {}
        self._twins: dict[str, list[NetworkSpec]] = {}  # by key
        self._queue: deque[MeasurementTask] = deque()
        self._open: set[MeasurementTask] = set()
        for network in networks:
            self._twins.setdefault(keys[network.name], []).append(network)
            self._forget(network)
        for network in sorted(networks, key=lambda network: network.min_gpus):
            self._ask(keys[network.name], self._least(network))
        self._scale()

    # ---- what to do next ----

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to measure."""
        return not self._queue and not self._open

    @property
    def total(self) -> int:
        """How many measurements there are, as far as is known yet."""
        return self.measured + len(self._queue) + len(self._open)

    def next(self, idle: int) -> MeasurementTask | None:
        """A measurement that fits on so many idle ranks; the largest waits until enough are free."""
        if not self._queue or self._queue[0].gpus > idle:
            return None
        task = self._queue.popleft()
        self._open.add(task)
        return task

    def batches(self, task: MeasurementTask) -> tuple[int, ...]:
        """With which global batches to measure a network whose batch the policy chooses; none for others."""
        network = next(one for one in self.networks if one.name == task.network)
        if not network.train.batch.is_elastic:
            return ()
        alone = self._timed.get(self.keys[task.network], StepTimings()).steps.get(1, ())
        return batches_to_time(
            network.train.batch.bounds,
            network.min_gpus,
            task.gpus,
            max((step.batch for step in alone), default=None),
        )

    def hear(self, task: MeasurementTask, measured: Measured) -> StepRate:
        """Take in what a group has measured; returns its rate."""
        if measured.timed:
            key = self.keys[task.network]
            self._timed[key] = self._timed.get(key, StepTimings()).with_steps(
                task.gpus, measured.timed, measured.parameters
            )
        self.add(task, measured.rate.rate, measured.reason, measured.may_pass)
        return measured.rate

    def _forget(self, network: NetworkSpec) -> None:
        """Forget what was measured before, where that does not say how the speed of a network depends on its batch."""
        if not network.train.batch.is_elastic:
            return
        key = self.keys[network.name]
        timed = self._timed.get(key, StepTimings())
        if not timed.has_batches(
            batches_to_time(network.train.batch.bounds, network.min_gpus, gpus=1)
        ):
            timed = self._timed[key] = StepTimings()
        self.known[key] = {
            gpus: known for gpus, known in self.known.get(key, {}).items() if gpus in timed.steps
        }

    def conclude(self) -> dict[str, Outcome]:
        """The networks that cannot be trained, when all that can be measured has been."""
        for network in self._able():
            try:
                self._analysed(network)
            except InputError as error:
                self.failed[network.name] = Outcome(str(error), is_failure=True)
        return self.failed

    def add(
        self, task: MeasurementTask, measured: float, reason: str, may_pass: bool = False
    ) -> None:
        """Take in what was measured; a rate of 0 comes with its reason, and whether that may pass."""
        self._open.discard(task)
        self.measured += 1
        if measured > 0:
            self.known.setdefault(self.keys[task.network], {})[task.gpus] = measured
        else:
            self.failed[task.network] = Outcome(reason, is_failure=True, may_pass=may_pass)
            # Its twins may be built otherwise (another seed), so one of them takes over what it was asked for.
            left = [waiting.gpus for waiting in self._queue if waiting.network == task.network]
            self._queue = deque(
                waiting for waiting in self._queue if waiting.network != task.network
            )
            for gpus in (task.gpus, *left):
                self._ask(self.keys[task.network], gpus)
        self._scale()

    def again(self, task: MeasurementTask) -> None:
        """Measure something once more, after all else, if the trainers that are left are enough for it."""
        self._open.discard(task)
        if task.gpus <= self.devices:
            self._queue.append(task)
        self._scale()

    def lose(self, devices: int) -> None:
        """There are fewer trainers than before: what wants more is not measured any more."""
        self.devices = devices
        self._queue = deque(task for task in self._queue if task.gpus <= devices)
        self._scale()

    def _ask(self, key: str, gpus: int) -> None:
        """Ask for a rate that is not known, of the first network of this key that can tell it."""
        able = (
            network.name
            for network in self._twins[key]
            if self._least(network) <= gpus <= min(network.max_gpus or self.devices, self.devices)
            and network.name not in self.failed
        )
        asked = {(self.keys[task.network], task.gpus) for task in (*self._queue, *self._open)}
        if (
            gpus not in self.known.get(key, {})
            and (key, gpus) not in asked
            and (name := next(able, None)) is not None
        ):
            self._queue.append(MeasurementTask(name, gpus))

    def _scale(self) -> None:
        """Once every network has a rate: how far to go, and ask for it."""
        if self._is_scaling or not self.is_done:
            return
        self._is_scaling = True
        single = [self._rates(network)[0] for network in self._able()]
        if not single:
            return
        most = self.profile.max_gpus or counts_to_measure(single, self._gpus_per_node, self.devices)
        for gpus in range(2, min(most, self.devices) + 1):
            for key in self._twins:
                self._ask(key, gpus)

    # ---- what came out ----

    def table(self, samples_per_epoch: int) -> RateTable:
        """The rates of all networks that could be measured."""
        found = [self._analysed(network) for network in self._able()]
        return RateTable(
            samples_per_epoch,
            self._gpus_per_node,
            tuple(network for network, _ in found),
            merge_exchanges(exchange for _, exchanges in found for exchange in exchanges),
        )

    def _analysed(self, network: NetworkSpec) -> tuple[Network, tuple[CommTime, ...]]:
        """What was measured of a network, and of exchanges with it.

        Raises:
            InputError: the policy chooses its batch, and too few fit.
        """
        found = Network(
            network.name, self._rates(network), min_gpus=network.min_gpus, max_gpus=network.max_gpus
        )
        if not network.train.batch.is_elastic:
            return found, ()
        found, exchanges = analyze(
            replace(found, batches=network.train.batch.bounds),
            self._timed.get(self.keys[network.name], StepTimings()),
        )
        with_best_batches(
            RateTable(1, self._gpus_per_node, (found,), exchanges), self.devices
        )  # says what is wrong
        return found, exchanges

    @staticmethod
    def _least(network: NetworkSpec) -> int:
        """The fewest GPUs on which a network is measured."""
        if network.train.batch.is_elastic:
            return 1
        return network.min_gpus

    def _able(self) -> list[NetworkSpec]:
        """The networks of which there are rates: too few trainers may be left for one that wants several."""
        return [
            network
            for network in self.networks
            if network.name not in self.failed
            and self._least(network) in self.known.get(self.keys[network.name], {})
        ]

    def _rates(self, network: NetworkSpec) -> tuple[float, ...]:
        return rates_up_to_gap(self.known[self.keys[network.name]], self._least(network))


class SurveyEstimate(NamedTuple):
    """What is to be measured, and how long the devices are taken by it."""

    measurements: int
    seconds: float


def estimate(survey: RateMeasurement, rates: RateTable, build_s: float) -> SurveyEstimate:
    """Go through a survey on a clock of its own, as the runtime does: measurements side by side, on idle devices.

    Args:
        survey: which is used up.
        rates: of its networks.
        build_s: seconds that it takes to build a network and to trace its steps, before they are measured.
    """
    networks = {network.name: network for network in rates.models}
    specs = {network.name: network for network in survey.networks}

    def takes_s(task: MeasurementTask) -> float:
        samples = survey.profile.batches * specs[task.network].global_batch(task.gpus)
        return build_s + samples / rate(networks[task.network], task.gpus)

    now_s = 0.0
    idle = survey.devices
    running = list[tuple[float, int, MeasurementTask]]()
    started = 0
    while True:
        while (task := survey.next(idle)) is not None:
            started += 1
            idle -= task.gpus
            running.append((now_s + takes_s(task), started, task))
        if not running:  # nothing is left, or only what wants more devices than there are
            return SurveyEstimate(started, now_s)
        running.remove(first := min(running))
        now_s, _, task = first
        idle += task.gpus
        survey.add(task, rate(networks[task.network], task.gpus), "")
