"""Trainers that read the node's window in the order of the stream, each rank its own rows of every batch.

:mod:`fleet.stream.ring` has the stream of groups that read at their own pace, in an order of their own,
:mod:`fleet.stream.own` that of trainers that prepare their samples themselves. All give the same samples, bit for bit,
since what a sample looks like depends on the seed, the production and its index alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Container, Iterator
from functools import partial

import numpy as np

from fleet.comm.base import World
from fleet.stream.base import Batch, Members, split_rows
from fleet.stream.order import Epoch
from fleet.stream.stall import StallClock, await_written
from fleet.stream.window import NOT_READING, Window


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
            images, targets = self._rows(number, *mine)
            yield Batch(images, targets, last - first, last, last == samples, epoch)
        # The next epoch may be far away; what this one held is needed no more.
        self._need(self._window.layout.sequence(number + 1, 0))

    def _need(self, sequence: int) -> None:
        self._window.need(self._reader, sequence)

    def _rows(self, epoch: int, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """Positions ``first`` to ``last`` of an epoch, once they are there.

        Returns:
            Inputs (last - first, ...) and targets (last - first,): views of the window, or copies
            where its ring wraps between them.
        """
        window, layout = self._window, self._window.layout
        if first == last:
            return window.images[:0], window.targets[:0]
        sequences = range(layout.sequence(epoch, first), layout.sequence(epoch, last - 1) + 1)
        for sequence in sequences:
            self._wait(sequence)
        begin = window.rows(sequences[0]).start + first % layout.chunk
        if begin + last - first <= len(window.targets):
            rows = slice(begin, begin + last - first)
            return window.images[rows], window.targets[rows]
        # The ring wraps inside this batch.
        wrapped = np.arange(begin, begin + last - first) % len(window.targets)
        return window.images[wrapped], window.targets[wrapped]

    def _wait(self, sequence: int) -> None:
        """Wait for a chunk; too long a wait ends the run, with what is known of its cause."""
        began = time.perf_counter()
        clock = StallClock(self._stall_s, partial(self._stalled, sequence))
        await_written(self._world, self._writers, lambda: self._window.has(sequence) or None, clock)
        self.waited_s += time.perf_counter() - began

    def _stalled(self, sequence: int) -> str:
        window = self._window
        reading = {reader: int(at) for reader, at in enumerate(window.cursors[:-1]) if at != NOT_READING}
        slowest = min(reading, key=lambda reader: reading[reader])
        cause = (f"reader {slowest} of this node, at chunk {reading[slowest]}, reads no further and the window is full"
                 if window.newest() - reading[slowest] >= window.layout.slots
                 else "the preprocessor that should write it does not")
        return (f"chunk {sequence} of the stream has not arrived for {self._stall_s:.0f} s (data.stall): {cause}; "
                f"the newest chunk is {window.newest() - 1}")
