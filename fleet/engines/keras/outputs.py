"""Targets of several, and the outputs of a model for them, in a graph.

The outputs for all targets lie side by side in one tensor, (n, total), as
:mod:`preprocess.record_target` describes. Targets enter a graph as rows of bytes, of which each
target is a part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from fleet.engines.keras.inputs import field_of
from fleet.errors import ModelError
from preprocess.record_target import RecordTarget, record_of
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


def outputs_by_target(model: keras.Model, returned: Any, target: RecordTarget) -> dict[str, Any]:
    """Return what a model returned for each of several targets by name.

    Args:
        model: the model, whose outputs may have the names of the targets.
        returned: a mapping by name, or a list in the order of the targets.
        target: the targets.

    Raises:
        ModelError: it is something else, or lacks a target.
    """
    names = tuple(target.parts)
    listed = ", ".join(names)
    if isinstance(returned, Mapping):
        outputs = dict(returned)
    elif isinstance(returned, tuple | list):
        of_model = list(getattr(model, "output_names", None) or ())
        if len(returned) != len(names):
            raise ModelError(
                f"the model returns {len(returned)} outputs, and there are {len(names)} targets; "
                f"it should return one for each, in this order: {listed}"
            )
        in_order = of_model if set(of_model) == set(names) else names
        outputs = dict(zip(in_order, returned, strict=True))
    elif len(names) == 1:
        outputs = {names[0]: returned}
    else:
        raise ModelError(
            "the model returns one output; it should return one for each target, as a list in this "
            f"order, or as a mapping by name: {listed}"
        )
    missing = [name for name in names if name not in outputs]
    if missing:
        raise ModelError(
            f"the model returns no output for the target {missing[0]}; it returns "
            f"{', '.join(map(str, outputs))}, and should return one for each of {listed}"
        )
    return {name: outputs[name] for name in names}


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
