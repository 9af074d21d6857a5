"""Report the progress within long epochs, as a line at intervals, for batch logs."""

from __future__ import annotations

from typing import NamedTuple

from fleet.domain.run import RunNetwork, RunState
from fleet.domain.run_launch import RunGroup

# Seconds between two lines; the interval grows with the run.
FIRST_S = 30.0
LONGEST_S = 300.0
_MAX_NAMED = 8


class EpochPart(NamedTuple):
    """The progress of a network within its current epoch."""

    samples: int
    samples_per_s: float
    epochs: int
    group: RunGroup | None

    def is_current(self, network: RunNetwork) -> bool:
        """Return True if the network is still in the same epoch and group."""
        return network.group is self.group and network.epochs == self.epochs


class Progress:
    """Makes the lines. Networks whose epochs end often enough do not appear in them.

    Args:
        run: the state of the run.
    """

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._reported_s: dict[str, float] = {}  # time of the last line about a network
        self._paces: dict[str, EpochPart] = {}
        self._last_line_s = 0.0
        self._every_s = FIRST_S

    def mark_reported(self, network: str, now_s: float) -> None:
        """Record that a line has reported about a network."""
        self._reported_s[network] = now_s

    def make_line(self, network: str, samples: int, samples_per_s: float, now_s: float) -> str:
        """Return the line to print after a progress message; empty if it is too early.

        Args:
            network: the network.
            samples: samples of its epoch that it has consumed.
            samples_per_s: its current rate.
            now_s: time on the clock of :meth:`mark_reported`, which starts at 0.
        """
        run_network = self._run.networks.get(network)
        if run_network is not None:
            self._paces[network] = EpochPart(
                samples, samples_per_s, run_network.epochs, run_network.group
            )
        if now_s - self._last_line_s < self._every_s:
            return ""
        self._paces = {
            name: pace
            for name, pace in self._paces.items()
            if pace.is_current(self._run.networks[name])
        }
        due = [
            name for name in self._paces if now_s - self._reported_s.get(name, 0.0) >= self._every_s
        ]
        if not due:
            return ""
        self._last_line_s = now_s
        self._every_s = min(2 * self._every_s, LONGEST_S)
        self._reported_s.update(dict.fromkeys(due, now_s))
        if len(due) > _MAX_NAMED:
            more = f"; and {len(due) - _MAX_NAMED} more"
        else:
            more = ""
        return "; ".join(map(self._describe, due[:_MAX_NAMED])) + more

    def _describe(self, name: str) -> str:
        pace = self._paces[name]
        if self._run.launch is None:
            samples = 1
        else:
            samples = max(self._run.launch.start.samples, 1)
        return (
            f"{name} epoch {pace.epochs + 1}/{self._run.networks[name].max_epochs}: "
            f"{min(pace.samples / samples, 1):.0%} ({pace.samples_per_s:.0f} samples/s)"
        )
