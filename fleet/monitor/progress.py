"""How far networks are within their epochs, in a line at intervals: for a log, where nothing moves."""

from __future__ import annotations

from typing import NamedTuple

from fleet.domain.run import RunGroup, RunNetwork, RunState

# Between two lines: short at first, when somebody may look on, and longer the longer the run takes.
FIRST_S = 30.0
LONGEST_S = 300.0
_MOST_NAMED = 8


class EpochPart(NamedTuple):
    """How far a network was within the epoch after some others, in some group."""

    samples: int
    samples_per_s: float
    epochs: int
    group: RunGroup | None

    def is_current(self, network: RunNetwork) -> bool:
        """Whether the network is still where it was when that was heard."""
        return network.group is self.group and network.epochs == self.epochs


class Progress:
    """Makes the lines. A network whose epochs end often enough to be heard of is in none of them.

    Args:
        run: as it is by its events.
    """

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._heard_s: dict[str, float] = {}  # when a line told of a network last
        self._paces: dict[str, EpochPart] = {}
        self._said_s = 0.0
        self._every_s = FIRST_S

    def mark_reported(self, network: str, now_s: float) -> None:
        """A line has told of a network."""
        self._heard_s[network] = now_s

    def make_line(self, network: str, samples: int, samples_per_s: float, now_s: float) -> str:
        """What to say after hearing how far a network is; nothing where that would be too often.

        Args:
            samples: of its epoch that are consumed.
            now_s: on the clock of :meth:`mark_reported`, which starts at 0.
        """
        known = self._run.networks.get(network)
        if known is not None:
            self._paces[network] = EpochPart(samples, samples_per_s, known.epochs, known.group)
        if now_s - self._said_s < self._every_s:
            return ""
        self._paces = {
            name: pace
            for name, pace in self._paces.items()
            if pace.is_current(self._run.networks[name])
        }
        due = [
            name for name in self._paces if now_s - self._heard_s.get(name, 0.0) >= self._every_s
        ]
        if not due:
            return ""
        self._said_s = now_s
        self._every_s = min(2 * self._every_s, LONGEST_S)
        self._heard_s.update(dict.fromkeys(due, now_s))
        if len(due) > _MOST_NAMED:
            more = f"; and {len(due) - _MOST_NAMED} more"
        else:
            more = ""
        return "; ".join(map(self._described, due[:_MOST_NAMED])) + more

    def _described(self, name: str) -> str:
        pace = self._paces[name]
        if self._run.launch is None:
            samples = 1
        else:
            samples = max(self._run.launch.start.samples, 1)
        return (
            f"{name} epoch {pace.epochs + 1}/{self._run.networks[name].max_epochs}: "
            f"{min(pace.samples / samples, 1):.0%} ({pace.samples_per_s:.0f} samples/s)"
        )
