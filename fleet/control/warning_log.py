"""What ranks complain of, each thing once: warnings of engines, and samples that cannot be read (pure)."""

from __future__ import annotations

from fleet.comm.messages import SampleUnreadable, Warned
from fleet.control.effects import AbortLaunch, Outbox
from fleet.control.launch_state import LaunchConfig
from fleet.domain.events import BadSample, NetworkWarned
from fleet.errors import UserError


class WarningLog:
    """All that has been complained of."""

    def __init__(self, setup: LaunchConfig, outbox: Outbox) -> None:
        self._outbox = outbox
        self._samples = setup.samples
        self._most = setup.spec.data.max_unreadable
        self._bad = set(setup.bad)
        self._warnings: set[str] = set()

    def warned(self, warned: Warned) -> None:
        """An engine warns of a network."""
        if (
            warned.warning not in self._warnings
        ):  # each group that trains the network says so, and its twins
            self._warnings.add(warned.warning)
            self._outbox.note(NetworkWarned(*warned))

    def bad(self, bad: SampleUnreadable) -> None:
        """A sample cannot be read; the launch fails where too many cannot."""
        if bad.name in self._bad:  # other ranks, or other epochs, have met it too
            return
        self._bad.add(bad.name)
        self._outbox.note(BadSample(bad.name, bad.reason, bad.training))
        if len(self._bad) > self._most * self._samples:
            self._outbox.add(
                AbortLaunch(
                    UserError(
                        f"{len(self._bad)} of {self._samples} samples cannot be read, more than data.max_unreadable: {self._most:.2%};"
                        f" the latest: {bad.name}: {bad.reason}"
                    )
                )
            )
