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
        # index and number of the trainers of other ranks that share the GPU
        own_rank = roles.process(world.rank)
        self._mates = [
            (roles.local_index(trainer), trainer)
            for device, trainer in roles.rank_of.items()
            if gpu(device) == own_gpu and roles.process(trainer) != own_rank
        ]

    @contextmanager
    def present(self) -> Iterator[None]:
        """Mark this trainer as training a network."""
        self._is_active[self._index] = 1
        try:
            yield
        finally:
            self._is_active[self._index] = 0

    def count(self, networks: int = 1) -> int:
        """Count the networks that train on the GPU; dead ranks do not count.

        Args:
            networks: the networks that this rank trains together; its other ones wait.
        """
        dead_ranks = self._world.dead_ranks
        return networks + sum(
            self._is_active[index] for index, rank in self._mates if rank not in dead_ranks
        )
