"""Shared memory of the ranks of one node: a file in /dev/shm that all of them map.

The file is unlinked as soon as all ranks of the node have mapped it, so nothing is left behind
however the run ends. The memory lives as long as any rank does.
"""

from __future__ import annotations

import fcntl
import itertools
import math
import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fleet.errors import InfrastructureError
from fleet.units import format_size

_PAGE = 4096
_FOLDER = Path("/dev/shm")


def fence() -> None:
    """Order memory accesses: earlier ones become visible before later ones.

    Python has no memory barrier. Releasing a lock orders earlier accesses, acquiring it orders
    later ones, so a lock is released and then acquired. That is a full barrier on x86 and on ARM,
    where plain stores may become visible out of order; on POWER a load may still overtake a store.
    """
    lock = threading.Lock()
    for _ in range(2):
        with lock:
            pass


class Segment:
    """Named memory that the ranks of one node share.

    Args:
        name: name of the file in /dev/shm.
        size: size in bytes.
        create: whether this rank creates the file; the others map it.

    Raises:
        InfrastructureError: there is not enough shared memory, or the file is missing.
    """

    def __init__(self, name: str, size: int, create: bool) -> None:
        self._path = _FOLDER / name
        flags = os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0)
        try:
            if create:
                # A run may have been killed before it could unlink its file.
                self._path.unlink(missing_ok=True)
            descriptor = os.open(self._path, flags, 0o600)
        except OSError as error:
            raise InfrastructureError(f"shared memory {self._path}: {error.strerror}") from error
        try:
            if create:
                # Reserve every page now: running out later would end in an unexplained SIGBUS.
                os.posix_fallocate(descriptor, 0, size)
            self.memory = mmap.mmap(descriptor, size)
        except OSError as error:
            os.close(descriptor)
            self._path.unlink(missing_ok=True)
            free = os.statvfs(_FOLDER)
            raise InfrastructureError(
                f"{format_size(size)} of shared memory are needed and "
                f"{format_size(free.f_bavail * free.f_frsize)} are free in {_FOLDER}: "
                "lower data.shared_memory"
            ) from error
        self._descriptor = descriptor

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the segment's lock; a rank that dies releases it."""
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def unlink(self) -> None:
        """Remove the file's name; the memory lives while it is mapped."""
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file; it cannot be locked afterwards, but mapped memory stays valid."""
        os.close(self._descriptor)


def unlink_all(prefix: str) -> None:
    """Remove the names of segments that begin so; their memory lives while it is mapped."""
    for path in _FOLDER.glob(f"{prefix}-*"):
        path.unlink(missing_ok=True)


def aligned(count: int) -> int:
    """Round a number of bytes up to whole pages."""
    return -(-count // _PAGE) * _PAGE


def map_arrays(
    name: str, create: bool, *forms: tuple[Any, ...]
) -> tuple[Segment, list[np.ndarray]]:
    """Map zeroed arrays that the ranks of a node share, each aligned to a page.

    Args:
        name, create: see :class:`Segment`.
        forms: for each array, its dtype and the length of each axis.

    Raises:
        InfrastructureError: see :class:`Segment`.
    """
    counts = [math.prod(shape) for _, *shape in forms]
    sizes = [
        aligned(count * np.dtype(kind).itemsize)
        for count, (kind, *_) in zip(counts, forms, strict=True)
    ]
    starts = list(itertools.accumulate(sizes, initial=0))
    segment = Segment(name, max(starts[-1], 1), create)
    return segment, [
        np.frombuffer(segment.memory, kind, count, start).reshape(shape)
        for (kind, *shape), count, start in zip(forms, counts, starts, strict=False)
    ]
