"""Simulate whole launches: ``python -m tests.simulate --seeds A:B [--jobs N]``."""

from __future__ import annotations

import sys

from tests.simulate.hashes import fix_hashes

if __name__ == "__main__":
    fix_hashes("tests.simulate")

from tests.simulate.command import main

if __name__ == "__main__":
    sys.exit(main())
