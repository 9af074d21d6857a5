"""Why a run should stop before it is done: a signal, or the end of its walltime."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
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
        environment: where a batch system says when the job ends.
        clock: seconds, from any origin; a test may give its own.
    """

    def __init__(self, walltime: float | None, environment: Mapping[str, str],
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._signal: int | None = None
        left = walltime if walltime is not None else _slurm_left(environment)
        self._left = left
        self._stop_at = None if left is None else clock() + left - min(_RESERVE_S, _RESERVE_SHARE * left)

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
        if self._stop_at is not None and self._left is not None and self._clock() >= self._stop_at:
            return f"the walltime of {format_duration(self._left)} is nearly over"
        return ""


def _slurm_left(environment: Mapping[str, str]) -> float | None:
    """Seconds that Slurm leaves this job, where it says so."""
    try:
        return max(0.0, float(environment["SLURM_JOB_END_TIME"]) - time.time())
    except (KeyError, ValueError):
        return None
