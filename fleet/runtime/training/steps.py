"""Training steps of a group: several per call if short, and computed ahead.

If the overhead of a call is a large part of a short step, several batches are trained in one call,
a stride. A stride cannot be interrupted, so it is short: pauses and checkpoints wait for its end. A
single rank uses the batches that are ready. The ranks of a group use the number of batches that
their master has announced with the call before last, which all ranks read from the same sums.

An asynchronous engine computes while this rank prepares the next batch. Consequences of a step's
sums therefore come one step later: a pause that a rank of the group requests, and the failure of a
network whose loss is NaN. All ranks read the same sums at the same step, so they still stop after
the same step. A single rank stops immediately. A checkpoint inside an epoch needs an idle network,
so if one is due, the sums are read before the next step begins, after its batch was requested: so
the collectives of a group keep their order.

The results are the same as with single steps.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fleet.comm.protocols import Group
from fleet.engines.base import StepTotals
from fleet.engines.steps import StepBatches, StepCapabilities
from fleet.runtime.training.clocks import StepClock
from fleet.stream.batch import Batch

_STRIDE_S = 0.04  # longest stride; half of it in groups, where a pause comes two calls later
_PROMPT_S = 0.001  # a batch that arrives within this time was ready
_MAX_BYTES = 2**24  # of inputs, which are copied


@dataclass(frozen=True)
class Stride:
    """Consecutive batches for one call.

    Attributes:
        batches: the batches; if there are several, their own inputs and targets are invalid.
        inputs, targets: (rows, ...) of all batches, concatenated.
        ready_count: number of batches that were ready when requested.
        indices: (rows,) int64 of all batches; None unless requested.
    """

    batches: Sequence[Batch]
    inputs: np.ndarray
    targets: np.ndarray
    ready_count: int
    indices: np.ndarray | None = None

    def begin(self, training: TakesSteps, stop: bool) -> Callable[[], tuple[Sequence[Any], float]]:
        """Begin to train on these batches, with all ranks of the group.

        Args:
            stop: whether this rank asks the group to stop after it.
        """
        steps = self._choose_count(training) if training.group.is_master else 0
        return training.begin(
            StepBatches(
                (self.inputs, self.targets),
                [batch.size for batch in self.batches],
                [len(batch.targets) for batch in self.batches],
                StepTotals(stop=stop, steps=steps),
            ),
            self.indices,
        )

    def _choose_count(self, training: TakesSteps) -> int:
        """Choose the steps of the next call: no more than were ready if this rank waited."""
        fitting = _count_fitting(training, self.inputs.nbytes // len(self.batches))
        if self.ready_count == len(self.batches):
            return fitting
        return max(1, min(self.ready_count, fitting))


class TakesSteps(Protocol):
    """What takes steps: a network, or several that train as one."""

    group: Group
    steps: StepClock

    @property
    def capabilities(self) -> StepCapabilities:
        """How it takes steps."""

    def begin(
        self, batches: StepBatches, indices: np.ndarray | None = None
    ) -> Callable[[], tuple[Sequence[Any], float]]:
        """Begin steps; returns a function that waits for their totals and the time of their end."""


def strides(training: TakesSteps, batches: Iterator[Batch]) -> Generator[Stride, None, None]:
    """Group the batches of a stream into strides if steps are short."""
    arriving = _time_arrivals(batches)
    is_alone = training.group.size == 1
    for batch, was_ready in arriving:
        if not is_alone:
            limit = training.steps.steps_per_call
        elif was_ready:
            limit = _count_fitting(training, batch.inputs.nbytes)
        else:
            limit = 1
        if limit == 1 or batch.is_last:
            yield Stride([batch], batch.inputs, batch.targets, int(was_ready), batch.indices)
        else:
            yield _gather(batch, was_ready, arriving, limit, is_alone)


def _time_arrivals(batches: Iterator[Batch]) -> Iterator[tuple[Batch, bool]]:
    """Yield each batch with whether it was ready when requested."""
    requested_s = time.perf_counter()
    for batch in batches:
        yield batch, time.perf_counter() - requested_s < _PROMPT_S
        requested_s = time.perf_counter()


def _count_fitting(training: TakesSteps, nbytes: int) -> int:
    """Return how many steps a call may take with inputs of ``nbytes`` bytes."""
    stride_s = _STRIDE_S if training.group.size == 1 else _STRIDE_S / 2
    return max(
        1,
        min(
            training.steps.count_fitting(stride_s),
            training.capabilities.max_steps_per_call,
            _MAX_BYTES // max(nbytes, 1),
        ),
    )


def _gather(
    batch: Batch,
    was_ready: bool,
    arriving: Iterator[tuple[Batch, bool]],
    limit: int,
    is_alone: bool,
) -> Stride:
    """Gather a batch and the next ones; a single rank waits for none."""
    rows = len(batch.targets)
    ready_count = 0
    inputs = np.empty((limit * rows, *batch.inputs.shape[1:]), batch.inputs.dtype)
    targets = np.empty(limit * rows, batch.targets.dtype)
    indices = None if batch.indices is None else np.empty(limit * rows, batch.indices.dtype)
    batches = [batch]
    filled = 0
    while True:  # a batch is valid until the next is requested
        first = filled
        filled += len(batch.targets)
        ready_count += was_ready
        inputs[first:filled] = batch.inputs
        targets[first:filled] = batch.targets
        if indices is not None:
            indices[first:filled] = batch.indices
        if len(batches) == limit or batch.is_last or (is_alone and not was_ready):
            return Stride(
                batches,
                inputs[:filled],
                targets[:filled],
                ready_count,
                None if indices is None else indices[:filled],
            )
        batch, was_ready = next(arriving)
        batches.append(batch)


# ---- steps ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FinishedSteps:
    """Steps that have finished.

    Attributes:
        batches: the batch of each step; their inputs and targets are invalid.
        sums: the sums of each step: :class:`StepTotals`, or those of several networks.
        seconds: duration of each step.
        stops: whether a rank of the group has requested to stop after these steps.
        is_idle: whether no later step has begun.
    """

    batches: Sequence[Batch]
    sums: Sequence[Any]
    seconds: float
    stops: bool
    is_idle: bool


@dataclass
class Steps:
    """The steps of a part of an epoch; see the module. Collective over the group.

    Attributes:
        should_stop: returns whether this rank requests that the group stops.
        is_due: returns whether this rank needs an idle network (:attr:`FinishedSteps.is_idle`).
        ended: end of the latest step.
    """

    training: TakesSteps
    should_stop: Callable[[], bool]
    is_due: Callable[[], bool]
    ended: float = -math.inf

    def run(self, strides: Iterable[Stride]) -> Iterator[FinishedSteps]:
        """Train on strides up to the last, or until a rank of the group requests to stop.

        Raises:
            TrainingFailed: on all ranks, when a step failed on one.
        """
        pending = deque[Callable[[bool], FinishedSteps]]()
        ahead = int(self.training.capabilities.can_overlap)
        is_alone = self.training.group.size == 1
        requests_stop = stops = False
        for stride in strides:
            if pending and self.is_due():
                # the other ranks learn of a stop once they have begun this stride
                finished = pending.popleft()(True)
                yield finished
                stops = finished.stops
            requests_stop = requests_stop or self.should_stop()
            pending.append(self._begin(stride, requests_stop))
            if len(pending) > ahead:
                finished = pending.popleft()(not pending)
                yield finished
                stops = finished.stops
            if stops or (requests_stop and is_alone):
                break
        if pending:
            yield pending.popleft()(True)

    def _begin(self, stride: Stride, stop: bool) -> Callable[[bool], FinishedSteps]:
        """Begin a stride; returns a function that waits for its end."""
        began = time.perf_counter()
        wait = stride.begin(self.training, stop)

        def end(is_idle: bool) -> FinishedSteps:
            sums, at = wait()
            seconds = at - max(began, self.ended)
            self.ended = at
            self.training.steps.steps_per_call = max(1, sums[-1].steps)
            stops = any(totals.stop for totals in sums) or (stop and self.training.group.size == 1)
            return FinishedSteps(stride.batches, sums, seconds / len(sums), stops, is_idle)

        return end
