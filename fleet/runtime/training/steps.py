"""Training steps of a group: several per call if short, and computed ahead.

Where steps are so short that calling for them would cost a good part of their time, several batches
are taken at once, in a stride. Nothing is heard inside of it, so it is short: a pause, or the time
of a checkpoint, comes after it. A rank alone takes those that are there. The ranks of a group take
as many as their master has said with the call before last: they read that in the same sums, at the
same place.

An engine that can computes while this rank makes the next batch. What follows from the sums of a
step comes one step later: the pause that a rank of the group asks for, and the failure of a network
whose loss is no number. All ranks read the same sums at the same place, so they still stop after
the same step. A rank alone knows at once that it is to stop. A checkpoint inside an epoch is of a
network that stands still. So where one is due, sums are read before the next step has begun, with
its batch at hand: what the ranks of a group do together keeps its order.

What is computed is the same as step by step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fleet.engines.base import StepResult, StepTotals, SupportsAsyncGroupSteps, SupportsMultiStep
from fleet.runtime.training.network import Training
from fleet.stream.batch import Batch

_STRIDE_S = 0.04  # of its steps; half as long in groups, where a pause comes two calls late
_PROMPT_S = 0.001  # in which a batch comes that was there; for others no step waits
_MOST_STEPS = 16
_MOST_BYTES = 2**24  # of inputs, which are copied


@dataclass(frozen=True)
class Stride:
    """Consecutive batches for one call.

    Attributes:
        batches: whose own inputs and targets are valid no longer, where there are several.
        images, targets: of all of them, one behind the other.
        ready_count: how many of them were ready when requested.
    """

    batches: Sequence[Batch]
    images: np.ndarray
    targets: np.ndarray
    ready_count: int

    def begin(self, training: Training, stop: bool) -> Callable[[], StepResult]:
        """Begin to train on these batches, with all ranks of the group.

        Args:
            stop: whether this rank asks the group to stop after it.
        """
        flags = StepTotals(
            stop=stop, steps=self._choose_count(training) if training.group.is_master else 0
        )
        return training.begin(
            self.images,
            self.targets,
            [batch.size for batch in self.batches],
            [len(batch.targets) for batch in self.batches],
            flags,
        )

    def _choose_count(self, training: Training) -> int:
        """Choose the steps of the next call: no more than were ready if this rank waited."""
        fitting = _count_fitting(training, self.images.nbytes // len(self.batches))
        if self.ready_count == len(self.batches):
            return fitting
        return max(1, min(self.ready_count, fitting))


def strides(training: Training, batches: Iterator[Batch]) -> Iterator[Stride]:
    """Group the batches of a stream into strides if steps are short."""
    arriving = _time_arrivals(batches)
    is_alone = training.group.size == 1
    for batch, was_there in arriving:
        if is_alone:
            limit = _count_fitting(training, batch.images.nbytes) if was_there else 1
        else:
            limit = training.steps.steps_per_call
        yield (
            Stride([batch], batch.images, batch.targets, int(was_there))
            if limit == 1 or batch.is_last
            else _gather(batch, was_there, arriving, limit, is_alone)
        )


def _time_arrivals(batches: Iterator[Batch]) -> Iterator[tuple[Batch, bool]]:
    """Yield each batch with whether it was ready when requested."""
    requested_s = time.perf_counter()
    for batch in batches:
        yield batch, time.perf_counter() - requested_s < _PROMPT_S
        requested_s = time.perf_counter()


def _count_fitting(training: Training, nbytes: int) -> int:
    """Return how many steps a call may take with inputs of ``nbytes`` bytes."""
    trainable = training.trainable
    is_alone = training.group.size == 1
    if not (
        (
            isinstance(trainable, SupportsAsyncGroupSteps)
            or (is_alone and isinstance(trainable, SupportsMultiStep))
        )
        and trainable.can_stride()
    ):
        return 1
    stride_s = _STRIDE_S if is_alone else _STRIDE_S / 2
    return max(
        1, min(training.steps.count_fitting(stride_s), _MOST_STEPS, _MOST_BYTES // max(nbytes, 1))
    )


def _gather(
    batch: Batch,
    was_there: bool,
    arriving: Iterator[tuple[Batch, bool]],
    limit: int,
    is_alone: bool,
) -> Stride:
    """Gather a batch and those after it; a single rank waits for none."""
    rows = len(batch.targets)
    ready_count = 0
    images = np.empty((limit * rows, *batch.images.shape[1:]), batch.images.dtype)
    targets = np.empty(limit * rows, batch.targets.dtype)
    batches = [batch]
    filled = 0
    while True:  # a batch is valid until the next
        filled, first, ready_count = filled + len(batch.targets), filled, ready_count + was_there
        images[first:filled] = batch.images
        targets[first:filled] = batch.targets
        if len(batches) == limit or batch.is_last or (is_alone and not was_there):
            return Stride(batches, images[:filled], targets[:filled], ready_count)
        batch, was_there = next(arriving)
        batches.append(batch)


# ---- taking them ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class FinishedSteps:
    """Steps that have finished.

    Attributes:
        batches: of each; their inputs and targets are valid no longer.
        sums: over each.
        seconds: that each took by itself.
        stops: whether a rank of the group has asked to stop after them.
        is_idle: whether no later step has begun.
    """

    batches: Sequence[Batch]
    sums: Sequence[StepTotals]
    seconds: float
    stops: bool
    is_idle: bool


class Steps:
    """The steps of a part of an epoch; see the module. Collective over the group.

    Args:
        is_asked: whether this rank asks the group to stop.
        is_due: whether this rank wants the network to stand still for a moment
            (:attr:`FinishedSteps.is_idle`).
    """

    def __init__(
        self, training: Training, is_asked: Callable[[], bool], is_due: Callable[[], bool]
    ) -> None:
        self._training = training
        self._is_asked = is_asked
        self._is_due = is_due
        self._ended = -math.inf  # the last one that is over

    def run(self, strides: Iterable[Stride]) -> Iterator[FinishedSteps]:
        """Train on strides up to the last, or until a rank of the group asks to stop.

        Raises:
            TrainingFailed: on all ranks, when a step failed on one.
        """
        pending: Callable[[bool], FinishedSteps] | None = None
        is_alone = self._training.group.size == 1
        asks = stops = False
        for stride in strides:
            if pending is not None and self._is_due():
                yield (finished := pending(True))
                # the other ranks learn it once they have begun with this one
                pending = None
                stops = finished.stops
            asks = asks or self._is_asked()
            before = pending
            pending = self._begin(stride, asks)
            if before is not None:
                yield (finished := before(False))
                stops = finished.stops
            if not self._training.is_async:
                yield (finished := pending(True))
                pending = None
                stops = finished.stops
            if stops or (asks and is_alone):
                break
        if pending is not None:
            yield pending(True)

    def _begin(self, stride: Stride, stop: bool) -> Callable[[bool], FinishedSteps]:
        """Begin a stride; returns a function that waits for its end."""
        began = time.perf_counter()
        wait = stride.begin(self._training, stop)

        def end(is_idle: bool) -> FinishedSteps:
            sums, at = wait()
            seconds = at - max(began, self._ended)
            self._ended = at
            self._training.steps.steps_per_call = max(1, sums[-1].steps)
            stops = any(totals.stop for totals in sums) or (stop and self._training.group.size == 1)
            return FinishedSteps(stride.batches, sums, seconds / len(sums), stops, is_idle)

        return end
