"""Sums of ranks that share a node, by memory that they share.

Each rank adds up one share of the array, a reduce-scatter, and takes the others' from them, an allgather, as in
R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of Collective Communication Operations in MPICH" (2005). MPI does
so, too, but by messages: with them each number is copied more often.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from fleet.comm.base import Group
from fleet.comm.segment import Segment, aligned, fence
from fleet.errors import InfrastructureError

Until: TypeAlias = Callable[[Callable[[], bool]], None]

# Bytes of each rank. Less would stay in a core's cache, but ranks would have to meet more often.
_STAGE = 2**21
_LINE = 64  # bytes of a cache line: no two ranks write into one


class NodeSum:
    """What the ranks of a group share to add up arrays.

    - ``turns[rank]``: how often this rank has come to a meeting of all; written by that rank alone.
    - ``stages[rank, share]``: what this rank brings to the share of another; and the sum of its own share. A share lies
      always there, however long it is: some ranks still read that of one piece when others bring the next.

    Args:
        memory: of this node, zeros at first, ``size_of(ranks)`` bytes.
        rank: of this one in the group.
        ranks: how many there are.
    """

    def __init__(self, memory: np.ndarray, rank: int, ranks: int) -> None:
        self._rank = rank
        self._turns = memory[:_LINE * ranks].view(np.int64)[::_LINE // 8]
        self._stages = memory[aligned(_LINE * ranks):].reshape(ranks, ranks, _share_size(ranks))
        self._turn = 0

    @staticmethod
    def size_of(ranks: int) -> int:
        """The bytes of memory that so many ranks share."""
        return aligned(_LINE * ranks) + ranks * ranks * _share_size(ranks)

    def add(self, values: np.ndarray, until: Until) -> None:
        """Replace an array (n,), on every rank, by the sum of all ranks' arrays; collective.

        Args:
            until: waits until a function says that it is so.
        """
        stages = self._stages.view(values.dtype)
        ranks, _, longest = stages.shape
        others = [rank for rank in range(ranks) if rank != self._rank]
        for start in range(0, len(values), ranks * longest):
            shares = np.array_split(values[start:start + ranks * longest], ranks)
            mine = shares[self._rank]
            for other in others:
                stages[self._rank, other, :len(shares[other])] = shares[other]
            self._meet(until)
            for other in others:
                mine += stages[other, self._rank, :len(mine)]
            stages[self._rank, self._rank, :len(mine)] = mine
            self._meet(until)
            for other in others:
                shares[other][:] = stages[other, other, :len(shares[other])]

    def _meet(self, until: Until) -> None:
        self._turn += 1
        fence()  # what this rank has written is there
        self._turns[self._rank] = self._turn
        until(lambda: bool((self._turns >= self._turn).all()))
        fence()


def _share_size(ranks: int) -> int:
    return _STAGE // ranks // _LINE * _LINE


def share_node(group: Group) -> NodeSum | None:
    """What the ranks of a group, all on one node, add up arrays with; None where memory is short; collective."""
    name, size = f"fleet-{os.getuid()}-sum-{secrets.token_hex(8)}", NodeSum.size_of(group.size)
    mine = _mapped(name, size, create=True) if group.is_master else None
    try:
        there = group.from_master(name if mine is not None else None)
        if there is not None and not group.is_master:
            mine = _mapped(there, size, create=False)
        have_all = all(group.exchange(mine is not None))
    finally:
        if mine is not None:
            mine.unlink()  # by each: a rank may have died
            mine.close()  # an open file would keep the memory when the group is gone
    if mine is None or not have_all:
        return None
    return NodeSum(np.frombuffer(mine.memory, np.uint8), group.rank, group.size)


def _mapped(name: str, size: int, create: bool) -> Segment | None:
    try:
        return Segment(name, size, create)
    except InfrastructureError:
        return None
