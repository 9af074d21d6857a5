"""Where things are, for tests in folders of any depth."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared" / "data"  # published data sets; tests that want them skip where they are absent
