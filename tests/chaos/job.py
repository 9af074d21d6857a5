"""The main job, with a line for each step that a trainer takes: run by tests/chaos/faults.py under mpirun."""

import os
import sys
import time

from fleet.run import main
from fleet.runtime import trainer

_steps = os.open(os.environ["CHAOS_STEPS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def _note_steps():
    step, measure = trainer.Trainer._step, trainer.Trainer._measure

    def noted(self, training, images, labels, size, *rest):
        result = step(self, training, images, labels, size, *rest)
        if not getattr(self, "measures", False):  # one write, which no other rank's can come into
            rank = os.environ["OMPI_COMM_WORLD_RANK"]
            os.write(_steps, f"{time.time():.6f} {rank} {size if training.group.is_master else 0}\n".encode())
        return result

    def measured(self, order):
        self.measures = True
        measure(self, order)
        self.measures = False

    trainer.Trainer._step, trainer.Trainer._measure = noted, measured


_note_steps()
sys.exit(main())
