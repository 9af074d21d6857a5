"""How a launch ends: finished or interrupted, and its last messages (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.comm import messages as m
from fleet.control.effects import PATIENCE_S, EndLaunch
from fleet.control.group import Phase, name_ranks
from fleet.control.group_startup import UNRESPONSIVE_S, PendingBuild
from fleet.control.launch_state import LaunchState
from fleet.control.rates import Rates
from fleet.control.searching import Searches
from fleet.domain import events
from fleet.errors import ExitStatus
from fleet.units import format_duration


class Shutdown:
    """The end of a launch.

    Attributes:
        began_s: when it began to end early; infinity if it has not.
        status: its exit status; None until it has ended.
    """

    def __init__(self, launch: LaunchState, rates: Rates, searches: Searches) -> None:
        self._launch = launch
        self._rates = rates
        self._searches = searches
        self._groups = launch.groups
        self._networks = launch.networks
        self._outbox = launch.outbox
        self.began_s = float("inf")
        self._until_s = float("inf")  # when silent groups are abandoned
        self.status: ExitStatus | None = None

    @property
    def deadline_s(self) -> float:
        """When silent groups are abandoned; infinity if there are no groups."""
        if len(self._groups):
            return self._until_s
        return float("inf")

    @property
    def has_begun(self) -> bool:
        """Whether the launch is ending although networks are left."""
        return self.began_s < float("inf")

    def begin(self, reason: str, patience_s: float = PATIENCE_S) -> None:
        """Let all groups save and stop, anywhere in their epochs.

        Args:
            reason: why, for the log.
            patience_s: seconds to wait for groups that do not answer.
        """
        if self.has_begun:
            return
        self.began_s = self._launch.now_s
        self._until_s = self.began_s + patience_s
        self._outbox.log(
            events.LaunchInterrupted(reason, replay=bool(self._launch.config.replayed))
        )
        for group in self._groups:
            if group.phase in (Phase.TRAINING, Phase.PAUSING):
                self._launch.orders.pause(group, run_ends=True)

    def abandon_silent_groups(self) -> None:
        """Abandon groups that do not answer in time; their networks are trained last."""
        if self._launch.now_s < self._until_s:
            return
        self._until_s = float("inf")
        for group in self._groups:
            silent_s = self._launch.now_s - group.last_message_s
            names = self._abandon(group.devices)
            how = f"{names} stopped answering, after {format_duration(silent_s)} of silence"
            self._outbox.log(
                events.NetworkWarned(group.name, f"{how}; this network is trained last from now on")
            )
            if not self._networks.is_over(group.name):
                self._launch.changes.record_death(
                    group.name, how, is_sure=group.is_unusual_silence(silent_s)
                )

    def abandon_build(self, building: PendingBuild) -> None:
        """Abandon ranks that do not return from building, and end the launch."""
        network = building.network
        is_late = self._launch.now_s >= building.deadline_s + UNRESPONSIVE_S
        names = self._abandon(building.devices)
        if is_late and not building.is_recruit and not self._networks.is_over(network.name):
            limit = format_duration(network.train.build_timeout)
            self._searches.fail(
                network.name,
                f"building took longer than {limit} (train.build_timeout), and Python "
                f"cannot interrupt it on {names}",
            )
        self.begin(f"{names} did not return from building {network.name}")

    def _abandon(self, devices: Sequence[int]) -> str:
        """Abandon devices that do not answer; return the names of their ranks."""
        ranks = self._launch.devices.abandon(devices)
        for group in self._groups:
            if set(devices) & set(group.devices):
                self._launch.orders.disband(group)
        self._launch.builds.drop_devices(devices)
        self._launch.tell_preprocessors(m.ReleaseReaders(ranks))
        return name_ranks(ranks)

    def wind_up(self) -> None:
        """End the launch once every trainer is idle."""
        for group in self._groups.awaiting_orders:
            self._launch.orders.stop(group, self._networks.is_final(group.name))
        are_idle = not self._groups and self._launch.devices.idle >= self._launch.devices.alive
        if are_idle and not self._networks.waiting.awaiting_checkpoint:
            self.finish()

    def finish(self) -> None:
        """End all ranks."""
        self.status = self._status()
        roles = self._launch.config.roles
        self._rates.save()
        self._outbox.send(roles.trainers, m.Tag.TRAINER, m.Exit())
        self._launch.tell_preprocessors(m.Exit())
        must_kill = bool(self._launch.devices.unresponsive_ranks)
        self._outbox.add(EndLaunch(self.status, must_kill))

    def _status(self) -> ExitStatus:
        status = self._networks.status
        if self.has_begun and status is not ExitStatus.RESUMABLE and not self._searches.is_over:
            return ExitStatus.RESUMABLE
        if status is ExitStatus.OK and self._searches.controller.sampling.has_failed:
            return ExitStatus.NETWORK_FAILED
        return status
