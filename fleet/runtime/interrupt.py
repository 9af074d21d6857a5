"""Reasons to stop a run early: a signal, or the end of its walltime."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from fleet.control.effects import PATIENCE_S
from fleet.units import format_duration

# Batch systems send SIGTERM; mpirun forwards SIGUSR2 to the ranks (after SIGTERM it does not wait);
# SIGINT is Ctrl-C, if the terminal or the launcher forwards it to the ranks.
SIGNALS = (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT)

# Time reserved at the end of the walltime for the last step and checkpoints: a minute, or a share
# of a short walltime.
RESERVE_S = 60.0
_RESERVE_SHARE = 0.1

# Part of it that is reserved for writing results when groups are unresponsive; and the shortest
# wait for these.
_LAST_S = 10.0
_MIN_PATIENCE_S = 3.0

INTERRUPTED = 128 + signal.SIGINT  # exit status after Ctrl-C


class Interruption:
    """The reason to stop this run early, if there is one.

    Signals reach every rank; rank 0 decides, and the others must only survive them.

    Args:
        walltime: how long this launch may take from now on, in seconds; None for no limit.
        clock: returns seconds from any origin.

    Attributes:
        on_signal: is called with the number of each signal, in any thread, also for SIGCONT, which
            Open MPI's mpirun sends before it kills all ranks. Returns the reason for the signal, if
            it is known.
        end_at_once: is called after a second Ctrl-C, in any thread.
    """

    def __init__(self, walltime: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._signal: int | None = None
        self._interrupts = 0
        self._pipe: int | None = None
        self._reading = threading.Lock()
        self._walltime = walltime
        self._began = clock()
        self._cause = ""
        self.on_signal: Callable[[int], str] = lambda number: ""
        self.end_at_once: Callable[[], object] = lambda: os._exit(INTERRUPTED)

    def limit(self, walltime: float | None) -> None:
        """Set how long this launch may take from its start."""
        self._walltime = walltime

    def watch(self) -> None:
        """Handle signals from now on."""
        for number in (*SIGNALS, signal.SIGCONT):
            signal.signal(number, self._note)
        # Python calls no handler while a library computes, but it writes into this pipe, which
        # another thread reads.
        self._pipe, write_end = os.pipe()
        for end in (self._pipe, write_end):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        threading.Thread(
            target=self._listen, args=(self._pipe,), name="signals", daemon=True
        ).start()

    @property
    def is_watched(self) -> bool:
        """True if this process handles signals."""
        return self._pipe is not None

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number in SIGNALS:
            self._signal = number

    def _listen(self, pipe: int) -> None:
        poll = select.poll()  # unlike select, it takes descriptors of 1,024 and more
        poll.register(pipe, select.POLLIN)
        while True:
            poll.poll()
            self._read()

    def _read(self) -> None:
        """Read the signals that have arrived."""
        if self._pipe is None:
            return
        numbers = b""
        with self._reading, suppress(BlockingIOError):
            numbers = os.read(self._pipe, 1024)
            self._signal = next((number for number in numbers if number in SIGNALS), self._signal)
        for number in numbers:
            self._cause = self.on_signal(number) or self._cause
        self._interrupts += numbers.count(signal.SIGINT)
        if self._interrupts > 1:
            self.end_at_once()

    def reason(self) -> str:
        """Return why to stop, or an empty string."""
        self._read()
        if self._signal is not None:
            return self._cause or f"received {signal.Signals(self._signal).name}"
        if self._walltime is not None and self.seconds_left() == 0:
            return f"the walltime of {format_duration(self._walltime)} is nearly over"
        return ""

    @property
    def reserve_s(self) -> float | None:
        """Seconds of the walltime that are reserved for stopping; None without a walltime."""
        if self._walltime is None:
            return None
        return min(RESERVE_S, _RESERVE_SHARE * self._walltime)

    @property
    def patience_s(self) -> float:
        """Seconds to wait for unresponsive groups once there is a reason to stop."""
        if self._signal is not None or self.reserve_s is None:
            return PATIENCE_S
        return max(_MIN_PATIENCE_S, self.reserve_s - min(_LAST_S, self.reserve_s / 3))

    def seconds_left(self) -> float | None:
        """Return the seconds until the walltime is a reason to stop; None without one."""
        if self._walltime is None:
            return None
        reserve = self.reserve_s or 0.0
        return max(0.0, self._began + self._walltime - reserve - self._clock())
