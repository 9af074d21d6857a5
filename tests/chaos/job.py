"""Run the main job and record each training step; tests/chaos/faults.py runs this under mpirun."""

import os
import sys
import time

from fleet.run import main
from fleet.runtime.training import network, trainer

_steps = os.open(os.environ["CHAOS_STEPS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def _record_steps():
    begin = network.Training.begin
    measure = trainer.measure_batches

    def recorded(self, batches, *args):
        wait = begin(self, batches, *args)

        def ended():
            done = wait()
            # One write, so that lines of different ranks do not mix.
            if not getattr(self, "measures", False):
                rank = os.environ["OMPI_COMM_WORLD_RANK"]
                now = f"{time.time():.6f} {rank}"
                os.write(
                    _steps,
                    "".join(
                        f"{now} {size if self.group.is_master else 0}\n" for size in batches.sizes
                    ).encode(),
                )
            return done

        return ended

    def measured(training, *args):
        training.measures = True
        return measure(training, *args)

    network.Training.begin = recorded
    trainer.measure_batches = measured


_record_steps()
sys.exit(main())
