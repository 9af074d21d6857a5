"""The start of MPI, which happens when this module is imported."""

from __future__ import annotations

import atexit

from fleet.comm import ulfm
from fleet.comm.world import MPIWorld


def start_mpi() -> MPIWorld:
    """Return the world that fits this rank's launcher, fault-tolerant or not."""
    world = ulfm.ULFMWorld() if ulfm.is_enabled() else MPIWorld()
    # Functions that are registered later, as by Horovod, run earlier and may need MPI.
    atexit.register(world.finalize)
    return world
