"""The rates of networks: given, measured before training, or learned from it (pure).

Given rates never change. Measured rates (:mod:`fleet.control.measurement`) are available once all
measurements have ended. Learned rates change with each epoch: each has a spread and a number of
steps, and a rate of an earlier launch counts until this launch has observed another.
:class:`RateCheck` compares rates with training, and :class:`Supply` adds the rate of the input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from fleet.comm import messages as m
from fleet.control.effects import NetworkAdmitted, SaveRates
from fleet.control.launch_state import LaunchConfig, LaunchState, PriorRates
from fleet.control.measurement import MeasurementTask
from fleet.domain import events
from fleet.domain.network import Outcome, StepRate
from fleet.errors import UserError
from fleet.spec import NetworkSpec
from fleet.spec.layers import count_operations
from scheduler.base import GroupShape, Network, RateTable
from scheduler.ensemble.elastic import with_best_batches
from scheduler.ensemble.online import OFF, Observation, OnlineRates, Traits, is_off
from scheduler.ensemble.planning import max_rate
from scheduler.ensemble.probing import Probes
from scheduler.ensemble.rates import median_rates
from scheduler.ensemble.rates import rate as rate_of
from scheduler.ensemble.sharing import (
    Sharing,
    alone_rates,
    curves_differ,
    share,
    useful_networks_per_gpu,
)
from scheduler.ensemble.spans import as_shape

_SURER = 4  # a learned rate is logged again after this many times the steps


def describe_sharing(
    config: LaunchConfig, curve: Sequence[float], networks: float
) -> events.SharingLearned:
    """Return the event that reports the speedups of sharing a GPU.

    Args:
        config: the configuration of the launch.
        curve: s(1), s(2), ... as far as known.
        networks: number of networks that exist, or may.
    """
    roles = config.roles
    pays = useful_networks_per_gpu(curve)
    slots = roles.slots
    max_networks = config.spec.resources.networks_per_gpu
    if pays < slots or networks <= slots * roles.cluster.whole_gpus or (pays == slots < len(curve)):
        bound = ""  # it does not pay, or is tried without a word; or more slots would stay empty
    elif max_networks != "auto" and slots >= max_networks:
        bound = "per_device"
    else:
        bound = "ranks"
    return events.SharingLearned(tuple(curve), slots, roles.device, bound)


def check_sharing_limit(config: LaunchConfig) -> events.SharingLearned | None:
    """Return an event if sharing GPUs by more networks would pay, by earlier runs."""
    event = describe_sharing(config, Sharing(config.sharing).curve, config.spec.max_networks)
    if event.bound:
        return event
    return None


class Rates:
    """Given rates, which never change; training shows the speedups of sharing a GPU.

    Args:
        prior_rates: rates that are known beforehand.
        launch: the state of the launch.
    """

    def __init__(self, prior_rates: PriorRates, launch: LaunchState) -> None:
        config = launch.config
        table = prior_rates.table
        self._table = table
        self._keys = dict(prior_rates.measurement.keys)
        self._outbox = launch.outbox
        is_file = config.spec.schedule.rates is not None
        # otherwise there are no rates to compare with
        self._has_check = config.spec.engine.learns and (is_file or table is None)
        self._check = RateCheck(self._keys, not is_file)
        self._config = config
        # None if no GPU is shared
        self._sharing: Sharing | None = None
        if prior_rates.online is not None:
            self._sharing = prior_rates.online.sharing
        elif config.roles.slots > 1:
            self._sharing = Sharing(config.sharing, alone_rates(table), config.roles.idle_slots)
        # Rates are in emulated time, measurements here in real time.
        self._time_scale = 1.0 if table is None else config.spec.resources.time_scale
        self._planned_by = self._curve
        # Prior speedups are logged, too.
        self._logged_curve: tuple[float, ...] = (
            (1.0,) if self._sharing is None else self._sharing.expected
        )
        # otherwise the table only has placeholders
        self._has_real_rates = is_file or config.spec.policy.needs_rates
        self._late: list[NetworkAdmitted] = []  # networks that were added before there were rates

    @property
    def _curve(self) -> tuple[float, ...]:
        """s(1), s(2), ... as far as known."""
        if self._sharing is None:
            return (1.0,)
        return self._sharing.curve

    @property
    def table(self) -> RateTable | None:
        """The rates for policies; None while nothing is known."""
        if (
            self._table is not None
            and self._sharing is not None
            and self._table.sharing != self._curve
        ):
            self._table = replace(self._table, sharing=self._curve)
        return self._table

    @property
    def are_absolute(self) -> bool:
        """Whether they are samples/s of the networks; otherwise they only compare networks."""
        return True

    @property
    def are_samples(self) -> bool:
        """Whether they are samples/s, perhaps estimated, and comparable with the input."""
        return True

    @property
    def guessed(self) -> AbstractSet[str]:
        """The networks whose rates are only estimated."""
        return frozenset()

    @property
    def has_changed(self) -> bool:
        """Whether rates differ from those of the current plan."""
        return curves_differ(self._planned_by, self._curve, OFF)

    @property
    def may_grow(self) -> bool:
        """Whether a group has shown its rate on all its devices, and may get more now."""
        return len(self._curve) > len(self._planned_by)

    def single_gpu_rate(self, name: str) -> float | None:
        """Return the samples/s of a network on one GPU; None if unknown."""
        table = self.table
        is_known = (
            table is not None
            and name in table.by_name
            and name not in self.guessed
            and self._has_real_rates
        )
        if table is not None and is_known:
            return rate_of(table.by_name[name], 1)
        return None

    def add(self, admitted: NetworkAdmitted) -> None:
        """Add a network with its own rates, those of an equal network, or middle rates."""
        network = admitted.network
        self._keys[network.name] = admitted.key
        if self._table is None:
            self._late.append(admitted)
        elif network.name not in self._table.by_name:
            self._table = self._table.with_network(
                admitted.rates or self._like(network, self._table.models)
            )

    def _like(self, network: NetworkSpec, models: Sequence[Network]) -> Network:
        """Return the rates of an equal network, or middle rates."""
        key = self._keys[network.name]
        twin = next((row for row in models if self._keys.get(row.name) == key), None)
        similar = Network("", median_rates(models)) if twin is None else twin
        return replace(
            similar, name=network.name, min_gpus=network.min_gpus, max_gpus=network.max_gpus
        )

    def observe(self, name: str, shape: GroupShape, observed: StepRate) -> None:
        """Record the rate of a group's steps."""
        if self._table is not None and observed.rate:
            network = self._table.by_name.get(name)
        else:
            network = None
        if network is not None:
            if self._sharing is not None:
                self._sharing.observe(
                    (name, shape),
                    observed.networks_per_gpu,
                    observed.rate * self._time_scale,
                    observed.spread,
                    observed.steps,
                )
                self._log_sharing()
            # With chosen batches, the rate is that of the best one, which groups approach slowly.
            if network.batches is None:
                self._compare(
                    name,
                    shape,
                    observed,
                    rate_of(network, shape.gpus, shape.span)
                    * share(self._curve, observed.networks_per_gpu),
                )

    def _log_sharing(self) -> None:
        """Log the speedups of sharing if they have changed."""
        if len(self._curve) > 1 and curves_differ(self._logged_curve, self._curve, OFF):
            self._logged_curve = self._curve
            self._outbox.log(describe_sharing(self._config, self._curve, len(self._keys)))

    def _compare(self, name: str, shape: GroupShape, observed: StepRate, expected: float) -> None:
        if self._has_check and (off := self._check.compare(name, shape, observed, expected)):
            self._outbox.log(off)

    def mark_planned(self, is_new: bool, probes: Probes, is_over: Callable[[str], bool]) -> None:
        """Record that the policy has planned with the table.

        Args:
            is_new: whether its plan has changed.
            probes: networks and numbers of GPUs whose rates the plan only probes.
            is_over: returns whether a network has ended.
        """
        self._planned_by = self._curve

    @property
    def rate_floor(self) -> Callable[[str], Sequence[float]] | None:
        """Network -> lower bounds of its rates; None if rates are not estimated."""
        return None

    @property
    def is_span_untried(self) -> Callable[[str, GroupShape], bool] | None:
        """Whether to try how a network trains that lies otherwise; None if nothing is learned."""
        return None

    def save(self) -> None:
        """Write the known rates to profile.json."""

    def limit_devices(self, devices: int, tasks: Sequence[MeasurementTask] = ()) -> None:
        """Record how many trainers are left, and drop the measurements of others."""

    def record_measurement(self, task: MeasurementTask, measured: m.Measured) -> None:
        """Record a measurement."""

    def measure(self, fail: Callable[..., None]) -> None:
        """Give idle devices measurements, as long as rates are missing.

        Args:
            fail: called with a network that cannot be trained, and the reason.
        """


