"""How fast networks that share a stream can train: the pace each is held to.

``free``      the window holds the whole data set: every network at its own rate
``lockstep``  a window of a few batches: all networks at the rate of the slowest
``streams``   several lockstep streams, each for networks of similar rates
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.base import InputError


@dataclass(frozen=True)
class Stream:
    """The preprocessed data that networks share.

    Args:
        count: how many lockstep streams there are; 0 is free pace.
        rate: samples/s that preprocessing produces in all; several streams share it evenly.
    """

    count: int = 0
    rate: float = math.inf

    def __post_init__(self) -> None:
        if self.count < 0:
            raise InputError(f"streams is {self.count}: 1 is lockstep, 0 is free pace")
        if not self.rate > 0:
            raise InputError(f"stream rate is {self.rate}: samples/s above 0")

    def paces(self, rates: Sequence[float], gpus: Sequence[int]) -> list[float]:
        """The pace of each network, samples/s.

        Args:
            rates: of the networks on their groups, samples/s.
            gpus: the sizes of the groups.

        >>> Stream(count=1).paces([30.0, 20.0, 90.0], [1, 1, 1])
        [20.0, 20.0, 20.0]
        >>> Stream(count=2, rate=100.0).paces([30.0, 20.0, 90.0], [1, 1, 1])
        [20.0, 20.0, 50.0]
        """
        if not rates:
            return []
        if self.count == 0:
            return [min(rate, self.rate) for rate in rates]
        if self.count == 1:
            return [min(*rates, self.rate)] * len(rates)
        slowest = _split(np.asarray(rates, dtype=float), np.asarray(gpus, dtype=float), self.count)
        return np.minimum(slowest, self.rate / self.count).tolist()


def _split(rates: np.ndarray, gpus: np.ndarray, count: int) -> np.ndarray:
    """The slowest rate of each network's stream, with the split that wastes the fewest GPUs.

    Networks in order of their rates are cut into ``count`` runs; a GPU of
    network i in a run whose slowest is s is busy for a share s / r_i.
    """
    order = np.argsort(rates, kind="stable")
    ordered = rates[order]
    per_rate = np.concatenate([[0.0], np.cumsum(gpus[order] / ordered)])
    size = len(rates)
    # busy[a, b]: GPUs at work in a run of networks a..b-1
    busy = np.where(np.arange(size + 1)[None, :] > np.arange(size)[:, None],
                    ordered[:, None] * (per_rate[None, :] - per_rate[:size, None]), -np.inf)
    best = np.full(size + 1, -np.inf)
    best[0] = 0.0
    cuts = []
    for _ in range(min(count, size)):
        total = best[:size, None] + busy
        cuts.append(np.argmax(total, axis=0))
        best = total.max(axis=0)
    slowest, end = np.empty(size), size
    for cut in reversed(cuts):
        slowest[order[cut[end]:end]] = ordered[cut[end]]
        end = cut[end]
    return slowest
