"""The main job, in which ranks die at given moments: run by test_survival.py under mpirun.

``FLEET_TEST_DEATHS='{"2": ["runtime.training.network:Training.begin", 30]}'`` kills rank 2 when it calls that for the
30th time; with ``FLEET_TEST_STOPS=2`` it is stopped for two seconds instead.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import time

from fleet.run import main


def _die(where, calls):
    module, _, inside = where.partition(":")
    *path, function = inside.split(".")
    owner = importlib.import_module(f"fleet.{module}")
    for name in path:
        owner = getattr(owner, name)
    original = getattr(owner, function)
    remaining = [calls]

    def counted(*args, **kwargs):
        remaining[0] -= 1
        if not remaining[0]:
            print(
                f"rank {os.environ['OMPI_COMM_WORLD_RANK']} dies at {time.time():.6f}", flush=True
            )
            if seconds := os.environ.get("FLEET_TEST_STOPS"):
                subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT {os.getpid()}"])
            os.kill(os.getpid(), signal.SIGSTOP if seconds else signal.SIGKILL)
        return original(*args, **kwargs)

    setattr(owner, function, counted)


deaths = json.loads(os.environ["FLEET_TEST_DEATHS"])
if (rank := os.environ["OMPI_COMM_WORLD_RANK"]) in deaths:
    where, calls = deaths[rank]
    _die(where, calls)
sys.exit(main())
