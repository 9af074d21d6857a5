"""The main job, with a line for each step that a trainer takes: run by tests/chaos/faults.py under mpirun."""

import os
import sys
import time

from fleet.run import main
from fleet.runtime.training import network, trainer

_steps = os.open(os.environ["CHAOS_STEPS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def _note_steps():
    begin, measure = network.Training.begin, trainer.measure_batches

    def noted(self, images, labels, sizes, *rest):
        wait = begin(self, images, labels, sizes, *rest)

        def ended():
            done = wait()
            if not getattr(
                self, "measures", False
            ):  # one write, which no other rank's can come into
                rank = os.environ["OMPI_COMM_WORLD_RANK"]
                now = f"{time.time():.6f} {rank}"
                os.write(
                    _steps,
                    "".join(
                        f"{now} {size if self.group.is_master else 0}\n" for size in sizes
                    ).encode(),
                )
            return done

        return ended

    def measured(training, *rest):
        training.measures = True
        return measure(training, *rest)

    network.Training.begin, trainer.measure_batches = noted, measured


_note_steps()
sys.exit(main())
