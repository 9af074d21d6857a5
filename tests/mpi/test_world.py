"""What a rank does while it waits."""

import subprocess
import sys

from tests.mpi.conftest import ROOT


def run_alone(program, launcher):
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False, capture_output=True, text=True,
                           env=launcher.environment({}), timeout=60)
    assert ended.returncode == 0, ended.stderr


def test_a_rank_that_is_never_kept_waiting_does_its_duties_all_the_same(launch):
    run_alone("""
from fleet.comm.world import World
world, done = World(), []
world.duties.append(lambda: done.append(1) or True)
for count in range(5):
    assert world.wait(lambda: "at once") == "at once"
    assert len(done) == count + 1
""", launch)


def test_a_broadcast_carries_types_that_mpi_does_not_know(launch):
    run_alone("""
import numpy as np
from fleet.comm.world import World
group = World().group([0], 1)
for dtype in ("float16", "bool", "uint8", "float64"):
    buffers = [np.ones((2, 3), dtype), np.array(1, dtype)]
    begun = group.start_broadcast(buffers, root=0)
    while not begun.is_done():
        pass
    assert all((buffer == 1).all() for buffer in buffers)
""", launch)
