"""Deferred augmentation: the transforms that a rank applies to samples of a stream or a store.

The window carries samples to which the transforms that all networks share have been applied
(:mod:`fleet.runtime.startup.input_pipelines`). Each rank applies the remaining transforms to its
own rows, with the same random numbers as a rank that prepares the samples from their files.

A prepared sample depends only on the seed, the epoch and the sample's index. So a sample that one
trainer has augmented can be used by all trainers of the node that reach the same epoch, as long as
there is room.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fleet.comm.segment import fence, map_arrays
from fleet.stream.order import runs
from preprocess.base import UnreadableSample
from preprocess.record_pipeline import AnyPipeline
from preprocess.sample import InputSpec

# inputs, targets, and a mask (samples,) bool of the samples that are ready
AugmentedEpoch = tuple[np.ndarray, np.ndarray, np.ndarray]


class DeferredAugmentation:
    """The remaining transforms of samples.

    Args:
        pipeline: applies them by :meth:`~preprocess.pipeline.Pipeline.augment_stored`.
        is_done: whether inputs need no more transforms; only targets are converted.
        on_bad: receives unreadable samples.
    """

    def __init__(
        self, pipeline: AnyPipeline, is_done: bool, on_bad: Callable[[UnreadableSample], None]
    ) -> None:
        self._pipeline = pipeline
        self._is_done = is_done
        self._on_bad = on_bad

    def __call__(
        self,
        inputs: np.ndarray,
        stored_targets: np.ndarray,
        indices: np.ndarray,
        productions: np.ndarray,
        training: bool = True,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the augmented inputs and targets (k, ...) of samples.

        Args:
            inputs, stored_targets: (k, ...) as the stream or the store has them.
            indices: (k,) int64, the samples' indices in the source.
            productions: (k,) int64, the production of each sample.
            training: whether random transforms are applied.
        """
        pipeline = self._pipeline
        if self._is_done:
            return pipeline.select_slice(inputs), pipeline.convert_targets(stored_targets, indices)
        augmented, targets = pipeline.empty(len(indices))
        for production, part in runs(productions):
            for bad in pipeline.augment_stored(
                inputs[part],
                stored_targets[part],
                indices[part],
                production,
                augmented[part],
                targets[part],
                training,
            ):
                self._on_bad(bad)
        return augmented, targets


class AugmentedEpochs:
    """A cache of augmented samples of the first epochs that a rank has seen, as many as fit.

    Random transforms depend only on the seed, the epoch and the sample's index, and all networks
    begin with the same epochs. Rotating a small image can take longer than a training step on it.

    Args:
        pipeline: augments stored samples by
            :meth:`~preprocess.pipeline.Pipeline.augment_stored`.
        limit: size of this rank's cache in bytes.
        shared: returns an epoch, by its number, from the cache that the trainers of the node share,
            or None if it has no room for the epoch; None if this rank has a cache of its own.
    """

    def __init__(
        self,
        pipeline: AnyPipeline,
        limit: int = 2**26,
        shared: Callable[[int], AugmentedEpoch | None] | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._shared = shared
        inputs, targets = pipeline.empty(1)
        size = pipeline.samples * (inputs.nbytes + targets.nbytes + 1)
        self._capacity = limit // max(size, 1) if pipeline.has_host_work else 0
        self._epochs: dict[int, AugmentedEpoch] = {}

    def finish(
        self,
        read_stored: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
        indices: np.ndarray,
        production: int,
        inputs: np.ndarray,
        targets: np.ndarray,
    ) -> list[UnreadableSample]:
        """Augment samples, or copy them from the cache; see :meth:`Pipeline.augment_stored`.

        Args:
            read_stored: indices -> inputs and targets, as they are stored.
            indices: (k,) int64, the samples' indices in the source.
            production: the number of the production.
            inputs: (k, ...) receives the inputs.
            targets: (k,) receives the targets.

        Returns:
            The unusable ones of the samples that are not cached; the cache marks the others.
        """
        epoch = self._epoch(production)
        if epoch is None:
            return self._pipeline.augment_stored(
                *read_stored(indices), indices, production, inputs, targets
            )
        cached_inputs, cached_targets, is_ready = epoch
        lacking = indices[~is_ready[indices]]
        bad = []
        fence()
        if len(lacking):
            new_inputs, new_targets = self._pipeline.empty(len(lacking))
            bad = self._pipeline.augment_stored(
                *read_stored(lacking), lacking, production, new_inputs, new_targets
            )
            cached_inputs[lacking] = new_inputs
            cached_targets[lacking] = new_targets
            fence()
            is_ready[lacking] = True
        inputs[:] = cached_inputs[indices]
        targets[:] = cached_targets[indices]
        return bad

    def _epoch(self, production: int) -> AugmentedEpoch | None:
        if self._shared is not None and self._pipeline.has_host_work:
            return self._shared(production)
        if production not in self._epochs and len(self._epochs) < self._capacity:
            samples = self._pipeline.samples
            self._epochs[production] = (*self._pipeline.empty(samples), np.zeros(samples, bool))
        return self._epochs.get(production)


class NodeEpochs:
    """Shared memory of a node for augmented epochs.

    A trainer records its current epoch, under a lock, before it touches the epoch's samples. An
    epoch is replaced only while no trainer is at it, the latest epoch first: networks that begin
    later still need the early ones.

    Args:
        array: shape and dtype of an augmented input.
        target: dtype of targets in the stream.
        samples: number of samples of an epoch.
        epochs: number of epochs that fit.
        trainers: number of trainers of the node.
        name, create: see :class:`fleet.comm.segment.Segment`.
    """

    def __init__(
        self,
        array: InputSpec,
        target: np.dtype,
        samples: int,
        epochs: int,
        trainers: int,
        name: str,
        create: bool,
    ) -> None:
        # The epoch of each trainer and of each slot, as the epoch's number plus 1; 0 for none.
        (
            self.segment,
            (self._trainer_epochs, self._slot_epochs, self._are_ready, self._targets, self._inputs),
        ) = map_arrays(
            name,
            create,
            (np.int64, trainers),
            (np.int64, epochs),
            (np.bool_, epochs, samples),
            (target, epochs, samples),
            (array.dtype, epochs, samples, *array.shape),
        )

    def take(self, trainer: int, production: int) -> AugmentedEpoch | None:
        """Return an epoch, valid until this trainer takes another; None if there is no room."""
        if self._trainer_epochs[trainer] != production + 1:
            with self.segment.locked():
                self._trainer_epochs[trainer] = production + 1
                if production + 1 not in self._slot_epochs:
                    slot = self._find_slot()
                    if slot is not None:
                        self._are_ready[slot] = False
                        fence()
                        self._slot_epochs[slot] = production + 1
        slots = np.flatnonzero(self._slot_epochs == production + 1)
        if len(slots):
            return (self._inputs[slots[0]], self._targets[slots[0]], self._are_ready[slots[0]])
        return None

    def _find_slot(self) -> int | None:
        # Empty slots first.
        latest = np.where(self._slot_epochs == 0, np.iinfo(np.int64).max, self._slot_epochs)
        latest[np.isin(self._slot_epochs, self._trainer_epochs) & (self._slot_epochs > 0)] = -1
        slot = int(latest.argmax())
        if latest[slot] > 0:
            return slot
        return None
