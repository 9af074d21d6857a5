"""The window: each node's copy of the latest samples, which preprocessors write.

A :class:`Window` holds the most recent chunks of the stream (:mod:`fleet.stream.layout`) in a ring
of slots in shared memory, chunk ``s`` in slot ``s % slots``, as one contiguous array of samples: a
batch that spans chunks is still one view, unless the ring wraps inside it.

Ranks agree through a few 64-bit words in the segment, each with one writer:

- ``stamps[slot] = s + 1``: chunk ``s`` is complete there; written by the rank that filled it.
- ``cursors[reader]``: the first chunk that a reader still needs; infinity while it reads nothing.
  A slot is filled again only when all cursors have passed what it held. Chunks follow each other in
  a slot in order of their numbers, also unneeded ones: a slow preprocessor that comes
  late with an old one must not put it over a new one.
- ``demand``: how far the readers of other nodes are; written by the node's leader.

A *ring* (see :mod:`fleet.stream.order`) is a window from which readers take chunks in orders of
their own. There a cursor is the one chunk that a reader reads or waits for; and any slot that no
cursor is on may be filled with any chunk, so that a slow reader stops no other. Which one, the
node's leader decides; while a reader chooses its next chunk (:mod:`fleet.stream.ring`), it lets go
of none.

- ``assigned[slot] = s + 1``: chunk ``s`` is there, or is being written.
- ``assigned_until``: one past the last chunk that was given a slot.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fleet.comm.segment import fence, map_arrays
from fleet.stream.layout import Layout

NOT_READING = np.iinfo(np.int64).max
CHOOSING = -1  # in place of the chunk of a ring that a reader will choose in a moment


@dataclass(frozen=True)
class Stock:
    """The chunks that a node holds of a ring.

    Attributes:
        complete: the chunks that are there.
        coming: chunks that have a slot and are being written.
        until: from here on no chunk was given a slot yet, and each will be given one.
    """

    complete: frozenset[int]
    coming: frozenset[int]
    until: int

    def will_have(self, sequence: int) -> bool:
        """Return True if a chunk is there or will come."""
        return sequence >= self.until or sequence in self.complete or sequence in self.coming


class Window:
    """The ring of chunks of one node; see the module's docstring.

    Args:
        name: of the segment.
        create: whether this rank makes it.
        is_relayed: whether chunks go to other nodes; until the relay begins, it needs all of them.

    Attributes:
        images: (slots * chunk, ...), inputs of the layout's shape and type; slot ``i`` is the rows
            from ``i * chunk`` on.
        targets: (slots * chunk,) of the layout's type of targets.
        cursors: (readers + 1,) int64, one for each reader; the last one is the relay's, see
            :mod:`fleet.stream.relay`. ``NOT_READING`` stands for infinity.
        stamps: (slots,) int64, 0 where a slot holds no complete chunk.
        assigned: (slots,) int64, 0 where a slot was given to no chunk.
        demand, assigned_until: (1,) int64.
    """

    def __init__(self, layout: Layout, name: str, create: bool, is_relayed: bool = False) -> None:
        self.layout = layout
        cursors = layout.readers + 1
        rows = layout.slots * layout.chunk
        words = cursors + 2 + 2 * layout.slots
        self.segment, (header, self.targets, self.images) = map_arrays(
            name,
            create,
            (np.int64, words),
            (layout.target, rows),
            (layout.image.dtype, rows, *layout.image.shape),
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
        """Return the slot of a chunk; in a ring the chunk must have been given one."""
        if not self.layout.is_ring:
            return sequence % self.layout.slots
        is_there = (
            self.stamps == sequence + 1
        )  # not so before it is complete; then `assigned` may be 0 for a moment
        return int(np.flatnonzero(is_there | (self.assigned == sequence + 1))[0])

    def is_free(self, sequence: int, hold: int, first: int) -> bool:
        """Return True if chunk ``sequence`` may be written into its slot.

        Args:
            hold: the first chunk that groups which are still to join will need.
            first: the first chunk of the stream.
        """
        before = sequence - self.layout.slots
        return before < min(int(self.cursors.min()), hold) and (before < first or self.has(before))

    def assign(self, sequence: int) -> bool:
        """Assign a free slot to a chunk of the ring: an empty one or that of the oldest chunk.

        For the leader of the node alone.
        """
        for slot in np.argsort(self.stamps, kind="stable").tolist():
            held_stamp = int(self.stamps[slot])
            if (
                held_stamp != self.assigned[slot] or held_stamp > self.cursors[-1]
            ):  # being written; or still to be sent
                continue
            # A reader says that it chooses and then looks what is there; so take the chunk off the
            # list, then look for readers: one of the two sees the other.
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
        """Return the content of the ring; it stays while this rank's cursor is CHOOSING.

        Args:
            first: the first chunk of the stream. Those before it never come, also where none has
                been given a slot yet.
        """
        fence()  # it has said so before
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
            frozenset(chunk for chunk, is_there in slots if is_there),
            frozenset(chunk for chunk, is_there in slots if not is_there),
            until,
        )

    def has_slot(self, sequence: int) -> bool:
        """Return True if an incomplete chunk of the ring has a slot."""
        return sequence + 1 in self.assigned

    def need(self, reader: int, sequence: int) -> None:
        """Set a reader's cursor: it needs chunk ``sequence`` and later ones only."""
        fence()  # it has read what came before
        self.cursors[reader] = sequence

    def fastest_reader(self) -> int | None:
        """Return the largest cursor of this node's readers; None if none reads."""
        cursors = self.cursors[
            :-1
        ].copy()  # all are looked at once: a reader may leave between two looks
        reading = cursors[(cursors != NOT_READING) & (cursors != CHOOSING)]
        if reading.size:
            return int(reading.max())
        return None

    def mark_relayed(self, sequence: int) -> None:
        """Record that chunks before ``sequence`` were sent to other nodes or received."""
        self.cursors[-1] = sequence

    def newest(self) -> int:
        """Return one past the newest complete chunk; 0 if there is none."""
        return int(self.stamps.max())

    def has(self, sequence: int) -> bool:
        """Return True if chunk ``sequence`` is complete and still there."""
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
