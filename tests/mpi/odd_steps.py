"""The main job, in which a step of the network ``bad`` never ends: run by test_odd_steps.py under mpirun.

``FLEET_TEST_STEP=kill`` has the kernel kill the process at the third step, ``exit`` ends it, ``hang`` sleeps in it;
``thread`` and ``child`` leave something that goes on for minutes.
"""

import os
import signal
import subprocess
import threading
import time

from fleet.run import leave, main
from fleet.runtime.training.network import Training

DO = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(0),
    "hang": lambda: time.sleep(1000),
    "thread": lambda: threading.Thread(target=lambda: time.sleep(1000)).start(),
    "child": lambda: subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 600 & sleep 600"]),
}
begin, steps = Training.begin, []


def odd(training, *args):
    if training.network.name == "bad":
        steps.append(1)
        if len(steps) == 3:
            DO[os.environ["FLEET_TEST_STEP"]]()
    return begin(training, *args)


Training.begin = odd
leave(main())
