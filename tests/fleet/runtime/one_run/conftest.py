"""What all whole runs share: no disk is waited for, and each has folders of its own."""

import pytest

from fleet.runtime import session as fleet_session
from fleet.runtime.training import evaluation, trainer
from fleet.storage.rate_cache import RateBook
from tests.fleet.runtime.one_run.runner import Writer, noted_sources


@pytest.fixture(scope="module", autouse=True)
def _quick(tmp_path_factory):
    """No disk is waited for, and what one run measures is not known to the next."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(RateBook, "write", lambda book: None)
        patch.setattr(trainer, "CheckpointWriter", Writer)
        patch.setattr(fleet_session, "make_sources", noted_sources)
        patch.setattr(
            evaluation, "_CHECK_EVERY_S", 0.0
        )  # an interruption may come between any two batches
        yield


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return lambda: tmp_path_factory.mktemp("run")
