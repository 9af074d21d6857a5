"""Run the main job and kill ranks at given calls; test_survival.py runs this under mpirun.

``FLEET_TEST_DEATHS='{"2": ["runtime.training.network:Training.begin", 30]}'`` kills rank 2 at its
30th call of that method; with ``FLEET_TEST_STOPS=2`` the rank is stopped for two seconds instead.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import time

from fleet.run import main
from tests.places import rank


def _die(target, calls):
    module, _, qualified_name = target.partition(":")
    *path, function = qualified_name.split(".")
    owner = importlib.import_module(f"fleet.{module}")
    for name in path:
        owner = getattr(owner, name)
    original = getattr(owner, function)
    remaining = [calls]

    def counted(*args, **kwargs):
        remaining[0] -= 1
        if not remaining[0]:
            print(f"rank {rank()} dies at {time.time():.6f}", flush=True)
            if seconds := os.environ.get("FLEET_TEST_STOPS"):
                subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT {os.getpid()}"])
            os.kill(os.getpid(), signal.SIGSTOP if seconds else signal.SIGKILL)
        return original(*args, **kwargs)

    setattr(owner, function, counted)


deaths = json.loads(os.environ["FLEET_TEST_DEATHS"])
if (own_rank := rank()) in deaths:
    target, calls = deaths[own_rank]
    _die(target, calls)
sys.exit(main())