class MeasuredRates(Rates):
    """Rates that are measured before training."""

    def __init__(self, prior_rates: PriorRates, launch: LaunchState) -> None:
        super().__init__(prior_rates, launch)
        self._measurement = prior_rates.measurement
        self._launch = launch
        self._began_s: float | None = None
        # networks that cannot be trained, until this launch may say so
        self._failed: dict[str, Outcome] = {}

    def limit_devices(self, devices: int, tasks: Sequence[MeasurementTask] = ()) -> None:  # noqa: D102
        for task in tasks:
            self._measurement.retry(task)
        self._measurement.limit_devices(devices)

    def record_measurement(self, task: MeasurementTask, measured: m.Measured) -> None:  # noqa: D102
        if self._launch.retries.try_retry(measured):
            self._measurement.retry(task)
            return
        step_rate = self._measurement.record(task, measured)
        self._outbox.log(
            events.RateMeasured(
                task.network,
                task.gpus,
                step_rate.rate,
                measured.seconds,
                done=self._measurement.measured,
                total=self._measurement.total,
                reason=measured.reason,
                spread=step_rate.spread,
                steps=step_rate.steps,
                timed=measured.timed,
                parameters=measured.parameters,
            )
        )

    def measure(self, fail: Callable[..., None]) -> None:  # noqa: D102
        networks = self._launch.networks
        if self._table is None:
            self._measure()
        # Another launch may train the others, and writes their files.
        for name in [name for name in self._failed if name not in networks.waiting.unleased]:
            outcome = self._failed.pop(name)
            if not networks.is_over(name):
                fail(name, outcome.reason, may_pass=outcome.may_pass)

    def _measure(self) -> None:
        networks = self._launch.networks
        now_s = self._launch.now_s
        self._began_s = now_s if self._began_s is None else self._began_s
        while (task := self._measurement.next(len(self._launch.devices.free_whole))) is not None:
            network = networks.specs[task.network]
            self._launch.start_build(
                network.name,
                self._launch.orders.measure(network, task, self._measurement.batches(task)),
            )
        if self._measurement.is_done:
            self._failed = dict(self._measurement.conclude())
            table = self._measurement.table(self._launch.config.samples)
            for network in self._measurement.unmeasured:
                table = table.with_network(self._like(network, table.models))
            self._conclude(with_best_batches(table, self._measurement.devices), now_s)

    def _conclude(self, table: RateTable, now_s: float) -> None:
        """Use the measured rates from now on."""
        self._table = table
        self._outbox.log(
            events.ProfilingFinished(
                self._measurement.measured,
                now_s - (self._began_s or 0.0),
                {network.name: network.rates for network in table.models},
            )
        )
        self._outbox.add(SaveRates(lambda: table))
        late = self._late
        self._late = []
        for admitted in late:
            self.add(admitted)


