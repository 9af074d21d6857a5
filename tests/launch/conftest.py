"""A fake Slurm on the PATH."""

import pytest

from tests.launch.made_up import MadeUp


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    """A fake Slurm without jobs; see :class:`MadeUp`."""
    slurm = MadeUp(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{slurm.folder}:/usr/bin:/bin")
    return slurm
