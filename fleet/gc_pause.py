"""Large work in less time: without looking for garbage in what stays."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collection() -> Iterator[None]:
    """Pause garbage collection, such as during imports or while a long log is read.

    What that makes stays, and to look through it again and again takes time: of an import a fifth.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def collect_rarely() -> None:
    """Look for garbage a tenth as often: for the rank that keeps what is known of thousands of networks.

    Next to nothing of that is garbage in a circle; looking through it took a sixth of the time of
    rank 0.
    """
    gc.set_threshold(10_000, 10, 10)
