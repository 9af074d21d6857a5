"""The window: one copy of the preprocessed samples that a node holds; see :mod:`fleet.stream.layout`."""

from __future__ import annotations

import mmap
import os
import threading
from pathlib import Path

import numpy as np

from fleet.errors import InfrastructureError
from fleet.stream.layout import Layout
from fleet.units import format_size

NOT_READING = np.iinfo(np.int64).max


_PAGE = 4096


_FOLDER = Path("/dev/shm")


def fence() -> None:
    """Order memory accesses: what came before is seen before what comes after.

    Python has no memory barrier of its own, but taking and giving back a lock is one on every
    processor that we know, POWER and ARM included, where plain stores may be seen out of order.
    """
    with threading.Lock():
        pass


class Segment:
    """A named piece of memory that the ranks of one node share.

    Args:
        name: of the file in /dev/shm.
        size: in bytes.
        create: whether this rank makes it; the others map what is there.

    Raises:
        InfrastructureError: there is not enough shared memory, or the file is not there.
    """

    def __init__(self, name: str, size: int, create: bool) -> None:
        self._path = _FOLDER / name
        flags = os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0)
        try:
            if create:
                self._path.unlink(missing_ok=True)  # of a run that was killed before it could unlink
            descriptor = os.open(self._path, flags, 0o600)
        except OSError as error:
            raise InfrastructureError(f"shared memory {self._path}: {error.strerror}") from error
        try:
            if create:
                # Reserve every page now: running out later would be a SIGBUS, which nobody can explain.
                os.posix_fallocate(descriptor, 0, size)
            self.memory = mmap.mmap(descriptor, size)
        except OSError as error:
            self._path.unlink(missing_ok=True)
            free = os.statvfs(_FOLDER)
            raise InfrastructureError(
                f"{format_size(size)} of shared memory are wanted and {format_size(free.f_bavail * free.f_frsize)} "
                f"are free in {_FOLDER}: lower data.window") from error
        finally:
            os.close(descriptor)

    def unlink(self) -> None:
        """Take the name away; the memory lives on while it is mapped."""
        self._path.unlink(missing_ok=True)


def _aligned(count: int) -> int:
    return -(-count // _PAGE) * _PAGE


class Window:
    """The ring of chunks of one node; see the module's docstring.

    Args:
        name: of the segment.
        create: whether this rank makes it.
        is_relayed: whether chunks go to other nodes; until the relay begins, it needs all of them.
    """

    def __init__(self, layout: Layout, name: str, create: bool, is_relayed: bool = False) -> None:
        self.layout = layout
        cursors, rows = layout.readers + 1, layout.slots * layout.chunk
        words = cursors + 2 + 2 * layout.slots
        labels_at = _aligned(8 * words)
        images_at = labels_at + _aligned(8 * rows)
        self.segment = Segment(name, images_at + layout.window_bytes, create)
        memory = self.segment.memory
        header = np.frombuffer(memory, np.int64, words)
        self.cursors = header[:cursors]  # the last one is the relay's, see fleet/stream/relay.py
        self.demand = header[cursors:cursors + 1]
        self.assigned_until = header[cursors + 1:cursors + 2]
        self.stamps = header[cursors + 2:cursors + 2 + layout.slots]
        self.assigned = header[cursors + 2 + layout.slots:]
        self.labels = np.frombuffer(memory, np.int64, rows, labels_at)
        self.images = np.frombuffer(memory, layout.image.dtype, rows * layout.image.size, images_at
                                    ).reshape(rows, *layout.image.shape)
        if create:
            self.cursors[:] = NOT_READING
            self.cursors[-1] = 0 if is_relayed else NOT_READING

    def rows(self, sequence: int) -> slice:
        """The rows of the window where chunk ``sequence`` belongs."""
        start = self._slot(sequence) * self.layout.chunk
        return slice(start, start + self.length(sequence))

    def length(self, sequence: int) -> int:
        """The samples of chunk ``sequence``."""
        _, first, last = self.layout.span(sequence)
        return last - first

    def _slot(self, sequence: int) -> int:
        """Where a chunk belongs; in a ring it must have been assigned."""
        if not self.layout.is_ring:
            return sequence % self.layout.slots
        return int(np.flatnonzero(self.assigned == sequence + 1)[0])

    def is_free(self, sequence: int, hold: int, first: int) -> bool:
        """Whether chunk ``sequence`` may be written: its slot is complete, and nobody needs what it holds.

        Args:
            hold: the first chunk that groups which are still to join will need.
            first: the first chunk of the stream.
        """
        before = sequence - self.layout.slots
        return before < min(int(self.cursors.min()), hold) and (before < first or self.has(before))

    def assign(self, sequence: int) -> bool:
        """Give a chunk of the ring a slot, if there is one that nobody needs: empty, or the oldest chunk's.

        For the leader of the node alone.
        """
        for slot in np.argsort(self.stamps, kind="stable").tolist():
            held = int(self.stamps[slot])
            if held != self.assigned[slot] or held > self.cursors[-1]:  # being written; or still to be sent
                continue
            # A reader puts its cursor on a chunk and then looks whether it is there; so take it away, then look for
            # cursors: one of the two sees the other.
            self.stamps[slot] = 0
            fence()
            if held and held - 1 in self.cursors[:-1]:
                self.stamps[slot] = held
                continue
            self.assigned[slot] = sequence + 1
            fence()
            self.assigned_until[0] = sequence + 1
            return True
        return False

    def is_assigned(self, sequence: int) -> bool:
        """Whether a chunk of the ring has a slot, to be written into or already complete."""
        return sequence + 1 in self.assigned

    def is_gone(self, sequence: int) -> bool:
        """Whether a chunk of the ring had a slot and has it no more."""
        had = sequence < int(self.assigned_until[0])
        fence()
        return had and not self.is_assigned(sequence)

    def need(self, reader: int, sequence: int) -> None:
        """Say that a reader needs chunk ``sequence`` and later ones, and none before."""
        fence()  # it has read what came before
        self.cursors[reader] = sequence

    def fastest_reader(self) -> int | None:
        """The cursor of the reader on this node that is furthest, None when there is no reader."""
        reading = self.cursors[:-1][self.cursors[:-1] != NOT_READING]
        return int(reading.max()) if reading.size else None

    def relayed(self, sequence: int) -> None:
        """Say that chunks before ``sequence`` have been sent to the other nodes, or came from there."""
        self.cursors[-1] = sequence

    def newest(self) -> int:
        """One past the newest complete chunk; 0 when there is none."""
        return int(self.stamps.max())

    def complete(self) -> list[int]:
        """The chunks that are there, oldest first."""
        return [stamp - 1 for stamp in sorted(self.stamps.tolist()) if stamp]

    def has(self, sequence: int) -> bool:
        """Whether chunk ``sequence`` is complete and still there."""
        complete = (sequence + 1 in self.stamps if self.layout.is_ring
                    else int(self.stamps[sequence % self.layout.slots]) == sequence + 1)
        fence()
        return complete

    def publish(self, sequence: int) -> None:
        """Say that chunk ``sequence`` is complete."""
        fence()
        self.stamps[self._slot(sequence)] = sequence + 1
