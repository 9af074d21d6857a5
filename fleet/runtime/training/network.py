"""One network in training on this rank: its group's steps, and changes of the group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TypeVar

import numpy as np

from fleet.comm.protocols import Group
from fleet.domain.network import TrainingState
from fleet.engines.base import (
    StepResult,
    StepTotals,
    SupportsRateScaling,
    Trainable,
)
from fleet.engines.batch_transforms import BatchTransforms
from fleet.engines.steps import (
    StepBatches,
    StepCapabilities,
    SupportsSteps,
    steps_of,
    user_steps_of,
)
from fleet.runtime.training.agreement import TrainingFailed, all_or_none, fail_together
from fleet.runtime.training.clocks import StepClock
from fleet.spec import NetworkSpec
from fleet.stream.batch import Batch, WholeBatchGroup, split_rows
from preprocess.sample import SampleSpec
from preprocess.target import TargetSpec, class_target

T = TypeVar("T")

MIN_STEPS = 10  # smallest number of steps that give a group's rate


@dataclass
class Training:
    """One network in training, on this rank.

    Attributes:
        reads_stream_from: the first stream epoch that this rank reads from the stream; until then
            it prepares its own rows.
        target: the specification of a sample's target; the number of classes does not matter here.
        sample: the specification of a sample, for batch transforms.
        steps: times the group's steps.
        group: the present group.
        trainable: the network.
        batch: the global batch of the epoch.
    """

    network: NetworkSpec
    reads_stream_from: int
    target: TargetSpec = class_target(2)  # noqa: RUF009 - frozen
    sample: SampleSpec | None = None
    steps: StepClock = field(default_factory=lambda: StepClock(min_steps=MIN_STEPS))
    group: Group = field(init=False)
    trainable: Trainable = field(init=False)
    batch: int = field(init=False, default=0)

    @property
    def capabilities(self) -> StepCapabilities:
        """How the network takes steps in the present group."""
        return self._trainable_steps.capabilities

    @property
    def cuts_batches(self) -> bool:
        """True if inputs of unequal length are cut to the longest row of each batch."""
        is_varying = self.sample is not None and bool(self.sample.varying)
        return is_varying and self.capabilities.lengths != "one"

    @property
    def _trainable_steps(self) -> SupportsSteps:
        return steps_of(self.trainable, self.group.size == 1)

    def step(
        self, inputs: np.ndarray, targets: np.ndarray, size: int, stop: bool = False
    ) -> StepTotals:
        """Train on one global batch.

        Args:
            inputs, targets: this rank's rows of the batch, as the stream carries them.
            size: number of rows of the global batch.
            stop: whether this rank asks the group to stop after the step.

        Raises:
            TrainingFailed: on all ranks, when it failed on one.
        """
        flags = StepTotals(stop=stop)
        batches = StepBatches((inputs, targets), [size], [len(targets)], flags)
        return self.begin(batches)().sums[0]

    def begin(
        self, batches: StepBatches, indices: np.ndarray | None = None
    ) -> Callable[[], StepResult]:
        """Begin one or several steps; see :meth:`fleet.engines.steps.SupportsSteps.begin_steps`.

        Args:
            batches: inputs and targets as the stream carries them.
            indices: (rows,) int64, rows of the samples in the data set, for a step of the user;
                None for made-up samples.

        Returns:
            A function that waits for the sums and returns them.

        Raises:
            TrainingFailed: on all ranks, when it failed on one, here or in the returned function.
        """
        inputs, targets = batches.local_rows
        local_rows: tuple[np.ndarray, ...] = (inputs, targets)
        if targets.dtype.names:
            local_rows = (inputs, targets["target"], targets["weight"])
        batches = batches._replace(local_rows=local_rows)
        with self._failing_together():
            user_steps = user_steps_of(self.trainable)
            if user_steps is not None:
                wait = user_steps.begin(batches, indices)
            else:
                wait = self._trainable_steps.begin_steps(batches)
        return partial(self._wait, wait)

    def _wait(self, wait: Callable[[], StepResult]) -> StepResult:
        with self._failing_together():
            return wait()

    @contextmanager
    def _failing_together(self) -> Iterator[None]:
        try:
            yield
        except (Exception, SystemExit) as error:
            # An engine raises on all ranks or on none, so all ranks take part.
            fail_together(self.group, error)

    def learning_rate(self) -> float:
        """Return the learning rate of the next step.

        Raises:
            TrainingFailed: on all ranks, when the schedule failed on one.
        """
        return all_or_none(self.group, self.trainable.learning_rate)

    def set_batch(self, chosen: int) -> int:
        """Set the global batch that the policy chose, and the matching learning rate.

        Args:
            chosen: a batch size within the spec's range; 0 for the smallest. Ignored if the spec
                has one size.

        Returns:
            The global batch.

        Raises:
            TrainingFailed: the engine cannot change the learning rate.
        """
        batch = self.network.train.batch
        if not batch.is_elastic:
            return self.network.global_batch(self.group.size)
        size = chosen or batch.bounds[0]
        if not isinstance(self.trainable, SupportsRateScaling):
            raise TrainingFailed(
                f"train.batch.size: {list(batch.bounds)}: the engine cannot change learning rates "
                "(scale_learning_rate); use one batch size instead of a range"
            )
        self.trainable.scale_learning_rate(batch.learning_rate_scale(size))
        if size != self.batch:  # the step time depends on the batch
            self.batch = size
            self.steps = StepClock(min_steps=MIN_STEPS)
        return size

    @cached_property
    def batch_transforms(self) -> BatchTransforms | None:
        """The transforms of training batches; None if there are none."""
        transforms = self.network.train.batch_transforms
        if not transforms:
            return None
        assert self.sample is not None
        return BatchTransforms.of(transforms, self.sample, self.network.seed)

    def transform_batches(
        self, read: Callable[[Group], Iterator[Batch]], epoch: int, size: int
    ) -> Iterator[Batch]:
        """Yield this rank's rows of batches, after the batch transforms of the network.

        A transform sees all rows of a batch, so that its result does not depend on the number of
        ranks: each rank reads and transforms them all.

        Args:
            read: returns the batches that a group reads.
            epoch: number of the network's epoch, from 0.
            size: number of rows of a batch; the last one of an epoch may have fewer.

        Raises:
            TrainingFailed: on all ranks, when a transform failed on one.
        """
        if not self.network.train.batch_transforms:
            yield from read(self.group)
            return
        transforms = all_or_none(self.group, lambda: self.batch_transforms)
        assert transforms is not None
        for batch in read(WholeBatchGroup(self.group)):
            step = (batch.position - batch.size) // size
            inputs, targets = all_or_none(
                self.group, partial(transforms, batch.inputs, batch.targets, epoch, step)
            )
            rows = slice(*split_rows(0, batch.size, self.group.rank, self.group.size))
            yield replace(batch, inputs=inputs[rows], targets=targets[rows])

    def evaluate(self, inputs: np.ndarray, targets: np.ndarray, indices: np.ndarray) -> StepTotals:
        """Return sums over a batch of this rank's samples, without training.

        Args:
            inputs, targets: as the stream carries them.
            indices: (rows,) int64, rows of the samples in the data set.
        """
        rows = (self.cut(inputs), *self.target.split(targets))
        user_steps = user_steps_of(self.trainable)
        if user_steps is not None:
            return user_steps.evaluate(rows, indices)
        return self.trainable.evaluate(*rows)

    def cut(self, inputs: np.ndarray) -> np.ndarray:
        """Return rows to evaluate or to predict, cut to their longest one if batches are cut."""
        if not self.cuts_batches:
            return inputs
        assert self.sample is not None
        return self.capabilities.cut(inputs, self.sample.varying)

    @property
    def has_accuracy(self) -> bool:
        """True if the network computes an accuracy."""
        user_steps = user_steps_of(self.trainable)
        if user_steps is not None:
            return user_steps.returns_accuracy
        return not self.target.semantics.is_numeric

    def broadcast(self, state: T) -> T:
        """Broadcast the master's network and state to the group; collective."""
        if self.group.size > 1:
            arrays = self.trainable.state()  # equal names, shapes and dtypes on every rank
            self.group.broadcast(list(arrays.values()))
            self.trainable.load(arrays)
        return self.group.broadcast_value(state)

    def change_group(
        self, group: Group, stay: int, state: TrainingState | None, failure: Exception | None = None
    ) -> TrainingState:
        """Move to another group; returns the network's state on all of its ranks.

        Args:
            group: the new group.
            stay: number of the group's first ranks that already have the network.
            state: the network's state; None on a new rank.
            failure: why a new rank could not build the network; raised on all ranks.

        Raises:
            TrainingFailed: on all ranks, if one has a failure.
        """
        self.group.free()
        self.group = group
        self.steps = StepClock(min_steps=MIN_STEPS)
        fail_together(group, failure)
        self.trainable.regroup(group)
        if stay < group.size:
            state = self.broadcast(state)
        assert state is not None
        return state
