"""The start of MPI, which happens when this module is imported."""

from __future__ import annotations

import atexit
import os

from fleet.comm.ulfm import ULFMWorld
from fleet.comm.world import MPIWorld

# Open MPI's mpirun sets it under --with-ft ulfm.
_FT_ENABLED = "OMPI_MCA_mpi_ft_enable"


def start_mpi() -> MPIWorld:
    """Return the world that fits this rank's launcher, fault-tolerant or not."""
    is_fault_tolerant = os.environ.get(_FT_ENABLED, "").lower() in ("1", "true")
    world = ULFMWorld() if is_fault_tolerant else MPIWorld()
    # Functions that are registered later, as by Horovod, run earlier and may need MPI.
    atexit.register(world.finalize)
    return world
