"""Run steps in a TensorFlow thread, one after another, while Python prepares the next batch.

TensorFlow copies a batch three times before it computes, each time into newly allocated memory.
Here inputs are copied once into persistent memory that TensorFlow reads. On a GPU they go to the
device while it computes the previous step.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

# The public API has no asynchronous calls.
from tensorflow.python.eager import context, executor

from fleet.engines.base import StepResult, StepTotals


class StepQueue:
    """Submits the steps of one network to TensorFlow, and reads their totals when available.

    Args:
        inputs: input buffers of the rank; one network at a time uses them.
    """

    def __init__(self, inputs: InputBuffers) -> None:
        self._executor = executor.new_executor(enable_async=True)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="sums")
        self.inputs = inputs

    def call(self, graph: Callable[..., Any], *arguments: Any) -> Any:
        """Enqueue a graph and return its results before they have been computed.

        Args:
            graph: graph to run.
            arguments: tensors; converting arrays would wait for the running graph.
        """
        with context.executor_scope(self._executor):
            return graph(*arguments)

    def read_async(self, sums: tf.Tensor) -> Callable[[], StepResult]:
        """Return a function that waits for totals: (6 + metrics,), or (steps, 6 + metrics)."""
        return self._reader.submit(_read, sums).result

    def close(self) -> None:
        """Wait until all graphs have ended, and discard their results."""
        # The reader goes first: two threads that raise errors of TensorFlow at the same time may
        # deadlock.
        self._reader.shutdown()
        try:
            # TensorFlow's own wait holds the GIL, which the end of a step needs to release its
            # inputs.
            self.call(tf.identity, tf.constant(0)).numpy()
        except Exception:
            self._executor.clear_error()


def _read(sums: tf.Tensor) -> StepResult:
    numbers = sums.numpy()
    return StepResult(
        [StepTotals.unpack(row) for row in np.atleast_2d(numbers)], time.perf_counter()
    )


class InputBuffers:
    """Copies of the arrays of two steps: the running one and the next one.

    Args:
        pin: registers memory with the driver of the GPU permanently.
    """

    def __init__(self, pin: Callable[[Any], object] = lambda memory: None) -> None:
        gpus = tf.config.list_logical_devices("GPU")
        self._gpu: str | None = gpus[0].name if gpus else None
        self._pin = pin if gpus else lambda memory: None
        self._memories: list[list[mmap.mmap]] = [[], []]
        # Tensors are released here, not by the graphs that read them.
        self._tensors: list[list[tf.Tensor]] = [[], []]

    def upload(self, arrays: Sequence[np.ndarray]) -> list[tf.Tensor]:
        """Copy arrays to where a step reads them; overwrites the inputs of the step before last."""
        self._memories.reverse()
        self._tensors.reverse()
        memories = self._memories[0]
        memories += [self._allocate(1) for _ in arrays[len(memories) :]]
        self._tensors[0] = tensors = [
            self._copy(memories, index, array) for index, array in enumerate(arrays)
        ]
        if self._gpu is None:
            return tensors
        with tf.device(self._gpu):
            return [tf.identity(tensor) for tensor in tensors]

    def _copy(self, memories: list[mmap.mmap], index: int, array: np.ndarray) -> tf.Tensor:
        if array.nbytes > len(memories[index]):
            # Double the size, because memory registered with the driver is never released.
            memories[index] = self._allocate(max(array.nbytes, 2 * len(memories[index])))
        copy = np.frombuffer(memories[index], array.dtype, array.size).reshape(array.shape)
        copy[...] = array
        return tf.experimental.dlpack.from_dlpack(copy.__dlpack__())

    def _allocate(self, size: int) -> mmap.mmap:
        """Allocate page-aligned memory, as TensorFlow requires."""
        memory = mmap.mmap(-1, size)
        self._pin(memory)
        return memory
