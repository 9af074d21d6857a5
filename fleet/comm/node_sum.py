"""Sums over ranks of one node in shared memory.

Each rank adds up one share of the array, a reduce-scatter, and takes the others' from them, an
allgather, as in R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of Collective Communication
Operations in MPICH" (2005). MPI does so, too, but by messages: with them each number is copied more
often.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from fleet.comm.protocols import Group
from fleet.comm.segment import Segment, fence, map_arrays
from fleet.errors import InfrastructureError

Until: TypeAlias = Callable[[Callable[[], bool]], None]

# Bytes of each rank: a core's cache holds them, and with fewer ranks would have to meet more often.
_STAGE = 2**21
_LINE = 64  # bytes of a cache line: no two ranks write into one


class NodeSum:
    """The shared memory in which the ranks of a group add up arrays.

    - ``turns[rank]``: how often this rank has come to a meeting of all; written by that rank alone.
    - ``stages[rank, share]``: what this rank brings to the share of another; and the sum of its own
      share. A share lies always there, however long it is: some ranks still read that of one piece
      when others bring the next.

    Args:
        turns: (ranks, 8) int64, zeros at first; of each rank a cache line, whose first number
            counts.
        stages: (ranks, ranks, bytes of a share) uint8.
        rank: of this one in the group.
    """

    def __init__(self, turns: np.ndarray, stages: np.ndarray, rank: int) -> None:
        self._turns = turns[:, 0]
        self._stages = stages
        self._rank = rank
        self._turn = 0

    def add(self, values: np.ndarray, until: Until) -> None:
        """Replace an array (n,), on every rank, by the sum of all ranks' arrays; collective.

        Args:
            until: waits until a function says that it is so.
        """
        stages = self._stages.view(values.dtype)
        ranks, _, longest = stages.shape
        peers = [rank for rank in range(ranks) if rank != self._rank]
        for start in range(0, len(values), ranks * longest):
            shares = np.array_split(values[start : start + ranks * longest], ranks)
            own_share = shares[self._rank]
            for peer in peers:
                stages[self._rank, peer, : len(shares[peer])] = shares[peer]
            self._barrier(until)
            for peer in peers:
                own_share += stages[peer, self._rank, : len(own_share)]
            stages[self._rank, self._rank, : len(own_share)] = own_share
            self._barrier(until)
            for peer in peers:
                shares[peer][:] = stages[peer, peer, : len(shares[peer])]

    def _barrier(self, until: Until) -> None:
        self._turn += 1
        fence()  # what this rank has written is there
        self._turns[self._rank] = self._turn
        until(lambda: bool((self._turns >= self._turn).all()))
        fence()


def forms(ranks: int) -> tuple[tuple[Any, ...], ...]:
    """Return types and shapes of the shared arrays, as :func:`map_arrays` takes them."""
    return (np.int64, ranks, _LINE // 8), (np.uint8, ranks, ranks, _STAGE // ranks // _LINE * _LINE)


def make_node_sum(group: Group) -> NodeSum | None:
    """Map the memory for sums of a group on one node; None if it is short; collective."""
    name = f"fleet-{os.getuid()}-sum-{secrets.token_hex(8)}"
    mapping = _mapped(name, group.size, create=True) if group.is_master else None
    try:
        master_name = group.broadcast_value(name if mapping is not None else None)
        if master_name is not None and not group.is_master:
            mapping = _mapped(master_name, group.size, create=False)
        have_all = all(group.allgather(mapping is not None))
    finally:
        if mapping is not None:
            mapping[0].unlink()  # by each: a rank may have died
            mapping[0].close()  # an open file would keep the memory when the group is gone
    if mapping is None or not have_all:
        return None
    turns, stages = mapping[1]
    return NodeSum(turns, stages, group.rank)


def _mapped(name: str, ranks: int, create: bool) -> tuple[Segment, list[np.ndarray]] | None:
    try:
        return map_arrays(name, create, *forms(ranks))
    except InfrastructureError:
        return None
