"""A network of the numpy engine that takes a step as late as it may: when the next has begun, or its sums are read."""

import dataclasses
import time
from typing import ClassVar

import numpy as np

from fleet.engines.base import StepResult, StepTotals
from fleet.engines.softmax import SoftmaxRegression


class BeginningRegression(SoftmaxRegression):
    """Sees that nobody asks anything of it while a step is under way; takes several steps at once."""

    under_way = None
    taken: ClassVar[list] = []  # (ranks, steps) of each call

    def begin_together(self, images, targets, sizes, rows, asked, weights=None):
        self._end()
        self.taken.append((self._group.size, len(sizes)))
        assert sum(rows) == len(targets)
        own_rows, places = (
            [part if part is None else part.copy() for part in (images, targets, weights)],
            np.cumsum(rows),
        )
        steps = [
            (*step, size, asked)
            for *step, size in zip(
                *(
                    len(sizes) * [None] if part is None else np.split(part, places[:-1])
                    for part in own_rows
                ),
                sizes,
                strict=True,
            )
        ]
        self.under_way = done = []

        def end():
            if self.under_way is done:
                self._end()
            return StepResult(done[0], time.perf_counter())

        done += [None, steps]
        return end

    def _end(self):
        if self.under_way is not None:
            done, self.under_way = self.under_way, None
            done[0] = [
                self._asking(request, self.step(images, targets, size, request.stop, weights))
                for images, targets, weights, size, request in done[1]
            ]

    def _asking(self, asked, sums):
        """The sums of a step, and what the ranks have asked for beside it."""
        numbers = StepTotals(steps=asked.steps).pack()
        self._group.sum(numbers)
        return dataclasses.replace(sums, steps=StepTotals.unpack(numbers).steps)

    def can_stride(self):
        return True

    def state(self):
        assert self.under_way is None
        return super().state()

    def evaluate(self, *arguments):
        assert self.under_way is None
        return super().evaluate(*arguments)

    def regroup(self, group):
        assert self.under_way is None
        super().regroup(group)
