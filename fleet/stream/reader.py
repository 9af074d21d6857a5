"""What trainers iterate: batches of an epoch of the stream, each rank its own rows.

Streams have one interface. :class:`SharedStream` reads the node's window, which preprocessors fill, in the
order of the stream; :class:`RingStream` reads it too, at the group's own pace, in an order of its own.
:class:`OwnStream` finishes samples itself, in a thread: from the decoded ones that the node keeps, or from the
source: for a launch of one rank, for the policy `baseline`, and for a network that finishes an epoch which
the shared stream has left behind. All give the same samples, bit for bit, for what a sample looks like depends
on the seed, the production and its index alone.
"""

from __future__ import annotations

import itertools
import math
import queue
import threading
import time
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from fleet.errors import InfrastructureError
from fleet.stream.layout import NOT_READING, SampleSet, Window, fence
from fleet.stream.order import Epoch, Itinerary, Order, RingOrder
from preprocess.base import BadSample
from preprocess.pipeline import Pipeline

if TYPE_CHECKING:  # MPI starts when it is imported
    from fleet.comm.world import World

T = TypeVar("T")

_POLL_S = 0.001
# Who waits for samples has time: the preprocessor is the bottleneck, and wants the core that a look costs.
_PATIENCE = 4.0
_NEVER = -1  # in place of a chunk that will not come any more


@dataclass(frozen=True)
class Batch:
    """This rank's rows of one global batch.

    Attributes:
        images: (rows, height, width, channels), as they are on the wire: see ``Pipeline.affine``.
        labels: (rows,) int64; -1 marks a sample that could not be read, and counts for nothing.
        size: rows of the global batch.
        position: samples of the epoch that are consumed once this batch is.
        is_last: of the epoch.
        epoch: what is consumed then: its number, or in a ring the latest production, and the path.
    """

    images: np.ndarray
    labels: np.ndarray
    size: int
    position: int
    is_last: bool
    epoch: Epoch


def split_rows(first: int, last: int, rank: int, size: int) -> tuple[int, int]:
    """The rows of one rank: contiguous, in order of rank, no two shares differing by more than one.

    >>> [split_rows(0, 10, rank, 3) for rank in range(3)]
    [(0, 4), (4, 7), (7, 10)]
    """
    share, more = divmod(last - first, size)
    start = first + rank * share + min(rank, more)
    return start, start + share + (rank < more)


class Members(Protocol):
    """The ranks that share each batch: a training group, or a part of it."""

    rank: int
    size: int

    def exchange(self, value: bool | None) -> list[bool | None]:
        """Give every rank the values of all."""

    def from_master(self, value: int | None) -> int:
        """Give every rank the master's value."""


class Stream(Protocol):
    """The seam between how samples arrive and how a network trains on them."""

    @property
    def waited_s(self) -> float:
        """What this rank has waited for data so far."""

    def join(self, epoch: int) -> None:
        """Promise to read from the start of a stream epoch on."""

    def batches(self, epoch: Epoch, start: int, batch: int, group: Members, taken: Container[int] = ()
                ) -> Iterator[Batch]:
        """The batches of an epoch from position ``start``; a batch is valid until the next.

        Args:
            taken: chunks of the ring that the network has consumed in its earlier epochs.
        """

    def leave(self) -> None:
        """Read no further."""


class WriterLost(InfrastructureError):
    """A rank that fills what a node shares has died, and what was waited for will not come."""


def await_written(world: World, writers: Container[int], ready: Callable[[], T | None]) -> T:
    """Wait for what other ranks write.

    Raises:
        WriterLost: one of them has died, so that it may never come.
    """

    def look() -> T | None:
        if (found := ready()) is None and (dead := [rank for rank in world.lost if rank in writers]):
            raise WriterLost(f"rank {dead[0]}, which prepared samples, has died")
        return found

    return world.wait(look, _PATIENCE)


