"""The start of MPI, which happens when this module is imported."""

from __future__ import annotations

import atexit
import os

from fleet.comm.ulfm import ULFMWorld
from fleet.comm.world import MPIWorld
from launch.environment import is_fault_tolerant


def start_mpi() -> MPIWorld:
    """Return the world that fits this rank's launcher, fault-tolerant or not."""
    world = ULFMWorld() if is_fault_tolerant(os.environ) else MPIWorld()
    # Functions that are registered later, as by Horovod, run earlier and may need MPI.
    atexit.register(world.finalize)
    return world
