"""Estimate the memory of a training step from its graph."""

from __future__ import annotations

import math

import tensorflow as tf


def activation_bytes(graph: tf.Graph) -> int | None:
    """Return the bytes per row of a batch that a step keeps for its backward pass."""
    stored: dict[object, int] = {}
    for operation in graph.get_operations():
        if _is_backward(operation):
            for tensor in operation.inputs:
                size = _row_bytes(tensor)
                if size and not _is_backward(tensor.op):
                    stored[tensor.ref()] = size
    if stored:
        return sum(stored.values()) + 2 * max(stored.values())
    return None


def _is_backward(operation: tf.Operation) -> bool:
    return "gradient_tape" in operation.name  # TensorFlow's name for operations of a tape


def _row_bytes(tensor: tf.Tensor) -> int:
    """Return the bytes of one row of a batch; 0 if the tensor is not a batch."""
    shape = tensor.shape.as_list() if tensor.shape.rank else []
    if not shape or shape[0] is not None or None in shape[1:]:
        return 0
    return math.prod(shape[1:]) * tensor.dtype.size
