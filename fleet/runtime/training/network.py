"""One network in training on this rank: its group's steps, and moving between groups."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np

from fleet.comm.protocols import Group
from fleet.domain.network import TrainingState
from fleet.engines.base import (
    StepResult,
    StepTotals,
    SupportsAsyncGroupSteps,
    SupportsAsyncSteps,
    SupportsMultiStep,
    SupportsRateScaling,
    Trainable,
)
from fleet.runtime.training.agreement import TrainingFailed, fail_together
from fleet.runtime.training.clocks import StepClock
from fleet.spec import NetworkSpec
from preprocess.target import TargetSpec, class_target

T = TypeVar("T")

MIN_STEPS = 10  # of a group tell how fast it is


@dataclass
class Training:
    """One network in training, on this rank.

    Attributes:
        reads_stream_from: the epoch from which on this rank reads the stream; before it, it
            prepares its own rows.
        target: what a sample's target is; of how many classes does not matter here.
        steps: how long those of this group take.
        group: that this rank trains it in; it may be exchanged for another one.
    """

    network: NetworkSpec
    reads_stream_from: int
    target: TargetSpec = class_target(2)  # noqa: RUF009 - frozen
    steps: StepClock = field(default_factory=lambda: StepClock(min_steps=MIN_STEPS))
    group: Group = field(init=False)
    trainable: Trainable = field(init=False)
    batch: int = field(init=False, default=0)  # of the epoch

    def step(
        self, images: np.ndarray, targets: np.ndarray, size: int, stop: bool = False
    ) -> StepTotals:
        """Train on one global batch; see :meth:`fleet.engines.base.Trainable.step`.

        Args:
            targets: as they travel.

        Raises:
            TrainingFailed: on all ranks, when it failed on one.
        """
        return self.begin(images, targets, [size], [len(targets)], StepTotals(stop=stop))().sums[0]

    @property
    def is_async(self) -> bool:
        """True if the engine computes while the next batch is prepared."""
        return isinstance(self.trainable, SupportsAsyncSteps | SupportsAsyncGroupSteps)

    def begin(
        self,
        images: np.ndarray,
        targets: np.ndarray,
        sizes: Sequence[int],
        rows: Sequence[int],
        flags: StepTotals,
    ) -> Callable[[], StepResult]:
        """Begin one or several steps; see :meth:`SupportsAsyncGroupSteps.begin_together`.

        Of an engine that cannot, they are over when this returns.

        Args:
            targets: as they travel.

        Returns:
            What waits for the sums.

        Raises:
            TrainingFailed: on all ranks, when it failed on one, now or when it is waited for.
        """
        values, weights = self.target.split(targets)
        with self._failing_together():
            if isinstance(self.trainable, SupportsAsyncGroupSteps):
                return partial(
                    self._wait_together,
                    self.trainable.begin_together(images, values, sizes, rows, flags, weights),
                )
            if isinstance(self.trainable, SupportsAsyncSteps):
                return partial(
                    self._wait_together,
                    self.trainable.begin(images, values, sizes, flags.stop, weights),
                )
            if len(sizes) == 1:
                more = [] if weights is None else [weights]  # an engine may know no weights
                sums = [self.trainable.step(images, values, sizes[0], flags.stop, *more)]
            else:
                assert isinstance(self.trainable, SupportsMultiStep)
                sums = self.trainable.stride(images, values, sizes, weights)
        done = StepResult(sums, time.perf_counter())
        return lambda: done

    def _wait_together(self, wait: Callable[[], StepResult]) -> StepResult:
        with self._failing_together():
            return wait()

    @contextmanager
    def _failing_together(self) -> Iterator[None]:
        try:
            yield
        except (Exception, SystemExit) as error:
            fail_together(
                self.group, error
            )  # an engine raises on all ranks or on none: so all of them are here

    def set_batch(self, chosen: int) -> int:
        """Set the global batch that the policy chose, and the matching learning rate.

        Args:
            chosen: out of the range that the spec gives; 0 for the least. Nothing, where it gives
                one size.

        Returns:
            The global batch.

        Raises:
            TrainingFailed: its engine cannot change the learning rate.
        """
        batch = self.network.train.batch
        if not batch.is_elastic:
            return self.network.global_batch(self.group.size)
        size = chosen or batch.bounds[0]
        if not isinstance(self.trainable, SupportsRateScaling):
            raise TrainingFailed(
                f"train.batch.size: {list(batch.bounds)}: its engine cannot change learning rates "
                "(scale_learning_rate); one size would be right"
            )
        self.trainable.scale_learning_rate(batch.learning_rate_scale(size))
        if size != self.batch:  # steps of others say nothing of these
            self.batch = size
            self.steps = StepClock(min_steps=MIN_STEPS)
        return size

    def evaluate(self, images: np.ndarray, targets: np.ndarray) -> StepTotals:
        """Return sums over some samples of this rank, without training."""
        values, weights = self.target.split(targets)
        return self.trainable.evaluate(images, values, *([] if weights is None else [weights]))

    def broadcast(self, state: T) -> T:
        """Broadcast the master's network and state to the group; collective."""
        if self.group.size > 1:
            arrays = self.trainable.state()  # of the same names, shapes and types on every rank
            self.group.broadcast(list(arrays.values()))
            self.trainable.load(arrays)
        return self.group.broadcast_value(state)

    def change_group(
        self, group: Group, stay: int, state: TrainingState | None, failure: Exception | None = None
    ) -> TrainingState:
        """Move to another group; returns the network's state on all of its ranks.

        Args:
            stay: so many of the group's ranks, the first ones, have the network already.
            state: None on a rank that is new.
            failure: why a rank that is new could not build the network, to raise on all ranks now
                that they have met.

        Raises:
            TrainingFailed: on all ranks, when one has brought a failure.
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
