"""Why a run should stop before it is done: a signal, or the end of its walltime; and when to begin nothing new."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from types import FrameType

from fleet.units import format_duration

# SIGTERM is what batch systems send; SIGUSR2 is what mpirun passes on to the ranks (SIGTERM it does not wait for).
SIGNALS = (signal.SIGTERM, signal.SIGUSR2)

# What is kept of the walltime for finishing the step and writing checkpoints: a minute, less of a short one.
_RESERVE_S, _RESERVE_SHARE = 60.0, 0.1


class Interruption:
    """Knows whether this run should stop, and why.

    Signals reach every rank; rank 0 decides, and the others only must not die of them.

    Args:
        walltime: seconds that this launch may take; None for no limit.
        clock: seconds, from any origin; a test may give its own.
        began: when the walltime began, by that clock; now, unless it is said.
    """

    def __init__(self, walltime: float | None, clock: Callable[[], float] = time.monotonic,
                 began: float | None = None) -> None:
        self._clock = clock
        self._signal: int | None = None
        self._walltime = walltime
        self._began = clock() if began is None else began

    def watch(self) -> None:
        """Take the signals from now on, instead of dying of them."""
        for number in SIGNALS:
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signal = number

    def reason(self) -> str:
        """Why to stop, or nothing."""
        if self._signal is not None:
            return f"{signal.Signals(self._signal).name} came"
        if self._walltime is not None and self.seconds_left() == 0:
            return f"the walltime of {format_duration(self._walltime)} is nearly over"
        return ""

    def seconds_left(self) -> float | None:
        """Seconds until the walltime is a reason to stop; None where it never is."""
        if self._walltime is None:
            return None
        reserve = min(_RESERVE_S, _RESERVE_SHARE * self._walltime)
        return max(0.0, self._began + self._walltime - reserve - self._clock())


class StartupTimes:
    """Knows when it is too late to start a training group.

    A group that is interrupted saves wherever it is in an epoch, so all that it needs to have come further is to
    be built and to take a step. How long that takes is learned from the groups of this launch: the longest it
    took any of them to tell of training. Before one has, it is never too late: the next launch has no more time
    than this one, so whoever waits for it may wait for ever.

    Args:
        clock: seconds, from any origin; a test may give its own.
    """

    def __init__(self, interruption: Interruption, clock: Callable[[], float] = time.monotonic) -> None:
        self._interruption, self._clock = interruption, clock
        self._started: dict[str, float] = {}  # the networks of which nothing has been heard since
        self.longest_s: float | None = None

    def started(self, network: str) -> None:
        """A group was told to start."""
        self._started[network] = self._clock()

    def trained(self, network: str) -> None:
        """A group told of training."""
        if (began := self._started.pop(network, None)) is not None:
            self.longest_s = max(self.longest_s or 0.0, self._clock() - began)

    def is_too_late(self) -> bool:
        """Whether a group that starts now would hardly come to train."""
        left = self._interruption.seconds_left()
        return left is not None and self.longest_s is not None and left < self.longest_s
