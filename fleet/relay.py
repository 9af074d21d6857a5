"""The stream between nodes: each chunk is broadcast once, from the node that prepared it to all others.

One rank on each node, its leader, takes part. Chunks go in order of their number; a few broadcasts are
under way at a time, so that the network is busy while samples are being prepared. Chunks move from
window to window, without a copy in between. A node joins a broadcast only once its slot is free: so the
slowest reader of any node holds the stream back when the windows are full, and never before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleet.roles import Roles
from fleet.segment import Window

if TYPE_CHECKING:  # MPI starts when it is imported
    from fleet.mpi import Broadcast, World

_UNDER_WAY = 4


@dataclass(frozen=True)
class _Transfer:
    sequence: int
    is_mine: bool
    broadcast: Broadcast


class Relay:
    """The leader's part in the stream between nodes; made by all leaders together.

    Args:
        turns: the preprocessors, in the order in which they take turns at chunks.
        first: the first chunk of the stream.
    """

    def __init__(self, world: World, roles: Roles, window: Window, turns: Sequence[int], first: int) -> None:
        leaders = [roles.leader(node) for node in range(roles.nodes)]
        self.next = first
        self._world, self._window = world, window
        self._group = world.group(leaders, 31999)
        # Leaders end after different numbers of broadcasts, and collectives of one communicator must come in
        # one order: so they agree on the end by another.
        self._ending = world.group(leaders, 31998)
        self._node_of_turn = [roles.node_of[rank] for rank in turns]
        self._node = roles.node_of[world.rank]
        self._under_way: deque[_Transfer] = deque()
        self._advance()

    def step(self, may_write: bool) -> bool:
        """Complete broadcasts and begin new ones; returns whether anything happened.

        Args:
            may_write: whether chunk ``next`` may be written into this node's window.
        """
        return self._complete() | self._begin(may_write)

    def _is_mine(self, sequence: int) -> bool:
        return self._node_of_turn[sequence % len(self._node_of_turn)] == self._node

    def _complete(self) -> bool:
        done = False
        while self._under_way and self._under_way[0].broadcast.is_done():
            transfer = self._under_way.popleft()
            if not transfer.is_mine:
                self._window.publish(transfer.sequence)
            done = True
        self._advance()
        return done

    def _begin(self, may_write: bool) -> bool:
        if len(self._under_way) >= _UNDER_WAY:
            return False
        if not (self._window.has(self.next) if self._is_mine(self.next) else may_write):
            return False
        self._post()
        return True

    def _post(self) -> None:
        sequence, rows = self.next, self._window.rows(self.next)
        root = self._node_of_turn[sequence % len(self._node_of_turn)]
        broadcast = self._group.start_broadcast([self._window.images[rows], self._window.labels[rows]], root)
        self._under_way.append(_Transfer(sequence, self._is_mine(sequence), broadcast))
        self.next += 1

    def _advance(self) -> None:
        """The relay's cursor: nothing may overwrite a chunk that is still to be sent or under way."""
        self._window.cursors[-1] = self._under_way[0].sequence if self._under_way else self.next

    def finish(self) -> None:
        """Complete the broadcasts that any leader has begun; collective over the leaders.

        MPI knows no way to take a begun broadcast back, so the others take part in it, whatever it
        carries: nobody reads it.
        """
        last = max(self._ending.exchange(self.next))
        while self.next < last:
            self._post()
        self._world.wait(lambda: all(transfer.broadcast.is_done() for transfer in self._under_way) or None)
        self._under_way.clear()
        self._group.free()
        self._ending.free()
