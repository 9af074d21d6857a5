"""Samples that a trainer prepares, or finishes, itself, in a thread."""

from __future__ import annotations

import itertools
import math
import queue
import threading
import time
from collections.abc import Callable, Container, Iterator
from functools import partial
from typing import Any, Protocol

import numpy as np

from fleet.comm.base import World
from fleet.stream.base import Batch, Members, split_rows
from fleet.stream.order import Epoch, Itinerary, Order
from fleet.stream.sample_set import SampleSet
from fleet.stream.stall import WriterLost, check_writers, clock_for_set
from preprocess.base import BadSample
from preprocess.pipeline import Pipeline

_POLL_S = 0.001


class Samples(Protocol):
    """Where :class:`OwnStream` has samples from."""

    def empty(self, samples: int) -> tuple[np.ndarray, np.ndarray]:
        """Room for so many samples; see :meth:`preprocess.pipeline.Pipeline.empty`."""

    def await_all(self, indices: np.ndarray, stop: threading.Event) -> None:
        """Wait until these can be loaded; less long where ``stop`` is set. For a thread: it does no duties.

        Raises:
            InfrastructureError: nothing that it waits for has come for too long.
        """

    def give_up(self) -> None:
        """Wait for nobody any more: a rank that prepared samples for others has died."""

    def load(self, indices: np.ndarray, production: int, images: np.ndarray, targets: np.ndarray) -> list[BadSample]:
        """Put samples into arrays; see :meth:`preprocess.pipeline.Pipeline.load`."""


