"""Stored sample sets in shared memory: validation or decoded training samples."""

from __future__ import annotations

import numpy as np

from fleet.comm.segment import fence, map_arrays
from fleet.stream.layout import LABEL
from preprocess.sample import InputSpec


class SampleSet:
    """A stored sample set, one copy per node.

    Args:
        array: shape and dtype of the input of one sample.
        samples: number of samples.
        chunk: number of samples that a preprocessor prepares at a time.
        name, create: see :class:`fleet.comm.segment.Segment`.
        target: dtype of targets in the stream.

    Attributes:
        inputs: (samples, ...) of the input's shape and dtype.
        targets: (samples,) of the target's dtype.
    """

    def __init__(
        self,
        array: InputSpec,
        samples: int,
        chunk: int,
        name: str,
        create: bool,
        target: np.dtype = LABEL,
    ) -> None:
        self.samples = samples
        self.chunk = chunk
        self.chunks = -(-samples // chunk)
        self.segment, (self._ready, self.targets, self.inputs) = map_arrays(
            name,
            create,
            (np.int64, self.chunks),
            (target, samples),
            (array.dtype, samples, *array.shape),
        )

    def rows(self, chunk: int) -> slice:
        """Return the rows of one chunk."""
        return slice(chunk * self.chunk, min(self.samples, (chunk + 1) * self.chunk))

    def length(self, chunk: int) -> int:
        """Return the number of samples of one chunk."""
        rows = self.rows(chunk)
        return rows.stop - rows.start

    def publish(self, chunk: int) -> None:
        """Mark a chunk as complete."""
        fence()
        self._ready[chunk] = 1

    def has(self, chunk: int) -> bool:
        """Return True if a chunk is complete."""
        complete = bool(self._ready[chunk])
        fence()
        return complete

    def has_rows(self, rows: np.ndarray) -> bool:
        """Return True if all of these rows (k,) int64 are ready."""
        complete = bool(self._ready[rows // self.chunk].all())
        fence()
        return complete

    def ready(self) -> int:
        """Return the number of complete chunks."""
        return int(self._ready.sum())

    def is_complete(self) -> bool:
        """Return True if all samples are ready."""
        complete = bool(self._ready.all())
        fence()
        return complete

    def mark_relayed(self, sequence: int) -> None:
        """Do nothing: a stored set keeps its samples."""
