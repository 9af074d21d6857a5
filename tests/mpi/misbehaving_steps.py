"""Run the main job with a step of the network ``bad`` that never ends (test_misbehaving_steps.py).

At the third step, ``FLEET_TEST_STEP=kill`` kills the process, ``exit`` ends it, and ``hang``
sleeps; ``thread`` and ``child`` leave a thread or a child process that runs for minutes.
"""

import os
import signal
import subprocess
import threading
import time

from fleet.run import leave, main
from fleet.runtime.training.network import Training

ACTIONS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(0),
    "hang": lambda: time.sleep(1000),
    "thread": lambda: threading.Thread(target=lambda: time.sleep(1000)).start(),
    "child": lambda: subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 600 & sleep 600"]),
}
begin, steps = Training.begin, []


def misbehave(training, *args):
    if training.network.name == "bad":
        steps.append(1)
        if len(steps) == 3:
            ACTIONS[os.environ["FLEET_TEST_STEP"]]()
    return begin(training, *args)


Training.begin = misbehave
leave(main())
