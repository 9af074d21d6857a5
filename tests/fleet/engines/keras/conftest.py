"""What tests of the Keras engine share."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Another test of this process may have started TensorFlow before, which takes no other number of threads then."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TF_NUM_INTRAOP_THREADS", "1")
        yield
