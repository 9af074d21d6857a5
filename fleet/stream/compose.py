"""Streams: an order, a store and deferred augmentation, combined in one place.

- Order: ``strict`` or ``ring`` (:mod:`fleet.stream.order`). A network of a fold skips the samples
  of its fold.
- Store: with a window, samples stream through shared memory of the node, in the stream's order
  (:mod:`fleet.stream.reader`, :mod:`fleet.stream.ring`). Otherwise they are read by index: from
  decoded samples in the node's memory, from decoded samples in the rank's memory, or from the
  source (:mod:`fleet.stream.store`).
- Deferred augmentation (:mod:`fleet.stream.augment`): a rank applies to samples of the window
  nothing, all remaining transforms, or only the conversion of targets; to stored samples, all that
  differs from epoch to epoch.

When a preprocessor of a fault-tolerant launch dies, trainers prepare their samples themselves. A
prepared sample depends only on the seed, the stream's epoch and its index, so nothing else changes;
in strict order the ranks of a group need not even switch at the same batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

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
from preprocess.base import UnreadableSample, row_numbers
from preprocess.record_pipeline import AnyPipeline
from preprocess.sample import cut_rows, round_length


@dataclass(frozen=True)
class NodeMemory:
    """Memory that the ranks of a node share.

    Attributes:
        window: the latest training samples of the stream; None with another store.
        decoded: all training samples, up to the first random transform, in the order of epoch 0;
            None with another store.
        validation: all validation samples.
        augmented: epochs of augmented training samples; None if none are shared.
        active_slots: which trainers train a network
            (:class:`fleet.stream.active_slots.ActiveSlots`); None if no GPU is shared.
        busy: seconds of the steps of each trainer
            (:class:`fleet.runtime.training.energy.EnergyMeter`); None where no energy is counted.
    """

    window: Window | None = None
    decoded: SampleSet | None = None
    validation: SampleSet | None = None
    active_slots: Segment | None = None
    augmented: NodeEpochs | None = None
    busy: Segment | None = None

    def sample_segments(self) -> list[Segment]:
        """Return the segments that hold samples."""
        return [
            shared.segment
            for shared in (self.window, self.decoded, self.validation)
            if shared is not None
        ]


class Stream:
    """The samples of a network's epochs, from which a rank reads its rows.

    Args:
        local: the same samples, prepared by this rank alone.
        order: the order of the samples.
        numbers: (samples of the source,) int64, their rows in the data set.
        reader: the window's reader; None without a window. It raises WriterDied when it waits for
            samples that will not come.
        finish: the remaining transforms of samples of the window; None if there are none.
        row_lengths: inputs of unequal length -> (samples of the source,) int64, their lengths.

    Attributes:
        local: for the remaining epoch if the stream is already past it.
    """

    def __init__(
        self,
        local: LocalBatches,
        order: Order,
        numbers: np.ndarray,
        reader: Reader | None = None,
        finish: DeferredAugmentation | None = None,
        row_lengths: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self.local = local
        self._order = order
        self._reader = reader
        self._finish = finish
        self._numbers = numbers
        self._row_lengths = row_lengths or {}

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

    @property
    def can_follow(self) -> bool:
        """Whether another trainer of this rank can read for this one: in all but a ring."""
        return not isinstance(self._reader, RingReader)

    @property
    def has_own_epochs(self) -> bool:
        """Whether any epoch can be read at any time; otherwise all networks read the same ones."""
        return self._reader is None

    def follow(self, batch: Batch) -> None:
        """Declare that another trainer of this rank has read a batch for this one."""
        if self._reader is not None:
            self._reader.follow(batch)

    def batches(
        self, epoch: Epoch, start: int, batch: int, group: Group, consumed: Container[int] = ()
    ) -> Iterator[Batch]:
        """Yield this rank's batches of an epoch; each is valid until the next.

        Args:
            epoch: the epoch.
            start: the number of its samples that were consumed before.
            batch: number of samples of a global batch.
            group: the ranks that train the network.
            consumed: chunks of the ring that the network has consumed in its earlier epochs.
        """
        if self._reader is not None and not self._reader.can_continue(epoch, start, group):
            self._reader.leave()
        elif self._reader is not None:
            # The reader detects deaths, because the ranks of a ring must do so together.
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
        for batch, indices, productions in self._planned(batches, group, consumed):
            inputs, targets = self._finish(batch.inputs, batch.targets, indices, productions)
            yield dataclasses.replace(batch, inputs=inputs, targets=targets)

    def number(
        self, batches: Iterator[Batch], group: Group, consumed: Container[int] = ()
    ) -> Iterator[Batch]:
        """Yield the batches of this stream, or of :attr:`local`, with the rows of their samples.

        Args:
            batches: batches of an epoch.
            group, consumed: as in :meth:`batches`.
        """
        for batch, indices, _ in self._planned(batches, group, consumed):
            yield dataclasses.replace(batch, indices=self._numbers[indices])

    def cut(
        self, batches: Iterator[Batch], is_rounded: bool, consumed: Container[int] = ()
    ) -> Iterator[Batch]:
        """Yield batches whose inputs of unequal length are cut to their longest row.

        It is the longest row of the global batch, so that all ranks of a group cut alike.

        Args:
            batches: batches of an epoch, of this stream or of :attr:`local`.
            is_rounded: whether lengths are rounded up to a few sizes.
            consumed: as in :meth:`batches`.
        """
        for batch, plan in self._with_plans(batches, consumed):
            indices = plan.indices[batch.position - batch.size : batch.position]
            lengths = {
                name: max(1, int(values[indices].max()))
                for name, values in self._row_lengths.items()
            }
            if is_rounded:
                lengths = {name: round_length(length) for name, length in lengths.items()}
            yield dataclasses.replace(batch, inputs=cut_rows(batch.inputs, lengths))

    def _planned(
        self, batches: Iterator[Batch], group: Group, consumed: Container[int]
    ) -> Iterator[tuple[Batch, np.ndarray, np.ndarray]]:
        """Yield each batch with the indices and productions of this rank's samples."""
        for batch, plan in self._with_plans(batches, consumed):
            rows = slice(
                *split_rows(batch.position - batch.size, batch.position, group.rank, group.size)
            )
            yield batch, plan.indices[rows], plan.productions[rows]

    def _with_plans(
        self, batches: Iterator[Batch], consumed: Container[int]
    ) -> Iterator[tuple[Batch, EpochPlan]]:
        """Yield each batch with the samples of its epoch."""
        plan: EpochPlan | None = None
        for batch in batches:
            # In a ring the path is known up to the present batch.
            if plan is None or plan.path[: len(batch.epoch.path)] != batch.epoch.path:
                plan = self._order.plan_epoch(batch.epoch, consumed)
            yield batch, plan


