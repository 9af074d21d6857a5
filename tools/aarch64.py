"""Check that the constraints of each Python resolve for aarch64, without installing anything.

    python tools/aarch64.py tools/constraints-*.txt

It prints the packages that have no wheel for aarch64, and fails if there are any.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement

# pip does not derive older platforms from the newest one.
PLATFORMS = [
    "manylinux2014_aarch64",
    *(f"manylinux_2_{minor}_aarch64" for minor in range(17, 29)),
]
_NONE = re.compile(r"No matching distribution found for ([\w.-]+)==")


def find_missing(constraints: Path) -> list[str]:
    """Return the pinned packages that have no wheel for aarch64.

    Args:
        constraints: the file, named after its Python, such as ``constraints-3.11.txt``.

    Raises:
        RuntimeError: pip fails for another reason.
    """
    version = constraints.stem.removeprefix("constraints-")
    lines = [line.partition("#")[0].strip() for line in constraints.read_text().splitlines()]
    # pip would evaluate markers for the running machine.
    needed = [
        requirement
        for requirement in map(Requirement, filter(None, lines))
        if _applies(requirement)
    ]
    pins = [f"{requirement.name}{requirement.specifier}" for requirement in needed]
    missing: list[str] = []
    while True:
        output = _resolve(version, pins)
        match = _NONE.search(output)
        if match is None:
            if output:
                raise RuntimeError(output)
            return missing
        missing.append(match[1])
        pins = [pin for pin in pins if pin.split("==")[0] != match[1]]


def _applies(requirement: Requirement) -> bool:
    marker = requirement.marker
    return marker is None or marker.evaluate({"platform_machine": "aarch64"})


def _resolve(version: str, pins: Sequence[str]) -> str:
    """Let pip look for a wheel of each package; return its error, or "" if it finds all."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--no-deps"),
            *("--ignore-installed", "--only-binary=:all:", f"--target={folder}"),
            "--ignore-requires-python",  # it would ask for that of the running Python
            *(f"--python-version={version}", "--implementation=cp"),
            *(f"--platform={platform}" for platform in PLATFORMS),
            *pins,
        ]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    return ended.stderr if ended.returncode else ""


def main() -> int:
    """Check the files on the command line."""
    status = 0
    for path in map(Path, sys.argv[1:]):
        missing = find_missing(path)
        print(f"{path.name}: no wheel for aarch64 of {', '.join(missing) or 'none'}", flush=True)
        status |= bool(missing)
    return status


if __name__ == "__main__":
    sys.exit(main())
