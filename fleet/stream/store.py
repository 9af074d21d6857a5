"""Stores from which a rank reads samples by index: files, its memory, or its node's memory.

The fourth store is the node's window, which is read in the order of the stream
(:mod:`fleet.stream.reader`).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

import numpy as np

from fleet.stream.augment import AugmentedEpoch, AugmentedEpochs
from fleet.stream.sample_set import SampleSet
from fleet.stream.stall import make_set_clock
from preprocess.base import UnreadableSample
from preprocess.record_pipeline import AnyPipeline

_POLL_S = 0.001


class FileStore:
    """A store without a cache: this rank reads, decodes and transforms each sample."""

    def __init__(self, pipeline: AnyPipeline) -> None:
        self._pipeline = pipeline
        self.empty = pipeline.empty

    def await_all(self, indices: np.ndarray, stop: threading.Event) -> None:
        """Wait until samples can be loaded, or ``stop`` is set; runs in a thread.

        Raises:
            InfrastructureError: there was no progress for too long.
        """

    def stop_waiting(self) -> None:
        """Stop waiting for other ranks, because one of them has died."""

    def load(
        self, indices: np.ndarray, production: int, inputs: np.ndarray, targets: np.ndarray
    ) -> list[UnreadableSample]:
        """Write samples into arrays; see :meth:`preprocess.pipeline.Pipeline.load`."""
        return self._pipeline.load(indices, production, inputs, targets)


class RankMemory(FileStore):
    """A store in this rank's memory: samples are decoded once and augmented every epoch."""

    def __init__(self, pipeline: AnyPipeline) -> None:
        super().__init__(pipeline)
        self._inputs, self._targets = pipeline.empty_stored(pipeline.samples)
        self._is_ready = np.zeros(pipeline.samples, bool)
        self._augmented = AugmentedEpochs(pipeline)

    def load(  # noqa: D102
        self,
        indices: np.ndarray,
        production: int,
        inputs: np.ndarray,
        targets: np.ndarray,
    ) -> list[UnreadableSample]:
        lacking = indices[~self._is_ready[indices]]
        new_inputs, new_targets = self._pipeline.empty_stored(len(lacking))
        bad = self._pipeline.load_stored(lacking, new_inputs, new_targets)
        self._inputs[lacking] = new_inputs
        self._targets[lacking] = new_targets
        self._is_ready[lacking] = True
        return bad + self._augmented.finish(
            lambda rows: (self._inputs[rows], self._targets[rows]),
            indices,
            production,
            inputs,
            targets,
        )


class NodeStore(FileStore):
    """A store in the node's memory: decoded samples, augmented by this rank.

    Args:
        stored: decoded samples, in the order of epoch 0.
        stall_s: longest time without another chunk, in seconds; then an error is raised.
        shared: see :class:`~fleet.stream.augment.AugmentedEpochs`.
    """

    def __init__(
        self,
        pipeline: AnyPipeline,
        stored: SampleSet,
        stall_s: float = math.inf,
        shared: Callable[[int], AugmentedEpoch | None] | None = None,
    ) -> None:
        super().__init__(pipeline)
        self._decoded = stored
        self._row = np.argsort(pipeline.order(0))
        self._is_alone = False  # whether missing samples will not come from other ranks
        self._stall_s = stall_s
        self._augmented = AugmentedEpochs(pipeline, shared=shared)

    def await_all(self, indices: np.ndarray, stop: threading.Event) -> None:  # noqa: D102
        rows = self._row[indices]
        clock = make_set_clock(self._decoded, "training", self._stall_s)
        while not (self._is_alone or self._decoded.has_rows(rows) or stop.wait(_POLL_S)):
            clock.check()

    def stop_waiting(self) -> None:
        """Decode samples that are not ready yet."""
        self._is_alone = True

    def load(  # noqa: D102
        self,
        indices: np.ndarray,
        production: int,
        inputs: np.ndarray,
        targets: np.ndarray,
    ) -> list[UnreadableSample]:
        if not self._decoded.has_rows(self._row[indices]):
            return super().load(indices, production, inputs, targets)
        return self._augmented.finish(self._read_decoded, indices, production, inputs, targets)

    def _read_decoded(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = self._row[indices]
        return self._decoded.inputs[rows], self._decoded.targets[rows]
