"""Several batches at once, where steps are so short that calling for them would cost a good part of their time.

Nothing is heard inside of a stride, so it is short: a pause, or the time of a checkpoint, comes after it. What is
computed is the same as step by step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fleet.engines.base import Done, Striding
from fleet.runtime.training.network import Training
from fleet.stream.batch import Batch

_STRIDE_S = 0.04  # of its steps
_PROMPT_S = 0.001  # in which a batch comes that was there; for others no step waits
_MOST_STEPS = 16
_MOST_BYTES = 2**24  # of inputs, which are copied


@dataclass(frozen=True)
class Stride:
    """Batches that follow each other.

    Attributes:
        batches: whose own inputs and targets are valid no longer, where there are several.
        images, targets: of all of them, one behind the other.
    """

    batches: Sequence[Batch]
    images: np.ndarray
    targets: np.ndarray

    def begin(self, training: Training, stop: bool) -> Callable[[], Done]:
        """Begin to train on these batches, with all ranks of the group; see :meth:`Training.begin`.

        Args:
            stop: whether this rank asks the group to stop after it.
        """
        return training.begin(self.images, self.targets, [batch.size for batch in self.batches], stop)


def strides(training: Training, batches: Iterator[Batch]) -> Iterator[Stride]:
    """The batches of a stream; several at once where a network can take several steps, and they are short."""
    arriving = _timed(batches)
    for batch, was_there in arriving:
        most = _steps_at_once(training, batch) if was_there else 1
        yield Stride([batch], batch.images, batch.targets) if most == 1 else _gathered(batch, arriving, most)


def _timed(batches: Iterator[Batch]) -> Iterator[tuple[Batch, bool]]:
    """Each batch, and whether it was there when it was asked for."""
    asked = time.perf_counter()
    for batch in batches:
        yield batch, time.perf_counter() - asked < _PROMPT_S
        asked = time.perf_counter()


def _steps_at_once(training: Training, batch: Batch) -> int:
    trainable = training.trainable
    if batch.is_last or training.group.size > 1 or not (isinstance(trainable, Striding) and trainable.can_stride()):
        return 1
    return max(1, min(training.steps.fitting(_STRIDE_S), _MOST_STEPS, _MOST_BYTES // max(batch.images.nbytes, 1)))


def _gathered(batch: Batch, arriving: Iterator[tuple[Batch, bool]], most: int) -> Stride:
    """A batch, and those after it that are there, up to the end of the epoch."""
    rows, was_there = len(batch.targets), True
    images = np.empty((most * rows, *batch.images.shape[1:]), batch.images.dtype)
    targets = np.empty(most * rows, batch.targets.dtype)
    batches, filled = [batch], 0
    while True:  # a batch is valid until the next
        filled, first = filled + len(batch.targets), filled
        images[first:filled], targets[first:filled] = batch.images, batch.targets
        if len(batches) == most or batch.is_last or not was_there:
            return Stride(batches, images[:filled], targets[:filled])
        batch, was_there = next(arriving)
        batches.append(batch)
