"""What a launch does before its event log begins, and how long each part of it takes."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from launch.processes import command_began_s


class Laps:
    """The parts of a start-up, one behind the other, on the clock of this rank.

    The first two are over when this is made: the launcher that starts this process, where one is known, and Python
    with the first modules.
    """

    def __init__(self) -> None:
        self._now = time.clock_gettime(time.CLOCK_BOOTTIME)
        began = command_began_s(os.getpid())
        self._parts: dict[str, float] = {} if began is None else {
            "launcher": began[1] - began[0], "python": max(0.0, self._now - began[1])}

    def end(self, part: str) -> None:
        """A part is over that began where the one before it ended."""
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._parts[part] = self._parts.get(part, 0.0) + now - self._now
        self._now = now

    @property
    def seconds(self) -> Mapping[str, float]:
        """Part -> seconds, to the millisecond."""
        return {part: round(seconds, 3) for part, seconds in self._parts.items()}
