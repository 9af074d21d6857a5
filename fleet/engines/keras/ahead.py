"""Steps that TensorFlow computes in a thread of its own, one after another, while Python makes the next batch.

TensorFlow passes over a batch three times before it computes anything, each time into memory that the kernel has to
give it first. So here inputs are copied once, into memory that stays, and TensorFlow takes them from there. On a GPU
they go to the device, while it computes the step before.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context, executor  # the only way to have some calls come back before their end

from fleet.engines.base import Done, Sums

_AT_ONCE = 2  # steps: one that is computed, and one whose inputs are copied


class Ahead:
    """Hands the steps of one network to TensorFlow, and reads their sums as soon as they are there."""

    def __init__(self) -> None:
        self._executor = executor.new_executor(enable_async=True)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="sums")
        gpus = tf.config.list_logical_devices("GPU")
        self._gpu = gpus[0].name if gpus else None
        self._copies: list[list[_Copy]] = [[] for _ in range(_AT_ONCE)]

    def inputs(self, arrays: Sequence[np.ndarray]) -> list[tf.Tensor]:
        """Copies of arrays, where a step reads them; those of the step before last are overwritten."""
        self._copies.append(copies := self._copies.pop(0))
        copies += [_Copy() for _ in arrays[len(copies):]]
        tensors = [copy.of(array) for copy, array in zip(copies, arrays, strict=False)]
        if self._gpu is None:
            return tensors
        with tf.device(self._gpu):
            return [tf.identity(tensor) for tensor in tensors]

    def call(self, graph: Callable[..., Any], *arguments: Any) -> Any:
        """Have a graph run when those before it are over; returns what it gives at once, before it is there.

        Args:
            arguments: no arrays: to make tensors of them would wait for what runs.
        """
        with context.executor_scope(self._executor):
            return graph(*arguments)

    def reading(self, sums: tf.Tensor) -> Callable[[], Done]:
        """What waits for the sums of steps: of one (5 + more,), or of several (steps, 5 + more)."""
        return self._reader.submit(_read, sums).result

    def close(self) -> None:
        """Wait until nothing runs; what comes of it nobody will read."""
        try:
            self._executor.wait()
        except Exception:
            self._executor.clear_error()
        self._reader.shutdown()


def _read(sums: tf.Tensor) -> Done:
    numbers = sums.numpy()
    return Done([Sums.unpack(row) for row in np.atleast_2d(numbers)], time.perf_counter())


class _Copy:
    """Memory that arrays are copied into, one after another; it begins with a page, as TensorFlow wants it."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)

    def of(self, array: np.ndarray) -> tf.Tensor:
        """A tensor that has an array's numbers until the next one comes."""
        if array.nbytes > len(self._memory):
            self._memory = mmap.mmap(-1, array.nbytes)
        copy = np.frombuffer(self._memory, array.dtype, array.size).reshape(array.shape)
        copy[...] = array
        return tf.experimental.dlpack.from_dlpack(copy.__dlpack__())
