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

# SIGTERM is what batch systems send; SIGUSR2 is what mpirun passes on to the ranks (SIGTERM it does
# not wait for); SIGINT is Ctrl-C, where the terminal or the launcher gives it to the ranks.
SIGNALS = (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT)

# What is kept of the walltime for finishing the step and writing checkpoints: a minute, less of a
# short one.
RESERVE_S = 60.0
_RESERVE_SHARE = 0.1

# Of that, what is kept for writing what came out when groups do not answer; and for how long these
# are waited for at least.
_LAST_S = 10.0
_LEAST_PATIENCE_S = 3.0

INTERRUPTED = 128 + signal.SIGINT  # how a process ends at once upon Ctrl-C


class Interruption:
    """The reason why this run should stop, if there is one.

    Signals reach every rank; rank 0 decides, and the others only must not die of them.

    Args:
        walltime: seconds that this launch may take from now on; None for no limit.
        clock: seconds, from any origin; a test may give its own.

    Attributes:
        on_signal: is called with the number of each signal that has come, in any thread. SIGCONT is
            among them, which Open MPI's mpirun sends first when it is about to kill all ranks.
        cause: why the signal came, where that is known.
        end_at_once: is called upon a second Ctrl-C, in any thread.
    """

    def __init__(self, walltime: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._signal: int | None = None
        self._interrupts = 0
        self._pipe: int | None = None
        self._reading = threading.Lock()
        self._walltime = walltime
        self._began = clock()
        self.cause = ""
        self.on_signal: Callable[[int], object] = lambda number: None
        self.end_at_once: Callable[[], object] = lambda: os._exit(INTERRUPTED)

    def limit(self, walltime: float | None) -> None:
        """Set how long this launch may take from its start."""
        self._walltime = walltime

    def watch(self) -> None:
        """Handle signals from now on."""
        for number in (*SIGNALS, signal.SIGCONT):
            signal.signal(number, self._note)
        # While a library computes Python calls no handler. It writes into this pipe, which another
        # thread may read.
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
            self.on_signal(number)
        self._interrupts += numbers.count(signal.SIGINT)
        if self._interrupts > 1:
            self.end_at_once()

    def reason(self) -> str:
        """Return why to stop, or an empty string."""
        self._read()
        if self._signal is not None:
            return self.cause or f"{signal.Signals(self._signal).name} came"
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
        return max(_LEAST_PATIENCE_S, self.reserve_s - min(_LAST_S, self.reserve_s / 3))

    def seconds_left(self) -> float | None:
        """Return the seconds until the walltime is a reason to stop; None without one."""
        if self._walltime is None:
            return None
        reserve = self.reserve_s or 0.0
        return max(0.0, self._began + self._walltime - reserve - self._clock())
