"""The samples that networks are judged by, as trainers iterate over them."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator
from typing import Protocol

import numpy as np

from fleet.comm.base import World
from fleet.stream.base import split_rows
from fleet.stream.sample_set import SampleSet
from fleet.stream.stall import await_written, clock_for_set
from preprocess.base import BadSample
from preprocess.pipeline import Pipeline


class Validation(Protocol):
    """The validation samples, or those of the test data, the same for every network."""

    samples: int

    def batches(self, batch: int, rank: int, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """This rank's share of all samples, in batches of (images, targets)."""


class SharedValidation:
    """Reads the validation samples of this node.

    Args:
        rows: those that networks are judged by; None for all.
        stall_s: a wait so long without a further chunk is an error.
        writers: the ranks that prepare them.
    """

    def __init__(self, shared: SampleSet, world: World, stall_s: float = math.inf, writers: Container[int] = (),
                 rows: np.ndarray | None = None) -> None:
        self.samples = shared.samples if rows is None else len(rows)
        self._rows = rows
        self._shared, self._world, self._stall_s, self._writers = shared, world, stall_s, writers

    def await_all(self) -> None:
        """Wait until all samples are there.

        Raises:
            WriterLost: a rank that prepares them has died.
            InfrastructureError: no further ones have come for too long.
        """
        clock = clock_for_set(self._shared, "validation", self._stall_s)
        await_written(self._world, self._writers, lambda: self._shared.is_complete() or None, clock)

    def batches(self, batch: int, rank: int, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:  # noqa: D102
        self.await_all()
        yield from _slices(self._shared.images, self._shared.targets, batch, rank, size, self._rows)


class OwnValidation:
    """Prepares all validation samples, or some rows of them, at first use, and keeps them."""

    def __init__(self, pipeline: Pipeline, on_bad: Callable[[BadSample], None], rows: np.ndarray | None = None) -> None:
        self._rows = np.arange(pipeline.samples) if rows is None else rows
        self.samples = len(self._rows)
        self._pipeline, self._on_bad = pipeline, on_bad
        self._held: tuple[np.ndarray, np.ndarray] | None = None

    def batches(self, batch: int, rank: int, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:  # noqa: D102
        if self._held is None:
            images, targets = self._pipeline.empty(self.samples)
            for sample in self._pipeline.load(self._rows, 0, images, targets, training=False):
                self._on_bad(sample)
            self._held = images, targets
        yield from _slices(*self._held, batch, rank, size)


class PassingSamples:
    """Prepares samples whenever they are asked for, each rank its share, and keeps none: test data is read rarely."""

    def __init__(self, pipeline: Pipeline, on_bad: Callable[[BadSample], None]) -> None:
        self.samples = pipeline.samples
        self._pipeline, self._on_bad = pipeline, on_bad

    def batches(self, batch: int, rank: int, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:  # noqa: D102
        start, stop = split_rows(0, self.samples, rank, size)
        for first in range(start, stop, batch):
            rows = range(first, min(first + batch, stop))
            images, targets = self._pipeline.empty(len(rows))
            for sample in self._pipeline.load(rows, 0, images, targets, training=False):
                self._on_bad(sample)
            yield images, targets


def _slices(images: np.ndarray, targets: np.ndarray, batch: int, rank: int, size: int, rows: np.ndarray | None = None
            ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    start, stop = split_rows(0, len(targets) if rows is None else len(rows), rank, size)
    for first in range(start, stop, batch):
        part: slice | np.ndarray = slice(first, min(first + batch, stop))
        if rows is not None:
            part = rows[part]
        yield images[part], targets[part]
