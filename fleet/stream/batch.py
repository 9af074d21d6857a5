"""Batches: the interface between the stream and training."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fleet.comm.protocols import Group
from fleet.stream.order import Epoch


@dataclass(frozen=True)
class Batch:
    """This rank's rows of one global batch.

    Attributes:
        images: (rows, ...), the inputs as they are on the wire.
        targets: (rows,) of the type in which targets travel
            (:attr:`preprocess.target.TargetSpec.wire`): labels, or records of a target and a
            weight. A sample that could not be used is marked, and counts for nothing.
        size: rows of the global batch.
        position: samples of the epoch that are consumed once this batch is.
        is_last: of the epoch.
        epoch: what is consumed then: its number, or in a ring the latest production, and the path.
        missed: chunks of a ring that were of use to the epoch so far, that a node of the group
            held, and that another had overwritten.
    """

    images: np.ndarray
    targets: np.ndarray
    size: int
    position: int
    is_last: bool
    epoch: Epoch
    missed: int = 0


def split_rows(first: int, last: int, rank: int, size: int) -> tuple[int, int]:
    """Return one rank's contiguous rows; shares differ by one row at most.

    >>> [split_rows(0, 10, rank, 3) for rank in range(3)]
    [(0, 4), (4, 7), (7, 10)]
    """
    share, more = divmod(last - first, size)
    start = first + rank * share + min(rank, more)
    return start, start + share + (rank < more)


class Batches(Protocol):
    """An iterable source of a rank's rows of the batches of an epoch."""

    def batches(
        self, epoch: Epoch, start: int, batch: int, group: Group, consumed: Container[int] = ()
    ) -> Iterator[Batch]:
        """Yield the batches of an epoch from ``start`` on; each is valid until the next.

        Args:
            consumed: chunks of the ring that the network has consumed in its earlier epochs.
        """
