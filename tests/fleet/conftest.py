"""What tests of whole runs in one process share."""

import pytest


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """No disk is waited for, and what one run measures is not known to the next."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
