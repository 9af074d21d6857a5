"""What plans count on the input to give (pure)."""

from __future__ import annotations

from dataclasses import replace

from fleet.domain.events import SupplyFound
from fleet.ensemble.effects import Outbox
from fleet.ensemble.production import Production
from fleet.ensemble.rates import Rates
from scheduler.base import Cluster, RateTable
from scheduler.ensemble.online import OFF
from scheduler.ensemble.planning import reaches


class Supply:
    """The samples/s that plans count on, and whether they have proved wrong.

    What preprocessors say varies a little all the time. So a plan stands until what networks get of the stream is off
    by more than a quarter: how fast the stream is does not matter as long as it is faster than all of them.

    Args:
        production: knows what preprocessors say.
        time_scale: seconds that a second of training takes; rates are those of the time that is emulated.
        outbox: takes what is to be done.

    Attributes:
        has_changed: whether the present plan was made by another supply.
    """

    def __init__(self, production: Production, time_scale: float, outbox: Outbox) -> None:
        self._production, self._time_scale, self._outbox = production, time_scale, outbox
        self._planned: float | None = None
        self._of: tuple[RateTable | None, int] = None, 0  # from which table, and for how many GPUs, the next two are
        self._told: RateTable | None = None
        self._demand = 0.0  # samples/s of the fastest network
        self.has_changed = False

    def told(self, rates: Rates, cluster: Cluster, lost: set[int]) -> RateTable:
        """The rates as a policy is to know them, which is asked now.

        Args:
            rates: that are known.
            lost: the ranks that have died.
        """
        table = rates.table
        assert table is not None  # or no policy is asked
        supply = self._production.supply(lost) * self._time_scale if rates.are_samples else float("inf")
        if self._planned is None:
            self._planned = supply
        if supply == self._planned == table.supply:
            self.has_changed = False
            return table
        if self._of[0] is not table or self._of[1] != cluster.whole_gpus:  # for there may be thousands of networks
            self._of, self._told = (table, cluster.whole_gpus), None
            self._demand = max((reaches(network, cluster.whole_gpus) for network in table.models), default=0.0)
        before, now = min(self._planned, self._demand), min(supply, self._demand)
        self.has_changed = abs(now - before) > OFF * before
        if self.has_changed:
            self._planned = supply
            if supply < float("inf"):
                self._outbox.note(SupplyFound(supply / self._time_scale, self._demand / self._time_scale))
        if self._told is None or self._told.supply != self._planned:
            self._told = replace(table, supply=self._planned)
        return self._told
