"""Exit with a status, the second rank later than the others (test_world.py)."""

import atexit
import sys
import time

from fleet.comm.mpi import start_mpi

world = start_mpi()
if world.rank == 1:
    atexit.register(time.sleep, 0.5)
world.finish()
sys.exit(world.exit(int(sys.argv[1])))
