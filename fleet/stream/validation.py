"""Validation and test samples, over which trainers iterate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from fleet.stream.augment import DeferredAugmentation
from fleet.stream.batch import split_rows
from fleet.stream.sample_set import SampleSet
from fleet.stream.stall import Waiting, WriterDied, make_set_clock
from preprocess.base import UnreadableSample, row_numbers
from preprocess.record_pipeline import AnyPipeline


@dataclass(frozen=True)
class NodeValidation:
    """Validation samples in the node's memory.

    Attributes:
        samples: all validation samples.
        waiting: waits for the ranks that prepare them.
        finish: the remaining transforms; None if there are none.
    """

    samples: SampleSet
    waiting: Waiting
    finish: DeferredAugmentation | None = None

    def wait_until_complete(self) -> bool:
        """Wait for all samples; returns False if a rank that prepares them has died.

        Raises:
            InfrastructureError: no further samples have arrived for too long.
        """
        clock = make_set_clock(self.samples, "validation", self.waiting.stall_s)
        try:
            return self.waiting.until(lambda: self.samples.is_complete() or None, clock)
        except WriterDied:
            return False


class Validation:
    """The validation or test samples, the same for every network.

    Args:
        pipeline: prepares the samples if the node does not store them.
        on_bad: receives unreadable samples.
        rows: (k,) int64, rows that networks are evaluated on; None for all.
        shared: the node's samples; None if each rank prepares its own.
        keeps: whether a rank that prepares samples keeps all of them from their first use on. Test
            data is read rarely, so each rank prepares its share each time.

    Attributes:
        samples: number of samples.
    """

    def __init__(
        self,
        pipeline: AnyPipeline,
        on_bad: Callable[[UnreadableSample], None],
        rows: np.ndarray | None = None,
        shared: NodeValidation | None = None,
        keeps: bool = True,
    ) -> None:
        self._rows = np.arange(pipeline.samples) if rows is None else rows
        self._is_part = rows is not None
        self.samples = len(self._rows)
        self._pipeline = pipeline
        self._on_bad = on_bad
        self._shared = shared
        self._keeps = keeps
        self._local_samples: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def numbers(self) -> np.ndarray:
        """The rows of the samples in the data set, (samples,) int64."""
        return row_numbers(self._pipeline.source)[self._rows]

    def batches(self, batch: int, rank: int, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield this rank's share of all samples in batches of (inputs, targets)."""
        read = self._read_local
        if self._shared is not None and self._shared.wait_until_complete():
            read = self._of_node
        start, stop = split_rows(0, self.samples, rank, size)
        for first in range(start, stop, batch):
            yield read(slice(first, min(first + batch, stop)))

    def _of_node(self, part: slice) -> tuple[np.ndarray, np.ndarray]:
        assert self._shared is not None
        stored = self._shared.samples
        finish = self._shared.finish
        rows = self._rows[part]
        selection: slice | np.ndarray = rows if self._is_part else part
        inputs = stored.inputs[selection]
        targets = stored.targets[selection]
        if finish is None:
            return inputs, targets
        return finish(inputs, targets, rows, np.zeros(len(rows), np.int64), training=False)

    def _read_local(self, part: slice) -> tuple[np.ndarray, np.ndarray]:
        if not self._keeps:
            return self._prepared(self._rows[part])
        if self._local_samples is None:
            self._local_samples = self._prepared(self._rows)
        inputs, targets = self._local_samples
        return inputs[part], targets[part]

    def _prepared(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        inputs, targets = self._pipeline.empty(len(rows))
        for sample in self._pipeline.load(rows, 0, inputs, targets, training=False):
            self._on_bad(sample)
        return inputs, targets
