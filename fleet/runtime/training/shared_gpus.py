"""The MPS daemons (Multi-Process Service) of a node whose GPUs are shared."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping, Sequence

from fleet.comm.protocols import World
from fleet.comm.roles import Roles
from launch import mps

log = logging.getLogger("fleet.runtime.training.shared_gpus")


class SharedGpus:
    """The MPS daemons of this rank's node; collective over all ranks.

    Args:
        gpu: this trainer's GPU, by its name in the system; None for other ranks and without GPUs.
        environment: this process's environment, which receives the path of its GPU's daemon.
    """

    def __init__(
        self, world: World, roles: Roles, gpu: str | None, environment: MutableMapping[str, str]
    ) -> None:
        self._world = world
        self._environment = environment
        node = roles.node_of[world.rank]
        self._trainers = [rank for rank in roles.trainers if roles.node_of[rank] == node]
        names = world.allgather(gpu)
        started = None
        if gpu is not None and self._is_first:
            slots = [
                (roles.cluster.gpu(roles.device_of[rank]), names[rank]) for rank in self._trainers
            ]
            if _agree(slots):
                started, problem = mps.start((name for _, name in slots if name), environment)
            else:
                problem = "the launcher shows different GPUs to trainers that should share one"
            if started is None:
                log.info("GPUs are shared without MPS: %s", problem)
            else:
                log.info("GPUs are shared with MPS: %s", started.folder)
        daemons = world.allgather(started)
        self._daemons = daemons[self._trainers[0]] if self._trainers else None
        if self._daemons is not None and gpu is not None:
            environment.update(self._daemons.environment(gpu))

    def stop(self) -> None:
        """Stop the daemons once no trainer needs them."""
        if self._daemons is not None and self._is_first:
            self._daemons.stop(self._environment)

    @property
    def _is_first(self) -> bool:
        """True if this rank is the first living trainer of its node."""
        dead_ranks = self._world.dead_ranks
        return self._world.rank == next(
            (rank for rank in self._trainers if rank not in dead_ranks), None
        )


def _agree(slots: Sequence[tuple[int, str | None]]) -> bool:
    """Return True if slots and visible GPU names correspond one to one.

    >>> _agree([(0, "2"), (1, "3"), (0, "2")]), _agree([(0, "0"), (1, "0")]), _agree([(0, None)])
    (True, False, False)
    """
    pairs = set(slots)
    gpus, names = ({pair[index] for pair in pairs} for index in (0, 1))
    return None not in names and len(pairs) == len(gpus) == len(names)