class LearnedRates(Rates):
    """Rates that are learned from training."""

    def __init__(self, online: OnlineRates, prior_rates: PriorRates, launch: LaunchState) -> None:
        super().__init__(prior_rates, launch)
        self._online = online
        # key and shape -> steps that its logged rate was learned from
        self._logged_steps: dict[tuple[str, GroupShape], int] = {}
        self._planned_table: RateTable | None = None  # by which the present plan was made
        # Networks that were over when their rates changed. A death may take their last epoch back.
        self._unlogged: dict[str, None] = {}
        # network -> rates that were last logged, on few nodes and spread
        self._logged_rates: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {}

    def add(self, admitted: NetworkAdmitted) -> None:  # noqa: D102
        if admitted.traits is not None:
            self._keys[admitted.network.name] = admitted.key
            self._online.add(admitted.traits, admitted.prior_rates)

    @property
    def table(self) -> RateTable:  # noqa: D102
        return self._online.table()

    @property
    def are_absolute(self) -> bool:  # noqa: D102
        return not self._online.guessed

    @property
    def are_samples(self) -> bool:  # noqa: D102
        return len(self._online.guessed) < len(self._keys)

    @property
    def guessed(self) -> AbstractSet[str]:  # noqa: D102
        return self._online.guessed

    @property
    def has_changed(self) -> bool:  # noqa: D102
        return self._online.has_news

    @property
    def may_grow(self) -> bool:  # noqa: D102
        return self._online.may_grow

    def observe(self, name: str, shape: GroupShape, observed: StepRate) -> None:  # noqa: D102
        key = self._keys.get(name)
        if key is None or not observed.rate:
            return
        remembered = self._online.remembered_rate(key, shape)
        if remembered is not None and observed.networks_per_gpu == 1:
            self._compare(name, shape, observed, remembered)
        self._online.observe(
            name,
            shape,
            Observation(observed.rate, observed.spread, observed.steps, observed.networks_per_gpu),
        )
        self._log_sharing()
        if observed.networks_per_gpu > 1:
            return  # this is not the rate of the network alone on a GPU
        if observed.steps >= _SURER * self._logged_steps.get((key, shape), 0):
            self._logged_steps[key, shape] = max(1, observed.steps)
            self._outbox.log(
                events.RateLearned(
                    name,
                    shape.gpus,
                    observed.rate,
                    observed.spread,
                    observed.steps,
                    shape.span,
                )
            )

    def mark_planned(self, is_new: bool, probes: Probes, is_over: Callable[[str], bool]) -> None:  # noqa: D102
        super().mark_planned(is_new, probes, is_over)
        if is_new or self._online.has_news:
            self._online.record_plan(probes)
            table = self.table
            if table is not self._planned_table:
                before = () if self._planned_table is None else self._planned_table.models
                self._planned_table = table
                # networks were added at the end
                if table.models[: len(before)] == before:
                    unlogged = map(table.by_name.__getitem__, self._unlogged)
                    self._log_changes([*table.models[len(before) :], *unlogged], is_over)
                else:
                    self._unlogged.clear()
                    self._log_changes(table.models, is_over)

    def _log_changes(self, networks: Sequence[Network], is_over: Callable[[str], bool]) -> None:
        """Log the rates of the plan that have changed."""
        new = {}
        for network in networks:
            rates = (network.rates, network.spread_rates)
            if self._logged_rates.get(network.name) == rates:
                continue
            if is_over(network.name):
                self._unlogged[network.name] = None
            else:
                self._unlogged.pop(network.name, None)
                new[network.name] = rates
        if new:
            self._logged_rates |= new
            self._outbox.log(
                events.RatesEstimated(
                    {name: rates for name, (rates, _) in new.items()},
                    len(self._keys) - len(self._online.guessed),
                    {name: spread for name, (_, spread) in new.items() if spread},
                )
            )
            self.save()

    def save(self) -> None:  # noqa: D102
        if self.are_absolute:
            self._outbox.add(SaveRates(self._online.measured_table))

    @property
    def rate_floor(self) -> Callable[[str], Sequence[float]]:  # noqa: D102
        return self._online.lower_rates

    @property
    def is_span_untried(self) -> Callable[[str, GroupShape], bool]:  # noqa: D102
        return self._online.is_span_untried

    def limit_devices(self, devices: int, tasks: Sequence[MeasurementTask] = ()) -> None:  # noqa: D102
        self._online.limit_gpus(devices)


