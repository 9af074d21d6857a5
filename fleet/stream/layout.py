"""Shared memory: one copy of the preprocessed samples on each node.

The stream is a sequence of *chunks*. Epoch ``e`` of the stream is the training set in an order of its
own, cut into ``C`` chunks of equally many samples (the last may be short); chunk ``c`` of epoch ``e``
has the number ``s = e * C + c``. A :class:`Window` holds the most recent chunks in a ring of slots,
chunk ``s`` in slot ``s % slots``, as one contiguous array of samples: a batch that spans chunks is
still one view, unless the ring wraps inside it.

Ranks agree through a few 64-bit words in the segment, each with one writer:

- ``stamps[slot] = s + 1``: chunk ``s`` is complete there; written by whoever filled it.
- ``cursors[reader]``: the first chunk that a reader still needs; infinity while it reads nothing.
  A slot is filled again only when all cursors have passed what it held. Chunks follow each other in a
  slot in order of their numbers, also those that nobody needs: a slow preprocessor that comes late with
  an old one must not put it over a new one.
- ``demand``: how far the readers of other nodes are; written by the node's leader.

A *ring* (see :mod:`fleet.stream.order`) is a window from which readers take chunks in orders of their own. There a
cursor is the one chunk that a reader reads, or else how far it would like the ring to turn; and any slot that no
cursor is on may be filled with any chunk, so that a slow reader stops nobody. Which one, the node's leader decides:

- ``assigned[slot] = s + 1``: chunk ``s`` is there, or is being written.
- ``assigned_until``: one past the last chunk that was given a slot.

The file is unlinked as soon as all ranks of the node have mapped it. So nothing is left behind however
the run ends, while the memory lives as long as any rank does: it survives a dead one.
"""

from __future__ import annotations

import mmap
import os
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fleet.errors import InfrastructureError, UserError
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


