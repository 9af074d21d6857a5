"""Readers of a ring: each group at its own pace and in its own order.

A group takes a chunk at a time, always the oldest whose shard it still lacks in its epoch. Each
node gives its slots away by itself, so nodes hold different chunks; what a group takes must be held
by all of its nodes. Therefore its ranks *choose* together: each says so in the window of its node,
from which nothing is let go until it has chosen; they exchange what their nodes hold; all come to
the same chunk; each puts its cursor on it, wherever it is: there, being written, or still to be
made. From then on no node lets go of it before it has been read, so the group waits for the writers
alone, and writers fill the ring no further than a cursor asks for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterator, Sequence

import numpy as np

from fleet.comm.protocols import Group
from fleet.stream.batch import Batch, split_rows
from fleet.stream.order import Epoch, RingOrder
from fleet.stream.reader import Positions, Reader
from fleet.stream.stall import Waiting, WriterDied
from fleet.stream.window import CHOOSING, NOT_READING, Stock, Window


def choose(stocks: Sequence[Stock], is_of_use: Callable[[int], bool]) -> int:
    """Choose a group's next chunk: the oldest useful one that all of its nodes have or will.

    Args:
        stocks: of the group's nodes.
        is_of_use: whether a chunk holds a shard that the group still lacks, and was not consumed
            before.
    """
    # In order, up to the first: an order of shards is drawn anew for each change from one
    # production to another.
    complete = sorted(frozenset.intersection(*(stock.complete for stock in stocks)))
    available = next(filter(is_of_use, complete), None)
    if available is not None:
        return available
    later = itertools.count(max(stock.until for stock in stocks))
    return next(
        sequence
        for sequence in itertools.chain(sorted(_list_held(stocks)), later)
        if all(stock.will_have(sequence) for stock in stocks) and is_of_use(sequence)
    )


def _list_held(stocks: Sequence[Stock]) -> frozenset[int]:
    """Return the chunks that any of the nodes holds or is writing."""
    return frozenset.union(*(stock.complete | stock.coming for stock in stocks))


def missed(stocks: Sequence[Stock], is_of_use: Callable[[int], bool]) -> set[int]:
    """Return useful chunks that some nodes of a group hold and others have overwritten."""
    return {
        sequence
        for sequence in _list_held(stocks)
        if not all(stock.will_have(sequence) for stock in stocks) and is_of_use(sequence)
    }


class RingReader(Reader):
    """Reads the window of this node at the group's own pace; see the module.

    Args:
        window, reader, waiting, keeps: see :class:`~fleet.stream.reader.Reader`.
        order: of all samples.
        first: the first chunk of this launch. A group may choose before the ring of any of its
            nodes has begun.
    """

    def __init__(
        self,
        window: Window,
        reader: int,
        waiting: Waiting,
        order: RingOrder,
        keeps: np.ndarray | None = None,
        first: int = 0,
    ) -> None:
        super().__init__(window, reader, waiting, order, keeps)
        self._samples = window.layout.samples if keeps is None else int(keeps.sum())
        self._ring = order
        self._first = first

    def join(self, epoch: int) -> None:
        """Do nothing: a ring reader starts with whichever chunk is available."""

    def batches(
        self, epoch: Epoch, start: int, batch: int, group: Group, consumed: Container[int] = ()
    ) -> Iterator[Batch]:
        """Yield the batches of an epoch; ``start`` must be 0 in a ring."""
        if start:
            raise ValueError("a ring does not give the rest of an epoch")
        samples = self._samples
        path = list(epoch.path)
        lacks = set(range(self._ring.shards))

        def is_of_use(sequence: int) -> bool:
            return self._ring.shard(sequence) in lacks and sequence not in consumed

        missed_chunks: set[int] = set()  # chunks that were missed
        begin = end = 0  # of the chunk that is read, in the epoch
        positions: Positions = range(0)  # in it
        for first in range(0, samples, batch):
            last = min(first + batch, samples)
            own_rows = split_rows(first, last, group.rank, group.size)
            parts = []
            while True:
                low = max(own_rows[0], begin)
                high = min(own_rows[1], end)
                if low < high:
                    parts.append(self._part(path[-1], positions[low - begin : high - begin]))
                if end >= last:
                    break
                # What this rank wants of the chunk is copied before the chunk is released.
                parts = [(images.copy(), targets.copy()) for images, targets in parts]
                path.append(self._take(is_of_use, group, missed_chunks))
                lacks.remove(self._ring.shard(path[-1]))
                positions = self._select_positions(
                    self._window.length(path[-1]), lambda: self._order.chunk(path[-1])[1]
                )
                begin = end
                end = end + len(positions)
            images, targets = (
                _joined(parts) if parts else (self._window.images[:0], self._window.targets[:0])
            )
            latest = Epoch(max(path) // self._ring.shards, tuple(path))
            yield Batch(
                images, targets, last - first, last, last == samples, latest, len(missed_chunks)
            )
        self.leave()

    def _part(self, sequence: int, positions: Positions) -> tuple[np.ndarray, np.ndarray]:
        start = self._window.rows(sequence).start
        if isinstance(positions, range):
            rows = slice(start + positions.start, start + positions.stop)
        else:
            rows = start + positions
        return self._window.images[rows], self._window.targets[rows]

    def _take(self, is_of_use: Callable[[int], bool], group: Group, missed_chunks: set[int]) -> int:
        """Agree on the next chunk, hold it on all nodes of the group, and wait for it.

        Args:
            missed_chunks: receives the chunks that were missed.

        Raises:
            WriterDied: on all ranks of the group: on one of them it will not come any more.
        """
        self.leave()  # what this rank has held is needed no more
        sequence = self._choose(is_of_use, group, missed_chunks)
        has_come = True
        try:
            self._wait(sequence)
        except WriterDied:
            has_come = False
        if self._waiting.world.is_fault_tolerant:
            has_come = all(group.allgather(has_come))
        if not has_come:
            raise WriterDied("a rank that prepared samples has died")
        return sequence

    def _stalled(self, sequence: int) -> str:
        window = self._window
        newest = self._window.newest() - 1
        if window.has_slot(sequence):
            cause = "the preprocessor that should write it does not"
        else:
            held_chunks = sorted(
                set(window.cursors[:-1].tolist()) - {NOT_READING, CHOOSING, sequence}
            )
            cause = "no slot has become free for it on this node, " + (
                f"whose readers hold {', '.join(map(str, held_chunks))}"
                if held_chunks
                else "though no reader holds one"
            )
        passing = ", though newer ones come" if newest > sequence else ""
        return (
            f"chunk {sequence} of the ring has not arrived for {self._waiting.stall_s:.0f} s (data.data_timeout)"
            f"{passing}: {cause}; the newest chunk is {newest}"
        )

    def _choose(
        self, is_of_use: Callable[[int], bool], group: Group, missed_chunks: set[int]
    ) -> int:
        group.barrier()  # others on these nodes are kept waiting for a moment only
        self._need(CHOOSING)
        try:
            stocks = group.allgather(self._window.stock(self._first))
            sequence = choose(stocks, is_of_use)
        except BaseException:
            self.leave()
            raise
        self._need(sequence)
        missed_chunks |= missed(stocks, is_of_use)
        return sequence


def _joined(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([images for images, _ in parts]), np.concatenate(
        [targets for _, targets in parts]
    )
