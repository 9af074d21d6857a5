"""Let sets of strings have the same order in every process."""

from __future__ import annotations

import os
import sys


def fix_hashes(module: str) -> None:
    """Run ``python -m MODULE`` again with hashes that do not differ, unless it is so already."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(
            sys.executable,
            [sys.executable, "-m", module, *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
