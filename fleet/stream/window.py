"""The window: each node's copy of the latest samples, which preprocessors write.

A :class:`Window` holds the most recent chunks of the stream (:mod:`fleet.stream.layout`) in a ring
of slots in shared memory, chunk ``s`` in slot ``s % slots``, as one contiguous array of samples: a
batch that spans chunks is still one view, unless the ring wraps inside it.

Ranks synchronize through a few 64-bit words in the segment, each with one writer:

- ``stamps[slot] = s + 1``: the slot holds the complete chunk ``s``; written by the rank that
  filled it.
- ``cursors[reader]``: the first chunk that a reader still needs; infinity while it does not read.
  A slot is overwritten only after all cursors have passed its chunk. The chunks of a slot follow
  each other in order of their numbers, even unneeded ones, so that a slow preprocessor cannot
  overwrite a new chunk with an old one.
- ``demand``: the position of the readers of other nodes; written by the node's leader.

A *ring* (see :mod:`fleet.stream.order`) is a window from which each reader takes chunks in its own
order. There a cursor is the one chunk that a reader reads or waits for, and any slot without a
cursor may be overwritten with any chunk, so that a slow reader does not block others. The node's
leader assigns chunks to slots; while a reader chooses its next chunk (:mod:`fleet.stream.ring`),
the leader releases no chunk.

- ``assigned[slot] = s + 1``: the slot holds chunk ``s``, complete or being written.
- ``assigned_until``: one past the last chunk that was assigned a slot.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fleet.comm.segment import fence, map_arrays
from fleet.stream.layout import Layout

NOT_READING = np.iinfo(np.int64).max
CHOOSING = -1  # cursor of a reader that is choosing its next chunk of a ring


@dataclass(frozen=True)
class Stock:
    """The chunks that a node holds of a ring.

    Attributes:
        complete: complete chunks.
        coming: chunks that have a slot and are being written.
        until: the first chunk that was not assigned a slot; it and all later ones will be.
    """

    complete: frozenset[int]
    coming: frozenset[int]
    until: int

    def will_have(self, sequence: int) -> bool:
        """Return True if a chunk is complete or will be."""
        return sequence >= self.until or sequence in self.complete or sequence in self.coming


class Window:
    """The ring of chunks of one node; see the module's docstring.

    Args:
        layout: shapes, dtypes and numbers.
        name, create: see :class:`fleet.comm.segment.Segment`.
        is_relayed: whether chunks go to other nodes; until the relay begins, it needs all chunks.

    Attributes:
        inputs: (slots * chunk, ...) inputs of the layout's shape and dtype; slot ``i`` has the rows
            from ``i * chunk`` on.
        targets: (slots * chunk,) of the layout's dtype of targets.
        cursors: (readers + 1,) int64, one for each reader; the last one is the relay's, see
            :mod:`fleet.stream.relay`. ``NOT_READING`` stands for infinity.
        stamps: (slots,) int64, 0 if a slot holds no complete chunk.
        assigned: (slots,) int64, 0 if a slot is assigned to no chunk.
        demand, assigned_until: (1,) int64.
    """

    def __init__(self, layout: Layout, name: str, create: bool, is_relayed: bool = False) -> None:
        self.layout = layout
        cursors = layout.readers + 1
        rows = layout.slots * layout.chunk
        words = cursors + 2 + 2 * layout.slots
        self.segment, (header, self.targets, self.inputs) = map_arrays(
            name,
            create,
            (np.int64, words),
            (layout.target, rows),
            (layout.array.dtype, rows, *layout.array.shape),
        )
        self.cursors = header[:cursors]
        self.demand = header[cursors : cursors + 1]
        self.assigned_until = header[cursors + 1 : cursors + 2]
        self.stamps = header[cursors + 2 : cursors + 2 + layout.slots]
        self.assigned = header[cursors + 2 + layout.slots :]
        if create:
            self.cursors[:] = NOT_READING
            self.cursors[-1] = 0 if is_relayed else NOT_READING

    def rows(self, sequence: int) -> slice:
        """Return the rows of the window for chunk ``sequence``."""
        start = self._slot(sequence) * self.layout.chunk
        return slice(start, start + self.length(sequence))

    def length(self, sequence: int) -> int:
        """Return the number of samples of chunk ``sequence``."""
        _, first, last = self.layout.span(sequence)
        return last - first

    def _slot(self, sequence: int) -> int:
        """Return the slot of a chunk; in a ring the chunk must have been assigned one."""
        if not self.layout.is_ring:
            return sequence % self.layout.slots
        # Of a complete chunk `assigned` may be 0 for a moment, see assign().
        is_complete = self.stamps == sequence + 1
        return int(np.flatnonzero(is_complete | (self.assigned == sequence + 1))[0])

    def is_free(self, sequence: int, hold: int, first: int) -> bool:
        """Return True if chunk ``sequence`` may be written into its slot.

        Args:
            sequence: the chunk's number.
            hold: the first chunk that groups which are still to join will need.
            first: the first chunk of the stream.
        """
        before = sequence - self.layout.slots
        return before < min(int(self.cursors.min()), hold) and (before < first or self.has(before))

    def assign(self, sequence: int) -> bool:
        """Assign a free slot to a chunk of the ring: an empty one or that of the oldest chunk.

        Only the leader of the node may call it.
        """
        for slot in np.argsort(self.stamps, kind="stable").tolist():
            held_stamp = int(self.stamps[slot])
            # It is being written, or still has to be sent.
            if held_stamp != self.assigned[slot] or held_stamp > self.cursors[-1]:
                continue
            # A reader sets its cursor to CHOOSING and then reads the list of chunks; so remove the
            # chunk from the list and then read the cursors: one of the two sees the other.
            self.assigned[slot] = 0
            fence()
            readers = self.cursors[:-1].copy()
            if CHOOSING in readers or (held_stamp and held_stamp - 1 in readers):
                self.assigned[slot] = held_stamp
                if CHOOSING in readers:
                    return False
                continue
            self.stamps[slot] = 0
            fence()
            self.assigned[slot] = sequence + 1
            fence()
            self.assigned_until[0] = sequence + 1
            return True
        return False

    def stock(self, first: int = 0) -> Stock:
        """Return the content of the ring, which does not shrink while a cursor is CHOOSING.

        Args:
            first: the first chunk of the stream; earlier ones will never be assigned a slot.
        """
        fence()  # after this rank's cursor was set to CHOOSING
        until = max(int(self.assigned_until[0]), first)
        fence()
        assigned = self.assigned.tolist()
        fence()
        stamps = self.stamps.tolist()
        slots = [
            (held_stamp - 1, held_stamp == stamp)
            for held_stamp, stamp in zip(assigned, stamps, strict=True)
            if held_stamp
        ]
        return Stock(
            frozenset(chunk for chunk, is_complete in slots if is_complete),
            frozenset(chunk for chunk, is_complete in slots if not is_complete),
            until,
        )

    def has_slot(self, sequence: int) -> bool:
        """Return True if an incomplete chunk of the ring has a slot."""
        return sequence + 1 in self.assigned

    def need(self, reader: int, sequence: int) -> None:
        """Set a reader's cursor: it needs chunk ``sequence`` and later ones only."""
        fence()  # after the reads of earlier chunks
        self.cursors[reader] = sequence

    def holds(self, reader: int, sequence: int) -> bool:
        """Return True if a reader holds the complete chunk ``sequence`` in its slot."""
        return bool(self.cursors[reader] == sequence) and self.has(sequence)

    def fastest_reader(self) -> int | None:
        """Return the largest cursor of this node's readers; None if none reads."""
        cursors = self.cursors[:-1].copy()  # read once, because readers change them at any time
        reading = cursors[(cursors != NOT_READING) & (cursors != CHOOSING)]
        if reading.size:
            return int(reading.max())
        return None

    def mark_relayed(self, sequence: int) -> None:
        """Record that chunks before ``sequence`` were sent to other nodes, or received."""
        self.cursors[-1] = sequence

    def newest(self) -> int:
        """Return one past the newest complete chunk; 0 if there is none."""
        return int(self.stamps.max())

    def has(self, sequence: int) -> bool:
        """Return True if the window holds the complete chunk ``sequence``."""
        if self.layout.is_ring:
            complete = sequence + 1 in self.stamps
        else:
            complete = int(self.stamps[sequence % self.layout.slots]) == sequence + 1
        fence()
        return complete

    def publish(self, sequence: int) -> None:
        """Mark chunk ``sequence`` as complete."""
        fence()
        self.stamps[self._slot(sequence)] = sequence + 1
