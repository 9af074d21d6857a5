"""Sums over ranks of one node in shared memory.

Each rank adds up one share of the array (a reduce-scatter) and copies the other shares from the
other ranks (an allgather), as in R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of
Collective Communication Operations in MPICH" (2005). MPI does the same with messages, which copy
each number more often.
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

# Bytes of each rank. A core's cache holds them; with fewer, ranks would synchronize more often.
_STAGE = 2**21
_LINE = 64  # bytes of a cache line; each is written by one rank only


class NodeSum:
    """The shared memory in which the ranks of a group add up arrays.

    - ``turns[rank]``: the number of barriers that this rank has reached; written by it alone.
    - ``stages[rank, share]``: this rank's contribution to the share of another rank, or the sum of
      its own share. The place does not depend on the share's length, because some ranks still read
      the sums of one piece while others write the next piece.

    Args:
        turns: (ranks, 8) int64, zeros at first; one cache line per rank, of which the first number
            is used.
        stages: (ranks, ranks, bytes of a share) uint8.
        rank: this process's rank in the group.
    """

    def __init__(self, turns: np.ndarray, stages: np.ndarray, rank: int) -> None:
        self._turns = turns[:, 0]
        self._stages = stages
        self._rank = rank
        self._turn = 0

    def add(self, values: np.ndarray, until: Until) -> None:
        """Replace an array (n,), on every rank, by the sum of all ranks' arrays; collective.

        Args:
            until: waits until a function returns True.
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
        fence()  # publish this rank's writes
        self._turns[self._rank] = self._turn
        until(lambda: bool((self._turns >= self._turn).all()))
        fence()


def forms(ranks: int) -> tuple[tuple[Any, ...], ...]:
    """Return dtypes and shapes of the shared arrays, as :func:`map_arrays` takes them."""
    return (np.int64, ranks, _LINE // 8), (np.uint8, ranks, ranks, _STAGE // ranks // _LINE * _LINE)


def make_node_sum(group: Group) -> NodeSum | None:
    """Map memory for a group's sums on one node; None if there is too little; collective."""
    name = f"fleet-{os.getuid()}-sum-{secrets.token_hex(8)}"
    mapping = _mapped(name, group.size, create=True) if group.is_master else None
    try:
        master_name = group.broadcast_value(name if mapping is not None else None)
        if master_name is not None and not group.is_master:
            mapping = _mapped(master_name, group.size, create=False)
        have_all = all(group.allgather(mapping is not None))
    finally:
        if mapping is not None:
            mapping[0].unlink()  # on every rank, because the master may have died
            mapping[0].close()  # an open file would keep the memory after the group is freed
    if mapping is None or not have_all:
        return None
    turns, stages = mapping[1]
    return NodeSum(turns, stages, group.rank)


def _mapped(name: str, ranks: int, create: bool) -> tuple[Segment, list[np.ndarray]] | None:
    try:
        return map_arrays(name, create, *forms(ranks))
    except InfrastructureError:
        return None
