"""Fixtures for tests of whole runs in one process."""

import pytest


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """Skip waits for the disk, and isolate the cache of rates."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
