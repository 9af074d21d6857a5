"""Model functions of the numpy engine that do what users' functions may do."""

from __future__ import annotations

import errno
import os
import signal
import time
from typing import Any

from tests.simulate import kernel as k
from tests.sources import zeros


def _kernel() -> k.Kernel | None:
    """Return the simulation; None if the observer builds the network for itself."""
    kernel = k.active()
    if kernel is None or kernel.process.label == "observer":
        return None
    return kernel


def _tries(kernel: k.Kernel, name: str) -> int:
    """Count how often a function was called by the ranks of the launches."""
    kernel.counts[name] += 1
    return kernel.counts[name]


class Unexpected(BaseException):
    """An exception that ``except Exception`` does not catch."""


def unexpected(input_shape: Any, classes: int) -> Any:
    """Raise an exception that is no Exception."""
    raise Unexpected("out of the blue")


def deadly(input_shape: Any, classes: int) -> Any:
    """Kill the process, as a mistake in a library of C does."""
    kernel = _kernel()
    if kernel is not None:
        kernel.send_signal(kernel.process, signal.SIGKILL)
        kernel.sleep(1.0, "its end")
    return zeros(input_shape, classes)


def uninterruptible(input_shape: Any, classes: int) -> Any:
    """Hang where Python handles no signal."""
    kernel = _kernel()
    if kernel is not None:
        kernel.current.name = "main in C"  # which handles no signals
        kernel.sleep(1e6, "a function in C")
    return zeros(input_shape, classes)


def slow(input_shape: Any, classes: int) -> Any:
    """Take a second or two."""
    kernel = _kernel()
    if kernel is not None:
        time.sleep(kernel.random.uniform(0.5, 2.0))
    return zeros(input_shape, classes)


def shaky(input_shape: Any, classes: int) -> Any:
    """Fail twice for a reason that passes."""
    kernel = _kernel()
    if kernel is not None and _tries(kernel, "shaky model function") <= 2:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    return zeros(input_shape, classes)


def greedy(input_shape: Any, classes: int) -> Any:
    """Run out of memory on the first try, as beside other networks on a GPU."""
    kernel = _kernel()
    if kernel is not None and _tries(kernel, "greedy model function") <= 1:
        raise MemoryError("wanted all of it")
    return zeros(input_shape, classes)


def flawed(input_shape: Any, classes: int) -> Any:
    """Fail for the first network that it builds."""
    kernel = _kernel()
    if kernel is not None and _tries(kernel, "flawed model function") <= 1:
        raise ValueError("an unlucky seed")
    return zeros(input_shape, classes)


def withering(input_shape: Any, classes: int) -> Any:
    """Fail for all but the first of the ranks that build it."""
    kernel = _kernel()
    if kernel is not None and _tries(kernel, "withering model function") > 1:
        raise ValueError("built once already")
    return zeros(input_shape, classes)


def helped(input_shape: Any, classes: int) -> Any:
    """Use a module that lies beside the spec."""
    if not classes:
        import simulated_helper  # noqa: F401
    return zeros(input_shape, classes)
