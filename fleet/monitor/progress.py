"""Report the progress within long epochs, as a line at intervals, for batch logs."""

from __future__ import annotations

from itertools import islice, starmap

from fleet.domain.run import RunState
from fleet.domain.run_launch import RunGroup

# Seconds between two lines; the interval grows with the run.
FIRST_S = 30.0
LONGEST_S = 300.0
_LOOK_EVERY_S = 1.0  # at thousands of groups, since messages come much more often
_MAX_NAMED = 8


class Progress:
    """Makes the lines. Networks whose epochs end often enough do not appear in them.

    Args:
        run: the state of the run.
    """

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._reported_s: dict[str, float] = {}  # time of the last line about a network
        self._next_look_s = FIRST_S
        self._every_s = FIRST_S

    def mark_reported(self, network: str, now_s: float) -> None:
        """Record that a line has reported about a network."""
        self._reported_s[network] = now_s

    def make_line(self, now_s: float) -> str:
        """Return the line to print after a progress message; empty if it is too early.

        Args:
            now_s: time on the clock of :meth:`mark_reported`, which starts at 0.
        """
        launch = self._run.launch
        if launch is None or now_s < self._next_look_s:
            return ""
        self._next_look_s = now_s + _LOOK_EVERY_S
        due = {
            name: group
            for name, group in launch.groups.items()
            if group.samples_per_s is not None
            and now_s - self._reported_s.get(name, 0.0) >= self._every_s
        }
        if not due:
            return ""
        self._every_s = min(2 * self._every_s, LONGEST_S)
        self._next_look_s = now_s + self._every_s
        self._reported_s.update(dict.fromkeys(due, now_s))
        if len(due) > _MAX_NAMED:
            more = f"; and {len(due) - _MAX_NAMED} more"
        else:
            more = ""
        return "; ".join(starmap(self._describe, islice(due.items(), _MAX_NAMED))) + more

    def _describe(self, name: str, group: RunGroup) -> str:
        network = self._run.networks[name]
        part = min(group.samples / max(group.launch.start.samples, 1), 1)
        return (
            f"{name} epoch {network.epochs + 1}/{network.max_epochs}: {part:.0%} "
            f"({group.samples_per_s:.0f} samples/s)"
        )
