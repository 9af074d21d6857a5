"""Which rates to measure, on which ranks, in which order (pure).

The procedure is that of [FLEET] appendix B.3: every network on one GPU first, then each on 2 to M_t
GPUs; measurements run side by side wherever ranks are free. A network is measured on no fewer GPUs
than its minimum: its batch may not fit on fewer. Rates that were measured before for the same
network, batch and hardware are not measured again (:mod:`fleet.runtime.known_rates`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from fleet.comm.messages import Measured
from fleet.domain.network import Outcome, StepRate
from fleet.spec import NetworkSpec, Profile
from launch.errors import InputError
from scheduler.base import CommTime, Network, RateTable
from scheduler.elastic.analyzer import StepTimings, analyze, batches_to_time, merge_exchanges
from scheduler.ensemble.elastic import with_best_batches
from scheduler.ensemble.rates import counts_to_measure, rate, rates_up_to_gap


@dataclass(frozen=True)
class MeasurementTask:
    """Measure a network on a number of GPUs."""

    network: str
    gpus: int


class RateMeasurement:
    """The measurements of a run.

    Args:
        networks: the networks to measure.
        keys: network -> key; networks of equal keys have equal rates, so one of them is measured.
        profile: settings of the spec.
        devices: number of trainers.
        gpus_per_node: GPUs per node.
        known_rates: key -> {GPUs: samples/s}, from earlier measurements.
        timed: key -> steps that were timed before, of networks whose batch the policy chooses.
        unmeasured: networks that are not measured, because another launch trains them or died of
            them.

    Attributes:
        measured: number of measurements that were made.
        failed: networks that cannot be trained.
    """

    def __init__(
        self,
        networks: Sequence[NetworkSpec],
        keys: Mapping[str, str],
        profile: Profile,
        devices: int,
        gpus_per_node: int,
        known_rates: Mapping[str, Mapping[int, float]],
        timed: Mapping[str, StepTimings] | None = None,
        unmeasured: Sequence[NetworkSpec] = (),
    ) -> None:
        self.networks = networks
        self.unmeasured = unmeasured
        self.keys = keys
        self.profile = profile
        self.devices = devices
        self._gpus_per_node = gpus_per_node
        self.measured = 0
        self._is_scaling = False
        self.known_rates = {key: dict(rates) for key, rates in known_rates.items()}
        self._timed = dict(timed or {})
        self.failed: dict[str, Outcome] = {}
        self._twins: dict[str, list[NetworkSpec]] = {}  # by key
        self._queue: deque[MeasurementTask] = deque()
        self._open: set[MeasurementTask] = set()
        for network in networks:
            self._twins.setdefault(keys[network.name], []).append(network)
            self._forget(network)
        for network in sorted(networks, key=lambda network: network.min_gpus):
            self._ask(keys[network.name], self._min_gpus(network))
        self._scale()

    # ---- next measurement ----

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to measure."""
        return not self._queue and not self._open

    @property
    def total(self) -> int:
        """The number of measurements, as far as known yet."""
        return self.measured + len(self._queue) + len(self._open)

    def next(self, idle: int) -> MeasurementTask | None:
        """Return a measurement that fits on so many idle ranks; larger ones wait."""
        if not self._queue or self._queue[0].gpus > idle:
            return None
        task = self._queue.popleft()
        self._open.add(task)
        return task

    def batches(self, task: MeasurementTask) -> tuple[int, ...]:
        """Return the global batches to measure; empty unless the policy chooses the batch."""
        network = next(candidate for candidate in self.networks if candidate.name == task.network)
        if not network.train.batch.is_elastic:
            return ()
        alone = self._timed.get(self.keys[task.network], StepTimings()).steps.get(1, ())
        return batches_to_time(
            network.train.batch.bounds,
            network.min_gpus,
            task.gpus,
            max((step.batch for step in alone), default=None),
        )

    def record(self, task: MeasurementTask, measured: Measured) -> StepRate:
        """Record the result of a measurement; return its rate."""
        if measured.timed:
            key = self.keys[task.network]
            self._timed[key] = self._timed.get(key, StepTimings()).with_steps(
                task.gpus, measured.timed, measured.parameters
            )
        self.add(task, measured.rate.rate, measured.reason, measured.may_pass)
        return measured.rate

    def _forget(self, network: NetworkSpec) -> None:
        """Forget earlier measurements that do not show how the rate depends on the batch."""
        if not network.train.batch.is_elastic:
            return
        key = self.keys[network.name]
        timed = self._timed.get(key, StepTimings())
        if not timed.has_batches(
            batches_to_time(network.train.batch.bounds, network.min_gpus, gpus=1)
        ):
            timed = self._timed[key] = StepTimings()
        self.known_rates[key] = {
            gpus: samples_per_s
            for gpus, samples_per_s in self.known_rates.get(key, {}).items()
            if gpus in timed.steps
        }

    def conclude(self) -> dict[str, Outcome]:
        """Return the networks that cannot be trained, once all measurements have ended."""
        for network in self._able():
            try:
                self._analysed(network)
            except InputError as error:
                self.failed[network.name] = Outcome(str(error), is_failure=True)
        return self.failed

    def add(
        self, task: MeasurementTask, measured: float, reason: str, may_pass: bool = False
    ) -> None:
        """Add a measured rate.

        Args:
            task: the measurement.
            measured: samples/s; 0 if it failed.
            reason: why it failed.
            may_pass: whether the failure is transient.
        """
        self._open.discard(task)
        self.measured += 1
        if measured > 0:
            self.known_rates.setdefault(self.keys[task.network], {})[task.gpus] = measured
        else:
            self.failed[task.network] = Outcome(reason, is_failure=True, may_pass=may_pass)
            # Another network of this key may be buildable with its seed; it is measured instead.
            remaining = [waiting.gpus for waiting in self._queue if waiting.network == task.network]
            self._queue = deque(
                waiting for waiting in self._queue if waiting.network != task.network
            )
            for gpus in (task.gpus, *remaining):
                self._ask(self.keys[task.network], gpus)
        self._scale()

    def retry(self, task: MeasurementTask) -> None:
        """Repeat a measurement after all others, if enough trainers are left."""
        self._open.discard(task)
        if task.gpus <= self.devices:
            self._queue.append(task)
        self._scale()

    def limit_devices(self, devices: int) -> None:
        """Drop measurements that need more trainers than are left."""
        self.devices = devices
        self._queue = deque(task for task in self._queue if task.gpus <= devices)
        self._scale()

    def _ask(self, key: str, gpus: int) -> None:
        """Request an unknown rate, of the first network with this key that can provide it."""
        names = (
            network.name
            for network in self._twins[key]
            if self._min_gpus(network)
            <= gpus
            <= min(network.max_gpus or self.devices, self.devices)
            and network.name not in self.failed
        )
        pending = {(self.keys[task.network], task.gpus) for task in (*self._queue, *self._open)}
        if (
            gpus not in self.known_rates.get(key, {})
            and (key, gpus) not in pending
            and (name := next(names, None)) is not None
        ):
            self._queue.append(MeasurementTask(name, gpus))

    def _scale(self) -> None:
        """Request rates on more GPUs once every network has its first rate."""
        if self._is_scaling or not self.is_done:
            return
        self._is_scaling = True
        single = [self._rates(network)[0] for network in self._able()]
        if not single:
            return
        max_gpus = self.profile.max_gpus or counts_to_measure(
            single, self._gpus_per_node, self.devices
        )
        for gpus in range(2, min(max_gpus, self.devices) + 1):
            for key in self._twins:
                self._ask(key, gpus)

    # ---- results ----

    def table(self, samples_per_epoch: int) -> RateTable:
        """Return the rates of all networks that could be measured."""
        analyzed = [self._analysed(network) for network in self._able()]
        return RateTable(
            samples_per_epoch,
            self._gpus_per_node,
            tuple(network for network, _ in analyzed),
            merge_exchanges(exchange for _, exchanges in analyzed for exchange in exchanges),
        )

    def _analysed(self, network: NetworkSpec) -> tuple[Network, tuple[CommTime, ...]]:
        """Return the rates of a network, and the exchange times measured with it.

        Raises:
            InputError: the policy chooses its batch, and too few batches fit.
        """
        rates = Network(
            network.name, self._rates(network), min_gpus=network.min_gpus, max_gpus=network.max_gpus
        )
        if not network.train.batch.is_elastic:
            return rates, ()
        rates, exchanges = analyze(
            replace(rates, batches=network.train.batch.bounds),
            self._timed.get(self.keys[network.name], StepTimings()),
        )
        # raises InputError
        with_best_batches(RateTable(1, self._gpus_per_node, (rates,), exchanges), self.devices)
        return rates, exchanges

    @staticmethod
    def _min_gpus(network: NetworkSpec) -> int:
        """Return the fewest GPUs on which a network is measured."""
        if network.train.batch.is_elastic:
            return 1
        return network.min_gpus

    def _able(self) -> list[NetworkSpec]:
        """Return the networks that have rates."""
        return [
            network
            for network in self.networks
            if network.name not in self.failed
            and self._min_gpus(network) in self.known_rates.get(self.keys[network.name], {})
        ]

    def _rates(self, network: NetworkSpec) -> tuple[float, ...]:
        return rates_up_to_gap(self.known_rates[self.keys[network.name]], self._min_gpus(network))


