"""Kill the last rank during a large sum; the others must notice (test_world.py)."""

import os
import signal
import sys
import threading
import time

import numpy as np

from fleet.comm.mpi import start_mpi
from fleet.errors import GroupMemberDied

world, after_s = start_mpi(), float(sys.argv[1])
if "by-memory" in sys.argv:
    world.node_of()
group = world.group(range(world.size), 1)
values = np.full(8_000_000, world.rank + 1.0)
group.sum(values)
assert (values == sum(range(1, world.size + 1))).all()
last = world.size - 1
if world.rank == last:
    threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
began = time.monotonic()
try:
    for _ in range(200):
        group.sum(values)
    raise AssertionError("no rank has died")
except GroupMemberDied:
    assert time.monotonic() - began < after_s + 20
    survivors = world.group([rank for rank in range(world.size) if rank != last], 2)
    sums = np.ones(1_000_000)
    survivors.sum(sums)
    assert (sums == survivors.size).all()
except BaseException as error:
    world.abort(error)
world.finish()
if world.rank == 0:
    print("the other ranks continued", flush=True)
world.exit(0)
