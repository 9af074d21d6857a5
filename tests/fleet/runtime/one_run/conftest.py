"""Fixtures of whole runs: fast disks, and a folder for each run."""

import pytest

from fleet.runtime import session as fleet_session
from fleet.runtime.training import evaluation, trainer
from fleet.storage.rate_cache import RateBook
from tests.fleet.runtime.one_run.runner import Writer, make_recorded_sources


@pytest.fixture(scope="module", autouse=True)
def _quick(tmp_path_factory):
    """Do not wait for disks, and isolate the rate caches of runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(RateBook, "write", lambda book: None)
        patch.setattr(trainer, "CheckpointWriter", Writer)
        patch.setattr(fleet_session, "make_sources", make_recorded_sources)
        # an interruption may come between any two batches
        patch.setattr(evaluation, "_CHECK_EVERY_S", 0.0)
        yield


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return lambda: tmp_path_factory.mktemp("run")
