"""What a launch is given, as its mind knows it, and what it is made of (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from fleet.comm import messages as m
from fleet.comm.roles import Roles
from fleet.control.effects import Outbox
from fleet.control.group_startup import Buildings, StartupTimes
from fleet.control.groups import Groups
from fleet.control.measurement import RateMeasurement
from fleet.control.networks import Networks
from fleet.control.stream_grants import Production
from fleet.domain.network import Death, NetworkStatus
from fleet.spec import Spec
from fleet.stream.layout import Layout
from scheduler.base import Cluster, Progress, RateTable, Round
from scheduler.ensemble.online import OnlineRates
from scheduler.ensemble.probing import Probes


@dataclass(frozen=True)
class LaunchConfig:
    """What stays as it is while a launch lasts.

    Attributes:
        layout: of the stream; None where every trainer prepares its own samples, or finishes those that are kept.
        samples: training samples of the data set.
        outlives: whether ranks may die and the others go on.
        ends_s: when the walltime will be a reason to stop, in seconds of the clock of :meth:`Ensemble.handle`.
        first_epoch: of the stream, in this launch.
        replayed: the stream epochs to train on, one after another, where one network is trained again.
        replayed_batches: the batches of these epochs, where the policy had chosen them.
        bad: the samples that are known to be unreadable.
        elsewhere: the networks that other launches may be training; see :class:`fleet.control.effects.Leased`.
        sharing: k -> what k networks on one GPU train together as times of one, as far as that is known.
        alone: the networks that are known to need GPUs of their own.
        hosts: what the nodes are called, in the order of their numbers; empty where nobody has asked.
        deaths: network -> the deaths of ranks that trained it in earlier launches.
    """

    spec: Spec
    roles: Roles
    layout: Layout | None
    samples: int
    outlives: bool = False
    ends_s: float | None = None
    first_epoch: int = 0
    replayed: tuple[int, ...] = ()
    replayed_batches: tuple[int, ...] = ()
    bad: frozenset[str] = frozenset()
    elsewhere: frozenset[str] = frozenset()
    sharing: Mapping[int, float] = field(default_factory=dict)
    alone: frozenset[str] = frozenset()
    hosts: tuple[str, ...] = ()
    deaths: Mapping[str, Sequence[Death]] = field(default_factory=dict)


@dataclass(frozen=True)
class PriorRates:
    """What is known of how fast networks are, before a launch trains any.

    Attributes:
        survey: the measurements to make where nothing else says it, and what is known of earlier ones.
        given: the rates of a file, instead.
        online: learns rates from training, instead.
    """

    survey: RateMeasurement
    given: RateTable | None = None
    online: OnlineRates | None = None


@dataclass(frozen=True)
class PolicyAnswer:
    """What a policy answers, how many seconds that took, and the rates that the answer only tries."""

    round: Round
    seconds: float = 0.0
    tried: Probes = frozenset()


Least: TypeAlias = Callable[[str], Sequence[float]]  # the rates that a network has at least

Ask: TypeAlias = Callable[[RateTable, Progress, Cluster, Least | None], PolicyAnswer]


@dataclass(frozen=True)
class LaunchState:
    """What a launch is made of, shared by all who decide about it; each part says of itself what it is.

    Attributes:
        outbox: takes what is to be done, and knows what time it is.
    """

    setup: LaunchConfig
    outbox: Outbox
    production: Production
    networks: Networks
    groups: Groups
    buildings: Buildings
    startup: StartupTimes

    @classmethod
    def of(cls, setup: LaunchConfig, standings: Mapping[str, NetworkStatus]) -> LaunchState:
        """Those of a launch at its beginning.

        Args:
            standings: how far earlier launches have brought the networks.
        """
        outbox = Outbox()
        spec = setup.spec
        production = Production(
            setup.layout,
            setup.roles.preprocessors,
            setup.first_epoch,
            setup.replayed,
            setup.replayed_batches,
        )
        networks = Networks(
            spec.networks,
            standings,
            spec.document.retries,
            outbox,
            setup.elsewhere,
            setup.alone,
            setup.deaths,
            spec.document.max_deaths,
        )
        groups = Groups(setup.roles, setup.outlives, production, outbox)
        return cls(
            setup,
            outbox,
            production,
            networks,
            groups,
            Buildings(),
            StartupTimes(setup.ends_s, outbox),
        )

    @property
    def now_s(self) -> float:
        """What time it is."""
        return self.outbox.now_s

    def produce(self) -> None:
        """Tell preprocessors how far the stream is wanted, where that has changed."""
        order = self.production.order(self.groups.joining)
        if order is not None:
            self.tell_preprocessors(order)

    def tell_preprocessors(self, message: m.Message) -> None:
        """Tell all preprocessors something."""
        self.outbox.tell(self.setup.roles.preprocessors, m.Tag.PREPROCESSOR, message)

    def build(self, network: str, devices: Iterable[int], is_recruit: bool = False) -> None:
        """Devices have been told to build a network."""
        self.buildings.begin(self.networks.specs[network], tuple(devices), self.now_s, is_recruit)
