"""Run the main job with a bug in one trainer; test_failures.py runs this under mpirun."""

import sys

from fleet.run import main
from fleet.stream.compose import Stream
from tests.places import rank


def _break_trainer():
    original = Stream.batches

    def batches(self, *args, **options):
        yield next(original(self, *args, **options))
        if rank() == "2":
            raise RuntimeError("a bug outside of any model")
        yield from original(self, *args, **options)

    Stream.batches = batches


_break_trainer()
sys.exit(main())
