"""What a launch is made of, as its mind knows it: shared by all who decide about it (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fleet.comm import messages as m
from fleet.domain.network import Standing
from fleet.ensemble.building import Buildings, StartupTimes
from fleet.ensemble.effects import Outbox
from fleet.ensemble.groups import Groups
from fleet.ensemble.networks import Networks
from fleet.ensemble.production import Production
from fleet.ensemble.setup import Setup


@dataclass(frozen=True)
class Launch:
    """See the module; each part says of itself what it is.

    Attributes:
        outbox: takes what is to be done, and knows what time it is.
    """

    setup: Setup
    outbox: Outbox
    production: Production
    networks: Networks
    groups: Groups
    buildings: Buildings
    startup: StartupTimes

    @classmethod
    def of(cls, setup: Setup, standings: Mapping[str, Standing]) -> Launch:
        """A launch at its beginning.

        Args:
            standings: how far earlier launches have brought the networks.
        """
        outbox, spec = Outbox(), setup.spec
        production = Production(setup.layout, setup.roles.preprocessors, setup.first_epoch, setup.replayed,
                                setup.replayed_batches)
        networks = Networks(spec.networks, standings, spec.document.retries, outbox, setup.elsewhere, setup.alone)
        groups = Groups(setup.roles, setup.outlives, production, outbox)
        return cls(setup, outbox, production, networks, groups, Buildings(), StartupTimes(setup.ends_s, outbox))

    @property
    def now_s(self) -> float:
        """What time it is."""
        return self.outbox.now_s

    def produce(self) -> None:
        """Tell preprocessors how far the stream is wanted, where that has changed."""
        if (order := self.production.order(self.groups.joining)) is not None:
            self.tell_preprocessors(order)

    def tell_preprocessors(self, message: m.Message) -> None:
        """Tell all preprocessors something."""
        self.outbox.tell(self.setup.roles.preprocessors, m.Tag.PREPROCESSOR, message)

    def build(self, network: str, devices: Iterable[int], is_recruit: bool = False) -> None:
        """Devices have been told to build a network."""
        self.buildings.begin(self.networks.specs[network], tuple(devices), self.now_s, is_recruit)
