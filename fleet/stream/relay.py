"""The stream between nodes: each chunk is broadcast once, by the node that prepared it.

What is broadcast is a window (without end) or a set of samples (each chunk once).

One rank on each node, its leader, takes part: it gets a chunk from one leader and passes it on to
two at most, so that its way grows with the logarithm of the nodes. Chunks go in order of their
number; a few broadcasts are under way at a time, so that the network is busy while samples are
being prepared. Chunks move from
window to window, without a copy in between. A node joins a broadcast only once its slot is free: so
the slowest reader of any node holds the stream back when the windows are full, and never before.
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

_UNDER_WAY = 4
_LAST_GROUP = 31999  # numbers of groups, from the end: training groups count from 1


@dataclass(frozen=True)
class _Transfer:
    sequence: int
    is_mine: bool
    broadcast: Broadcast


class Relay:
    """A leader's part in the stream between nodes; created by all leaders together.

    Args:
        target: where chunks come from and go to, on this node.
        turns: of the preprocessors at chunks.
        number: of this relay among those of the run.
        end: one past the last chunk, where there is one.
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
        # Leaders end after different numbers of broadcasts, and collectives of one communicator
        # must come in one order: so they agree on the end by another.
        self._ending = world.group(leaders, _LAST_GROUP - 2 * number - 1)
        self._turns = turns
        self._node_of = roles.node_of
        self._node = roles.node_of[world.rank]
        self._under_way: deque[_Transfer] = deque()
        self._advance()

    def step(self, claim: Callable[[int], bool]) -> bool:
        """Complete broadcasts and begin new ones; returns whether anything happened.

        Args:
            claim: whether a chunk of another node may be written here; it then will be.

        Raises:
            GroupFailed: the leader of another node has died.
        """
        with self._group.raising_group_failed():
            worked = self._complete() | self._begin(claim)
            if self._under_way and not worked:
                # a rank that gets nothing from one that has died does not notice
                self._group.check()
            return worked

    def _root(self, sequence: int) -> int:
        return self._node_of[self._turns.rank_of(sequence)]

    def _is_mine(self, sequence: int) -> bool:
        return self._root(sequence) == self._node

    def _complete(self) -> bool:
        done = list(takewhile(bool, self._look()))  # they are published in their order
        for _ in done:
            transfer = self._under_way.popleft()
            if not transfer.is_mine:
                self._target.publish(transfer.sequence)
        self._advance()
        return bool(done)

    def _look(self) -> list[bool]:
        """Test all broadcasts in progress; testing also forwards received data."""
        return [transfer.broadcast.is_done() for transfer in self._under_way]

    def _begin(self, claim: Callable[[int], bool]) -> bool:
        if len(self._under_way) >= _UNDER_WAY or self._next == self._end:
            return False
        if not (self._target.has(self._next) if self._is_mine(self._next) else claim(self._next)):
            return False
        rows = self._target.rows(self._next)
        self._post(self._target.images[rows], self._target.targets[rows])
        return True

    def _post(self, images: np.ndarray, targets: np.ndarray) -> None:
        sequence = self._next
        broadcast = self._group.start_broadcast([images, targets], self._root(sequence))
        self._under_way.append(_Transfer(sequence, self._is_mine(sequence), broadcast))
        self._next += 1

    def _advance(self) -> None:
        """Move the relay's cursor, which protects chunks that are still to be sent."""
        self._target.mark_relayed(self._under_way[0].sequence if self._under_way else self._next)

    def finish(self) -> None:
        """Complete the broadcasts that any leader has started; collective over the leaders.

        MPI knows no way to take a begun broadcast back, so the others take part in it, whatever it
        carries: it is never read.
        """
        last = max(self._ending.allgather(self._next))
        while self._next < last:
            count = self._target.length(self._next)
            self._post(
                np.empty_like(self._target.images[:count]),
                np.empty_like(self._target.targets[:count]),
            )
        self._world.wait(lambda: all(self._look()) or None)
        self._under_way.clear()
        self._group.free()
        self._ending.free()
