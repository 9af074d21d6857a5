"""Why a run should stop before it is done: a signal, or the end of its walltime."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from fleet.units import format_duration

# SIGTERM is what batch systems send; SIGUSR2 is what mpirun passes on to the ranks (SIGTERM it does not wait for).
SIGNALS = (signal.SIGTERM, signal.SIGUSR2)

# What is kept of the walltime for finishing the step and writing checkpoints: a minute, less of a short one.
RESERVE_S, _RESERVE_SHARE = 60.0, 0.1


class Interruption:
    """Knows whether this run should stop, and why.

    Signals reach every rank; rank 0 decides, and the others only must not die of them.

    Args:
        walltime: seconds that this launch may take from now on; None for no limit.
        clock: seconds, from any origin; a test may give its own.
    """

    def __init__(self, walltime: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._signal: int | None = None
        self._pipe: int | None = None
        self._walltime = walltime
        self._began = clock()

    def limit(self, walltime: float | None) -> None:
        """Say how long this launch may take from its beginning on, once that is known."""
        self._walltime = walltime

    def watch(self) -> None:
        """Take the signals from now on, instead of dying of them."""
        for number in SIGNALS:
            signal.signal(number, self._note)
        # While a library computes Python calls no handler. It writes into this pipe, which another thread may read.
        self._pipe, written = os.pipe()
        for end in (self._pipe, written):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signal = number

    def reason(self) -> str:
        """Why to stop, or nothing."""
        if self._pipe is not None:
            with suppress(BlockingIOError):
                self._signal = next(
                    (number for number in os.read(self._pipe, 1024) if number in SIGNALS),
                    self._signal,
                )
        if self._signal is not None:
            return f"{signal.Signals(self._signal).name} came"
        if self._walltime is not None and self.seconds_left() == 0:
            return f"the walltime of {format_duration(self._walltime)} is nearly over"
        return ""

    def seconds_left(self) -> float | None:
        """Seconds until the walltime is a reason to stop; None where it never is."""
        if self._walltime is None:
            return None
        reserve = min(RESERVE_S, _RESERVE_SHARE * self._walltime)
        return max(0.0, self._began + self._walltime - reserve - self._clock())
