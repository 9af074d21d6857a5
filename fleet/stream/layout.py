"""Chunks of the stream, the ranks that produce them, and the size of a window (pure).

The stream is a sequence of *chunks*. Epoch ``e`` of the stream is a permutation of the training
set, cut into ``C`` chunks of equally many samples (the last may be shorter); chunk ``c`` of epoch
``e`` has the number ``s = e * C + c``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fleet.errors import UserError
from fleet.units import format_size
from launch.errors import pluralize
from preprocess.sample import InputSpec

LABEL = np.dtype(np.int64)  # of a plain class label


@dataclass(frozen=True)
class Layout:
    """The division of a stream into chunks, and the size of its window.

    Attributes:
        array: shape and dtype of the input of one sample.
        samples: number of samples of an epoch.
        chunk: number of samples of a chunk.
        slots: number of chunks that the window holds.
        lookahead: number of chunks that may be produced ahead of the fastest reader (Q_P of [FLEET]
            Fig. 4).
        readers: maximum number of readers of a node.
        is_ring: whether each group reads chunks in its own order.
        target: dtype of targets in the stream (:attr:`preprocess.target.TargetSpec.wire`).
    """

    array: InputSpec
    samples: int
    chunk: int
    slots: int
    lookahead: int
    readers: int
    is_ring: bool = False
    target: np.dtype = LABEL

    @property
    def chunks(self) -> int:
        """Number of chunks of an epoch (C)."""
        return -(-self.samples // self.chunk)

    @property
    def window_bytes(self) -> int:
        """Size of all slots in bytes."""
        return self.slots * self.chunk * row_bytes(self.array, self.target)

    def span(self, sequence: int) -> tuple[int, int, int]:
        """Return (epoch, first position, one past the last) of chunk ``sequence``."""
        epoch, chunk = divmod(sequence, self.chunks)
        first = chunk * self.chunk
        return epoch, first, min(first + self.chunk, self.samples)

    def sequence(self, epoch: int, position: int) -> int:
        """Return the chunk that holds a position of an epoch."""
        return epoch * self.chunks + position // self.chunk


# [FLEET] Fig. 4: the queue of preprocessed images holds 2048 of them.
Q_P = 2048


def row_bytes(array: InputSpec, target: np.dtype) -> int:
    """Return the size of one sample in bytes; a plain label is not counted."""
    return array.nbytes + (0 if target == LABEL else target.itemsize)


def chunk_size(array: InputSpec, target: np.dtype = LABEL) -> int:
    """Return the number of samples of a chunk of about 1 MiB."""
    return int(np.clip(2**20 // row_bytes(array, target), 8, 64))


def plan_layout(
    array: InputSpec,
    samples: int,
    window: int,
    largest_batch: int,
    readers: int,
    target: np.dtype = LABEL,
    epochs: int = 2,
) -> Layout:
    """Choose chunks and slots for a window of ``window`` bytes.

    Chunks are about 1 MiB: large enough that their overhead is negligible, small enough that a
    reader does not wait long for the first one.

    Args:
        array, samples, readers, target: see :class:`Layout`.
        window: size of the window in bytes.
        largest_batch: number of samples of the largest global batch.
        epochs: largest distance between two networks, in epochs; a larger window would not be used.
            Values below 2 count as 2.

    Raises:
        UserError: the window cannot hold the largest batch and one more chunk.
    """
    chunk = min(chunk_size(array, target), samples)
    size = row_bytes(array, target)
    batch_chunks = -(-largest_batch // chunk) + 1  # a batch may begin inside a chunk
    min_slots = batch_chunks + 1
    slots = window // (chunk * size)
    if slots < min_slots:
        raise UserError(
            f"data.shared_memory: {format_size(window)} is too small: the largest batch "
            f"({pluralize(largest_batch, 'sample')} of {format_size(size)}) "
            f"and one chunk ahead need {format_size(min_slots * chunk * size)}"
        )
    epoch = -(-samples // chunk)
    slots = min(slots, max(max(epochs, 2) * epoch, min_slots))
    lookahead = max(-(-Q_P // chunk), batch_chunks)
    return Layout(array, samples, chunk, slots, lookahead, readers, target=target)


def plan_ring(
    array: InputSpec, samples: int, window: int, shards: int, readers: int, target: np.dtype = LABEL
) -> Layout:
    """Choose the slots for a ring of ``shards`` shards.

    The shards are the chunks. Their size depends on the data set alone, because recorded paths
    refer to them.

    Args:
        array, samples, readers, target: see :class:`Layout`.
        window: size of the window in bytes.
        shards: number of shards of the data set.

    Raises:
        UserError: the window cannot hold three shards: one that is read, one that is ready and one
            that is written.
    """
    chunk = -(-samples // min(shards, samples))
    size = row_bytes(array, target)
    min_slots = 3
    slots = window // (chunk * size)
    if slots < min_slots:
        raise UserError(
            f"data.shared_memory: {format_size(window)} is too small for a ring: three shards of "
            f"{pluralize(chunk, 'sample')} of {format_size(size)} need "
            f"{format_size(min_slots * chunk * size)}; or raise data.shards above {shards}"
        )
    slots = min(slots, max(2 * -(-samples // chunk), min_slots))
    return Layout(
        array, samples, chunk, slots, max(2, slots // 2), readers, is_ring=True, target=target
    )


class Turns:
    """The ranks that produce chunks in turn; the ranks may change at a later chunk.

    >>> turns = Turns(0, (0, 1, 2))
    >>> turns.change(5, (1, 2))
    True
    >>> [turns.rank_of(sequence) for sequence in range(8)]
    [0, 1, 2, 0, 1, 2, 1, 2]
    >>> turns.next_of(0, 1), turns.next_of(0, 4)
    (3, None)
    """

    def __init__(self, first: int, ranks: Sequence[int]) -> None:
        self.first = first
        self._parts = [(first, tuple(ranks))]

    def change(self, since: int, ranks: Sequence[int]) -> bool:
        """Change the ranks from an unstarted chunk on; returns whether anything changed."""
        if self._parts[-1][1] == tuple(ranks):
            return False
        self._parts.append((since, tuple(ranks)))
        return True

    def rank_of(self, sequence: int) -> int:
        """Return the rank that produces a chunk."""
        ranks = next(
            ranks for since, ranks in reversed(self._parts) if since <= max(sequence, self.first)
        )
        return ranks[sequence % len(ranks)]

    def next_of(self, rank: int, sequence: int) -> int | None:
        """Return the first chunk from ``sequence`` on that a rank produces, or None."""
        since, ranks = self._parts[-1]
        until = max(sequence, since) + len(ranks)
        return next(
            (number for number in range(sequence, until) if self.rank_of(number) == rank), None
        )
