"""Replays networks of a run one after the other, in one process: TensorFlow takes seconds to start."""

import sys

from fleet.run import main

spec, run, *names = sys.argv[1:]
sys.exit(max(main([spec, "--replay", run, "--only", name]) for name in names))
