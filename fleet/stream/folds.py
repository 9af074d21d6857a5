"""What a network reads that leaves some samples of the stream out: one of a fold, which is judged by these samples.

The stream is the same for all networks. Positions in an epoch count the samples that the network does train on, so
whoever asks for batches need not know that there are others. See docs/design/folds.md.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

import numpy as np

from fleet.stream.base import Batch, Members, split_rows
from fleet.stream.order import Epoch, Itinerary, Order
from fleet.stream.reader import SharedStream
from fleet.stream.ring import RingStream


class PartOrder:
    """An order without the samples that a network leaves out.

    Args:
        order: of all samples.
        keeps: (samples of the source,) bool, which ones it trains on.
    """

    def __init__(self, order: Order, keeps: np.ndarray) -> None:
        self._order, self._keeps = order, keeps

    def chunk(self, sequence: int) -> tuple[int, np.ndarray]:
        """The production of a chunk of the stream, and its samples that are kept, in order."""
        production, indices = self._order.chunk(sequence)
        return production, indices[self._keeps[indices]]

    def itinerary(self, epoch: Epoch, taken: Container[int] = ()) -> Itinerary:
        """See :class:`~fleet.stream.order.Order`."""
        whole = self._order.itinerary(epoch, taken)
        kept = self._keeps[whole.indices]
        return Itinerary(whole.productions[kept], whole.indices[kept], whole.path)


class PartStream(SharedStream):
    """Reads some samples of each epoch, in the order of the stream.

    Args:
        order: of all samples.
        keeps: (samples of the source,) bool, which ones are read.
        more: the arguments of :class:`~fleet.stream.reader.SharedStream`.
    """

    def __init__(self, order: Order, keeps: np.ndarray, *more: object) -> None:
        super().__init__(*more)  # type: ignore[arg-type]
        self._order, self._keeps = order, keeps

    def batches(self, epoch: Epoch, start: int, batch: int, group: Members,  # noqa: D102
                taken: Container[int] = ()) -> Iterator[Batch]:
        layout, number = self._window.layout, epoch.number
        places = np.flatnonzero(self._keeps[self._order.itinerary(Epoch(number)).indices])
        for first in range(start, len(places), batch):
            last = min(first + batch, len(places))
            self._need(layout.sequence(number, int(places[first])))
            images, targets = self._gathered(number, places[slice(*split_rows(first, last, group.rank, group.size))])
            yield Batch(images, targets, last - first, last, last == len(places), epoch)
        self._need(layout.sequence(number + 1, 0))

    def _gathered(self, epoch: int, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Copies of the samples at these places of an epoch; each chunk is let go when it has been read."""
        window, layout = self._window, self._window.layout
        images = np.empty((len(places), *window.images.shape[1:]), window.images.dtype)
        targets = np.empty(len(places), window.targets.dtype)
        chunks = places // layout.chunk
        for chunk in np.unique(chunks).tolist():
            sequence = layout.sequence(epoch, chunk * layout.chunk)
            self._need(sequence)
            self._wait(sequence)
            here = chunks == chunk
            rows = window.rows(sequence).start + places[here] % layout.chunk
            images[here], targets[here] = window.images[rows], window.targets[rows]
        return images, targets


class PartRing(RingStream):
    """Reads some samples of each chunk of a ring.

    Args:
        keeps: (samples of the source,) bool, which ones are read.
        more: the arguments of :class:`~fleet.stream.ring.RingStream`.
    """

    def __init__(self, keeps: np.ndarray, *more: object) -> None:
        super().__init__(*more)  # type: ignore[arg-type]
        self._keeps = keeps
        self._samples = int(keeps.sum())

    def _kept(self, sequence: int) -> np.ndarray:
        """The places in a chunk of the samples that are read."""
        return np.flatnonzero(self._keeps[self._order.chunk(sequence)[1]])

    def _length(self, sequence: int) -> int:
        return len(self._kept(sequence))

    def _part(self, sequence: int, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        rows = self._window.rows(sequence).start + self._kept(sequence)[first:last]
        return self._window.images[rows], self._window.targets[rows]
