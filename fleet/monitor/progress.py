"""How far networks are within their epochs, in a line at intervals: for a log, where nothing moves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fleet.domain.events import (
    EpochEnded,
    Event,
    GroupStarted,
    GroupStopped,
    GroupStruck,
    NetworkFailed,
    NetworkFellBack,
    NetworkRetried,
    Started,
)

# Between two lines: short at first, when somebody may look on, and longer the longer the run takes.
FIRST_S, LONGEST_S = 30.0, 300.0
_MOST_NAMED = 8


class _Pace(NamedTuple):
    samples: int
    samples_per_s: float


class Progress:
    """Makes the lines. A network whose epochs end often enough to be heard of is in none of them.

    Args:
        max_epochs: of the networks.
        epochs: that they have trained in earlier launches.
    """

    def __init__(self, max_epochs: Mapping[str, int], epochs: Mapping[str, int]) -> None:
        self._max_epochs, self._epochs = max_epochs, dict(epochs)
        self._samples = 1
        self._heard_s: dict[str, float] = {}  # when a line told of a network last; of those that train
        self._paces: dict[str, _Pace] = {}
        self._said_s, self._every_s = 0.0, FIRST_S

    def add(self, event: Event, now_s: float) -> None:
        """Take note of what happened."""
        match event:
            case Started():
                self._samples = max(event.samples, 1)
            case GroupStarted():
                self._heard_s[event.network] = now_s
            case EpochEnded():
                self._epochs[event.network] = event.record.epoch
                self._paces.pop(event.network, None)
                self._heard_s[event.network] = now_s
            case NetworkFellBack() | GroupStruck():
                self._epochs[event.network] = event.epochs
                self._paces.pop(event.network, None)
            case GroupStopped() | NetworkFailed() | NetworkRetried():
                self._paces.pop(event.network, None)

    def line(self, network: str, samples: int, samples_per_s: float, now_s: float) -> str:
        """What to say after hearing how far a network is; nothing where that would be too often.

        Args:
            samples: of its epoch that are consumed.
            now_s: on the clock of :meth:`add`, which starts at 0.
        """
        if network in self._max_epochs:
            self._paces[network] = _Pace(samples, samples_per_s)
        if now_s - self._said_s < self._every_s:
            return ""
        due = [name for name in self._paces if now_s - self._heard_s.get(name, 0.0) >= self._every_s]
        if not due:
            return ""
        self._said_s = now_s
        self._every_s = min(2 * self._every_s, LONGEST_S)
        self._heard_s.update(dict.fromkeys(due, now_s))
        more = f"; and {len(due) - _MOST_NAMED} more" if len(due) > _MOST_NAMED else ""
        return "; ".join(map(self._described, due[:_MOST_NAMED])) + more

    def _described(self, name: str) -> str:
        pace = self._paces[name]
        return (f"{name} epoch {self._epochs.get(name, 0) + 1}/{self._max_epochs[name]}: "
                f"{min(pace.samples / self._samples, 1):.0%} ({pace.samples_per_s:.0f} samples/s)")
