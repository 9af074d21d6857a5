"""Chunks of the stream, who produces them, and how many a window holds (pure).

The stream is a sequence of *chunks*. Epoch ``e`` of the stream is the training set in an order of
its own, cut into ``C`` chunks of equally many samples (the last may be short); chunk ``c`` of epoch
``e`` has the number ``s = e * C + c``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fleet.errors import UserError
from fleet.units import format_size, pluralize
from preprocess.sample import ImageSpec

LABEL = np.dtype(np.int64)  # the type of a plain class


@dataclass(frozen=True)
class Layout:
    """The division of a stream into chunks, and the size of its window.

    Attributes:
        image: what the input of one sample is.
        samples: in one epoch.
        chunk: samples in a chunk.
        slots: chunks that the window holds.
        lookahead: chunks that may be produced ahead of the fastest reader (Q_P of [FLEET] Fig. 4).
        readers: on a node, at most.
        is_ring: whether groups take chunks in an order of their own.
        target: the type in which the target of one sample travels
            (:attr:`preprocess.target.TargetSpec.wire`).
    """

    image: ImageSpec
    samples: int
    chunk: int
    slots: int
    lookahead: int
    readers: int
    is_ring: bool = False
    target: np.dtype = LABEL

    @property
    def chunks(self) -> int:
        """Chunks in an epoch (C)."""
        return -(-self.samples // self.chunk)

    @property
    def window_bytes(self) -> int:
        """Bytes of all slots."""
        return self.slots * self.chunk * row_bytes(self.image, self.target)

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


def row_bytes(image: ImageSpec, target: np.dtype) -> int:
    """Return the bytes of one sample, without those of a plain label."""
    return image.nbytes + (0 if target == LABEL else target.itemsize)


def chunk_size(image: ImageSpec, target: np.dtype = LABEL) -> int:
    """Return the samples of a chunk of about a mebibyte."""
    return int(np.clip(2**20 // row_bytes(image, target), 8, 64))


def plan_layout(
    image: ImageSpec,
    samples: int,
    window: int,
    largest_batch: int,
    readers: int,
    target: np.dtype = LABEL,
    epochs: int = 2,
) -> Layout:
    """Choose chunks and slots for a window of ``window`` bytes.

    Chunks are about a mebibyte: large enough that counting them costs nothing, small enough that a
    reader does not wait long for the first.

    Args:
        epochs: as far apart as networks can be; more room would never be used. Two always have room
            if there is some.

    Raises:
        UserError: the window cannot hold the largest batch and one more chunk.
    """
    chunk = min(chunk_size(image, target), samples)
    size = row_bytes(image, target)
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
    return Layout(image, samples, chunk, slots, lookahead, readers, target=target)


def plan_ring(
    image: ImageSpec, samples: int, window: int, shards: int, readers: int, target: np.dtype = LABEL
) -> Layout:
    """Choose the slots for a ring of ``shards`` shards.

    The shards are the chunks. Their size follows from the data set alone, since recorded paths
    speak of them.

    Raises:
        UserError: the window cannot hold one shard that is read, one that is ready and one that is
            written.
    """
    chunk = -(-samples // min(shards, samples))
    size = row_bytes(image, target)
    min_slots = 3
    slots = window // (chunk * size)
    if slots < min_slots:
        raise UserError(
            f"data.shared_memory: {format_size(window)} is too small for a ring: three shards of "
            f"{pluralize(chunk, 'sample')} of {format_size(size)} need "
            f"{format_size(min_slots * chunk * size)}; or cut the data set into more shards "
            f"than data.shards: {shards}"
        )
    slots = min(slots, max(2 * -(-samples // chunk), min_slots))
    return Layout(
        image, samples, chunk, slots, max(2, slots // 2), readers, is_ring=True, target=target
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
