"""Building a network with a user's function within a time limit.

A signal interrupts a function that runs Python code or waits. It cannot interrupt a function that
computes in C forever; then the coordinator abandons this rank (:mod:`fleet.control.group_startup`),
and in the end the kernel kills the process.
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

_TASKS_EVERY_S = 0.02
_INTERRUPT_AGAIN_S = 5.0  # for a function that has caught the first interruption
_KILL_S = 120.0  # after which the kernel kills a process that the coordinator should have abandoned
_FLEET_FOLDER = str(Path(__file__).parents[2])


class _OutOfTime(BaseException):
    """Interrupts a function; not an Exception, which the function might catch."""


def build_within(
    limit_s: float, build: Callable[[], T], background_tasks: Callable[[], object] | None = None
) -> T:
    """Build a network within a time limit while background tasks run.

    Args:
        limit_s: the time limit in seconds.
        build: builds the network.
        background_tasks: runs the coordinating rank's background tasks, in another thread; None on
            other ranks.

    Raises:
        ModelError: the function took too long, exited, or raised something that is no Exception.
        Exception: any error of the function.
        InfrastructureError: a background task has failed.
    """
    if threading.current_thread() is not threading.main_thread():
        return build()  # only the main thread receives signals
    try:
        with _guarding(limit_s, background_tasks):
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


@contextmanager
def _guarding(limit_s: float, background_tasks: Callable[[], object] | None) -> Iterator[None]:
    """Guard the block with timers, and run background tasks; see :func:`build_within`."""
    is_over = threading.Event()
    errors: list[BaseException] = []  # of background tasks

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not is_over.is_set():
            raise _OutOfTime

    def run_tasks() -> None:
        try:
            while background_tasks is not None and not is_over.wait(_TASKS_EVERY_S):
                background_tasks()
        except BaseException as error:  # the main thread raises it, which ends the launch
            errors.append(error)

    before = signal.signal(signal.SIGALRM, interrupt)
    # In another thread, because this one may be blocked, and a signal handler may not print while
    # the function prints.
    thread = threading.Thread(target=run_tasks, name="background-tasks", daemon=True)
    try:
        thread.start()
        signal.setitimer(signal.ITIMER_REAL, limit_s, _INTERRUPT_AGAIN_S)
        with kill_after(limit_s + UNRESPONSIVE_S + _KILL_S):
            yield
    finally:
        is_over.set()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        thread.join()
    if errors:
        raise InfrastructureError(
            f"coordinating while a network was built: {one_line(errors[0])}"
        ) from errors[0]


def _describe_position(error: BaseException) -> str:
    """Describe the line of users' code at which a function was interrupted."""
    libraries = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_FLEET_FOLDER, "<", *libraries))
    ]
    if frames:
        return f"; it was at {frames[-1].filename}, line {frames[-1].lineno}, in {frames[-1].name}"
    return ""


class _Event(ctypes.Structure):
    """The kernel's ``struct sigevent``, the action of a timer."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("padding", ctypes.c_char * 48),
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
        log.warning("a function that never returns cannot be killed: timer_create failed")
        yield
        return
    full_seconds, part = divmod(seconds, 1)
    # struct itimerspec: interval, first expiration
    times = (ctypes.c_long * 4)(0, 0, int(full_seconds), int(part * 1e9) or 1)
    libc.timer_settime(timer, 0, ctypes.byref(times), None)
    try:
        yield
    finally:
        libc.timer_delete(timer)
