"""Readers of a ring: each group at its own pace and in its own order.

A group reads one chunk at a time, always the oldest whose shard its epoch still lacks. Each node
assigns its slots by itself, so nodes hold different chunks, but all nodes of a group must hold the
chunk that the group reads. Therefore the ranks of a group *choose* together. Each rank sets its
cursor to CHOOSING in the window of its node, which then releases no chunk. The ranks exchange the
lists of chunks that their nodes hold, and all choose the same one. Each sets its cursor to that
chunk, whether it is complete, being written, or not yet begun. From then on no node releases the
chunk before it has been read, so the group waits for the writers only; and writers fill the ring no
further than the cursors require.
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
    """Choose a group's next chunk: the oldest useful one that all of its nodes have or will have.

    Args:
        stocks: the chunks of each of the group's nodes.
        is_of_use: returns whether a chunk holds a shard that the group still lacks, and was not
            consumed before.
    """
    # Test in order and stop at the first: a change of production draws a new order of shards.
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
        order: the order of all samples.
        first: the first chunk of this launch, because a group may choose before any chunk of the
            ring is assigned.
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
        """Yield the batches of an epoch, from a sample at which the group can continue."""
        samples = self._samples
        path = list(epoch.path)
        lacks = set(range(self._ring.shards)) - set(map(self._ring.shard, path))

        def is_of_use(sequence: int) -> bool:
            return self._ring.shard(sequence) in lacks and sequence not in consumed

        missed_chunks: set[int] = set()
        # the present chunk's position in the epoch
        begin = end = 0
        positions: Positions = range(0)  # in the present chunk
        for sequence in path:
            positions = self._positions(sequence)
            begin = end
            end = end + len(positions)
        for first in range(start, samples, batch):
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
                # Copy this rank's rows of the chunk before the chunk is released.
                parts = [(inputs.copy(), targets.copy()) for inputs, targets in parts]
                path.append(self._take(is_of_use, group, missed_chunks))
                lacks.remove(self._ring.shard(path[-1]))
                positions = self._positions(path[-1])
                begin = end
                end = end + len(positions)
            inputs, targets = (
                _joined(parts) if parts else (self._window.inputs[:0], self._window.targets[:0])
            )
            latest = Epoch(max(path) // self._ring.shards, tuple(path))
            yield Batch(
                inputs, targets, last - first, last, last == samples, latest, len(missed_chunks)
            )
        self.leave()

    def can_continue(self, epoch: Epoch, start: int, group: Group) -> bool:
        """Return True if all ranks of the group hold the chunk in which it stopped."""
        if not start:
            return True
        holds = bool(epoch.path) and self._window.holds(self._reader, epoch.path[-1])
        return all(group.allgather(holds))

    def _positions(self, sequence: int) -> Positions:
        """Return the positions in a chunk that this network reads."""
        return self._select_positions(
            self._window.length(sequence), lambda: self._order.chunk(sequence)[1]
        )

    def _part(self, sequence: int, positions: Positions) -> tuple[np.ndarray, np.ndarray]:
        start = self._window.rows(sequence).start
        if isinstance(positions, range):
            rows = slice(start + positions.start, start + positions.stop)
        else:
            rows = start + positions
        return self._window.inputs[rows], self._window.targets[rows]

    def _take(self, is_of_use: Callable[[int], bool], group: Group, missed_chunks: set[int]) -> int:
        """Agree on the next chunk, hold it on all nodes of the group, and wait for it.

        Args:
            missed_chunks: receives the chunks that were missed.

        Raises:
            WriterDied: on all ranks of the group, if the chunk will not arrive on one of them.
        """
        self.leave()  # release the previous chunk
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
            holders = "no reader holds one"
            if held_chunks:
                holders = f"readers hold chunks {', '.join(map(str, held_chunks))}"
            cause = f"no slot has become free for it on this node ({holders})"
        newer = ", but newer ones have" if newest > sequence else ""
        return (
            f"chunk {sequence} of the ring has not arrived for {self._waiting.stall_s:.0f} s "
            f"(data.data_timeout){newer}: {cause}; the newest chunk is {newest}"
        )

    def _choose(
        self, is_of_use: Callable[[int], bool], group: Group, missed_chunks: set[int]
    ) -> int:
        group.barrier()  # so that all choose together and hold up their nodes only briefly
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
    return np.concatenate([inputs for inputs, _ in parts]), np.concatenate(
        [targets for _, targets in parts]
    )
