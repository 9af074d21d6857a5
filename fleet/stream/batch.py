"""Batches: the interface between the stream and training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fleet.comm.protocols import Group
from fleet.stream.order import Epoch


@dataclass(frozen=True)
class Batch:
    """This rank's rows of one global batch.

    Attributes:
        inputs: (rows, ...) inputs of the stream's dtype.
        targets: (rows,) of the stream's dtype of targets
            (:attr:`preprocess.target.TargetSpec.wire`): labels, or records of a target and a
            weight. Unusable samples are marked and excluded from loss and metrics.
        size: number of rows of the global batch.
        position: number of samples of the epoch that are consumed after this batch.
        is_last: whether it is the epoch's last batch.
        epoch: the epoch as consumed after this batch: its number (in a ring, that of the latest
            production) and its path.
        missed: number of chunks of a ring so far that the epoch needed and one node of the group
            held, but another had overwritten.
        indices: (rows,) int64, the samples' rows in the data set
            (:func:`preprocess.base.row_numbers`); None unless requested.
    """

    inputs: np.ndarray
    targets: np.ndarray
    size: int
    position: int
    is_last: bool
    epoch: Epoch
    missed: int = 0
    indices: np.ndarray | None = None


class WholeBatchGroup(Group):
    """A group each of whose ranks reads all rows of a batch, as a single rank would.

    Args:
        group: the group of the ranks, by which they agree.
    """

    rank = 0
    size = 1

    def __init__(self, group: Group) -> None:
        self._group = group
        self.ranks = group.ranks
        for name in ("allgather", "barrier", "broadcast_value", "check", "raising_group_failed"):
            setattr(self, name, getattr(group, name))


def split_rows(first: int, last: int, rank: int, size: int) -> tuple[int, int]:
    """Return one rank's contiguous rows; shares differ by one row at most.

    >>> [split_rows(0, 10, rank, 3) for rank in range(3)]
    [(0, 4), (4, 7), (7, 10)]
    """
    share, more = divmod(last - first, size)
    start = first + rank * share + min(rank, more)
    return start, start + share + (rank < more)