class Standstill:
    """Ends a run in which samples that should stay, once they have come, come no more.

    Args:
        what: the samples are, for the message.
        stall_s: a wait so long without a further chunk is an error.
        clock: seconds, from any origin; a test may give its own.
    """

    def __init__(self, shared: SampleSet, what: str, stall_s: float, clock: Callable[[], float] = time.perf_counter
                 ) -> None:
        self._shared, self._what, self._stall_s, self._clock = shared, what, stall_s, clock
        self._ready, self._since = -1, 0.0

    def look(self) -> None:
        """Somebody waits.

        Raises:
            InfrastructureError: so long that the writers must have stopped.
        """
        ready, now = self._shared.ready(), self._clock()
        if ready != self._ready:
            self._ready, self._since = ready, now
        elif now - self._since > self._stall_s:
            raise InfrastructureError(
                f"no further {self._what} samples have come for {self._stall_s:.0f} s (data.stall): {ready} of "
                f"{self._shared.chunks} chunks are there, and the preprocessors that should write the others do not")

    def rest(self) -> None:
        """Nobody waits any more."""
        self._ready = -1


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
            images, labels = self._rows(number, *mine)
            yield Batch(images, labels, last - first, last, last == samples, epoch)
        # The next epoch may be far away; what this one held is needed no more.
        self._need(self._window.layout.sequence(number + 1, 0))

    def _need(self, sequence: int) -> None:
        self._window.need(self._reader, sequence)

    def _rows(self, epoch: int, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        window, layout = self._window, self._window.layout
        if first == last:
            return window.images[:0], window.labels[:0]
        sequences = range(layout.sequence(epoch, first), layout.sequence(epoch, last - 1) + 1)
        for sequence in sequences:
            self._wait(sequence, partial(self._has, sequence))
        begin = window.rows(sequences[0]).start + first % layout.chunk
        if begin + last - first <= len(window.labels):
            rows = slice(begin, begin + last - first)
            return window.images[rows], window.labels[rows]
        # The ring wraps inside this batch.
        wrapped = np.arange(begin, begin + last - first) % len(window.labels)
        return window.images[wrapped], window.labels[wrapped]

    def _has(self, sequence: int) -> bool | None:
        return self._window.has(sequence) or None

    def _wait(self, sequence: int, ready: Callable[[], T | None]) -> T:
        """Wait for a chunk; too long a wait ends the run, with what is known of its cause."""
        began = time.perf_counter()

        def watch() -> T | None:
            found = ready()
            if found is None and time.perf_counter() - began > self._stall_s:
                raise InfrastructureError(self._stalled(sequence))
            return found

        found = await_written(self._world, self._writers, watch)
        self.waited_s += time.perf_counter() - began
        return found

    def _stalled(self, sequence: int) -> str:
        window = self._window
        reading = {reader: int(at) for reader, at in enumerate(window.cursors[:-1]) if at != NOT_READING}
        slowest = min(reading, key=lambda reader: reading[reader])
        cause = (f"reader {slowest} of this node, at chunk {reading[slowest]}, reads no further and the window is full"
                 if window.newest() - reading[slowest] >= window.layout.slots
                 else "the preprocessor that should write it does not")
        return (f"chunk {sequence} of the stream has not come for {self._stall_s:.0f} s (data.stall): {cause}; "
                f"the newest chunk is {window.newest() - 1}")


class RingStream(SharedStream):
    """Reads the window of this node at the group's own pace: always the oldest chunk whose shard it still lacks.

    The master chooses, and all ranks of the group make sure that the chunk is there, and stays, on their nodes.
    """

    def __init__(self, window: Window, reader: int, world: World, order: RingOrder, stall_s: float = math.inf,
                 writers: Container[int] = ()) -> None:
        super().__init__(window, reader, world, stall_s, writers)
        self._order = order

    def join(self, epoch: int) -> None:
        """Nothing is promised: whatever is there when the first batch is asked for will do."""

    def batches(self, epoch: Epoch, start: int, batch: int, group: Members,
                taken: Container[int] = ()) -> Iterator[Batch]:
        """See :class:`Stream`; ``start`` is 0, for the rest of an epoch can be had of :class:`OwnStream` only."""
        if start:
            raise ValueError("a ring does not give the rest of an epoch")
        samples, path = self._window.layout.samples, list(epoch.path)
        lacks = set(range(self._order.shards))
        begin = end = 0  # of the chunk that is read, in the epoch
        for first in range(0, samples, batch):
            last = min(first + batch, samples)
            mine = split_rows(first, last, group.rank, group.size)
            parts = []
            while True:
                low, high = max(mine[0], begin), min(mine[1], end)
                if low < high:
                    parts.append(self._part(path[-1], low - begin, high - begin))
                if end >= last:
                    break
                # What this rank wants of the chunk is copied before the chunk is let go.
                parts = [(images.copy(), labels.copy()) for images, labels in parts]
                path.append(self._take(lacks, group, taken))
                lacks.remove(self._order.shard(path[-1]))
                rows = self._window.rows(path[-1])
                begin, end = end, end + rows.stop - rows.start
            images, labels = _joined(parts) if parts else (self._window.images[:0], self._window.labels[:0])
            latest = Epoch(max(path) // self._order.shards, tuple(path))
            yield Batch(images, labels, last - first, last, last == samples, latest)
        self.leave()

    def _part(self, sequence: int, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        start = self._window.rows(sequence).start
        rows = slice(start + first, start + last)
        return self._window.images[rows], self._window.labels[rows]

    def _take(self, lacks: Container[int], group: Members, taken: Container[int]) -> int:
        """Agree on the next chunk, and hold it on all nodes of the group."""
        refused: set[int] = set()  # they are gone on another node, for good
        while True:
            self.leave()  # what this rank has held is needed no more
            offered = self._offer(lacks, taken, refused) if group.rank == 0 else None
            sequence = group.from_master(offered)
            held = group.rank == 0 or self._hold(sequence)
            if sequence == _NEVER or (group.size > 1 and None in (answers := group.exchange(held))):
                raise WriterLost("a rank that prepared samples has died")
            if group.size == 1 or all(answers):
                return sequence
            refused.add(sequence)

    def _offer(self, lacks: Container[int], taken: Container[int], refused: Container[int]) -> int:
        """The chunk that the master would take next; none where it will not come any more."""
        try:
            return self._wait(self._window.newest(), lambda: self._find(lacks, taken, refused))
        except WriterLost:
            return _NEVER

    def _find(self, lacks: Container[int], taken: Container[int], refused: Container[int]) -> int | None:
        """The oldest chunk of use on this node, held."""
        for sequence in self._window.complete():
            is_of_use = self._order.shard(sequence) in lacks and sequence not in taken and sequence not in refused
            if is_of_use and self._holds(sequence):
                return sequence
        self._need(self._window.newest())  # so the ring turns further
        return None

    def _holds(self, sequence: int) -> bool:
        """Put the cursor on a chunk; it stays if it is still there then."""
        self._need(sequence)
        fence()
        return self._window.has(sequence)

    def _hold(self, sequence: int) -> bool | None:
        """Hold a chunk that the master has; on another node it may still be on its way, gone, or never come (None)."""
        def settled() -> bool | None:
            if self._holds(sequence):
                return True
            return False if self._window.is_gone(sequence) else None

        try:
            return self._wait(sequence, settled)
        except WriterLost:
            return None


def _joined(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([images for images, _ in parts]), np.concatenate([labels for _, labels in parts])


# ---- samples that a trainer prepares, or finishes, itself ----------------------------------------


class Samples(Protocol):
    """Where :class:`OwnStream` has samples from."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a sample."""

    @property
    def dtype(self) -> np.dtype:
        """Of a sample."""

    def is_ready(self, indices: np.ndarray) -> bool:
        """Whether these can be had without waiting."""

    def give_up(self) -> None:
        """Wait for nobody any more: a rank that prepared samples for others has died."""

    def load(self, indices: np.ndarray, production: int, images: np.ndarray, labels: np.ndarray) -> list[BadSample]:
        """Put samples into arrays; see :meth:`preprocess.pipeline.Pipeline.load`."""


class FromSource:
    """Samples that this rank reads, decodes and transforms."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self.shape: tuple[int, ...] = pipeline.shape
        self.dtype = pipeline.dtype

    def is_ready(self, indices: np.ndarray) -> bool:
        """A file can always be read."""
        return True

    def give_up(self) -> None:
        """It waits for nobody."""

    def load(self, indices: np.ndarray, production: int, images: np.ndarray,  # noqa: D102 - Samples says it
             labels: np.ndarray) -> list[BadSample]:
        return self._pipeline.load(indices, production, images, labels)


class FromKept:
    """Samples that the node keeps decoded; this rank does what differs from epoch to epoch.

    Args:
        stall_s: a wait so long without a further chunk is an error.
    """

    def __init__(self, pipeline: Pipeline, kept: SampleSet, stall_s: float = math.inf) -> None:
        self._pipeline, self._kept = pipeline, kept
        self.shape: tuple[int, ...] = pipeline.shape
        self.dtype = pipeline.dtype
        self._row = np.argsort(pipeline.order(0))  # they lie in the order of epoch 0
        self._is_alone = False  # whether what is not there yet will not come
        self._standstill = Standstill(kept, "training", stall_s)

    def is_ready(self, indices: np.ndarray) -> bool:
        """Whether they are there, or will never be."""
        if self._is_alone or self._kept.has_rows(self._row[indices]):
            self._standstill.rest()
            return True
        self._standstill.look()
        return False

    def give_up(self) -> None:
        """Decode what is not there yet."""
        self._is_alone = True

    def load(self, indices: np.ndarray, production: int, images: np.ndarray,  # noqa: D102
             labels: np.ndarray) -> list[BadSample]:
        rows = self._row[indices]
        if not self._kept.has_rows(rows):
            return self._pipeline.load(indices, production, images, labels)
        return self._pipeline.finish_kept(self._kept.images[rows], self._kept.labels[rows], indices, production,
                                          images, labels)


# [FLEET] Fig. 4: a trainer's queue holds 10 batches.
Q_D = 10


class OwnStream:
    """Prepares this rank's own rows, in a thread, a few batches ahead.

    Args:
        samples: where they come from.
        order: of the epochs.
        on_bad: is told of samples that cannot be read, in the thread that iterates.
        writers: the ranks that prepare some of the samples.
    """

    def __init__(self, samples: Samples, order: Order, world: World, on_bad: Callable[[BadSample], None],
                 writers: Container[int] = ()) -> None:
        self.waited_s, self._writers = 0.0, writers
        self._samples, self._order, self._world, self._on_bad = samples, order, world, on_bad

    def join(self, epoch: int) -> None:  # noqa: D102 - Stream says it
        pass

    def leave(self) -> None:  # noqa: D102
        pass

    def batches(self, epoch: Epoch, start: int, batch: int, group: Members,  # noqa: D102
                taken: Container[int] = ()) -> Iterator[Batch]:
        ahead: queue.Queue[Any] = queue.Queue(Q_D)
        stop = threading.Event()
        whole = self._order.itinerary(epoch, taken)
        worker = threading.Thread(target=self._prepare, args=(ahead, stop, whole, start, batch, group.rank, group.size),
                                  name="own-stream", daemon=True)
        worker.start()
        try:
            while True:
                began = time.perf_counter()
                item: Any = self._world.wait(lambda: self._next(ahead))
                self.waited_s += time.perf_counter() - began
                if item is _END:
                    return
                if isinstance(item, BaseException):
                    raise item
                ready, bad = item
                for sample in bad:
                    self._on_bad(sample)
                yield ready
        finally:
            stop.set()
            worker.join()

    def _next(self, ahead: queue.Queue) -> Any:
        if (item := _get(ahead)) is None and any(rank in self._writers for rank in self._world.lost):
            self._samples.give_up()
        return item

    def _prepare(self, ahead: queue.Queue, stop: threading.Event, whole: Itinerary, start: int, batch: int,
                 rank: int, size: int) -> None:
        try:
            samples = len(whole.indices)
            number = int(whole.productions.max())
            for first in range(start, samples, batch):
                last = min(first + batch, samples)
                mine = slice(*split_rows(first, last, rank, size))
                while not self._samples.is_ready(whole.indices[mine]):
                    if stop.wait(_POLL_S):
                        return
                images, labels, bad = self._load(whole.indices[mine], whole.productions[mine])
                made = Batch(images, labels, last - first, last, last == samples, Epoch(number, whole.path))
                if not _put(ahead, (made, bad), stop):
                    return
            _put(ahead, _END, stop)
        except BaseException as error:  # it belongs to the rank, not to this thread
            _put(ahead, error, stop)

    def _load(self, indices: np.ndarray, productions: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[BadSample]]:
        images = np.empty((len(indices), *self._samples.shape), self._samples.dtype)
        labels = np.empty(len(indices), np.int64)
        cuts = [0, *(1 + np.flatnonzero(np.diff(productions))).tolist(), len(indices)]
        bad = []
        for first, last in itertools.pairwise(cuts):
            if first < last:
                bad += self._samples.load(indices[first:last], int(productions[first]), images[first:last],
                                          labels[first:last])
        return images, labels, bad


_END = object()


def _get(ahead: queue.Queue) -> Any:
    try:
        return ahead.get_nowait()
    except queue.Empty:
        return None


def _put(ahead: queue.Queue, item: object, stop: threading.Event) -> bool:
    while not stop.is_set():
        try:
            ahead.put(item, timeout=0.1)
            return True
        except queue.Full:
            continue
    return False


# ---- validation --------------------------------------------------------------------------------


class Validation(Protocol):
    """The validation samples, the same for every network."""

    samples: int

    def batches(self, batch: int, rank: int, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """This rank's share of all samples, in batches of (images, labels)."""


class SharedValidation:
    """Reads the validation samples of this node.

    Args:
        stall_s: a wait so long without a further chunk is an error.
        writers: the ranks that prepare them.
    """

    def __init__(self, shared: SampleSet, world: World, stall_s: float = math.inf, writers: Container[int] = ()
                 ) -> None:
        self.samples = shared.samples
        self._shared, self._world, self._stall_s, self._writers = shared, world, stall_s, writers

    def await_all(self) -> None:
        """Wait until all samples are there."""
        standstill = Standstill(self._shared, "validation", self._stall_s)

        def is_complete() -> bool | None:
            if self._shared.is_complete():
                return True
            standstill.look()
            return None

        await_written(self._world, self._writers, is_complete)

    def batches(self, batch: int, rank: int, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:  # noqa: D102
        self.await_all()
        yield from _slices(self._shared.images, self._shared.labels, batch, rank, size)


class OwnValidation:
    """Prepares all validation samples at first use, and keeps them."""

    def __init__(self, pipeline: Pipeline, on_bad: Callable[[BadSample], None]) -> None:
        self.samples = pipeline.samples
        self._pipeline, self._on_bad = pipeline, on_bad
        self._held: tuple[np.ndarray, np.ndarray] | None = None

    def batches(self, batch: int, rank: int, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:  # noqa: D102
        if self._held is None:
            images = np.empty((self.samples, *self._pipeline.shape), self._pipeline.dtype)
            labels = np.empty(self.samples, np.int64)
            for sample in self._pipeline.load(np.arange(self.samples), 0, images, labels, training=False):
                self._on_bad(sample)
            self._held = images, labels
        yield from _slices(*self._held, batch, rank, size)


def _slices(images: np.ndarray, labels: np.ndarray, batch: int, rank: int, size: int
            ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    start, stop = split_rows(0, len(labels), rank, size)
    for first in range(start, stop, batch):
        yield images[first:min(first + batch, stop)], labels[first:min(first + batch, stop)]
