"""Warnings of engines, and unreadable samples, each reported once (pure)."""

from __future__ import annotations

from fleet.comm.messages import SampleUnreadable, Warned
from fleet.control.effects import AbortLaunch, Outbox
from fleet.control.launch_state import LaunchConfig
from fleet.domain.events import NetworkWarned, SampleSkipped
from fleet.errors import UserError


class WarningLog:
    """All reported warnings and unreadable samples."""

    def __init__(self, config: LaunchConfig, outbox: Outbox) -> None:
        self._outbox = outbox
        self._samples = config.samples
        self._max_share = config.spec.data.max_unreadable
        self._bad = set(config.unreadable)
        self._warnings: set[str] = set()

    def add_warning(self, warned: Warned) -> None:
        """Log a warning of an engine."""
        if warned.warning not in self._warnings:  # each group of the network reports it
            self._warnings.add(warned.warning)
            self._outbox.log(NetworkWarned(*warned))

    def add_unreadable(self, bad: SampleUnreadable) -> None:
        """Log an unreadable sample; abort the launch if there are too many."""
        if bad.name in self._bad:  # other ranks or epochs report it too
            return
        self._bad.add(bad.name)
        self._outbox.log(SampleSkipped(bad.name, bad.reason, bad.training))
        if len(self._bad) > self._max_share * self._samples:
            self._outbox.add(
                AbortLaunch(
                    UserError(
                        f"{len(self._bad)} of {self._samples} samples are unreadable, more than "
                        f"data.max_unreadable: {self._max_share:.2%}; the latest: {bad.name}: "
                        f"{bad.reason}"
                    )
                )
            )
