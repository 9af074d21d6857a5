"""Run the checks of a World's contract; test_world.py starts it by mpirun."""

from fleet.comm.mpi import start_mpi
from tests.fleet.comm.world_contract import CHECKS, run_check

world = start_mpi()
name = ""
try:
    for name in CHECKS:
        run_check(name, world)
except BaseException as error:
    error.add_note(f"in the check {name}")
    world.abort(error)
world.finish()
if world.rank == 0:
    print(f"{type(world).__name__} of {world.size} ranks passes {len(CHECKS)} checks", flush=True)
world.exit(0)
