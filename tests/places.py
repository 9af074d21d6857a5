"""Paths, and the environment of launches, for tests in folders of any depth."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("fleet", "preprocess", "scheduler", "launch")
# Published data sets; tests that want them skip where they are absent.
SHARED = ROOT.parent / "shared" / "data"

# Settings of Open MPI for ranks of a test: root is allowed, and it looks for no fabric, which would
# take a second per launch. Clusters need that, so the packages do not set it.
ON_ONE_MACHINE = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_btl": "^ofi",
    "OMPI_MCA_mtl": "^ofi",
}


RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")  # of Open MPI, of MPICH
# For programs that tests write: which rank a process is, as text.
RANK = " or ".join(f"os.environ.get('{name}')" for name in RANK_VARIABLES)


def rank():
    """Return the rank of this process, as text; that of a process without a launcher is 0."""
    return next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), "0")


def sources(folder):
    """Return the modules below a folder, except recipes, which are modules of other programs."""
    return sorted(path for path in (ROOT / folder).rglob("*.py") if "containers" not in path.parts)
