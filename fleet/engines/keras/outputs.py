"""Targets of several, and the outputs of a model for them, in a graph.

The outputs for all targets lie side by side in one tensor, (n, total), as
:mod:`preprocess.record_target` describes. Targets enter a graph as rows of bytes, of which each
target is a part.
"""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf

from fleet.engines.keras.inputs import field_of
from fleet.engines.keras.named_parts import outputs_by_target
from preprocess.record_target import record_of
from preprocess.target import TargetSpec


def target_spec(target: TargetSpec) -> tf.TensorSpec:
    """Return the specification of targets in a graph: of several, rows of bytes."""
    if target.parts:
        return tf.TensorSpec((None, target.dtype.itemsize), tf.uint8)
    return tf.TensorSpec((None, *target.shape), target.dtype)


def targets_of(rows: tf.Tensor, target: TargetSpec) -> Any:
    """Return targets from rows as :func:`target_spec` specifies: of several, by name."""
    if not target.parts:
        return rows
    fields = target.dtype.fields
    assert fields is not None
    targets = {}
    for name, part in target.parts.items():
        start = fields[name][1]
        size = math.prod(part.shape) * part.dtype.itemsize
        targets[name] = field_of(rows[:, start : start + size], part.dtype, part.shape)
    return targets


def joined_outputs(model: keras.Model, returned: Any, target: TargetSpec) -> tf.Tensor:
    """Return what a model returned as one tensor, float32: of several targets, side by side.

    Args:
        model: the model.
        returned: its output, or those of several targets.
        target: target of a sample.
    """
    if not target.parts:
        return tf.cast(returned, tf.float32)
    outputs = outputs_by_target(model, returned, record_of(target))
    columns = [
        tf.reshape(tf.cast(output, tf.float32), (-1, math.prod(output.shape[1:])))
        for output in outputs.values()
    ]
    return tf.concat(columns, axis=1)
