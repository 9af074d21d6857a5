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

from dataclasses import dataclass

import numpy as np

from fleet.errors import UserError
from fleet.units import format_size
from preprocess.sample import ImageSpec


@dataclass(frozen=True)
class Layout:
    """The shape of a stream: everything that ranks must agree on before the first sample.

    Attributes:
        image: what one sample is.
        samples: in one epoch.
        chunk: samples in a chunk.
        slots: chunks that the window holds.
        lookahead: chunks that may be produced ahead of the fastest reader (Q_P of [FLEET] Fig. 4).
        readers: on a node, at most.
        is_ring: whether groups take chunks in an order of their own.
    """

    image: ImageSpec
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
    def window_bytes(self) -> int:
        """Bytes of all slots."""
        return self.slots * self.chunk * self.image.nbytes

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


def chunk_size(image: ImageSpec) -> int:
    """Samples in a chunk that is about a mebibyte."""
    return int(np.clip(2**20 // image.nbytes, 8, 64))


def plan_layout(image: ImageSpec, samples: int, window: int, largest_batch: int, readers: int) -> Layout:
    """Choose chunks and slots for a window of ``window`` bytes.

    Chunks are about a mebibyte: large enough that counting them costs nothing, small enough that a
    reader does not wait long for the first.

    Raises:
        UserError: the window cannot hold the largest batch and one more chunk.
    """
    chunk = min(chunk_size(image), samples)
    batch_chunks = -(-largest_batch // chunk) + 1  # a batch may begin inside a chunk
    least = batch_chunks + 1
    slots = window // (chunk * image.nbytes)
    if slots < least:
        raise UserError(
            f"data.window: {format_size(window)} is too small: the largest batch ({largest_batch} samples of "
            f"{format_size(image.nbytes)}) and one chunk ahead need {format_size(least * chunk * image.nbytes)}")
    epoch = -(-samples // chunk)
    slots = min(slots, max(2 * epoch, least))  # more than two epochs would never be used
    lookahead = max(-(-Q_P // chunk), batch_chunks)
    return Layout(image, samples, chunk, slots, lookahead, readers)


def plan_ring(image: ImageSpec, samples: int, window: int, shards: int, readers: int) -> Layout:
    """Choose the slots for a ring of ``shards`` shards.

    The shards are the chunks. Their size follows from the data set alone, since recorded paths speak of them.

    Raises:
        UserError: the window cannot hold one shard that is read, one that is ready and one that is written.
    """
    chunk = -(-samples // min(shards, samples))
    least, slots = 3, window // (chunk * image.nbytes)
    if slots < least:
        raise UserError(
            f"data.window: {format_size(window)} is too small for a ring: three shards of {chunk} samples of "
            f"{format_size(image.nbytes)} need {format_size(least * chunk * image.nbytes)}; or cut the data set into "
            f"more shards than data.shards: {shards}")
    slots = min(slots, max(2 * -(-samples // chunk), least))
    return Layout(image, samples, chunk, slots, max(2, slots // 2), readers, is_ring=True)
