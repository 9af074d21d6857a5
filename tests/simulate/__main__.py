"""Simulate whole launches: ``python -m tests.simulate --seeds A:B [--jobs N]``."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__" and os.environ.get("PYTHONHASHSEED") != "0":
    # Sets of strings have the same order in every process.
    os.execve(
        sys.executable,
        [sys.executable, "-m", "tests.simulate", *sys.argv[1:]],
        {**os.environ, "PYTHONHASHSEED": "0"},
    )

from tests.simulate.command import main

if __name__ == "__main__":
    sys.exit(main())
