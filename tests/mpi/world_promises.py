"""Check every promise of a World; test_world.py runs this under mpirun."""

from fleet.comm.mpi import start_mpi
from tests.fleet.comm.promises import PROMISES, keep

world = start_mpi()
name = ""
try:
    for name in PROMISES:
        keep(name, world)
except BaseException as error:
    error.add_note(f"in the promise {name}")
    world.abort(error)
world.finish()
if world.rank == 0:
    print(
        f"{type(world).__name__} of {world.size} ranks keeps {len(PROMISES)} promises", flush=True
    )
world.exit(0)
