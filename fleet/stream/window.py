"""The window: one copy of the latest preprocessed samples on each node, which preprocessors write and trainers read.

A :class:`Window` holds the most recent chunks of the stream (:mod:`fleet.stream.layout`) in a ring of slots in shared
memory, chunk ``s`` in slot ``s % slots``, as one contiguous array of samples: a batch that spans chunks is still one
view, unless the ring wraps inside it.

Ranks agree through a few 64-bit words in the segment, each with one writer:

- ``stamps[slot] = s + 1``: chunk ``s`` is complete there; written by the rank that filled it.
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
"""

from __future__ import annotations

import numpy as np

from fleet.stream.layout import Layout
from fleet.stream.segment import Segment, aligned, fence

NOT_READING = np.iinfo(np.int64).max


class Window:
    """The ring of chunks of one node; see the module's docstring.

    Args:
        name: of the segment.
        create: whether this rank makes it.
        is_relayed: whether chunks go to other nodes; until the relay begins, it needs all of them.

    Attributes:
        images: (slots * chunk, height, width, channels), of the layout's type; slot ``i`` is the rows from
            ``i * chunk`` on.
        labels: (slots * chunk,) int64; -1 marks a sample that could not be used.
        cursors: (readers + 1,) int64, one for each reader; the last one is the relay's, see
            :mod:`fleet.stream.relay`. ``NOT_READING`` stands for infinity.
        stamps: (slots,) int64, 0 where a slot holds no complete chunk.
        assigned: (slots,) int64, 0 where a slot was given to no chunk.
        demand, assigned_until: (1,) int64.
    """

    def __init__(self, layout: Layout, name: str, create: bool, is_relayed: bool = False) -> None:
        self.layout = layout
        cursors, rows = layout.readers + 1, layout.slots * layout.chunk
        words = cursors + 2 + 2 * layout.slots
        labels_at = aligned(8 * words)
        images_at = labels_at + aligned(8 * rows)
        self.segment = Segment(name, images_at + layout.window_bytes, create)
        memory = self.segment.memory
        header = np.frombuffer(memory, np.int64, words)
        self.cursors = header[:cursors]
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
        cursors = self.cursors[:-1].copy()  # all are looked at once: a reader may leave between two looks
        reading = cursors[cursors != NOT_READING]
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