class MeasurementEstimate(NamedTuple):
    """The number of measurements, and how long they occupy the devices."""

    measurements: int
    seconds: float


def estimate_duration(
    measurement: RateMeasurement, rates: RateTable, build_s: float
) -> MeasurementEstimate:
    """Simulate the measurements on a clock: side by side on idle devices, as the runtime does.

    Args:
        measurement: the measurements; they are used up.
        rates: rates of the networks.
        build_s: seconds for building a network and tracing its steps.
    """
    networks = rates.by_name
    specs = {network.name: network for network in measurement.networks}

    def takes_s(task: MeasurementTask) -> float:
        samples = measurement.profile.batches * specs[task.network].global_batch(task.gpus)
        return build_s + samples / rate(networks[task.network], task.gpus)

    now_s = 0.0
    idle = measurement.devices
    running = list[tuple[float, int, MeasurementTask]]()
    started = 0
    while True:
        while (task := measurement.next(idle)) is not None:
            started += 1
            idle -= task.gpus
            running.append((now_s + takes_s(task), started, task))
        if not running:  # nothing is left, or only what wants more devices than there are
            return MeasurementEstimate(started, now_s)
        running.remove(first := min(running))
        now_s, _, task = first
        idle += task.gpus
        measurement.add(task, rate(networks[task.network], task.gpus), "")
