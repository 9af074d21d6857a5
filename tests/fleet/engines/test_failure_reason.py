"""The reason of a failed network is one line."""

import pytest

from fleet.engines.failure_reason import describe_failure
from fleet.errors import ModelError


class ResourceExhaustedError(Exception):
    """Named like TensorFlow's error."""


KERAS = """in user code:

    File "/somewhere/engine_keras.py", line 265, in _compute *
        logits = model(images)
    File "/somewhere/traceback_utils.py", line 122, in error_handler **
        raise e.with_traceback(filtered_tb) from None

    RuntimeError: Exception encountered when calling Attention.call().

    \x1b[1mthe heads do not divide 10\x1b[0m

    Arguments received by Attention.call():
      x=tf.Tensor(shape=(None, 10))
"""


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("unknown layer"), "ValueError: unknown layer"),
        (ValueError(), "ValueError"),
        (ModelError("the loss became nan"), "the loss became nan"),
        (MemoryError("wanted 3 GB"), "out of memory: MemoryError: wanted 3 GB"),
        (
            RuntimeError("failed to create a handle: CUBLAS_STATUS_ALLOC_FAILED"),
            "out of memory: RuntimeError: failed to create a handle: CUBLAS_STATUS_ALLOC_FAILED",
        ),
        (
            ResourceExhaustedError("OOM when allocating"),
            "out of memory: ResourceExhaustedError: OOM when allocating",
        ),
        (SystemExit(3), "it exited, by sys.exit(3)"),
        (KeyboardInterrupt(), "it raised KeyboardInterrupt"),
        (
            TypeError(
                "outer_factory.<locals>.inner_factory.<locals>.tf__own() takes 1 positional "
                "argument but 2 were given"
            ),
            "TypeError: own() takes 1 positional argument but 2 were given",
        ),
        (
            RuntimeError(KERAS),
            "RuntimeError: Exception encountered when calling Attention.call(). "
            "the heads do not divide 10",
        ),
    ],
)
def test_describe_failure_is_one_line_without_traceback(error, reason):
    assert describe_failure(error) == reason
