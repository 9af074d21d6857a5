"""Run the main job with a bug in one trainer; test_failures.py runs this under mpirun."""

import os
import sys

from fleet.run import main
from fleet.stream.compose import Stream


def _break_trainer():
    original = Stream.batches

    def batches(self, *args, **options):
        yield next(original(self, *args, **options))
        if os.environ["OMPI_COMM_WORLD_RANK"] == "2":
            raise RuntimeError("a bug outside of any model")
        yield from original(self, *args, **options)

    Stream.batches = batches


_break_trainer()
sys.exit(main())