def make_rates(prior_rates: PriorRates, launch: LaunchState) -> Rates:
    """Return the rates of a launch, by their source."""
    if prior_rates.table is not None:
        return Rates(prior_rates, launch)
    if prior_rates.online is None:
        return MeasuredRates(prior_rates, launch)
    return LearnedRates(prior_rates.online, prior_rates, launch)


class RateCheck:
    """Compares the rates of training groups with those of the plan.

    Args:
        keys: network -> key; networks of equal keys have equal rates, so only one is reported.
        is_measured: whether rates come from measurements, and not from a file.
    """

    def __init__(self, keys: Mapping[str, str], is_measured: bool) -> None:
        self._keys = keys
        self._is_measured = is_measured
        # key and shape -> rate that was last reported
        self._reported: dict[tuple[str, GroupShape], float] = {}

    def compare(
        self, network: str, shape: GroupShape | int, step_rate: StepRate, expected: float
    ) -> events.RateMismatch | None:
        """Return an event if a rate is off by more than a quarter, or changes by as much again.

        Durations of steps of milliseconds vary: rates that may be off by chance are not reported.

        Args:
            network: its name.
            shape: shape of its group, or the number of its GPUs.
            step_rate: the observed rate.
            expected: samples/s that the plan assumed.
        """
        rate = step_rate.rate
        shape = as_shape(shape)
        key = self._keys.get(network, network), shape
        before = self._reported.get(key, expected)
        if not is_off(Observation(rate, step_rate.spread, step_rate.steps), before):
            return None
        self._reported[key] = rate
        return events.RateMismatch(
            network,
            shape.gpus,
            expected,
            rate,
            step_rate.spread,
            step_rate.steps,
            self._is_measured,
            shape.span,
        )


