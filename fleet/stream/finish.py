"""The finish: what a rank does to samples that others have begun, or that are kept.

The window carries what all networks have in common (:mod:`fleet.runtime.feeds`). Each rank does the rest to its own
rows, by the same random numbers as a rank that prepares them from their files.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fleet.comm.segment import fence
from fleet.stream.finished import Finished
from fleet.stream.order import runs
from preprocess.base import BadSample
from preprocess.pipeline import Pipeline


class Finish:
    """Does to samples what is left to do.

    Args:
        pipeline: its :meth:`~preprocess.pipeline.Pipeline.finish_kept` does the rest.
        is_done: nothing is left to do to inputs: the targets are others.
        on_bad: is told of samples that cannot be used.
    """

    def __init__(self, pipeline: Pipeline, is_done: bool, on_bad: Callable[[BadSample], None]) -> None:
        self._pipeline, self._is_done, self._on_bad = pipeline, is_done, on_bad

    def __call__(self, kept: np.ndarray, kept_targets: np.ndarray, indices: np.ndarray, productions: np.ndarray,
                 training: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets (k, ...) of the samples ``indices``, each as it is in its production."""
        pipeline = self._pipeline
        if self._is_done:
            return pipeline.taken(kept), pipeline.answered(kept_targets, indices)
        images, targets = pipeline.empty(len(indices))
        for production, part in runs(productions):
            for bad in pipeline.finish_kept(kept[part], kept_targets[part], indices[part], production, images[part],
                                            targets[part], training):
                self._on_bad(bad)
        return images, targets


class FinishedEpochs:
    """Samples as they go into training, of the epochs that a rank has had first: as many as fit.

    What differs from epoch to epoch depends on the seed, the epoch and the sample alone, and networks that a rank
    trains one after another, or side by side with others, begin with the same epochs. To turn a small image takes
    longer than many a network takes to learn from it.

    Args:
        pipeline: its :meth:`~preprocess.pipeline.Pipeline.finish_kept` does the rest to samples that are kept.
        limit: bytes.
        shared: gives an epoch of those that the trainers of a node share, by its number, None without room for it;
            None where they share none, and the rank has room of its own.
    """

    def __init__(self, pipeline: Pipeline, limit: int = 2**26, shared: Callable[[int], Finished | None] | None = None
                 ) -> None:
        self._pipeline, self._shared = pipeline, shared
        images, targets = pipeline.empty(1)
        size = pipeline.samples * (images.nbytes + targets.nbytes + 1)
        self._room = limit // max(size, 1) if pipeline.is_work else 0
        self._epochs: dict[int, Finished] = {}

    def finish(self, kept: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], indices: np.ndarray, production: int,
               images: np.ndarray, targets: np.ndarray) -> list[BadSample]:
        """Finish samples, or take those that have been before; see :meth:`preprocess.pipeline.Pipeline.finish_kept`.

        Args:
            kept: indices -> inputs and targets, as they are kept.

        Returns:
            The samples that cannot be used, when they are found so; later they are only marked.
        """
        epoch = self._epoch(production)
        if epoch is None:
            return self._pipeline.finish_kept(*kept(indices), indices, production, images, targets)
        whole_images, whole_targets, is_there = epoch
        lacking, bad = indices[~is_there[indices]], []
        fence()
        if len(lacking):
            new_images, new_targets = self._pipeline.empty(len(lacking))
            bad = self._pipeline.finish_kept(*kept(lacking), lacking, production, new_images, new_targets)
            whole_images[lacking], whole_targets[lacking] = new_images, new_targets
            fence()
            is_there[lacking] = True
        images[:], targets[:] = whole_images[indices], whole_targets[indices]
        return bad

    def _epoch(self, production: int) -> Finished | None:
        if self._shared is not None and self._pipeline.is_work:
            return self._shared(production)
        if production not in self._epochs and len(self._epochs) < self._room:
            samples = self._pipeline.samples
            self._epochs[production] = (*self._pipeline.empty(samples), np.zeros(samples, bool))
        return self._epochs.get(production)
