"""Fixtures and settings of all tests."""

import atexit
import gc
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time

import pytest
from hypothesis import settings

from preprocess import user_code
from tests.examples import examples

# The same examples in every run, so that only a change makes a test fail.
# `HYPOTHESIS_PROFILE=search` tries new ones; each bug that it finds becomes a separate test.
settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=examples(100))
settings.register_profile("search", deadline=None, max_examples=examples(100))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

# Open MPI keeps files of a launch in a folder named after its process. A killed launch leaves it,
# and a later launch with the same process id cannot start. With a new folder per session, no launch
# finds files of earlier sessions.
os.environ["TMPDIR"] = tempfile.mkdtemp(prefix=f"{os.environ.get('PYTEST_XDIST_WORKER', 'tests')}-")
atexit.register(shutil.rmtree, os.environ["TMPDIR"], ignore_errors=True)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items):
    """Choose what is long, and what may run in parallel: launches, and the files of other tests."""
    begun = set()
    for item in items:
        if item.get_closest_marker("long_but_first"):
            function = item.nodeid.partition("[")[0]
            if function in begun:
                item.add_marker(pytest.mark.long)
            begun.add(function)
        if item.get_closest_marker("tensorflow") and not item.nodeid.startswith("tests/mpi/"):
            item.add_marker(pytest.mark.xdist_group("tensorflow"))  # imported once
        elif item.get_closest_marker("tensorflow") or not item.nodeid.startswith("tests/mpi/"):
            item.add_marker(pytest.mark.xdist_group(item.path.as_posix()))


def pytest_collection_finish(session):
    """Skip tests of PyTorch if it is missing, or if this process also runs tests of TensorFlow."""
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
    """Start no test after FLEET_TEST_UNTIL, which `make test-long` sets."""
    if time.time() > float(os.environ.get("FLEET_TEST_UNTIL", "inf")):
        pytest.skip("no time is left: FLEET_TEST_UNTIL")


@pytest.fixture(autouse=True)
def logging_restored():
    """Restore logging: a test that starts a rank in its own process changes it for later tests."""
    logger, raises = logging.getLogger("fleet"), logging.raiseExceptions
    level, propagate, handlers = logger.level, logger.propagate, logger.handlers[:]
    yield
    for handler in set(logger.handlers) - set(handlers):
        handler.close()
    logger.setLevel(level)
    logger.propagate, logger.handlers[:], logging.raiseExceptions = propagate, handlers, raises


@pytest.fixture(autouse=True)
def modules_of_tests_restored():
    """Restore modules of tests: engines reimport modules that lie beside a user function."""
    modules = sys.modules.copy()  # threads that outlive a test may import meanwhile
    before = {name: module for name, module in modules.items() if name.startswith("tests.")}
    yield
    sys.modules.update(before)


@pytest.fixture(autouse=True)
def user_imports_reset():
    """Forget recorded imports of user modules: another test may have a module of the same name."""
    yield
    user_code._BY_IMPORT.clear()


@pytest.fixture(autouse=True)
def garbage_collector_unfrozen():
    """Unfreeze objects that an engine froze: Hypothesis asks the collector for references."""
    yield
    gc.unfreeze()


@pytest.fixture
def full_disk(tmp_path):
    """Mount a file system of 4 MB, which requires root."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True
    ).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)
