"""Rank 2 dies, and all others see what becomes of their group: run by test_world.py under mpirun."""

import os
import signal

import numpy as np
import pytest

from fleet.comm.messages import Ready, Tag
from fleet.comm.mpi import start_mpi
from fleet.errors import GroupFailed

world = start_mpi()
group = world.group(range(world.size), 1)
group.barrier()
if world.rank == 2:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    for collective in (
        group.barrier,
        lambda: group.allgather(1),
        lambda: group.sum(np.zeros(3)),
        lambda: group.broadcast_value(1),
    ):
        with pytest.raises(GroupFailed):
            collective()
    world.wait(
        lambda: world.dead_ranks == {2} or None
    )  # a rank may be struck by another that has heard of the death before
    with pytest.raises(GroupFailed):
        group.check()
    with pytest.raises(GroupFailed):
        world.group(range(world.size), 2)
    world.send(2, Tag.TRAINER, Ready(0))  # is lost, and no error
    rest = world.group([rank for rank in range(world.size) if rank != 2], 3)
    assert rest.allgather(world.rank) == list(rest.ranks)
except BaseException as error:
    world.abort(error)
world.finish()
if world.rank == 0:
    print("the others have gone on", flush=True)
world.exit(0)
