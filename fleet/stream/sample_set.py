"""Samples that stay in a node's shared memory: those for validation, or all decoded training samples."""

from __future__ import annotations

import numpy as np

from fleet.comm.segment import fence, map_arrays
from fleet.stream.layout import LABEL
from preprocess.sample import ImageSpec


class SampleSet:
    """Samples that stay, one copy on each node: those for validation, or all decoded training samples.

    Args:
        image: what the input of one sample is.
        samples: how many.
        chunk: how many a preprocessor takes at a time.
        target: the type in which targets travel.

    Attributes:
        images: (samples, ...), of the input's shape and type.
        targets: (samples,) of the target's type.
    """

    def __init__(
        self,
        image: ImageSpec,
        samples: int,
        chunk: int,
        name: str,
        create: bool,
        target: np.dtype = LABEL,
    ) -> None:
        self.samples = samples
        self.chunk = chunk
        self.chunks = -(-samples // chunk)
        self.segment, (self._ready, self.targets, self.images) = map_arrays(
            name,
            create,
            (np.int64, self.chunks),
            (target, samples),
            (image.dtype, samples, *image.shape),
        )

    def rows(self, chunk: int) -> slice:
        """The rows of one chunk."""
        return slice(chunk * self.chunk, min(self.samples, (chunk + 1) * self.chunk))

    def length(self, chunk: int) -> int:
        """The samples of one chunk."""
        rows = self.rows(chunk)
        return rows.stop - rows.start

    def publish(self, chunk: int) -> None:
        """Say that a chunk is complete."""
        fence()
        self._ready[chunk] = 1

    def has(self, chunk: int) -> bool:
        """Whether a chunk is complete."""
        complete = bool(self._ready[chunk])
        fence()
        return complete

    def has_rows(self, rows: np.ndarray) -> bool:
        """Whether all of these rows are there."""
        complete = bool(self._ready[rows // self.chunk].all())
        fence()
        return complete

    def ready(self) -> int:
        """How many chunks are there."""
        return int(self._ready.sum())

    def is_complete(self) -> bool:
        """Whether all samples are there."""
        complete = bool(self._ready.all())
        fence()
        return complete

    def mark_relayed(self, sequence: int) -> None:
        """Nothing waits for it: what is there stays."""
