"""Run the main job as if every step were short, so that groups take four steps per call.

Each rank prints how many such calls it began in groups. test_regroup_keras.py runs this.
"""

import math
import sys

from fleet.runtime.training import steps
from fleet.runtime.training.clocks import StepClock
from fleet.runtime.training.network import Training

multi_step_calls = []
begin = Training.begin


def record_call(self, batches, *args):
    multi_step_calls.append(self.group.size > 1 and len(batches.sizes) > 1)
    return begin(self, batches, *args)


steps._PROMPT_S = math.inf
StepClock.count_fitting = lambda clock, seconds: 4
Training.begin = record_call

from fleet.run import main  # noqa: E402

status = main()
print(f"{sum(multi_step_calls)} calls of several steps in groups", flush=True)
sys.exit(status)
