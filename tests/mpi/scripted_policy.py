"""Run the main job under a scripted policy; test_regroup.py runs this under mpirun.

``FLEET_TEST_ROUNDS`` is a list of [network, epochs, {network: devices}]: the last entry whose
network has trained this many epochs says what runs on which devices.
"""

import json
import os
import sys

from fleet.run import main
from scheduler.base import Member, Round
from scheduler.ensemble.policies import POLICIES, Policy

_rounds = json.loads(os.environ["FLEET_TEST_ROUNDS"])


def _scripted(rates, progress, cluster, options):
    expected = [
        devices
        for network, epochs, devices in _rounds
        if progress.epochs_done.get(network, 0) >= epochs
    ][-1]
    return Round(
        tuple(
            Member(name, tuple(reserved))
            for name, reserved in expected.items()
            if name not in progress.finished
        )
    )


POLICIES["adaptive"] = Policy("adaptive", _scripted)
sys.exit(main())
