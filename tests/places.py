"""Where things are, and what launches of tests are given, for tests in folders of any depth."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
# Published data sets; tests that want them skip where they are absent.
SHARED = ROOT.parent / "shared" / "data"

# What Open MPI is told when it starts ranks of a test: root may, and there is no fabric to look for. Looking takes a
# second of each launch. Clusters need it, so this stands nowhere in the packages.
ON_ONE_MACHINE = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_btl": "^ofi",
    "OMPI_MCA_mtl": "^ofi",
}


def sources(package):
    """The files of a package of ours, without the recipes, which are other programs' modules."""
    return sorted(path for path in (ROOT / package).rglob("*.py") if "containers" not in path.parts)
