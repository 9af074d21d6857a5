"""How a launch ends: when all is done, or before that, and what its ranks are told then (pure)."""

from __future__ import annotations

from fleet.comm import messages as m
from fleet.control.effects import PATIENCE_S, EndLaunch
from fleet.control.group import Phase, name_ranks
from fleet.control.group_startup import DEAF_S, Building
from fleet.control.launch_state import LaunchState
from fleet.control.rates import Rates
from fleet.control.searching import Searching
from fleet.domain import events
from fleet.errors import ExitStatus
from fleet.units import format_duration


class Ending:
    """The end of a launch.

    Attributes:
        since_s: since when it ends, though networks are left; infinity as long as it does not.
        status: how it has ended; None before.
    """

    def __init__(self, launch: LaunchState, rates: Rates, searching: Searching) -> None:
        self._launch = launch
        self._rates = rates
        self._searching = searching
        self._groups = launch.groups
        self._networks = launch.networks
        self._outbox = launch.outbox
        self.since_s = float("inf")
        self._until_s = float("inf")  # when nobody waits any longer for groups that do not answer
        self.status: ExitStatus | None = None

    @property
    def wakes_s(self) -> float:
        """When groups that do not answer are given up; infinity where none is left."""
        if len(self._groups):
            return self._until_s
        return float("inf")

    @property
    def has_begun(self) -> bool:
        """Whether the launch ends, though networks are left."""
        return self.since_s < float("inf")

    def begin(self, reason: str, patience_s: float = PATIENCE_S) -> None:
        """Have all groups save and let go, wherever in an epoch they are.

        Args:
            patience_s: seconds for which those that do not answer are waited for.
        """
        if self.has_begun:
            return
        self.since_s = self._launch.now_s
        self._until_s = self.since_s + patience_s
        self._outbox.note(events.Interrupted(reason, replay=bool(self._launch.setup.replayed)))
        for group in self._groups:
            if group.phase in (Phase.TRAINING, Phase.PAUSING):
                self._groups.pause(group, run_ends=True)

    def give_up_silent(self) -> None:
        """Once it is time, wait no longer for groups that do not answer; each of their networks is trained last then."""
        if self._launch.now_s < self._until_s:
            return
        self._until_s = float("inf")
        for group in self._groups:
            silent_s = self._launch.now_s - group.heard_s
            ranks = self._groups.give_up(group.devices)
            self._launch.buildings.lose(group.devices)
            self._launch.tell_preprocessors(m.ReleaseReaders(ranks))
            who = name_ranks(ranks)
            how = f"{who} did not come back, and had been silent for {format_duration(silent_s)}"
            self._outbox.note(
                events.NetworkWarned(group.name, f"{how}; given up, and trained last from now on")
            )
            if not self._networks.is_over(group.name):
                self._networks.die(group.name, how, is_sure=group.stands_out(silent_s))

    def give_up_on(self, building: Building) -> None:
        """Wait no longer for ranks that do not come back from building a network: the launch ends without them."""
        network = building.network
        is_late = self._launch.now_s >= building.until_s + DEAF_S
        ranks = self._groups.give_up(building.devices)
        self._launch.buildings.lose(building.devices)
        self._launch.tell_preprocessors(m.ReleaseReaders(ranks))
        who = name_ranks(ranks)
        if is_late and not building.is_recruit and not self._networks.is_over(network.name):
            limit = format_duration(network.train.build_timeout)
            self._searching.fail(
                network.name,
                f"building took longer than {limit} (train.build_timeout), and Python "
                f"cannot interrupt it on {who}",
            )
        self.begin(f"{who} did not come back from building {network.name}")

    def wind_up(self) -> None:
        """End once every trainer has let go, and what is being measured has been."""
        for group in self._groups.standing:
            self._groups.stop(group, self._networks.is_final(group.name))
        if self._groups.are_all_idle and not self._networks.fallen:
            self.finish()

    def finish(self) -> None:
        """All ranks end."""
        self.status = self._status()
        roles = self._launch.setup.roles
        self._rates.keep()
        self._outbox.tell(roles.trainers, m.Tag.TRAINER, m.Exit())
        self._launch.tell_preprocessors(m.Exit())
        self._outbox.add(EndLaunch(self.status, is_cut=bool(self._groups.deaf)))

    def _status(self) -> ExitStatus:
        status = self._networks.status
        if self.has_begun and status is not ExitStatus.RESUMABLE and not self._searching.is_over:
            return ExitStatus.RESUMABLE
        if status is ExitStatus.OK and self._searching.mind.has_failed:
            return ExitStatus.NETWORK_FAILED
        return status
