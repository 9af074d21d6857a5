"""The number of networks that train on a GPU right now, in shared memory of the node.

Each trainer of a node has a byte of shared memory, which is 1 while it trains a network. So a rank
that times a step knows how many networks shared the GPU, on which the time depends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fleet.comm.protocols import World
from fleet.comm.roles import Roles
from fleet.comm.segment import Segment


class ActiveSlots:
    """The networks on this trainer's GPU.

    Args:
        segment: this node's segment, one byte per trainer; None if no GPU is shared.
    """

    def __init__(self, world: World, roles: Roles, segment: Segment | None = None) -> None:
        self._world = world
        self._is_active = bytearray(roles.gpus_per_node) if segment is None else segment.memory
        self._index = roles.local_index(world.rank)
        gpu = roles.cluster.gpu
        own_gpu = gpu(roles.device_of[world.rank])
        # index and rank of all trainers that share the GPU, including this one
        self._mates = [
            (roles.local_index(rank), rank)
            for device, rank in roles.rank_of.items()
            if gpu(device) == own_gpu
        ]

    @contextmanager
    def present(self) -> Iterator[None]:
        """Mark this trainer as training a network."""
        self._is_active[self._index] = 1
        try:
            yield
        finally:
            self._is_active[self._index] = 0

    def count(self) -> int:
        """Count the networks that train on the GPU, at least 1; dead ranks do not count."""
        dead_ranks = self._world.dead_ranks
        return max(
            1,
            sum(self._is_active[index] for index, rank in self._mates if rank not in dead_ranks),
        )
