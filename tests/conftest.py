"""What all tests share."""

import atexit
import gc
import importlib.util
import logging
import os
import shutil
import subprocess
import tempfile
import time

import pytest
from hypothesis import settings

from preprocess import user_code
from tests.examples import examples

# The same examples in every run, so that a red run is red for what changed. `HYPOTHESIS_PROFILE=search` looks for new
# ones, which is how a bug is found that nobody thought of; each that it finds becomes a test of its own.
settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=examples(100))
settings.register_profile("search", deadline=None, max_examples=examples(100))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

# Open MPI keeps files of a launch in a folder named after its process there. One that was killed leaves it, and a later
# launch with the same process id cannot start: so no launch meets what earlier sessions have left.
os.environ["TMPDIR"] = tempfile.mkdtemp(prefix=f"{os.environ.get('PYTEST_XDIST_WORKER', 'tests')}-")
atexit.register(shutil.rmtree, os.environ["TMPDIR"], ignore_errors=True)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items):
    """Say what may run side by side: launches may, and otherwise what shares a file stays together."""
    for item in items:
        if item.get_closest_marker("tensorflow") and not item.nodeid.startswith("tests/mpi/"):
            item.add_marker(pytest.mark.xdist_group("tensorflow"))  # imported once
        elif item.get_closest_marker("tensorflow") or not item.nodeid.startswith("tests/mpi/"):
            item.add_marker(pytest.mark.xdist_group(item.path.as_posix()))


def pytest_collection_finish(session):
    """Leave out the tests of PyTorch where it is missing, and beside those of TensorFlow: no process has both."""
    folder = [item for item in session.items if not item.nodeid.startswith("tests/mpi/")]
    neighbors = any(item.get_closest_marker("tensorflow") for item in folder)
    for item in session.items:
        if item.get_closest_marker("torch"):
            if importlib.util.find_spec("torch") is None:
                item.add_marker(
                    pytest.mark.skip(reason="PyTorch is not installed: make test-torch has it")
                )
            elif neighbors and item in folder:
                item.add_marker(
                    pytest.mark.skip(
                        reason="TensorFlow is in this process: make test-torch has none"
                    )
                )


def pytest_runtest_setup(item):
    """Begin nothing when there is no time left for it: `make test-long` says when that is."""
    if time.time() > float(os.environ.get("FLEET_TEST_UNTIL", "inf")):
        pytest.skip("no time is left: FLEET_TEST_UNTIL")


@pytest.fixture(autouse=True)
def logging_restored():
    """What a rank sets up for its log is undone: a test that starts one in its own process would deafen later ones."""
    logger, raises = logging.getLogger("fleet"), logging.raiseExceptions
    level, propagate, handlers = logger.level, logger.propagate, logger.handlers[:]
    yield
    for handler in set(logger.handlers) - set(handlers):
        handler.close()
    logger.setLevel(level)
    logger.propagate, logger.handlers[:], logging.raiseExceptions = propagate, handlers, raises


@pytest.fixture(autouse=True)
def imports_forgotten():
    """Forget what modules of users have changed when they were imported: another test may have one of that name."""
    yield
    user_code._BY_IMPORT.clear()


@pytest.fixture(autouse=True)
def nothing_stays_frozen():
    """What an engine has taken from the garbage collector is given back: Hypothesis asks it who refers to an object."""
    yield
    gc.unfreeze()


@pytest.fixture
def full_disk(tmp_path):
    """A file system with room for 4 MB, which only root can make."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True
    ).returncode:
        pytest.skip("a file system of its own cannot be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)