class Supply:
    """The samples/s that plans count on, and whether they have changed.

    Preprocessors report slightly varying rates. A plan is kept until the samples/s per network are
    off by more than a quarter; a stream faster than all networks does not matter.

    Attributes:
        has_changed: whether the current plan assumed another supply.
    """

    def __init__(self, launch: LaunchState) -> None:
        self._grants = launch.grants
        self._outbox = launch.outbox
        self._devices = launch.devices
        # Rates are in emulated time.
        self._time_scale = launch.config.spec.resources.time_scale
        self._planned: float | None = None
        # the table and the number of GPUs of the next two
        self._cache_key: tuple[RateTable | None, int] = (None, 0)
        self._limited: RateTable | None = None
        self._demand = 0.0  # samples/s of the fastest network
        self.has_changed = False

    def limited_table(self, rates: Rates) -> RateTable:
        """Return the rates for the policy, limited by the supply.

        Args:
            rates: the known rates.
        """
        table = rates.table
        cluster = self._devices.cluster
        assert table is not None  # otherwise the policy is not called
        supply = float("inf")
        if rates.are_samples:
            supply = self._grants.supply(self._devices.removed_ranks) * self._time_scale
        if self._planned is None:
            self._planned = supply
        if supply == self._planned == table.supply:
            self.has_changed = False
            return table
        # cached: there may be thousands of networks
        if self._cache_key[0] is not table or self._cache_key[1] != cluster.whole_gpus:
            self._cache_key = (table, cluster.whole_gpus)
            self._limited = None
            self._demand = max(
                (max_rate(network, cluster.whole_gpus) for network in table.models), default=0.0
            )
        before = min(self._planned, self._demand)
        now = min(supply, self._demand)
        self.has_changed = abs(now - before) > OFF * before
        if self.has_changed:
            self._planned = supply
            if supply < float("inf"):
                self._outbox.log(
                    events.SupplyChanged(supply / self._time_scale, self._demand / self._time_scale)
                )
        if self._limited is None or self._limited.supply != self._planned:
            self._limited = replace(table, supply=self._planned)
        return self._limited


def traits_of(network: NetworkSpec, key: str, input_shape: tuple[int, ...], classes: int) -> Traits:
    """Return the features for estimating a network's rate before it has been built.

    Args:
        network: the network.
        key: equal for networks of equal rates.
        input_shape: shape of a sample.
        classes: number of outputs.
    """
    architecture = network.architecture
    operations = None
    if architecture.kind == "family":
        try:
            operations = float(count_operations(architecture.settings, input_shape, classes))
        except UserError:  # images too small for it, which an emulated engine does not mind
            operations = None
    return Traits(
        network.name, key, architecture.target, operations, network.min_gpus, network.max_gpus
    )
