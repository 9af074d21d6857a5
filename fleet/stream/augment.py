"""Deferred augmentation: what a rank applies to samples from the stream or from a store.

The window carries what all networks have in common (:mod:`fleet.runtime.input_pipelines`). Each
rank does the rest to its own rows, by the same random numbers as a rank that prepares them from
their files.

What a sample looks like in an epoch depends on the seed, the epoch and the sample alone. So what
one trainer has finished serves all of its node that come to the same epoch, side by side or later,
as long as there is room.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fleet.comm.segment import fence, map_arrays
from fleet.stream.order import runs
from preprocess.base import UnreadableSample
from preprocess.pipeline import Pipeline
from preprocess.sample import ImageSpec

AugmentedEpoch = tuple[
    np.ndarray, np.ndarray, np.ndarray
]  # inputs, targets, which of them are there


class DeferredAugmentation:
    """The transforms that are left to apply to samples.

    Args:
        pipeline: its :meth:`~preprocess.pipeline.Pipeline.augment_stored` does the rest.
        is_done: nothing is left to do to inputs: the targets are others.
        on_bad: receives unreadable samples.
    """

    def __init__(
        self, pipeline: Pipeline, is_done: bool, on_bad: Callable[[UnreadableSample], None]
    ) -> None:
        self._pipeline = pipeline
        self._is_done = is_done
        self._on_bad = on_bad

    def __call__(
        self,
        inputs: np.ndarray,
        kept_targets: np.ndarray,
        indices: np.ndarray,
        productions: np.ndarray,
        training: bool = True,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs and targets (k, ...) of samples, each as in its production."""
        pipeline = self._pipeline
        if self._is_done:
            return pipeline.select_slice(inputs), pipeline.convert_targets(kept_targets, indices)
        images, targets = pipeline.empty(len(indices))
        for production, part in runs(productions):
            for bad in pipeline.augment_stored(
                inputs[part],
                kept_targets[part],
                indices[part],
                production,
                images[part],
                targets[part],
                training,
            ):
                self._on_bad(bad)
        return images, targets


class AugmentedEpochs:
    """Augmented samples of the first epochs that a rank has seen, as many as fit.

    What differs from epoch to epoch depends on the seed, the epoch and the sample alone, and
    networks that a rank trains one after another, or side by side with others, begin with the same
    epochs. To turn a small image takes longer than many a network takes to learn from it.

    Args:
        pipeline: its :meth:`~preprocess.pipeline.Pipeline.augment_stored` does the rest to samples
            that are kept.
        limit: bytes.
        shared: gives an epoch of those that the trainers of a node share, by its number, None
            without room for it; None where they share none, and the rank has room of its own.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        limit: int = 2**26,
        shared: Callable[[int], AugmentedEpoch | None] | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._shared = shared
        images, targets = pipeline.empty(1)
        size = pipeline.samples * (images.nbytes + targets.nbytes + 1)
        self._room = limit // max(size, 1) if pipeline.has_host_work else 0
        self._epochs: dict[int, AugmentedEpoch] = {}

    def finish(
        self,
        read_stored: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
        indices: np.ndarray,
        production: int,
        images: np.ndarray,
        targets: np.ndarray,
    ) -> list[UnreadableSample]:
        """Augment samples or return cached ones; see :meth:`Pipeline.augment_stored`.

        Args:
            read_stored: indices -> inputs and targets, as they are stored.

        Returns:
            The samples that cannot be used, when they are found so; later they are only marked.
        """
        epoch = self._epoch(production)
        if epoch is None:
            return self._pipeline.augment_stored(
                *read_stored(indices), indices, production, images, targets
            )
        whole_images, whole_targets, is_there = epoch
        lacking = indices[~is_there[indices]]
        bad = []
        fence()
        if len(lacking):
            new_images, new_targets = self._pipeline.empty(len(lacking))
            bad = self._pipeline.augment_stored(
                *read_stored(lacking), lacking, production, new_images, new_targets
            )
            whole_images[lacking] = new_images
            whole_targets[lacking] = new_targets
            fence()
            is_there[lacking] = True
        images[:] = whole_images[indices]
        targets[:] = whole_targets[indices]
        return bad

    def _epoch(self, production: int) -> AugmentedEpoch | None:
        if self._shared is not None and self._pipeline.has_host_work:
            return self._shared(production)
        if production not in self._epochs and len(self._epochs) < self._room:
            samples = self._pipeline.samples
            self._epochs[production] = (*self._pipeline.empty(samples), np.zeros(samples, bool))
        return self._epochs.get(production)


class NodeEpochs:
    """Shared memory of a node for augmented epochs.

    A trainer says which epoch it is at before it touches one, under a lock. An epoch makes room for
    another only where no trainer is at it, the latest first: networks that begin later come to the
    early ones.

    Args:
        image: what the input of a finished sample is.
        target: the type in which targets travel.
        samples: of an epoch.
        epochs: that have room.
        trainers: of the node.
    """

    def __init__(
        self,
        image: ImageSpec,
        target: np.dtype,
        samples: int,
        epochs: int,
        trainers: int,
        name: str,
        create: bool,
    ) -> None:
        # Where trainers are and what there is room for: the number of an epoch, and 1 more; 0 is
        # none.
        (
            self.segment,
            (self._trainer_epochs, self._room_epochs, self._are_ready, self._targets, self._images),
        ) = map_arrays(
            name,
            create,
            (np.int64, trainers),
            (np.int64, epochs),
            (np.bool_, epochs, samples),
            (target, epochs, samples),
            (image.dtype, epochs, samples, *image.shape),
        )

    def take(self, trainer: int, production: int) -> AugmentedEpoch | None:
        """Return an epoch until this trainer takes another; None if there is no room."""
        if self._trainer_epochs[trainer] != production + 1:
            with self.segment.locked():
                self._trainer_epochs[trainer] = production + 1
                if production + 1 not in self._room_epochs and (room := self._room()) is not None:
                    self._are_ready[room] = False
                    fence()
                    self._room_epochs[room] = production + 1
        rooms = np.flatnonzero(self._room_epochs == production + 1)
        if len(rooms):
            return (self._images[rooms[0]], self._targets[rooms[0]], self._are_ready[rooms[0]])
        return None

    def _room(self) -> int | None:
        latest = np.where(
            self._room_epochs == 0, np.iinfo(np.int64).max, self._room_epochs
        )  # those that hold none first
        latest[np.isin(self._room_epochs, self._trainer_epochs) & (self._room_epochs > 0)] = -1
        room = int(latest.argmax())
        if latest[room] > 0:
            return room
        return None