@dataclass(frozen=True)
class Layout:
    """The shape of a stream: everything that ranks must agree on before the first sample.

    Attributes:
        shape: of one sample, (height, width, channels).
        dtype: of one sample, a numpy type name.
        samples: in one epoch.
        chunk: samples in a chunk.
        slots: chunks that the window holds.
        lookahead: chunks that may be produced ahead of the fastest reader (Q_P of [FLEET] Fig. 4).
        readers: on a node, at most.
        is_ring: whether groups take chunks in an order of their own.
    """

    shape: tuple[int, ...]
    dtype: str
    samples: int
    chunk: int
    slots: int
    lookahead: int
    readers: int
    is_ring: bool = False

    @property
    def chunks(self) -> int:
        """Chunks in an epoch (C)."""
        return -(-self.samples // self.chunk)

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize

    @property
    def window_bytes(self) -> int:
        """Bytes of all slots."""
        return self.slots * self.chunk * self.sample_bytes

    def span(self, sequence: int) -> tuple[int, int, int]:
        """What chunk ``sequence`` holds: (epoch, first position, one past the last)."""
        epoch, chunk = divmod(sequence, self.chunks)
        first = chunk * self.chunk
        return epoch, first, min(first + self.chunk, self.samples)

    def sequence(self, epoch: int, position: int) -> int:
        """The chunk that holds a position of an epoch."""
        return epoch * self.chunks + position // self.chunk


# [FLEET] Fig. 4: the queue of preprocessed images holds 2048 of them.
Q_P = 2048


def chunk_size(sample_bytes: int) -> int:
    """Samples in a chunk that is about a mebibyte."""
    return int(np.clip(2**20 // sample_bytes, 8, 64))


def plan_layout(shape: tuple[int, ...], dtype: str, samples: int, window: int, largest_batch: int,
                readers: int) -> Layout:
    """Choose chunks and slots for a window of ``window`` bytes.

    Chunks are about a mebibyte: large enough that counting them costs nothing, small enough that a
    reader does not wait long for the first.

    Raises:
        UserError: the window cannot hold the largest batch and one more chunk.
    """
    sample = int(np.prod(shape)) * np.dtype(dtype).itemsize
    chunk = min(chunk_size(sample), samples)
    batch_chunks = -(-largest_batch // chunk) + 1  # a batch may begin inside a chunk
    least = batch_chunks + 1
    slots = window // (chunk * sample)
    if slots < least:
        raise UserError(
            f"data.window: {format_size(window)} is too small: the largest batch ({largest_batch} samples of "
            f"{format_size(sample)}) and one chunk ahead need {format_size(least * chunk * sample)}")
    epoch = -(-samples // chunk)
    slots = min(slots, max(2 * epoch, least))  # more than two epochs would never be used
    lookahead = max(-(-Q_P // chunk), batch_chunks)
    return Layout(tuple(shape), str(dtype), samples, chunk, slots, lookahead, readers)


def plan_ring(shape: tuple[int, ...], dtype: str, samples: int, window: int, shards: int, readers: int) -> Layout:
    """Choose the slots for a ring of ``shards`` shards.

    The shards are the chunks. Their size follows from the data set alone, since recorded paths speak of them.

    Raises:
        UserError: the window cannot hold one shard that is read, one that is ready and one that is written.
    """
    sample = int(np.prod(shape)) * np.dtype(dtype).itemsize
    chunk = -(-samples // min(shards, samples))
    least, slots = 3, window // (chunk * sample)
    if slots < least:
        raise UserError(
            f"data.window: {format_size(window)} is too small for a ring: three shards of {chunk} samples of "
            f"{format_size(sample)} need {format_size(least * chunk * sample)}; or cut the data set into more shards "
            f"than data.shards: {shards}")
    slots = min(slots, max(2 * -(-samples // chunk), least))
    return Layout(tuple(shape), str(dtype), samples, chunk, slots, max(2, slots // 2), readers, is_ring=True)


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
        self.images = np.frombuffer(memory, layout.dtype, rows * int(np.prod(layout.shape)), images_at
                                    ).reshape(rows, *layout.shape)
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


class SampleSet:
    """Samples that stay, one copy on each node: those for validation, or all decoded training samples.

    Args:
        shape, dtype: of one sample.
        samples: how many.
        chunk: how many a preprocessor takes at a time.
    """

    def __init__(self, shape: tuple[int, ...], dtype: str, samples: int, chunk: int, name: str, create: bool) -> None:
        self.samples, self.chunk = samples, chunk
        self.chunks = -(-samples // chunk)
        labels_at = _aligned(8 * self.chunks)
        images_at = labels_at + _aligned(8 * samples)
        size = int(np.prod(shape))
        self.segment = Segment(name, images_at + max(1, samples * size * np.dtype(dtype).itemsize), create)
        memory = self.segment.memory
        self._ready = np.frombuffer(memory, np.int64, self.chunks)
        self.labels = np.frombuffer(memory, np.int64, samples, labels_at)
        self.images = np.frombuffer(memory, dtype, samples * size, images_at).reshape(samples, *shape)

    def rows(self, chunk: int) -> slice:
        """The rows of one chunk."""
        return slice(chunk * self.chunk, min(self.samples, (chunk + 1) * self.chunk))

    def length(self, chunk: int) -> int:
        """The samples of one chunk."""
        rows = self.rows(chunk)
        return rows.stop - rows.start

    def publish(self, chunk: int) -> None:
        """Say that a chunk is complete."""
        fence()
        self._ready[chunk] = 1

    def has(self, chunk: int) -> bool:
        """Whether a chunk is complete."""
        complete = bool(self._ready[chunk])
        fence()
        return complete

    def has_rows(self, rows: np.ndarray) -> bool:
        """Whether all of these rows are there."""
        complete = bool(self._ready[rows // self.chunk].all())
        fence()
        return complete

    def ready(self) -> int:
        """How many chunks are there."""
        return int(self._ready.sum())

    def is_complete(self) -> bool:
        """Whether all samples are there."""
        complete = bool(self._ready.all())
        fence()
        return complete

    def relayed(self, sequence: int) -> None:
        """Nothing waits for it: what is there stays."""
