"""Building a network with a user's function within a time limit.

A signal interrupts a function that is Python, or waits for something. One that computes in C for
ever hears none; then the coordinator gives this rank up (:mod:`fleet.control.group_startup`), and
the kernel ends the process, should nobody else come to it.
"""

from __future__ import annotations

import ctypes
import logging
import signal
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TypeVar

from fleet.control.group_startup import UNRESPONSIVE_S
from fleet.errors import InfrastructureError, ModelError, exit_reason
from fleet.spec.model import one_line
from fleet.units import format_duration

log = logging.getLogger("fleet.runtime.training.building")

T = TypeVar("T")

_DUTIES_EVERY_S = 0.02
_AGAIN_S = (
    5.0  # after which a function is interrupted once more that has caught what interrupted it
)
_LAST_S = 120.0  # after which the kernel ends a process that the coordinator should have given up
_OURS = str(Path(__file__).parents[2])


class _OutOfTime(BaseException):
    """Interrupts a function; not an Exception, which the function might catch."""


def build_within(
    limit_s: float, build: Callable[[], T], background_tasks: Callable[[], object] | None = None
) -> T:
    """Build a network within a time limit while background tasks run.

    Args:
        limit_s: seconds that it may take.
        background_tasks: those of the rank that coordinates, done in another thread meanwhile; None for
            others.

    Raises:
        ModelError: it took too long, it exited, or raised what is no Exception.
        Exception: what the function raised.
        InfrastructureError: a duty has failed.
    """
    if threading.current_thread() is not threading.main_thread():
        return build()  # signals are for the main thread alone
    watch = _BuildGuard(limit_s, background_tasks)
    try:
        with watch.running():
            return build()
    except _OutOfTime as error:
        raise ModelError(
            f"building took longer than {format_duration(limit_s)} (train.build_timeout)"
            f"{_describe_position(error)}"
        ) from error
    except SystemExit as error:
        raise ModelError(exit_reason(error)) from error
    except KeyboardInterrupt as error:
        raise ModelError("it raised KeyboardInterrupt") from error
    except Exception:
        raise
    except BaseException as error:
        raise ModelError(f"it raised {one_line(error)}") from error


class _BuildGuard:
    """The timers and the background thread while a network is built."""

    def __init__(self, limit_s: float, background_tasks: Callable[[], object] | None) -> None:
        self._limit_s = limit_s
        self._duties = background_tasks
        self._is_over = threading.Event()
        self._error: BaseException | None = None  # of a duty

    @contextmanager
    def running(self) -> Iterator[None]:
        """Guard the block with timers and background tasks."""
        before = signal.signal(signal.SIGALRM, self._stop)
        # In a thread of its own, for this one may be deaf; and a handler may not print where a
        # function prints.
        thread = threading.Thread(target=self._do_duties, name="duties", daemon=True)
        try:
            if self._duties is not None:
                thread.start()
            signal.setitimer(signal.ITIMER_REAL, self._limit_s, _AGAIN_S)
            with kill_after(self._limit_s + UNRESPONSIVE_S + _LAST_S):
                yield
        finally:
            self._is_over.set()
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            if self._duties is not None:
                thread.join()
        if self._error is not None:  # not one of the network that was built
            raise InfrastructureError(
                f"while a network was built: {one_line(self._error)}"
            ) from self._error

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if not self._is_over.is_set():
            raise _OutOfTime

    def _do_duties(self) -> None:
        assert self._duties is not None
        try:
            while not self._is_over.wait(_DUTIES_EVERY_S):
                self._duties()
        except BaseException as error:  # it ends the launch, and that is for the main thread to do
            self._error = error


def _describe_position(error: BaseException) -> str:
    """Describe the line of the user's module at which a function was interrupted."""
    libraries = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_OURS, "<", *libraries))
    ]
    if frames:
        return f"; it was at {frames[-1].filename}, line {frames[-1].lineno}, in {frames[-1].name}"
    return ""


class _Event(ctypes.Structure):
    """The kernel's ``struct sigevent``: what a timer does."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_char * 48),
    )


@contextmanager
def kill_after(seconds: float) -> Iterator[None]:
    """Let the kernel kill this process unless the block ends in time."""
    libc = ctypes.CDLL(None)
    timer = ctypes.c_void_p()
    event = _Event(signal=signal.SIGKILL, notify=0)  # SIGEV_SIGNAL
    if libc.timer_create(
        ctypes.c_int(time.CLOCK_MONOTONIC), ctypes.byref(event), ctypes.byref(timer)
    ):
        log.warning("there is no timer of the kernel's for a function that never comes back")
        yield
        return
    full_seconds, part = divmod(seconds, 1)
    times = (ctypes.c_long * 4)(
        0, 0, int(full_seconds), int(part * 1e9) or 1
    )  # struct itimerspec: interval, first
    libc.timer_settime(timer, 0, ctypes.byref(times), None)
    try:
        yield
    finally:
        libc.timer_delete(timer)
