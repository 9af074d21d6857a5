"""Trainers that read the node's window, each rank its own rows of every batch.

:class:`SharedStream` reads it in the order of the stream, :class:`RingStream` at the group's own pace, in an order of
its own. (:mod:`fleet.stream.own` has the stream of trainers that prepare their samples themselves.) All give the
same samples, bit for bit, since what a sample looks like depends on the seed, the production and its index alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Container, Iterator, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from fleet.comm.base import World
from fleet.stream.base import Batch, Members, split_rows
from fleet.stream.order import Epoch, RingOrder
from fleet.stream.segment import fence
from fleet.stream.stall import StallClock, WriterLost, await_written
from fleet.stream.window import NOT_READING, Window

T = TypeVar("T")

_NEVER = -1  # in place of a chunk that will not come any more


class SharedStream:
    """Reads the window of this node, in the order of the stream.

    Args:
        window: of this node.
        reader: the place of this rank among the node's readers.
        world: to wait with.
        stall_s: a wait so long is an error: whoever should read or write has stopped.
        writers: the ranks that fill the window.
    """

    def __init__(self, window: Window, reader: int, world: World, stall_s: float = math.inf,
                 writers: Container[int] = ()) -> None:
        self.waited_s, self._writers = 0.0, writers
        self._window, self._reader, self._world, self._stall_s = window, reader, world, stall_s

    def join(self, epoch: int) -> None:  # noqa: D102 - Stream says it
        self._need(self._window.layout.sequence(epoch, 0))

    def leave(self) -> None:  # noqa: D102
        self._need(NOT_READING)

    def batches(self, epoch: Epoch, start: int, batch: int, group: Members,  # noqa: D102
                taken: Container[int] = ()) -> Iterator[Batch]:
        samples, number = self._window.layout.samples, epoch.number
        for first in range(start, samples, batch):
            last = min(first + batch, samples)
            mine = split_rows(first, last, group.rank, group.size)
            # The cursor follows the global batch, so that a rank without rows keeps up as well.
            self._need(self._window.layout.sequence(number, first))
            images, labels = self._rows(number, *mine)
            yield Batch(images, labels, last - first, last, last == samples, epoch)
        # The next epoch may be far away; what this one held is needed no more.
        self._need(self._window.layout.sequence(number + 1, 0))

    def _need(self, sequence: int) -> None:
        self._window.need(self._reader, sequence)

    def _rows(self, epoch: int, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """Positions ``first`` to ``last`` of an epoch, once they are there.

        Returns:
            Images (last - first, height, width, channels) and labels (last - first,): views of the window, or copies
            where its ring wraps between them.
        """
        window, layout = self._window, self._window.layout
        if first == last:
            return window.images[:0], window.labels[:0]
        sequences = range(layout.sequence(epoch, first), layout.sequence(epoch, last - 1) + 1)
        for sequence in sequences:
            self._wait(sequence, partial(self._has, sequence))
        begin = window.rows(sequences[0]).start + first % layout.chunk
        if begin + last - first <= len(window.labels):
            rows = slice(begin, begin + last - first)
            return window.images[rows], window.labels[rows]
        # The ring wraps inside this batch.
        wrapped = np.arange(begin, begin + last - first) % len(window.labels)
        return window.images[wrapped], window.labels[wrapped]

    def _has(self, sequence: int) -> bool | None:
        return self._window.has(sequence) or None

    def _wait(self, sequence: int, ready: Callable[[], T | None]) -> T:
        """Wait for a chunk; too long a wait ends the run, with what is known of its cause."""
        began = time.perf_counter()
        clock = StallClock(self._stall_s, partial(self._stalled, sequence))
        found = await_written(self._world, self._writers, ready, clock)
        self.waited_s += time.perf_counter() - began
        return found

    def _stalled(self, sequence: int) -> str:
        window = self._window
        reading = {reader: int(at) for reader, at in enumerate(window.cursors[:-1]) if at != NOT_READING}
        slowest = min(reading, key=lambda reader: reading[reader])
        cause = (f"reader {slowest} of this node, at chunk {reading[slowest]}, reads no further and the window is full"
                 if window.newest() - reading[slowest] >= window.layout.slots
                 else "the preprocessor that should write it does not")
        return (f"chunk {sequence} of the stream has not come for {self._stall_s:.0f} s (data.stall): {cause}; "
                f"the newest chunk is {window.newest() - 1}")


class RingStream(SharedStream):
    """Reads the window of this node at the group's own pace: always the oldest chunk whose shard it still lacks.

    The master chooses, and all ranks of the group make sure that the chunk is there, and stays, on their nodes.
    """

    def __init__(self, window: Window, reader: int, world: World, order: RingOrder, stall_s: float = math.inf,
                 writers: Container[int] = ()) -> None:
        super().__init__(window, reader, world, stall_s, writers)
        self._order = order

    def join(self, epoch: int) -> None:
        """Nothing is promised: whatever is there when the first batch is asked for will do."""

    def batches(self, epoch: Epoch, start: int, batch: int, group: Members,
                taken: Container[int] = ()) -> Iterator[Batch]:
        """See :class:`Stream`; ``start`` is 0, for the rest of an epoch can be had of :class:`OwnStream` only."""
        if start:
            raise ValueError("a ring does not give the rest of an epoch")
        samples, path = self._window.layout.samples, list(epoch.path)
        lacks = set(range(self._order.shards))
        begin = end = 0  # of the chunk that is read, in the epoch
        for first in range(0, samples, batch):
            last = min(first + batch, samples)
            mine = split_rows(first, last, group.rank, group.size)
            parts = []
            while True:
                low, high = max(mine[0], begin), min(mine[1], end)
                if low < high:
                    parts.append(self._part(path[-1], low - begin, high - begin))
                if end >= last:
                    break
                # What this rank wants of the chunk is copied before the chunk is let go.
                parts = [(images.copy(), labels.copy()) for images, labels in parts]
                path.append(self._take(lacks, group, taken))
                lacks.remove(self._order.shard(path[-1]))
                rows = self._window.rows(path[-1])
                begin, end = end, end + rows.stop - rows.start
            images, labels = _joined(parts) if parts else (self._window.images[:0], self._window.labels[:0])
            latest = Epoch(max(path) // self._order.shards, tuple(path))
            yield Batch(images, labels, last - first, last, last == samples, latest)
        self.leave()

    def _part(self, sequence: int, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        start = self._window.rows(sequence).start
        rows = slice(start + first, start + last)
        return self._window.images[rows], self._window.labels[rows]

    def _take(self, lacks: Container[int], group: Members, taken: Container[int]) -> int:
        """Agree on the next chunk, and hold it on all nodes of the group."""
        refused: set[int] = set()  # they are gone on another node, for good
        while True:
            self.leave()  # what this rank has held is needed no more
            offered = self._offer(lacks, taken, refused) if group.rank == 0 else None
            sequence = group.from_master(offered)
            held = group.rank == 0 or self._hold(sequence)
            if sequence == _NEVER or (group.size > 1 and None in (answers := group.exchange(held))):
                raise WriterLost("a rank that prepared samples has died")
            if group.size == 1 or all(answers):
                return sequence
            refused.add(sequence)

    def _offer(self, lacks: Container[int], taken: Container[int], refused: Container[int]) -> int:
        """The chunk that the master would take next; none where it will not come any more."""
        try:
            return self._wait(self._window.newest(), lambda: self._find(lacks, taken, refused))
        except WriterLost:
            return _NEVER

    def _find(self, lacks: Container[int], taken: Container[int], refused: Container[int]) -> int | None:
        """The oldest chunk of use on this node, held."""
        for sequence in self._window.complete():
            is_of_use = self._order.shard(sequence) in lacks and sequence not in taken and sequence not in refused
            if is_of_use and self._holds(sequence):
                return sequence
        self._need(self._window.newest())  # so the ring turns further
        return None

    def _holds(self, sequence: int) -> bool:
        """Put the cursor on a chunk; it stays if it is still there then."""
        self._need(sequence)
        fence()
        return self._window.has(sequence)

    def _hold(self, sequence: int) -> bool | None:
        """Hold a chunk that the master has; on another node it may still be on its way, gone, or never come (None)."""
        def settled() -> bool | None:
            if self._holds(sequence):
                return True
            return False if self._window.is_gone(sequence) else None

        try:
            return self._wait(sequence, settled)
        except WriterLost:
            return None


def _joined(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([images for images, _ in parts]), np.concatenate([labels for _, labels in parts])
