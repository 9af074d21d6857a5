"""The rates by which an ensemble decides: given, measured before it trains, or learned while it does (pure).

They are a book of three sources. What is given stays. What is measured (:mod:`fleet.control.measurement`) stands once all
of it is. What is learned changes with each epoch: each of its rates has a spread and a number of steps, and a rate of
an earlier launch counts until this one has shown another. :class:`RateCheck` compares what training shows with what
was said, and :class:`Supply` says what the input gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from fleet.comm import messages as m
from fleet.comm.roles import Roles
from fleet.control.effects import Admitted, SaveRates
from fleet.control.launch_state import LaunchConfig, LaunchState, Least, PriorRates
from fleet.control.measurement import MeasurementTask
from fleet.domain import events
from fleet.domain.network import StepRate
from fleet.errors import UserError
from fleet.spec import NetworkSpec
from fleet.spec.layers import count_operations
from scheduler.base import Network, RateTable
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

_SURER = 4  # times as many steps as before, and a rate that was learned is worth a word again


@dataclass(frozen=True)
class Shared:
    """The GPUs that networks may share.

    Attributes:
        roles: of all ranks.
        asked: how many networks may share one by the spec; None for as many as there are ranks.
        learned: what they train together, as far as it is known; None where none are shared.
    """

    roles: Roles
    asked: int | None
    learned: Sharing | None

    @classmethod
    def of(cls, setup: LaunchConfig, rates: RateTable | None) -> Shared:
        """Those of a launch.

        Args:
            rates: that are given.
        """
        asked = setup.spec.resources.networks_per_gpu
        roles = setup.roles
        return cls(
            roles,
            None if asked == "auto" else asked,
            Sharing(setup.sharing, alone_rates(rates), roles.idle_slots)
            if roles.slots > 1
            else None,
        )

    def told(self, curve: Sequence[float], networks: float) -> events.SharingLearned:
        """What is to be said of it.

        Args:
            curve: s(1), s(2), ... as far as it is known.
            networks: that there are, or may be.
        """
        return events.SharingLearned(
            tuple(curve), self.roles.slots, self.roles.device, self._bound(curve, networks)
        )

    def _bound(self, curve: Sequence[float], networks: float) -> str:
        pays = useful_networks_per_gpu(curve)
        slots = self.roles.slots
        if (
            pays < slots
            or networks <= slots * self.roles.cluster.whole_gpus
            or (pays == slots < len(curve))
        ):
            return ""  # it does not pay, or is tried without a word; or more slots would stay empty
        if self.asked is not None and slots >= self.asked:
            return "per_device"
        return "ranks"


def known_sharing(setup: LaunchConfig) -> events.SharingLearned | None:
    """What earlier runs have shown, where it says that more networks should share a GPU than may in this launch."""
    told = Shared.of(setup, None).told(Sharing(setup.sharing).curve, setup.spec.max_networks)
    if told.bound:
        return told
    return None


class Rates:
    """Rates that are given, and stay as they are; training shows what networks that share a GPU train together.

    Args:
        speeds: what is known beforehand.
    """

    def __init__(self, speeds: PriorRates, launch: LaunchState) -> None:
        setup = launch.setup
        given = speeds.given
        self._given = given
        self._keys = dict(speeds.survey.keys)
        self._outbox = launch.outbox
        is_file = setup.spec.schedule.rates is not None
        # otherwise nobody has said how fast networks are
        if setup.spec.engine.learns and (is_file or given is None):
            self._check: RateCheck | None = RateCheck(self._keys, not is_file)
        else:
            self._check = None
        self._shared = Shared.of(setup, given)
        if speeds.online is None:
            self._sharing = self._shared.learned
        else:
            self._sharing = speeds.online.sharing
        # Rates are those of the time that is emulated; what is measured here is that of the clock.
        self._time_scale = 1.0 if given is None else setup.spec.resources.time_scale
        self._planned_by = self._curve
        # What is known beforehand is noted, too.
        self._noted_curve: tuple[float, ...] = (
            (1.0,) if self._sharing is None else self._sharing.expected
        )
        self._are_said = (
            is_file or setup.spec.policy.needs_rates
        )  # else those that are given only take their place
        self._late: list[Admitted] = []  # those that came before there were any rates

    @property
    def _curve(self) -> tuple[float, ...]:
        """s(1), s(2), ... as far as it is known."""
        if self._sharing is None:
            return (1.0,)
        return self._sharing.curve

    @property
    def table(self) -> RateTable | None:
        """What a policy is told; None as long as nothing is known."""
        if (
            self._given is not None
            and self._sharing is not None
            and self._given.sharing != self._curve
        ):
            self._given = replace(self._given, sharing=self._curve)
        return self._given

    @property
    def are_absolute(self) -> bool:
        """Whether they say how many samples/s networks take; otherwise only how they compare."""
        return True

    @property
    def are_samples(self) -> bool:
        """Whether they are samples/s, though perhaps guessed: then they can be compared with what the input gives."""
        return True

    @property
    def guessed(self) -> AbstractSet[str]:
        """The networks whose rates are mere guesses."""
        return frozenset()

    @property
    def has_changed(self) -> bool:
        """Whether rates by which the present plan was made have proved wrong."""
        return curves_differ(self._planned_by, self._curve, OFF)

    @property
    def may_grow(self) -> bool:
        """Whether a group has shown its rate on all the devices that it was allowed, and may have more now."""
        return len(self._curve) > len(self._planned_by)

    def alone(self, name: str) -> float | None:
        """Samples/s of a network on one GPU, as they are known; None where nobody has said or seen them."""
        table = self.table
        is_known = (
            table is not None
            and name in table.by_name
            and name not in self.guessed
            and self._are_said
        )
        if table is not None and is_known:
            return rate_of(table.by_name[name], 1)
        return None

    def add(self, admitted: Admitted) -> None:
        """A network has come: it has its own rates, those of one of equal speed, or those in the middle of all."""
        network = admitted.network
        self._keys[network.name] = admitted.key
        if self._given is None:
            self._late.append(admitted)
        elif network.name not in self._given.by_name:
            self._given = self._given.with_network(admitted.rates or self._like(admitted))

    def _like(self, admitted: Admitted) -> Network:
        network = admitted.network
        models = self._given.models if self._given is not None else ()
        twin = next((one for one in models if self._keys.get(one.name) == admitted.key), None)
        alike = Network("", median_rates(models)) if twin is None else twin
        return replace(
            alike, name=network.name, min_gpus=network.min_gpus, max_gpus=network.max_gpus
        )

    def observe(self, name: str, gpus: int, shown: StepRate) -> None:
        """A group has shown how fast its steps are."""
        if self._given is not None and shown.rate:
            network = self._given.by_name.get(name)
        else:
            network = None
        if network is not None:
            if self._sharing is not None:
                self._sharing.observe(
                    (name, gpus),
                    shown.beside,
                    shown.rate * self._time_scale,
                    shown.spread,
                    shown.steps,
                )
                self._tell_of_sharing()
            if (
                network.batches is None
            ):  # else the rate is that of the best batch, and a group may be on its way to it
                self._compare(
                    name, gpus, shown, rate_of(network, gpus) * share(self._curve, shown.beside)
                )

    def _tell_of_sharing(self) -> None:
        """Say what networks that share a GPU train together, where more is known of it or it has changed."""
        if len(self._curve) > 1 and curves_differ(self._noted_curve, self._curve, OFF):
            self._noted_curve = self._curve
            self._outbox.note(self._shared.told(self._curve, len(self._keys)))

    def _compare(self, name: str, gpus: int, shown: StepRate, expected: float) -> None:
        if (
            self._check is not None
            and (off := self._check.compare(name, gpus, shown, expected)) is not None
        ):
            self._outbox.note(off)

    def planned(self, is_new: bool, tried: Probes, is_over: Callable[[str], bool]) -> None:
        """The policy has answered by the table.

        Args:
            is_new: whether it wants something else than before.
            tried: the networks and numbers of GPUs whose rates the answer only tries.
            is_over: whether nobody asks for the rates of a network any more.
        """
        self._planned_by = self._curve

    @property
    def least(self) -> Least | None:
        """Network -> the rates that it has at least; None where rates are no estimates."""
        return None

    def keep(self) -> None:
        """Have what is known written down for whoever plans or rehearses the run later."""

    def lose(self, devices: int, tasks: Sequence[MeasurementTask] = ()) -> None:
        """There are only so many trainers left; those that are no more were measuring this."""

    def measured(self, task: MeasurementTask, measured: m.Measured) -> None:
        """A measurement is over."""

    def measure(self, fail: Callable[..., None]) -> None:
        """Give idle devices something to measure, as long as rates are missing.

        Args:
            fail: a network cannot be trained, and why.
        """


class MeasuredRates(Rates):
    """Rates that are measured before anything trains."""

    def __init__(self, speeds: PriorRates, launch: LaunchState) -> None:
        super().__init__(speeds, launch)
        self._survey = speeds.survey
        self._launch = launch
        self._began_s: float | None = None

    def lose(self, devices: int, tasks: Sequence[MeasurementTask] = ()) -> None:  # noqa: D102
        for task in tasks:
            self._survey.again(task)
        self._survey.lose(devices)

    def measured(self, task: MeasurementTask, measured: m.Measured) -> None:  # noqa: D102
        if self._launch.networks.may_retry(measured):
            self._survey.again(task)
            return
        found = self._survey.hear(task, measured)
        self._outbox.note(
            events.RateMeasured(
                task.network,
                task.gpus,
                found.rate,
                measured.seconds,
                done=self._survey.measured,
                total=self._survey.total,
                reason=measured.reason,
                spread=found.spread,
                steps=found.steps,
                timed=measured.timed,
                parameters=measured.parameters,
            )
        )

    def measure(self, fail: Callable[..., None]) -> None:  # noqa: D102
        groups = self._launch.groups
        networks = self._launch.networks
        now_s = self._launch.now_s
        if self._given is not None:
            return
        self._began_s = now_s if self._began_s is None else self._began_s
        while (task := self._survey.next(len(groups.free_whole))) is not None:
            network = networks.specs[task.network]
            self._launch.build(
                network.name, groups.measure(network, task.gpus, self._survey.batches(task))
            )
        if self._survey.is_done:
            for name, outcome in self._survey.conclude().items():
                fail(name, outcome.reason, may_pass=outcome.may_pass)
            self._conclude(
                with_best_batches(
                    self._survey.table(self._launch.setup.samples), self._survey.devices
                ),
                now_s,
            )

    def _conclude(self, found: RateTable, now_s: float) -> None:
        """Go by what was measured from now on."""
        self._given = found
        self._outbox.note(
            events.Profiled(
                self._survey.measured,
                now_s - (self._began_s or 0.0),
                {network.name: network.rates for network in found.models},
            )
        )
        self._outbox.add(SaveRates(lambda: found))
        late = self._late
        self._late = []
        for admitted in late:
            self.add(admitted)


class LearnedRates(Rates):
    """Rates that training itself shows."""

    def __init__(self, online: OnlineRates, speeds: PriorRates, launch: LaunchState) -> None:
        super().__init__(speeds, launch)
        self._online = online
        self._known = speeds.survey.known
        self._told_steps: dict[
            tuple[str, int], int
        ] = {}  # key and GPUs -> the steps that it was learned from
        self._table: RateTable | None = None  # by which the present plan was made
        self._noted: dict[
            str, tuple[float, ...]
        ] = {}  # network -> the rates that were last said of it

    def add(self, admitted: Admitted) -> None:  # noqa: D102
        if admitted.traits is not None:
            self._keys[admitted.network.name] = admitted.key
            self._online.add(admitted.traits, admitted.known)

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

    def observe(self, name: str, gpus: int, shown: StepRate) -> None:  # noqa: D102
        key = self._keys.get(name)
        if key is None or not shown.rate:
            return
        remembered = self._known.get(key, {}).get(gpus)
        if remembered is not None and shown.beside == 1:
            self._compare(name, gpus, shown, remembered)
        self._online.observe(
            name, gpus, Observation(shown.rate, shown.spread, shown.steps, shown.beside)
        )
        self._tell_of_sharing()
        if shown.beside > 1:
            return  # it says nothing of the network alone that a later run could use
        if shown.steps >= _SURER * self._told_steps.get((key, gpus), 0):
            self._told_steps[key, gpus] = max(1, shown.steps)
            self._outbox.note(events.RateLearned(name, gpus, shown.rate, shown.spread, shown.steps))

    def planned(self, is_new: bool, tried: Probes, is_over: Callable[[str], bool]) -> None:  # noqa: D102
        super().planned(is_new, tried, is_over)
        if is_new or self._online.has_news:
            self._online.record_plan(tried)
            table = self.table
            if table is not self._table:
                before = () if self._table is None else self._table.models
                self._table = table
                # networks have come, one by one
                if table.models[: len(before)] == before:
                    same = len(before)
                else:
                    same = 0
                self._tell(table.models[same:], is_over)

    def _tell(self, networks: Sequence[Network], is_over: Callable[[str], bool]) -> None:
        """Say by which rates it was planned, where they are others than before."""
        new = {
            network.name: network.rates
            for network in networks
            if self._noted.get(network.name) != network.rates and not is_over(network.name)
        }
        if new:
            self._noted |= new
            self._outbox.note(
                events.RatesEstimated(new, len(self._keys) - len(self._online.guessed))
            )
            self.keep()

    def keep(self) -> None:  # noqa: D102
        if self.are_absolute:
            self._outbox.add(SaveRates(self._online.measured_table))

    @property
    def least(self) -> Least:  # noqa: D102
        return self._online.lower_rates

    def lose(self, devices: int, tasks: Sequence[MeasurementTask] = ()) -> None:  # noqa: D102
        self._online.limit_gpus(devices)


def make_rates(speeds: PriorRates, launch: LaunchState) -> Rates:
    """The rates of a launch, by what is known beforehand."""
    if speeds.given is not None:
        return Rates(speeds, launch)
    if speeds.online is None:
        return MeasuredRates(speeds, launch)
    return LearnedRates(speeds.online, speeds, launch)


class RateCheck:
    """Compares the rates of training groups with those by which it was decided.

    Args:
        keys: of networks: equal keys train at equal speed, so it is told of one of them.
        is_measured: whether rates come from measurements, of this launch or an earlier one, and not from a file.
    """

    def __init__(self, keys: Mapping[str, str], is_measured: bool) -> None:
        self._keys = keys
        self._is_measured = is_measured
        self._told: dict[
            tuple[str, int], float
        ] = {}  # key and GPUs -> what the rate was said to be

    def compare(
        self, network: str, gpus: int, step_rate: StepRate, expected: float
    ) -> events.RateOff | None:
        """Tell of a rate that is off by more than a quarter, once; and again when it has changed by as much.

        Steps of milliseconds differ among each other: a rate that may be off by chance alone is not told of.

        Args:
            step_rate: that the group shows.
            expected: samples/s that it was taken to have.
        """
        rate = step_rate.rate
        place = self._keys.get(network, network), gpus
        before = self._told.get(place, expected)
        if not is_off(Observation(rate, step_rate.spread, step_rate.steps), before):
            return None
        self._told[place] = rate
        return events.RateOff(
            network, gpus, expected, rate, step_rate.spread, step_rate.steps, self._is_measured
        )


class Supply:
    """The samples/s that plans count on, and whether they have proved wrong.

    What preprocessors say varies a little all the time. So a plan stands until what networks get of the stream is off
    by more than a quarter: how fast the stream is does not matter as long as it is faster than all of them.

    Attributes:
        has_changed: whether the present plan was made by another supply.
    """

    def __init__(self, launch: LaunchState) -> None:
        self._production = launch.production
        self._outbox = launch.outbox
        self._groups = launch.groups
        self._time_scale = (
            launch.setup.spec.resources.time_scale
        )  # rates are those of the time that is emulated
        self._planned: float | None = None
        self._of: tuple[RateTable | None, int] = (
            None,
            0,
        )  # from which table, and for how many GPUs, the next two are
        self._told: RateTable | None = None
        self._demand = 0.0  # samples/s of the fastest network
        self.has_changed = False

    def told(self, rates: Rates) -> RateTable:
        """The rates as a policy is to know them, which is asked now.

        Args:
            rates: that are known.
        """
        table = rates.table
        cluster = self._groups.cluster
        assert table is not None  # or no policy is asked
        supply = float("inf")
        if rates.are_samples:
            supply = self._production.supply(self._groups.lost) * self._time_scale
        if self._planned is None:
            self._planned = supply
        if supply == self._planned == table.supply:
            self.has_changed = False
            return table
        if (
            self._of[0] is not table or self._of[1] != cluster.whole_gpus
        ):  # for there may be thousands of networks
            self._of = (table, cluster.whole_gpus)
            self._told = None
            self._demand = max(
                (max_rate(network, cluster.whole_gpus) for network in table.models), default=0.0
            )
        before = min(self._planned, self._demand)
        now = min(supply, self._demand)
        self.has_changed = abs(now - before) > OFF * before
        if self.has_changed:
            self._planned = supply
            if supply < float("inf"):
                self._outbox.note(
                    events.SupplyFound(supply / self._time_scale, self._demand / self._time_scale)
                )
        if self._told is None or self._told.supply != self._planned:
            self._told = replace(table, supply=self._planned)
        return self._told


def traits_of(network: NetworkSpec, key: str, input_shape: tuple[int, ...], classes: int) -> Traits:
    """What is known of how fast a network is, before it has been built.

    Args:
        key: equal ones train at equal speed.
        input_shape: of a sample.
        classes: number of outputs.
    """
    architecture = network.architecture
    operations = None
    if architecture.kind == "family":
        try:
            operations = float(count_operations(architecture.settings, input_shape, classes))
        except (
            UserError
        ):  # images too small for it, which is no matter to an engine that learns nothing
            operations = None
    return Traits(
        network.name, key, architecture.target, operations, network.min_gpus, network.max_gpus
    )
