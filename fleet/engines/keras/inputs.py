"""Turn samples as they travel into the inputs of a model, in a graph.

Samples of several inputs enter a graph as rows of bytes, of which each input is a part. Batches of
inputs of unequal length enter whole, followed by the length to which the graph cuts them, so that
it is traced once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from fleet.engines.keras.deferred_augmentation import augment_deferred
from fleet.engines.keras.named_parts import integer_inputs
from fleet.spec.model import InputShape
from preprocess.base import INPUT
from preprocess.sample import SampleSpec, mask_of

_LENGTH = np.dtype(np.int32)  # of the length of a batch

Inputs: TypeAlias = tf.Tensor | dict[str, tf.Tensor]


def row_spec(sample: SampleSpec) -> tf.TensorSpec:
    """Return the specification of samples in a graph."""
    if sample.parts:
        lengths_bytes = len(sample.varying) * _LENGTH.itemsize
        return tf.TensorSpec((None, sample.wire.nbytes + lengths_bytes), tf.uint8)
    return tf.TensorSpec((None, *sample.wire.shape), sample.wire.dtype)


def as_bytes(records: np.ndarray) -> np.ndarray:
    """Return records as bytes, (n, bytes), as they enter a graph; other arrays as they are."""
    if records.dtype.names is None:
        return records
    size = records.dtype.itemsize
    return np.ascontiguousarray(records).view(np.uint8).reshape(len(records), size)


def as_rows(inputs: np.ndarray, sample: SampleSpec) -> np.ndarray:
    """Return samples as they enter a graph: those of several inputs as bytes, (n, bytes).

    Args:
        inputs: (n, ...) samples as they travel, perhaps cut to their longest row.
        sample: shape and type of the samples.
    """
    content = as_bytes(inputs)
    if not sample.varying:
        return content
    size = inputs.dtype.itemsize
    lengths = np.array([inputs.dtype[name].shape[0] for name in sample.varying], _LENGTH)
    rows = np.empty((len(inputs), size + lengths.nbytes), np.uint8)
    rows[:, :size] = content
    rows[:, size:] = lengths.view(np.uint8)
    return rows


def takes_cut_rows(model: keras.Model, sample: SampleSpec) -> bool:
    """Return True if a model takes rows of any length of inputs of unequal length.

    A functional model does if the length of such an input is None.
    """
    symbolic_inputs = {tensor.name: tensor for tensor in getattr(model, "inputs", None) or ()}
    names = [name for padded in sample.varying for name in (padded, mask_of(padded))]
    return all(symbolic_inputs[name].shape[1] is None for name in names if name in symbolic_inputs)


def model_inputs(rows: tf.Tensor, sample: SampleSpec) -> Inputs:
    """Return the inputs of a model, augmented and scaled; of several, by name.

    Args:
        rows: (n, ...) as :func:`row_spec` specifies.
        sample: shape and type of the samples.
    """
    if not sample.parts:
        return _scaled(augment_deferred(rows, sample), sample)
    integers = integer_inputs(sample)
    dtype = sample.wire.dtype
    assert isinstance(dtype, np.dtype)
    assert dtype.fields is not None
    inputs = {}
    for name, part in sample.parts.items():
        start = dtype.fields[name][1]
        content = rows[:, start : start + part.input.nbytes]
        array = field_of(content, part.input.dtype, part.input.shape)
        if name not in integers:
            array = _scaled(augment_deferred(array, part), part)
        inputs[name] = array
    for index, name in enumerate(sample.varying):
        start = dtype.itemsize + index * _LENGTH.itemsize
        lengths = tf.bitcast(rows[:, start : start + _LENGTH.itemsize], tf.int32)
        length = tf.maximum(tf.reduce_max(lengths), 1)  # of no rows, too
        for padded in (name, mask_of(name)):
            inputs[padded] = inputs[padded][:, :length]
    return inputs


def field_of(content: tf.Tensor, dtype: Any, shape: tuple[int, ...]) -> tf.Tensor:
    """Return one of several arrays, (n, *shape), from its bytes.

    Args:
        content: (n, bytes) uint8.
        dtype: dtype of the array.
        shape: shape of a row.
    """
    dtype = tf.as_dtype(dtype)
    shape = (-1, *shape)
    if dtype == tf.uint8:
        return tf.reshape(content, shape)
    if dtype.size == 1:
        return tf.bitcast(tf.reshape(content, shape), dtype)
    return tf.bitcast(tf.reshape(content, (*shape, dtype.size)), dtype)


def _scaled(inputs: tf.Tensor, sample: SampleSpec) -> tf.Tensor:
    affine = sample.affine
    if affine is None:
        return inputs
    if len(sample.input.shape) != 3:
        return tf.cast(inputs * affine.multiplier + affine.offset, tf.float32)
    height, width, channels = sample.input.shape
    multiplier, offset = affine.along_row(width)
    # TensorFlow is slow with operands of three numbers.
    rows = tf.reshape(inputs, (-1, height, width * channels))
    scaled = tf.cast(rows * multiplier + offset, tf.float32)
    return tf.reshape(scaled, (-1, height, width, channels))


def random_samples(
    shape: InputShape,
    rows: int,
    integers: Mapping[str, Sequence[int]] = MappingProxyType({}),
    low: float = -1.0,
) -> np.ndarray | dict[str, np.ndarray]:
    """Return random samples of a model, float32; of several inputs, by name.

    Args:
        shape: shape of a sample; of several inputs, by name.
        rows: number of samples.
        integers: the names of inputs that are whole numbers, and their values.
        low: the smallest number; the largest is 1.
    """
    if isinstance(shape, Mapping):
        return {name: _random(part, rows, integers.get(name), low) for name, part in shape.items()}
    return _random(shape, rows, integers.get(INPUT), low).astype(np.float32)


def _random(
    shape: tuple[int, ...], rows: int, values: Sequence[int] | None, low: float
) -> np.ndarray:
    if values:
        return np.random.choice(np.array(values, np.int32), (rows, *shape))
    return np.random.uniform(low, 1.0, (rows, *shape)).astype(np.float32)


def symbolic_samples(shape: InputShape, make: Any) -> Any:
    """Return symbolic samples that a function makes of a shape (None, ...); by name of several."""
    if isinstance(shape, Mapping):
        return {name: make((None, *part)) for name, part in shape.items()}
    return make((None, *shape))
