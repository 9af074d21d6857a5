"""The stream between nodes: each chunk is broadcast once, by the node that prepared it.

A relay broadcasts a window (without end) or a sample set (each chunk once).

One rank of each node, the node's leader, takes part. It receives a chunk from one leader and
forwards it to at most two, so that the number of hops grows with the logarithm of the nodes. Chunks
are sent in order of their number; a few broadcasts are in progress at a time, so that the network
is busy while samples are prepared. Chunks go from window to window without a copy. A node joins a
broadcast only once its slot is free, so the slowest reader of any node holds the stream back when
the windows are full, and not earlier.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from fleet.comm.protocols import Broadcast, World
from fleet.comm.roles import Roles
from fleet.stream.layout import Turns
from fleet.stream.sample_set import SampleSet
from fleet.stream.window import Window

_MAX_TRANSFERS = 4
_LAST_GROUP = 31999  # relays number their groups backwards from it; training groups count from 1


@dataclass(frozen=True)
class _Transfer:
    sequence: int
    is_local: bool  # prepared on this node
    broadcast: Broadcast


class Relay:
    """A leader's part in the stream between nodes; created by all leaders together.

    Args:
        target: this node's window or sample set.
        turns: which preprocessor prepares which chunk.
        number: the relay's number, unique in the run.
        end: one past the last chunk; None for a stream without end.
    """

    def __init__(
        self,
        world: World,
        roles: Roles,
        target: Window | SampleSet,
        turns: Turns,
        number: int,
        end: int | None = None,
    ) -> None:
        leaders = [roles.leader(node) for node in range(roles.nodes)]
        self._next = turns.first
        self._end = end
        self._world = world
        self._target = target
        self._group = world.group(leaders, _LAST_GROUP - 2 * number)
        # Leaders stop after different numbers of broadcasts, but collectives of one communicator
        # must be called in the same order: so they agree on the end in another one.
        self._ending = world.group(leaders, _LAST_GROUP - 2 * number - 1)
        self._turns = turns
        self._node_of = roles.node_of
        self._node = roles.node_of[world.rank]
        self._transfers: deque[_Transfer] = deque()
        self._advance()

    def step(self, claim: Callable[[int], bool]) -> bool:
        """Complete broadcasts and begin new ones; returns whether anything happened.

        Args:
            claim: returns whether a chunk of another node may be written here; if so, it will be.

        Raises:
            GroupMemberDied: the leader of another node has died.
        """
        with self._group.raising_group_failed():
            worked = self._complete() | self._begin(claim)
            if self._transfers and not worked:
                # MPI reports no death to a rank that only waits to receive.
                self._group.check()
            return worked

    def _root(self, sequence: int) -> int:
        return self._node_of[self._turns.rank_of(sequence)]

    def _is_local(self, sequence: int) -> bool:
        return self._root(sequence) == self._node

    def _complete(self) -> bool:
        done = list(takewhile(bool, self._test_transfers()))  # chunks are published in order
        for _ in done:
            transfer = self._transfers.popleft()
            if not transfer.is_local:
                self._target.publish(transfer.sequence)
        self._advance()
        return bool(done)

    def _test_transfers(self) -> list[bool]:
        """Test all broadcasts in progress; testing also forwards received data."""
        return [transfer.broadcast.is_done() for transfer in self._transfers]

    def _begin(self, claim: Callable[[int], bool]) -> bool:
        if len(self._transfers) >= _MAX_TRANSFERS or self._next == self._end:
            return False
        is_ready = self._target.has if self._is_local(self._next) else claim
        if not is_ready(self._next):
            return False
        rows = self._target.rows(self._next)
        self._post(self._target.inputs[rows], self._target.targets[rows])
        return True

    def _post(self, inputs: np.ndarray, targets: np.ndarray) -> None:
        sequence = self._next
        broadcast = self._group.start_broadcast([inputs, targets], self._root(sequence))
        self._transfers.append(_Transfer(sequence, self._is_local(sequence), broadcast))
        self._next += 1

    def _advance(self) -> None:
        """Move the relay's cursor, which protects chunks that are still to be sent."""
        self._target.mark_relayed(self._transfers[0].sequence if self._transfers else self._next)

    def finish(self) -> None:
        """Complete the broadcasts that any leader has started; collective over the leaders.

        MPI cannot cancel a broadcast, so all leaders take part; the data is never read.
        """
        last = max(self._ending.allgather(self._next))
        while self._next < last:
            count = self._target.length(self._next)
            self._post(
                np.empty_like(self._target.inputs[:count]),
                np.empty_like(self._target.targets[:count]),
            )
        self._world.wait(lambda: all(self._test_transfers()) or None)
        self._transfers.clear()
        self._group.free()
        self._ending.free()
