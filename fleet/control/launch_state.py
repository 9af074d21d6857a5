"""The configuration and the mutable state of a launch, as the controller has them (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fleet.comm import messages as m
from fleet.comm.roles import Roles
from fleet.control.devices import DevicePool
from fleet.control.effects import Outbox
from fleet.control.fusing import Fusing
from fleet.control.group_startup import PendingBuilds, StartupTimes
from fleet.control.groups import Groups
from fleet.control.measurement import RateMeasurement
from fleet.control.network_changes import NetworkChanges
from fleet.control.networks import Networks, WaitingNetworks
from fleet.control.orders import Orders
from fleet.control.plan_target import PlanTarget
from fleet.control.retries import Retries
from fleet.control.stream_grants import StreamGrants
from fleet.domain.network import Death
from fleet.domain.run import RunState
from fleet.spec import Spec
from fleet.stream.layout import Layout
from scheduler.base import RateTable
from scheduler.ensemble.online import OnlineRates


@dataclass(frozen=True)
class LaunchConfig:
    """The constants of a launch.

    Attributes:
        spec: the spec of the run.
        roles: roles of all ranks.
        layout: layout of the stream; None if trainers prepare their own samples, or augment stored
            ones.
        samples: number of training samples.
        outlives: whether ranks may die while the others continue.
        ends_s: when the walltime ends, in seconds of the clock of :meth:`Controller.handle`;
            infinity without a walltime.
        first_epoch: first epoch of the stream, in this launch.
        replayed: the stream epochs of a replay of one network, in order.
        replayed_batches: the batches of these epochs, if the policy had chosen them.
        unreadable: names of samples that are known to be unreadable.
        elsewhere: networks that other launches may train; see
            :class:`fleet.control.effects.LeaseGranted`.
        sharing: k -> speedup of k networks on one GPU over one network, as far as known.
        alone: networks that are known to need GPUs of their own.
        hosts: names of the nodes in order; empty if unknown.
        deaths: network -> deaths of ranks that trained it in earlier launches.
        chance: pipeline key -> accuracy up to which its networks may be no better than chance.
    """

    spec: Spec
    roles: Roles
    layout: Layout | None
    samples: int
    outlives: bool = False
    ends_s: float = float("inf")
    first_epoch: int = 0
    replayed: tuple[int, ...] = ()
    replayed_batches: tuple[int, ...] = ()
    unreadable: frozenset[str] = frozenset()
    elsewhere: frozenset[str] = frozenset()
    sharing: Mapping[int, float] = field(default_factory=dict)
    alone: frozenset[str] = frozenset()
    hosts: tuple[str, ...] = ()
    deaths: Mapping[str, Sequence[Death]] = field(default_factory=dict)
    chance: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PriorRates:
    """Rates that are known before a launch trains.

    Attributes:
        measurement: the measurements to make if rates have no other source, with earlier results.
        table: rates of a file, instead.
        online: learns rates from training, instead.
    """

    measurement: RateMeasurement
    table: RateTable | None = None
    online: OnlineRates | None = None


@dataclass(frozen=True)
class LaunchState:
    """The mutable state of a launch, shared by all parts that decide.

    Attributes:
        run: the state of the run after all events so far.
        outbox: collects effects, and holds the time.
        networks: an index over the state of the run.
    """

    config: LaunchConfig
    run: RunState
    outbox: Outbox
    grants: StreamGrants
    networks: Networks
    changes: NetworkChanges
    retries: Retries
    devices: DevicePool
    groups: Groups
    target: PlanTarget
    orders: Orders
    builds: PendingBuilds
    startup: StartupTimes
    fusing: Fusing

    @classmethod
    def create(cls, config: LaunchConfig, run: RunState) -> LaunchState:
        """Return the state of a launch at its beginning.

        Args:
            config: the configuration of the launch.
            run: the state of the run after earlier launches.
        """
        outbox = Outbox(run)
        spec = config.spec
        grants = StreamGrants(
            config.layout,
            config.roles.preprocessors,
            config.first_epoch,
            config.replayed,
            config.replayed_batches,
        )
        waiting = WaitingNetworks(
            unleased=set(config.elsewhere),
            deaths={name: list(deaths) for name, deaths in config.deaths.items() if deaths},
        )
        networks = Networks(run, spec.networks, waiting)
        devices = DevicePool(config.roles, outbox)
        groups = Groups(devices)
        # A rank that may die could do so while it leaves, and new ranks would wait for it.
        can_change = not config.outlives
        target = PlanTarget(devices, groups, can_change, grants.changes_inside)
        return cls(
            config,
            run,
            outbox,
            grants,
            networks,
            NetworkChanges(networks, outbox, spec.document.max_deaths),
            Retries(spec.document.retries, outbox, waiting, config.alone),
            devices,
            groups,
            target,
            Orders(devices, groups, target, grants, outbox),
            PendingBuilds(),
            StartupTimes(config.ends_s, outbox),
            Fusing(config.roles.fused > 1, networks, outbox),
        )

    @property
    def now_s(self) -> float:
        """The time in seconds."""
        return self.outbox.now_s

    def update_grants(self) -> None:
        """Send preprocessors the current limits of the stream, if they have changed."""
        order = self.grants.next_order(self.groups.joining_epochs)
        if order is not None:
            self.tell_preprocessors(order)

    def tell_preprocessors(self, message: m.Message) -> None:
        """Send a message to all preprocessors."""
        self.outbox.send(self.config.roles.preprocessors, m.Tag.PREPROCESSOR, message)

    def start_build(self, network: str, devices: Iterable[int], is_recruit: bool = False) -> None:
        """Record that devices were ordered to build a network."""
        self.builds.start(self.networks.specs[network], tuple(devices), self.now_s, is_recruit)