def compose(
    order: Order,
    pipeline: AnyPipeline,
    memory: NodeMemory,
    reader: int,
    waiting: Waiting,
    on_bad: Callable[[UnreadableSample], None],
    keeps_decoded: bool = False,
    finish: DeferredAugmentation | None = None,
    first_epoch: int = 0,
) -> Callable[[np.ndarray | None], Stream]:
    """Build a stream; the only place that combines orders, stores and augmentation.

    Args:
        order: the order of all samples.
        pipeline: prepares samples on this rank.
        memory: this node's shared memory.
        reader: this rank's index among the node's readers.
        waiting: waits for samples that other ranks prepare.
        on_bad: receives unreadable samples.
        keeps_decoded: whether decoded samples stay in memory: the node's, or else this rank's.
        finish: the remaining transforms of samples of the window; None if there are none.
        first_epoch: the stream's first epoch in this launch.

    Returns:
        A function: mask (samples of the source,) bool -> the stream of these samples; None -> the
        stream of all samples. All streams share this rank's stored samples.
    """
    numbers = row_numbers(pipeline.source)
    store = FileStore(pipeline)
    if memory.decoded is not None:
        store = NodeStore(
            pipeline,
            memory.decoded,
            waiting.stall_s,
            None if memory.augmented is None else partial(memory.augmented.take, reader),
        )
    elif keeps_decoded:
        store = RankMemory(pipeline)

    def stream(keeps: np.ndarray | None) -> Stream:
        part_order = order if keeps is None else FoldOrder(order, keeps)
        local = LocalBatches(store, part_order, waiting, on_bad)
        window = memory.window
        if window is None:
            return Stream(local, part_order, numbers, row_lengths=pipeline.row_lengths)
        if isinstance(order, RingOrder):
            first = window.layout.sequence(first_epoch, 0)
            ring = RingReader(window, reader, waiting, order, keeps, first)
            return Stream(local, part_order, numbers, ring, finish, pipeline.row_lengths)
        strict = Reader(window, reader, waiting, order, keeps)
        return Stream(local, part_order, numbers, strict, finish, pipeline.row_lengths)

    return stream
