"""The start of MPI, which happens when this module is imported."""

from __future__ import annotations

import atexit

from fleet.comm import ulfm
from fleet.comm.world import MPIWorld


def start_mpi() -> MPIWorld:
    """Return the world of this rank as its launcher has started it."""
    world = ulfm.ULFMWorld() if ulfm.is_enabled() else MPIWorld()
    atexit.register(
        world.finalize
    )  # now: what is registered later, as by Horovod, is called before, and may need MPI
    return world