class FromSource:
    """Samples that this rank reads, decodes and transforms."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline, self.empty = pipeline, pipeline.empty

    def await_all(self, indices: np.ndarray, stop: threading.Event) -> None:
        """A file can be read at any time."""

    def give_up(self) -> None:
        """It waits for nobody."""

    def load(self, indices: np.ndarray, production: int, images: np.ndarray,  # noqa: D102 - Samples says it
             targets: np.ndarray) -> list[BadSample]:
        return self._pipeline.load(indices, production, images, targets)


class FinishedEpochs:
    """Samples as they go into training, of the epochs that a rank has had first: as many as fit.

    What differs from epoch to epoch depends on the seed, the epoch and the sample alone, and networks that a rank
    trains one after another, or side by side with others, begin with the same epochs. To turn a small image takes
    longer than many a network takes to learn from it.

    Args:
        pipeline: its :meth:`~preprocess.pipeline.Pipeline.finish_kept` does the rest to samples that are kept.
        limit: bytes.
    """

    def __init__(self, pipeline: Pipeline, limit: int = 2**26) -> None:
        self._pipeline = pipeline
        images, targets = pipeline.empty(1)
        size = pipeline.samples * (images.nbytes + targets.nbytes + 1)
        self._room = limit // max(size, 1) if pipeline.is_random else 0  # otherwise nothing is left to do
        self._epochs: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}  # inputs, targets, which are there

    def finish(self, kept: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], indices: np.ndarray, production: int,
               images: np.ndarray, targets: np.ndarray) -> list[BadSample]:
        """Finish samples, or take those that have been before; see :meth:`preprocess.pipeline.Pipeline.finish_kept`.

        Args:
            kept: indices -> inputs and targets, as they are kept.

        Returns:
            The samples that cannot be used, when they are found so; later they are only marked.
        """
        if production not in self._epochs:
            if len(self._epochs) >= self._room:
                return self._pipeline.finish_kept(*kept(indices), indices, production, images, targets)
            samples = self._pipeline.samples
            self._epochs[production] = (*self._pipeline.empty(samples), np.zeros(samples, bool))
        whole_images, whole_targets, is_there = self._epochs[production]
        lacking, bad = indices[~is_there[indices]], []
        if len(lacking):
            new_images, new_targets = self._pipeline.empty(len(lacking))
            bad = self._pipeline.finish_kept(*kept(lacking), lacking, production, new_images, new_targets)
            whole_images[lacking], whole_targets[lacking] = new_images, new_targets
            is_there[lacking] = True
        images[:], targets[:] = whole_images[indices], whole_targets[indices]
        return bad


class FromKept:
    """Samples that the node keeps decoded; this rank does what differs from epoch to epoch.

    Args:
        stall_s: a wait so long without a further chunk is an error.
    """

    def __init__(self, pipeline: Pipeline, kept: SampleSet, stall_s: float = math.inf) -> None:
        self._pipeline, self._kept, self.empty = pipeline, kept, pipeline.empty
        self._row = np.argsort(pipeline.order(0))  # they lie in the order of epoch 0
        self._is_alone = False  # whether what is not there yet will not come
        self._stall_s, self._finished = stall_s, FinishedEpochs(pipeline)

    def await_all(self, indices: np.ndarray, stop: threading.Event) -> None:  # noqa: D102 - Samples says it
        rows, clock = self._row[indices], clock_for_set(self._kept, "training", self._stall_s)
        while not (self._is_alone or self._kept.has_rows(rows) or stop.wait(_POLL_S)):
            clock.check()

    def give_up(self) -> None:
        """Decode what is not there yet."""
        self._is_alone = True

    def load(self, indices: np.ndarray, production: int, images: np.ndarray,  # noqa: D102
             targets: np.ndarray) -> list[BadSample]:
        if not self._kept.has_rows(self._row[indices]):
            return self._pipeline.load(indices, production, images, targets)
        return self._finished.finish(self._as_kept, indices, production, images, targets)

    def _as_kept(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = self._row[indices]
        return self._kept.images[rows], self._kept.targets[rows]


class FromOwnMemory:
    """Samples that this rank decodes once and keeps; it does again what differs from epoch to epoch."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline, self.empty = pipeline, pipeline.empty
        self._images, self._targets = pipeline.empty_kept(pipeline.samples)
        self._is_there = np.zeros(pipeline.samples, bool)
        self._finished = FinishedEpochs(pipeline)

    def await_all(self, indices: np.ndarray, stop: threading.Event) -> None:
        """A file can be read at any time."""

    def give_up(self) -> None:
        """It waits for nobody."""

    def load(self, indices: np.ndarray, production: int, images: np.ndarray,  # noqa: D102 - Samples says it
             targets: np.ndarray) -> list[BadSample]:
        lacking = indices[~self._is_there[indices]]
        new_images, new_targets = self._pipeline.empty_kept(len(lacking))
        bad = self._pipeline.keep(lacking, new_images, new_targets)
        self._images[lacking], self._targets[lacking] = new_images, new_targets
        self._is_there[lacking] = True
        return bad + self._finished.finish(self._as_kept, indices, production, images, targets)

    def _as_kept(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._images[indices], self._targets[indices]


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
                item = self._next(ahead)
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
        """Wait for what the thread has prepared; when a rank has died on which it waits, it waits no longer."""

        def look() -> Any:
            if (item := _get(ahead)) is None:
                check_writers(self._world, self._writers)
            return item

        try:
            return self._world.wait(look)
        except WriterLost:
            self._samples.give_up()
            return self._world.wait(partial(_get, ahead))

    def _prepare(self, ahead: queue.Queue, stop: threading.Event, whole: Itinerary, start: int, batch: int,
                 rank: int, size: int) -> None:
        try:
            samples = len(whole.indices)
            number = int(whole.productions.max())
            for first in range(start, samples, batch):
                last = min(first + batch, samples)
                mine = slice(*split_rows(first, last, rank, size))
                self._samples.await_all(whole.indices[mine], stop)
                if stop.is_set():
                    return
                images, targets, bad = self._load(whole.indices[mine], whole.productions[mine])
                made = Batch(images, targets, last - first, last, last == samples, Epoch(number, whole.path))
                if not _put(ahead, (made, bad), stop):
                    return
            _put(ahead, _END, stop)
        except BaseException as error:  # it belongs to the rank, not to this thread
            _put(ahead, error, stop)

    def _load(self, indices: np.ndarray, productions: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[BadSample]]:
        images, targets = self._samples.empty(len(indices))
        cuts = [0, *(1 + np.flatnonzero(np.diff(productions))).tolist(), len(indices)]
        bad = []
        for first, last in itertools.pairwise(cuts):
            if first < last:
                bad += self._samples.load(indices[first:last], int(productions[first]), images[first:last],
                                          targets[first:last])
        return images, targets, bad


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
