"""What a training step holds in memory, read from its graph."""

from __future__ import annotations

import math

import tensorflow as tf


def activation_bytes(graph: tf.Graph) -> int | None:
    """Return the bytes per row of a batch that a step keeps for its backward pass."""
    stored: dict[object, int] = {}
    for operation in graph.get_operations():
        if _is_backward(operation):
            for tensor in operation.inputs:
                if not _is_backward(tensor.op) and (size := _row_bytes(tensor)):
                    stored[tensor.ref()] = size
    if stored:
        return sum(stored.values()) + 2 * max(stored.values())
    return None


def _is_backward(operation: tf.Operation) -> bool:
    return "gradient_tape" in operation.name  # as TensorFlow names what a tape adds


def _row_bytes(tensor: tf.Tensor) -> int:
    """Bytes of one row; 0 for what is none of a batch."""
    shape = tensor.shape.as_list() if tensor.shape.rank else []
    if not shape or shape[0] is not None or None in shape[1:]:
        return 0
    return math.prod(shape[1:]) * tensor.dtype.size
