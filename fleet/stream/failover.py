"""What trainers do when a preprocessor dies and the launch outlives it: they prepare their samples themselves.

What a sample looks like depends on the seed, the epoch of the stream and its index alone; so nothing else changes, and
in the strict order the ranks of a group need not even change over at the same batch.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

import numpy as np

from fleet.stream.base import Batch, Members, Stream
from fleet.stream.finishing import FinishingValidation
from fleet.stream.order import Epoch
from fleet.stream.own import OwnStream
from fleet.stream.stall import WriterLost
from fleet.stream.validation import OwnValidation, SharedValidation


class OutlivingStream:
    """The node's window for as long as all of its writers live, and from then on what this rank prepares itself.

    Args:
        shared: which raises WriterLost when it waits for what will not come.
        own: the same samples.
    """

    def __init__(self, shared: Stream, own: OwnStream) -> None:
        self._shared, self._own = shared, own

    @property
    def waited_s(self) -> float:
        """For the window; what it has waited for its own samples, ``own`` says itself."""
        return self._shared.waited_s

    def join(self, epoch: int) -> None:  # noqa: D102 - Stream says it
        self._shared.join(epoch)

    def leave(self) -> None:  # noqa: D102
        self._shared.leave()

    def batches(self, epoch: Epoch, start: int, batch: int, group: Members,  # noqa: D102
                taken: Container[int] = ()) -> Iterator[Batch]:
        # Whether somebody has died the shared stream finds out: a ring's ranks must do so together.
        try:
            for one in self._shared.batches(epoch, start, batch, group, taken):
                yield one
                epoch, start = one.epoch, one.position
            return
        except WriterLost:
            self._shared.leave()
        yield from self._own.batches(epoch, start, batch, group, taken)


class OutlivingValidation:
    """The node's validation samples, or all of them prepared by this rank where they will never be complete."""

    def __init__(self, shared: SharedValidation | FinishingValidation, own: OwnValidation) -> None:
        self.samples = shared.samples
        self._shared, self._own = shared, own

    def batches(self, batch: int, rank: int, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:  # noqa: D102
        try:
            self._shared.await_all()
        except WriterLost:
            yield from self._own.batches(batch, rank, size)
        else:
            yield from self._shared.batches(batch, rank, size)
