"""Readers of the node's window in stream order; each rank reads its rows of every batch.

:mod:`fleet.stream.ring` has the reader for groups that read at their own pace and in their own
order, :mod:`fleet.stream.local_batches` the batches of trainers that prepare their samples
themselves. All return the same samples, bit for bit, because a prepared sample depends only on the
seed, the production and its index.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator
from functools import partial
from typing import TypeAlias

import numpy as np

from fleet.comm.protocols import Group
from fleet.stream.batch import Batch, split_rows
from fleet.stream.order import Epoch, Order
from fleet.stream.stall import StallClock, Waiting
from fleet.stream.window import NOT_READING, Window

# Positions of samples: a whole range, or the samples of a fold's network within it.
Positions: TypeAlias = range | np.ndarray


class Reader:
    """Reads the window of this node, in the order of the stream.

    Args:
        window: the window of this node.
        reader: this rank's index among the node's readers.
        waiting: waits for the ranks that fill the window.
        order: the order of all samples.
        keeps: (samples of the source,) bool, True for the samples that are read; None for all.

    Attributes:
        waited_s: seconds for which this rank has waited for samples so far.
    """

    def __init__(
        self,
        window: Window,
        reader: int,
        waiting: Waiting,
        order: Order,
        keeps: np.ndarray | None = None,
    ) -> None:
        self.waited_s = 0.0
        self._waiting = waiting
        self._window = window
        self._reader = reader
        self._order = order
        self._keeps = keeps
        self._followed = -1  # the epoch of the positions below
        self._followed_positions: Positions = range(0)

    def join(self, epoch: int) -> None:
        """Declare that this rank reads from the start of a stream epoch on."""
        self._need(self._window.layout.sequence(epoch, 0))

    def leave(self) -> None:
        """Stop reading."""
        self._need(NOT_READING)

    def follow(self, batch: Batch) -> None:
        """Declare that another trainer of this rank has read a batch for this one."""
        number = batch.epoch.number
        layout = self._window.layout
        if batch.is_last:
            self._need(layout.sequence(number + 1, 0))
        elif self._keeps is None:
            self._need(layout.sequence(number, batch.position - batch.size))
        else:
            if self._followed != number:
                self._followed = number
                self._followed_positions = self._select_positions(
                    layout.samples, lambda: self._order.plan_epoch(Epoch(number)).indices
                )
            first = self._followed_positions[batch.position - batch.size]
            self._need(layout.sequence(number, int(first)))

    def can_continue(self, epoch: Epoch, start: int, group: Group) -> bool:
        """Return True if an epoch can be read from a sample on; collective over the group."""
        return True

    def batches(  # noqa: D102
        self,
        epoch: Epoch,
        start: int,
        batch: int,
        group: Group,
        consumed: Container[int] = (),
    ) -> Iterator[Batch]:
        layout = self._window.layout
        number = epoch.number
        positions = self._select_positions(
            layout.samples, lambda: self._order.plan_epoch(Epoch(number)).indices
        )
        for first in range(start, len(positions), batch):
            last = min(first + batch, len(positions))
            own_rows = split_rows(first, last, group.rank, group.size)
            # The cursor follows the global batch, so that a rank without rows advances as well.
            self._need(layout.sequence(number, int(positions[first])))
            inputs, targets = self._rows(number, positions[slice(*own_rows)])
            yield Batch(inputs, targets, last - first, last, last == len(positions), epoch)
        # The next epoch may be far away; release the chunks of this one.
        self._need(layout.sequence(number + 1, 0))

    def _select_positions(self, samples: int, indices: Callable[[], np.ndarray]) -> Positions:
        """Return the positions, among ``samples``, that this network reads."""
        if self._keeps is None:
            return range(samples)
        return np.flatnonzero(self._keeps[indices()])

    def _need(self, sequence: int) -> None:
        self._window.need(self._reader, sequence)

    def _rows(self, epoch: int, positions: Positions) -> tuple[np.ndarray, np.ndarray]:
        """Wait for samples of an epoch; return views of the window, or copies if it wraps."""
        if isinstance(positions, np.ndarray):
            return self._gathered(epoch, positions)
        window = self._window
        layout = self._window.layout
        if not positions:
            return window.inputs[:0], window.targets[:0]
        sequences = range(
            layout.sequence(epoch, positions[0]), layout.sequence(epoch, positions[-1]) + 1
        )
        for sequence in sequences:
            self._wait(sequence)
        begin = window.rows(sequences[0]).start + positions[0] % layout.chunk
        if begin + len(positions) <= len(window.targets):
            rows = slice(begin, begin + len(positions))
            return window.inputs[rows], window.targets[rows]
        # The ring wraps inside this batch.
        wrapped = np.arange(begin, begin + len(positions)) % len(window.targets)
        return window.inputs[wrapped], window.targets[wrapped]

    def _gathered(self, epoch: int, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Copy some samples of each chunk, releasing a chunk once it was read."""
        window = self._window
        layout = self._window.layout
        inputs = np.empty((len(positions), *window.inputs.shape[1:]), window.inputs.dtype)
        targets = np.empty(len(positions), window.targets.dtype)
        chunks = positions // layout.chunk
        for chunk in np.unique(chunks).tolist():
            sequence = layout.sequence(epoch, chunk * layout.chunk)
            self._need(sequence)
            self._wait(sequence)
            in_chunk = chunks == chunk
            rows = window.rows(sequence).start + positions[in_chunk] % layout.chunk
            inputs[in_chunk] = window.inputs[rows]
            targets[in_chunk] = window.targets[rows]
        return inputs, targets

    def _wait(self, sequence: int) -> None:
        """Wait for a chunk; raise Stalled with the cause if it takes too long."""
        began = time.perf_counter()
        clock = StallClock(self._waiting.stall_s, partial(self._stalled, sequence))
        self._waiting.until(lambda: self._window.has(sequence) or None, clock)
        self.waited_s += time.perf_counter() - began

    def _stalled(self, sequence: int) -> str:
        window = self._window
        reading = {
            reader: int(at) for reader, at in enumerate(window.cursors[:-1]) if at != NOT_READING
        }
        slowest = min(reading, key=lambda reader: reading[reader])
        if window.newest() - reading[slowest] >= window.layout.slots:
            cause = (
                f"the window is full, and reader {slowest} of this node has stopped at chunk "
                f"{reading[slowest]}"
            )
        else:
            cause = "the preprocessor that should write it does not"
        return (
            f"chunk {sequence} of the stream has not arrived for {self._waiting.stall_s:.0f} s "
            f"(data.data_timeout): {cause}; the newest chunk is {window.newest() - 1}"
        )
