"""Fixtures of tests of the Keras engine."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Use one thread: once TensorFlow has started, its number of threads cannot change."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TF_NUM_INTRAOP_THREADS", "1")
        yield
