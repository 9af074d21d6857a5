"""What trainers iterate: batches of an epoch of the stream, each rank its own rows.

Two streams have one interface. :class:`SharedStream` reads the node's window, which preprocessors
fill; :class:`OwnStream` prepares its samples itself, in a thread: for a launch of one rank, for the
policy `baseline`, and for a network that finishes an epoch which the shared stream has left behind.
Both give the same samples, bit for bit, for what a sample looks like depends on the seed, the stream
epoch and its index alone.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fleet.segment import NOT_READING, ValidationSet, Window
from preprocess.base import BadSample
from preprocess.pipeline import Pipeline

if TYPE_CHECKING:  # MPI starts when it is imported
    from fleet.mpi import World


@dataclass(frozen=True)
class Batch:
    """This rank's rows of one global batch.

    Attributes:
        images: (rows, height, width, channels), as they are on the wire: see ``Pipeline.affine``.
        labels: (rows,) int64; -1 marks a sample that could not be read, and counts for nothing.
        size: rows of the global batch.
        position: samples of the epoch that are consumed once this batch is.
        is_last: of the epoch.
    """

    images: np.ndarray
    labels: np.ndarray
    size: int
    position: int
    is_last: bool


def split_rows(first: int, last: int, rank: int, size: int) -> tuple[int, int]:
    """The rows of one rank: contiguous, in order of rank, no two shares differing by more than one.

    >>> [split_rows(0, 10, rank, 3) for rank in range(3)]
    [(0, 4), (4, 7), (7, 10)]
    """
    share, more = divmod(last - first, size)
    start = first + rank * share + min(rank, more)
    return start, start + share + (rank < more)


class Stream(Protocol):
    """The seam between how samples arrive and how a network trains on them."""

    waited_s: float  # what trainers have waited for data so far

    def join(self, epoch: int) -> None:
        """Promise to read from the start of a stream epoch on."""

    def batches(self, epoch: int, start: int, batch: int, rank: int, size: int) -> Iterator[Batch]:
        """The batches of a stream epoch from position ``start``; a batch is valid until the next."""

    def leave(self) -> None:
        """Read no further."""


class SharedStream:
    """Reads the window of this node.

    Args:
        window: of this node.
        reader: the place of this rank among the node's readers.
        world: to wait with.
    """

    def __init__(self, window: Window, reader: int, world: World) -> None:
        self.waited_s = 0.0
        self._window, self._reader, self._world = window, reader, world

    def join(self, epoch: int) -> None:  # noqa: D102 - Stream says it
        self._need(self._window.layout.sequence(epoch, 0))

    def leave(self) -> None:  # noqa: D102
        self._need(NOT_READING)

    def batches(self, epoch: int, start: int, batch: int, rank: int, size: int) -> Iterator[Batch]:  # noqa: D102
        samples = self._window.layout.samples
        for first in range(start, samples, batch):
            last = min(first + batch, samples)
            mine = split_rows(first, last, rank, size)
            # The cursor follows the global batch, so that a rank without rows keeps up as well.
            self._need(self._window.layout.sequence(epoch, first))
            images, labels = self._rows(epoch, *mine)
            yield Batch(images, labels, last - first, last, last == samples)
        # The next epoch may be far away; what this one held is needed no more.
        self._need(self._window.layout.sequence(epoch + 1, 0))

    def _need(self, sequence: int) -> None:
        self._window.need(self._reader, sequence)

    def _rows(self, epoch: int, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        window, layout = self._window, self._window.layout
        if first == last:
            return window.images[:0], window.labels[:0]
        sequences = range(layout.sequence(epoch, first), layout.sequence(epoch, last - 1) + 1)
        began = time.perf_counter()
        self._world.wait(lambda: all(map(window.has, sequences)) or None)
        self.waited_s += time.perf_counter() - began
        start = sequences[0] % layout.slots * layout.chunk + first % layout.chunk
        if sequences[0] % layout.slots + len(sequences) <= layout.slots:
            rows = slice(start, start + last - first)
            return window.images[rows], window.labels[rows]
        # The ring wraps inside these rows: the one case in which they are copied.
        tail = window.images.shape[0] - start
        return (np.concatenate([window.images[start:], window.images[:last - first - tail]]),
                np.concatenate([window.labels[start:], window.labels[:last - first - tail]]))


# [FLEET] Fig. 4: a trainer's queue holds 10 batches.
Q_D = 10


class OwnStream:
    """Prepares this rank's own rows, in a thread, a few batches ahead.

    Args:
        pipeline: of the training samples.
        on_bad: is told of samples that cannot be read, in the thread that iterates.
    """

    def __init__(self, pipeline: Pipeline, world: World, on_bad: Callable[[BadSample], None]) -> None:
        self.waited_s = 0.0
        self._pipeline, self._world, self._on_bad = pipeline, world, on_bad

    def join(self, epoch: int) -> None:  # noqa: D102 - Stream says it
        pass

    def leave(self) -> None:  # noqa: D102
        pass

    def batches(self, epoch: int, start: int, batch: int, rank: int, size: int) -> Iterator[Batch]:  # noqa: D102
        ahead: queue.Queue[Any] = queue.Queue(Q_D)
        stop = threading.Event()
        worker = threading.Thread(target=self._prepare, args=(ahead, stop, epoch, start, batch, rank, size),
                                  name="own-stream", daemon=True)
        worker.start()
        try:
            while True:
                began = time.perf_counter()
                item: Any = self._world.wait(lambda: _get(ahead))
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

    def _prepare(self, ahead: queue.Queue, stop: threading.Event, epoch: int, start: int, batch: int,
                 rank: int, size: int) -> None:
        try:
            order = self._pipeline.order(epoch)
            for first in range(start, len(order), batch):
                last = min(first + batch, len(order))
                indices = order[slice(*split_rows(first, last, rank, size))]
                images = np.empty((len(indices), *self._pipeline.shape), self._pipeline.dtype)
                labels = np.empty(len(indices), np.int64)
                bad = self._pipeline.load(indices, epoch, images, labels)
                if not _put(ahead, (Batch(images, labels, last - first, last, last == len(order)), bad), stop):
                    return
            _put(ahead, _END, stop)
        except BaseException as error:  # it belongs to the rank, not to this thread
            _put(ahead, error, stop)


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
    """Reads the validation samples of this node."""

    def __init__(self, shared: ValidationSet, world: World) -> None:
        self.samples = shared.samples
        self._shared, self._world = shared, world

    def batches(self, batch: int, rank: int, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:  # noqa: D102
        self._world.wait(lambda: self._shared.is_complete() or None)
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
