"""A network of the numpy engine that computes a step as late as possible.

It computes when the next step begins, or when the sums are read.
"""

import dataclasses
import time
from typing import ClassVar

import numpy as np

from fleet.engines.base import StepResult, StepTotals
from fleet.engines.softmax import SoftmaxRegression
from fleet.engines.steps import MAX_STEPS, StepCapabilities


class AsyncRegression(SoftmaxRegression):
    """Checks that the network is not used during a step; takes several steps per call."""

    pending = None
    calls: ClassVar[list] = []  # (ranks, steps) of each call

    capabilities = StepCapabilities(MAX_STEPS, can_overlap=True)

    def begin_steps(self, batches):
        self._end()
        local_rows, sizes, counts, flags = batches
        self.calls.append((self._group.size, len(sizes)))
        assert sum(counts) == len(local_rows[1])
        cuts = np.cumsum(counts)[:-1]
        parts = [np.split(array.copy(), cuts) for array in local_rows]
        steps = list(zip(zip(*parts, strict=True), sizes, len(sizes) * [flags], strict=True))
        self.pending = call = []

        def end():
            if self.pending is call:
                self._end()
            return StepResult(call[0], time.perf_counter())

        call += [None, steps]
        return end

    def _end(self):
        if self.pending is not None:
            call, self.pending = self.pending, None
            call[0] = [
                self._with_flags(flags, self.step(images, targets, size, flags.stop, *weights))
                for (images, targets, *weights), size, flags in call[1]
            ]

    def _with_flags(self, flags, sums):
        """Return the sums of a step with the summed flags of all ranks."""
        numbers = StepTotals(steps=flags.steps).pack()
        self._group.sum(numbers)
        return dataclasses.replace(sums, steps=StepTotals.unpack(numbers).steps)

    def state(self):
        assert self.pending is None
        return super().state()

    def evaluate(self, *arguments):
        assert self.pending is None
        return super().evaluate(*arguments)

    def regroup(self, group):
        assert self.pending is None
        super().regroup(group)
