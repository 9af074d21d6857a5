"""What a network reads for which more is to be done to the samples of the stream, or which has other targets.

The stream carries what all networks have in common (:mod:`fleet.runtime.feeds`). Each rank does the rest to its own
rows of a batch, by the same random numbers as a rank that prepares them from their files.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Container, Iterator

import numpy as np

from fleet.stream.base import Batch, Members, Stream, split_rows
from fleet.stream.order import Epoch, Itinerary, Order
from fleet.stream.validation import SharedValidation
from preprocess.base import BadSample
from preprocess.pipeline import Pipeline


class FinishingStream:
    """Reads the stream, and does the rest.

    Args:
        shared: the stream, or the part of it that the network reads.
        order: of the samples that ``shared`` gives.
        pipeline: its :meth:`~preprocess.pipeline.Pipeline.finish_kept` does the rest.
        is_done: nothing is left to do to inputs: the targets are others.
        on_bad: is told of samples that cannot be used.
    """

    def __init__(self, shared: Stream, order: Order, pipeline: Pipeline, is_done: bool,
                 on_bad: Callable[[BadSample], None]) -> None:
        self._shared, self._order, self._pipeline = shared, order, pipeline
        self._is_done, self._on_bad = is_done, on_bad

    @property
    def waited_s(self) -> float:
        """What this rank has waited for the stream."""
        return self._shared.waited_s

    def join(self, epoch: int) -> None:  # noqa: D102 - Stream says it
        self._shared.join(epoch)

    def leave(self) -> None:  # noqa: D102
        self._shared.leave()

    def batches(self, epoch: Epoch, start: int, batch: int, group: Members,  # noqa: D102
                taken: Container[int] = ()) -> Iterator[Batch]:
        whole: Itinerary | None = None
        for one in self._shared.batches(epoch, start, batch, group, taken):
            # In a ring the path is known as far as it has been read, and this batch is of that part.
            if whole is None or whole.path[:len(one.epoch.path)] != one.epoch.path:
                whole = self._order.itinerary(one.epoch, taken)
            rows = slice(*split_rows(one.position - one.size, one.position, group.rank, group.size))
            images, targets = self._finished(one, whole.indices[rows], whole.productions[rows])
            yield dataclasses.replace(one, images=images, targets=targets)

    def _finished(self, batch: Batch, indices: np.ndarray, productions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self._is_done:
            return self._pipeline.taken(batch.images), self._pipeline.answered(batch.targets, indices)
        images, targets = self._pipeline.empty(len(indices))
        cuts = [0, *(1 + np.flatnonzero(np.diff(productions))).tolist(), len(indices)]
        for first, last in itertools.pairwise(cuts):
            if first < last:
                part = slice(first, last)
                for bad in self._pipeline.finish_kept(batch.images[part], batch.targets[part], indices[part],
                                                      int(productions[first]), images[part], targets[part]):
                    self._on_bad(bad)
        return images, targets


class FinishingValidation:
    """Reads the validation samples of this node, and does the rest.

    Args:
        shared: what the node keeps.
        pipeline, is_done, on_bad: as of :class:`FinishingStream`.
        rows: those that networks are judged by; None for all.
    """

    def __init__(self, shared: SharedValidation, pipeline: Pipeline, is_done: bool,
                 on_bad: Callable[[BadSample], None], rows: np.ndarray | None = None) -> None:
        self.samples = shared.samples
        self._shared, self._pipeline, self._is_done, self._on_bad = shared, pipeline, is_done, on_bad
        self._rows = np.arange(shared.samples) if rows is None else rows

    def await_all(self) -> None:
        """See :meth:`~fleet.stream.validation.SharedValidation.await_all`."""
        self._shared.await_all()

    def batches(self, batch: int, rank: int, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:  # noqa: D102
        first, _ = split_rows(0, self.samples, rank, size)
        for kept, kept_targets in self._shared.batches(batch, rank, size):
            indices = self._rows[first:first + len(kept_targets)]
            first += len(kept_targets)
            if self._is_done:
                yield self._pipeline.taken(kept), self._pipeline.answered(kept_targets, indices)
                continue
            images, targets = self._pipeline.empty(len(indices))
            for bad in self._pipeline.finish_kept(kept, kept_targets, indices, 0, images, targets, training=False):
                self._on_bad(bad)
            yield images, targets
