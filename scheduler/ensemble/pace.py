"""Model how networks that share preprocessed data hold each other back: the pace of each.

==========  ==========================================================================
free        the window holds the whole data set: every network at its own rate
lockstep    a window of a few batches: all networks at the rate of the slowest
n streams   n lockstep streams, each for networks of similar rates
ring        a window of some shards of a ring: every network at its own rate, as long as
            a shard is in the window that it has not trained on in this epoch
==========  ==========================================================================
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from launch.errors import InputError, pluralize
from scheduler.base import MIN_VALUE

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Ring:
    """A ring of shards with a decoded window.

    Args:
        shards: number of shards of the data set.
        window: share of the data set that is kept in memory.
        surplus: the ring turns at most this many times faster than the fastest group trains.
    """

    shards: int = 50
    window: float = 0.1
    surplus: float = 4.0

    def __post_init__(self) -> None:
        if self.shards < 1 or not 0 < self.window <= 1:
            raise InputError(
                f"a ring of {pluralize(self.shards, 'shard')} with a window of {self.window:.0%}: "
                "it needs at least 1 shard, and a window above 0 % and at most 100 %"
            )

    @property
    def window_shards(self) -> int:
        """The number of shards in the window."""
        return max(1, round(self.window * self.shards))


@dataclass(frozen=True)
class Stream:
    """The preprocessed data that networks share.

    Args:
        count: number of lockstep streams; 0 if networks do not hold each other back.
        rate: samples/s that preprocessing produces in all; several streams share it evenly.
        ring: the ring, if the window is a part of the data set.
        change_at_any_step: whether a network may change streams within its epoch; its samples must
            then be tracked one by one.
    """

    count: int = 0
    rate: float = math.inf
    ring: Ring | None = None
    change_at_any_step: bool = False

    def __post_init__(self) -> None:
        if self.count < 0:
            raise InputError(
                f"{self.count} streams: it must be 0 (free pace), 1 (lockstep) or more"
            )
        if not self.rate >= MIN_VALUE:
            raise InputError(
                f"the stream's rate is {self.rate}; it must be at least {MIN_VALUE} samples/s"
            )

    @property
    def supply(self) -> float:
        """The most samples/s that each network gets."""
        return self.rate / max(1, self.count)

    def split(self, rates: Sequence[float], gpus: Sequence[int]) -> list[int]:
        """Return the best stream for each network: the cut that wastes the fewest GPUs.

        Networks in order of their rates are cut into ``count`` runs. A GPU of
        network i in a run whose slowest has rate s is busy for a share s / r_i.

        Args:
            rates: the rates of the networks on their groups, samples/s.
            gpus: the sizes of the groups.

        >>> Stream(count=2).split([30.0, 20.0, 90.0], [1, 1, 1])
        [0, 0, 1]
        """
        if self.count < 2 or len(rates) < 2:
            return [0] * len(rates)
        return _cut(
            np.asarray(rates, dtype=np.float64), np.asarray(gpus, dtype=np.float64), self.count
        )

    def paces(self, rates: Sequence[float], streams: Sequence[int]) -> list[float]:
        """Return the pace of each network, samples/s.

        Args:
            rates: the rates of the networks on their groups, samples/s.
            streams: the stream of each network.

        >>> Stream(count=2, rate=100.0).paces([30.0, 20.0, 90.0], [0, 0, 1])
        [20.0, 20.0, 50.0]
        """
        if self.count == 0:
            return [min(rate, self.supply) for rate in rates]
        slowest: dict[int, float] = {}
        for rate, stream in zip(rates, streams, strict=True):
            slowest[stream] = min(rate, slowest.get(stream, self.supply))
        return [slowest[stream] for stream in streams]


FREE = Stream()
LOCKSTEP = Stream(count=1)


def _cut(rates: Floats, gpus: Floats, count: int) -> list[int]:
    """Cut networks, ordered by rate, into runs, by a dynamic program."""
    order = np.argsort(rates, kind="stable")
    ordered = rates[order]
    size = len(rates)
    per_rate = np.concatenate([[0.0], np.cumsum(gpus[order] / ordered)])
    # busy[a, b]: GPUs at work in a run of networks a..b-1
    busy = np.where(
        np.arange(size + 1) > np.arange(size)[:, None],
        ordered[:, None] * (per_rate - per_rate[:size, None]),
        -np.inf,
    )
    best = np.concatenate([[0.0], np.full(size, -np.inf)])
    cuts = []
    for _ in range(min(count, size)):
        total = best[:size, None] + busy
        cuts.append(np.argmax(total, axis=0))
        best = total.max(axis=0)
    stream = np.empty(size, dtype=np.int64)
    end = size
    for run in reversed(range(len(cuts))):
        begin = int(cuts[run][end])
        stream[order[begin:end]] = run
        end = begin
    return stream.tolist()
