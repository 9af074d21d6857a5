"""Replay networks of a run one by one in one process, since TensorFlow takes seconds to start."""

import sys

from fleet.run import main

spec, run, *names = sys.argv[1:]
sys.exit(max(main([spec, "--replay", run, "--only", name]) for name in names))
