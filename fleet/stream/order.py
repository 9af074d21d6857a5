"""The samples of a network's epoch and their order (pure).

An epoch is a sequence of (production, sample) pairs. A *production* is one pass of preprocessing
over the data set: a prepared sample depends only on (seed, production, sample), so that any rank
can prepare any part of any epoch again.

- ``strict``: epoch e is production e in the order that the source draws for it.
- ``ring``: the data set is cut into fixed shards. Each production prepares all shards, in a random
  order: *chunk* ``s = t * shards + k`` is the k-th shard of production t. An epoch is any sequence
  of chunks that contains every shard once, its *path*.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from launch.place import format_numbers
from preprocess.base import ORDER, rng_for
from preprocess.length_order import BLOCK, run_size, shuffle_blocks, sort_by_length
from preprocess.record_pipeline import AnyPipeline


@dataclass(frozen=True)
class Epoch:
    """A request for an epoch.

    Attributes:
        number: the stream's epoch (strict), or the production to begin with (ring).
        path: the chunks of the ring that were consumed so far, in order; empty in strict order.
    """

    number: int
    path: tuple[int, ...] = ()


@dataclass(frozen=True)
class EpochPlan:
    """All samples of an epoch.

    Attributes:
        productions: (samples,) int64, the production of each sample.
        indices: (samples,) int64, each sample's index in the source.
        path: the chunks in order; empty in strict order.
    """

    productions: np.ndarray
    indices: np.ndarray
    path: tuple[int, ...] = ()


class Order(Protocol):
    """A mapping from epochs, and chunks of the stream, to samples."""

    def chunk(self, sequence: int) -> tuple[int, np.ndarray]:
        """Return the production of a chunk, and the indices (samples,) int64 of its samples."""

    def plan_epoch(self, epoch: Epoch, consumed: Container[int] = ()) -> EpochPlan:
        """Return all samples of an epoch, for ranks that prepare it themselves.

        Args:
            consumed: chunks of the ring that the network has consumed in other epochs.
        """


class StrictOrder:
    """Every epoch is one permutation, cut into chunks.

    Args:
        orders: draws the permutations.
        size: number of samples of a chunk.
    """

    def __init__(self, orders: AnyPipeline, size: int) -> None:
        self._orders = orders
        self._size = size
        self._latest: tuple[int, np.ndarray] | None = None

    def _order(self, epoch: int) -> np.ndarray:
        if self._latest is None or self._latest[0] != epoch:
            self._latest = epoch, self._orders.order(epoch)
        return self._latest[1]

    def chunk(self, sequence: int) -> tuple[int, np.ndarray]:  # noqa: D102 - see Order
        if self._latest is None:
            self._order(0)
        assert self._latest is not None
        epoch, position = divmod(sequence, -(-len(self._latest[1]) // self._size))
        return epoch, self._order(epoch)[position * self._size : (position + 1) * self._size]

    def plan_epoch(self, epoch: Epoch, consumed: Container[int] = ()) -> EpochPlan:  # noqa: D102
        indices = self._order(epoch.number)
        return EpochPlan(np.full(len(indices), epoch.number), indices)


class RingOrder:
    """Each production is a permutation of fixed shards, which groups read in any order.

    A shard is a contiguous part of the source's order, so that sequential sources are still read in
    sequence. All shards have ``size`` samples except the last, which may be shorter and then comes
    last in every production, so that chunks begin at multiples of ``size``.

    If samples differ in length, shards hold samples of like length, and a production is ordered
    like other epochs of such samples, with shards for blocks; see :mod:`preprocess.length_order`.

    Args:
        orders: draws the order that is cut into shards.
        size: number of samples of a shard.
        seed: seed of the order of shards in each production, and of samples in each shard.
        recorded: the paths of epochs 0, 1, ... of a replay.
    """

    def __init__(
        self,
        orders: AnyPipeline,
        size: int,
        seed: int,
        recorded: Sequence[tuple[int, ...]] = (),
    ) -> None:
        self._lengths = orders.lengths
        self._samples = orders.order(0)
        if self._lengths is not None:
            self._samples = self._samples[np.argsort(self._lengths[self._samples], kind="stable")]
        self._size = size
        self._seed = seed
        self._recorded = tuple(recorded)
        self.shards = -(-len(self._samples) // size)
        self._full_shards = len(self._samples) // size
        self._latest: tuple[int, np.ndarray] | None = None
        self._is_backward = np.zeros(self.shards, bool)  # of the latest production

    def shard(self, sequence: int) -> int:
        """Return the shard of a chunk."""
        production, position = divmod(sequence, self.shards)
        if self._latest is None or self._latest[0] != production:
            order = self._draw_shards(rng_for(self._seed, ORDER, production, 1))
            self._latest = production, np.append(order, range(self._full_shards, self.shards))
        return int(self._latest[1][position])

    def _draw_shards(self, rng: np.random.Generator) -> np.ndarray:
        """Draw the order of the full shards in a production, and their directions."""
        if self._lengths is None:
            return rng.permutation(self._full_shards)
        block = max(1, BLOCK // self._size)
        run = block * -(-run_size(len(self._samples)) // (block * self._size))
        parts = shuffle_blocks(self._full_shards, block, run, rng)
        for part in parts:
            self._is_backward[list(part)] = part.step < 0
        return np.concatenate([np.arange(0), *(np.asarray(part) for part in parts)])

    def chunk(self, sequence: int) -> tuple[int, np.ndarray]:  # noqa: D102 - see Order
        production = sequence // self.shards
        shard = self.shard(sequence)
        samples = self._samples[shard * self._size : (shard + 1) * self._size]
        rng = rng_for(self._seed, ORDER, production, 2, shard)
        samples = rng.permutation(samples)
        if self._lengths is not None:
            samples = sort_by_length(samples, self._lengths, rng)
            if self._is_backward[shard]:
                samples = samples[::-1]
        return production, samples

    def plan_epoch(self, epoch: Epoch, consumed: Container[int] = ()) -> EpochPlan:  # noqa: D102
        path = self._complete(epoch, consumed)
        parts = [self.chunk(sequence) for sequence in path]
        productions = np.concatenate(
            [np.full(len(samples), production) for production, samples in parts]
        )
        return EpochPlan(productions, np.concatenate([samples for _, samples in parts]), path)

    def _complete(self, epoch: Epoch, consumed: Container[int]) -> tuple[int, ...]:
        """Complete a path with the next chunks that hold its missing shards."""
        if not epoch.path and epoch.number < len(self._recorded):
            return self._recorded[epoch.number]
        path = list(epoch.path)
        lacks = set(range(self.shards)) - {self.shard(sequence) for sequence in path}
        sequence = max(path) + 1 if path else epoch.number * self.shards
        while lacks:
            shard = self.shard(sequence)
            if shard in lacks and sequence not in consumed:
                lacks.remove(shard)
                path.append(sequence)
            sequence += 1
        return tuple(path)


class FoldOrder:
    """An order without the samples of the fold that evaluates a network.

    Positions count only the samples that the network trains on, so readers of batches need not know
    about folds. See docs/design/folds.md.

    Args:
        order: the order of all samples.
        keeps: (samples of the source,) bool, True for the samples that the network trains on.
    """

    def __init__(self, order: Order, keeps: np.ndarray) -> None:
        self._order = order
        self._keeps = keeps

    def chunk(self, sequence: int) -> tuple[int, np.ndarray]:  # noqa: D102 - see Order
        production, indices = self._order.chunk(sequence)
        return production, indices[self._keeps[indices]]

    def plan_epoch(self, epoch: Epoch, consumed: Container[int] = ()) -> EpochPlan:  # noqa: D102
        plan = self._order.plan_epoch(epoch, consumed)
        is_kept = self._keeps[plan.indices]
        return EpochPlan(plan.productions[is_kept], plan.indices[is_kept], plan.path)


def runs(productions: np.ndarray) -> list[tuple[int, slice]]:
    """Split samples into runs of one production; returns (production, slice) of each.

    >>> runs(np.array([4, 4, 5]))
    [(4, slice(0, 2, None)), (5, slice(2, 3, None))]
    """
    cuts = [0, *(1 + np.flatnonzero(np.diff(productions))).tolist(), len(productions)]
    return [
        (int(productions[first]), slice(first, last))
        for first, last in itertools.pairwise(cuts)
        if first < last
    ]


def format_path(path: Sequence[int]) -> str:
    """Format a path compactly.

    >>> format_path((3, 4, 5, 9, 7, 8)), format_path(())
    ('3-5 9 7-8', '')
    """
    return format_numbers(path, " ")


def parse_path(text: str) -> tuple[int, ...]:
    """Parse the output of :func:`format_path`.

    >>> parse_path("3-5 9 7-8")
    (3, 4, 5, 9, 7, 8)
    """
    path: list[int] = []
    for run in text.split():
        first, _, last = run.partition("-")
        path += range(int(first), int(last or first) + 1)
    return tuple(path)
