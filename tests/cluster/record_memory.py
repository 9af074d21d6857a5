"""Run the recorded main job and write down the shared memory that each rank maps.

test_stream.py runs this under mpirun.
"""

import json
import os
import runpy
from pathlib import Path

from fleet.runtime.session import Session
from tests.cluster.slurm import shared_memory

_folder = Path(os.environ["FLEET_TEST_MEMORY"])
_map_memory = Session._map_memory


def _map_and_record(session):
    _map_memory(session)
    note = {
        "rank": session._world.rank,
        "node": os.environ["SLURMD_NODENAME"],
        "memory": shared_memory(),
    }
    (_folder / f"{note['rank']}.json").write_text(json.dumps(note))


Session._map_memory = _map_and_record
runpy.run_module("tests.mpi.record_samples")
