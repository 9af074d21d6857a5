"""Streams: an order, a store and deferred augmentation, combined in one place.

============  =================================================================================================
order         ``strict`` or ``ring`` (:mod:`fleet.stream.order`); a network of a fold leaves some
              samples out store         ``window``: samples pass by in the memory of the node, in
              the order of the stream (:mod:`fleet.stream.reader`, :mod:`fleet.stream.ring`).
              ``node``, ``own``, ``files``: they are taken by their numbers, from what the node or
              the rank keeps decoded, or from where they lie (:mod:`fleet.stream.store`) finish
              what a rank does to what passes by: nothing, all that is left of the transforms, or
              only its own targets (:mod:`fleet.stream.augment`). To what is kept it does what
              differs from epoch to epoch ============
              =================================================================================================

When a preprocessor dies and the launch outlives it, trainers prepare their samples themselves. What
a sample looks like depends on the seed, the epoch of the stream and its index alone. So nothing
else changes, and in the strict order the ranks of a group need not even change over at the same
batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import numpy as np

from fleet.comm.protocols import Group
from fleet.comm.segment import Segment
from fleet.stream.augment import DeferredAugmentation, NodeEpochs
from fleet.stream.batch import Batch, split_rows
from fleet.stream.local_batches import LocalBatches
from fleet.stream.order import Epoch, EpochPlan, FoldOrder, Order, RingOrder
from fleet.stream.reader import Reader
from fleet.stream.ring import RingReader
from fleet.stream.sample_set import SampleSet
from fleet.stream.stall import Waiting, WriterDied
from fleet.stream.store import FileStore, NodeStore, RankMemory
from fleet.stream.window import Window
from preprocess.base import UnreadableSample
from preprocess.pipeline import Pipeline

Store: TypeAlias = Literal[
    "window", "node", "own", "files"
]  # where samples are taken from; see the module


@dataclass(frozen=True)
class NodeMemory:
    """Memory that the ranks of a node share.

    Attributes:
        window: of training samples that come and go, in an order; or
        decoded: all training samples, up to the first random transform, in the order of epoch 0.
        validation: all validation samples.
        augmented: epochs of training samples as they go into training; None where none are shared.
        active_slots: which trainers train a network
            (:class:`fleet.stream.active_slots.ActiveSlots`); None where no GPU is shared.
    """

    window: Window | None = None
    decoded: SampleSet | None = None
    validation: SampleSet | None = None
    active_slots: Segment | None = None
    augmented: NodeEpochs | None = None

    def sample_segments(self) -> list[Segment]:
        """Return the segments that hold samples."""
        return [
            shared.segment
            for shared in (self.window, self.decoded, self.validation)
            if shared is not None
        ]

    def unlink(self) -> None:
        """Remove the names after all ranks of the node have mapped the memory."""
        for segment in self.sample_segments():
            segment.unlink()
        for shared in (
            self.active_slots,
            None if self.augmented is None else self.augmented.segment,
        ):
            if shared is not None:
                shared.unlink()


class Stream:
    """The samples of a network's epochs, from which a rank reads its rows.

    Args:
        local: the same samples, prepared by this rank alone.
        order: of the samples.
        reader: of the window; None where there is none. It raises WriterDied when it waits for what
            will not come.
        finish: what is left to do to what it reads; None where nothing is.

    Attributes:
        local: for the rest of an epoch that the stream has left behind.
    """

    def __init__(
        self,
        local: LocalBatches,
        order: Order,
        reader: Reader | None = None,
        finish: DeferredAugmentation | None = None,
    ) -> None:
        self.local = local
        self._order = order
        self._reader = reader
        self._finish = finish

    @property
    def waited_s(self) -> float:
        """Seconds that this rank has waited for samples."""
        return self.local.waited_s + (0.0 if self._reader is None else self._reader.waited_s)

    def join(self, epoch: int) -> None:
        """Declare that this rank reads from the start of a stream epoch on."""
        if self._reader is not None:
            self._reader.join(epoch)

    def leave(self) -> None:
        """Stop reading."""
        if self._reader is not None:
            self._reader.leave()

    def batches(  # noqa: D102
        self,
        epoch: Epoch,
        start: int,
        batch: int,
        group: Group,
        consumed: Container[int] = (),
    ) -> Iterator[Batch]:
        if self._reader is not None:
            # Whether somebody has died the reader finds out: a ring's ranks must do so together.
            try:
                for batch_rows in self._augmented(
                    self._reader.batches(epoch, start, batch, group, consumed), group, consumed
                ):
                    yield batch_rows
                    epoch = batch_rows.epoch
                    start = batch_rows.position
                return
            except WriterDied:
                self._reader.leave()
        yield from self.local.batches(epoch, start, batch, group, consumed)

    def _augmented(
        self, batches: Iterator[Batch], group: Group, consumed: Container[int]
    ) -> Iterator[Batch]:
        if self._finish is None:
            yield from batches
            return
        plan: EpochPlan | None = None
        for batch in batches:
            # In a ring the path is known as far as it has been read, and this batch is of that
            # part.
            if plan is None or plan.path[: len(batch.epoch.path)] != batch.epoch.path:
                plan = self._order.plan_epoch(batch.epoch, consumed)
            rows = slice(
                *split_rows(batch.position - batch.size, batch.position, group.rank, group.size)
            )
            images, targets = self._finish(
                batch.images, batch.targets, plan.indices[rows], plan.productions[rows]
            )
            yield dataclasses.replace(batch, images=images, targets=targets)


def compose(
    kind: Store,
    order: Order,
    pipeline: Pipeline,
    memory: NodeMemory,
    reader: int,
    waiting: Waiting,
    on_bad: Callable[[UnreadableSample], None],
    finish: DeferredAugmentation | None = None,
    first_epoch: int = 0,
) -> Callable[[np.ndarray | None], Stream]:
    """Build a stream; the only place that combines orders, stores and augmentation.

    Args:
        kind: of the store.
        order: of all samples.
        pipeline: how this rank prepares them.
        memory: of this node.
        reader: the place of this rank among the node's readers.
        waiting: for what other ranks prepare.
        on_bad: receives unreadable samples.
        finish: what is left to do to samples that pass by; None where nothing is.
        first_epoch: of the stream, in this launch.

    Returns:
        (samples of the source,) bool -> the stream of these samples; None -> that of all. What a
        rank keeps of samples is of use to all of them.
    """
    store = FileStore(pipeline)
    if kind == "node":
        assert memory.decoded is not None
        store = NodeStore(
            pipeline,
            memory.decoded,
            waiting.stall_s,
            None if memory.augmented is None else partial(memory.augmented.take, reader),
        )
    elif kind == "own":
        store = RankMemory(pipeline)

    def stream(keeps: np.ndarray | None) -> Stream:
        part_order = order if keeps is None else FoldOrder(order, keeps)
        local = LocalBatches(store, part_order, waiting, on_bad)
        window = memory.window
        if window is None:
            return Stream(local, part_order)
        if isinstance(order, RingOrder):
            first = window.layout.sequence(first_epoch, 0)
            return Stream(
                local, part_order, RingReader(window, reader, waiting, order, keeps, first), finish
            )
        return Stream(local, part_order, Reader(window, reader, waiting, order, keeps), finish)

    return stream
