"""Kill rank 2; the other ranks must see that their group failed. test_world.py runs this."""

import os
import signal

import numpy as np
import pytest

from fleet.comm.messages import Ready, Tag
from fleet.comm.mpi import start_mpi
from fleet.errors import GroupMemberDied

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
        with pytest.raises(GroupMemberDied):
            collective()
    # A rank's group may fail because another rank learned of the death earlier.
    world.wait(lambda: world.dead_ranks == {2} or None)
    with pytest.raises(GroupMemberDied):
        group.check()
    with pytest.raises(GroupMemberDied):
        world.group(range(world.size), 2)
    world.send(2, Tag.TRAINER, Ready(0))  # lost without an error
    survivors = world.group([rank for rank in range(world.size) if rank != 2], 3)
    assert survivors.allgather(world.rank) == list(survivors.ranks)
except BaseException as error:
    world.abort(error)
world.finish()
if world.rank == 0:
    print("the other ranks continued", flush=True)
world.exit(0)
