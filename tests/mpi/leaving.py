"""End with a status, the second rank later than all others: run by test_world.py under mpirun."""

import atexit
import sys
import time

from fleet.comm.mpi import start_mpi

world = start_mpi()
if world.rank == 1:
    atexit.register(time.sleep, 0.5)
world.finish()
sys.exit(world.exit(int(sys.argv[1])))
