"""Steps that a GPU computes while Python makes the next batch: a rank alone reads their sums when they are over."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from fleet.engines.base import Done, Rows, Sums, readable, rows_of
from fleet.engines.torch.network import TorchNetwork


class AheadNetwork(TorchNetwork):
    """A module whose steps are handed to a GPU, which takes them in order. Ranks of a group wait for each other."""

    def begin(self, images: np.ndarray, targets: np.ndarray, sizes: Sequence[int],  # noqa: D102 - Beginning says it
              stop: bool = False, weights: np.ndarray | None = None) -> Callable[[], Done]:
        if not self.can_stride():
            sums = [self.step(images, targets, sizes[0], stop, weights)]
            return lambda: Done(sums, time.perf_counter())
        mine, first = rows_of(images, targets, weights), 0
        found = torch.zeros(len(sizes), len(self._flat.tail), pin_memory=self._device.type == "cuda")
        for size, into in zip(sizes, found, strict=True):
            last = first + size if len(sizes) > 1 else len(targets)
            self._take(readable(tuple(part[first:last] for part in mine)), size, into)
            first = last
        over = torch.cuda.Event() if self._device.type == "cuda" else None
        if over is not None:
            over.record()

        def wait() -> Done:
            if over is not None:
                over.synchronize()
            return Done([Sums.unpack(row) for row in found.tolist()], time.perf_counter())

        return wait

    def _take(self, mine: Rows, size: int, into: torch.Tensor) -> None:
        """A step, of which nothing is waited for; a batch of which no sample could be read changes nothing."""
        if len(mine[1]):
            self._compute(mine, size, False)
            self._updates.step(size / len(mine[1]))
            into.copy_(self._flat.tail, non_blocking=True)
