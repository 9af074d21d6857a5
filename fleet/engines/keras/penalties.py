"""Split penalties of a model's layers so that the parts of all ranks sum to the batch's.

Keras adds each penalty once to the mean loss of a batch. A function of weights, such as a kernel
regularizer, is equal on every rank. A mean over rows, such as an activity penalty, covers the local
rows of a rank. Each rank contributes both in proportion to its rows: the shares sum to 1, and a
rank without rows computes nothing. A sum over rows is the sum over the ranks. Only a custom layer
can add a sum, with ``add_loss``. Because it looks like a mean, it is detected by calling the model.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from fleet.engines.keras.inputs import random_samples
from fleet.errors import NetworkWarning
from fleet.spec.model import InputShape

# A sum over rows grows with copies of the random inputs; a mean does not.
_ROWS = 4
_COPIES = 4
_NOISE = 0.3  # relative change of a penalty that dropout may cause
_SMALL = 0.01  # noise on the weights, so that penalties of zero weights are not zero


def sums_over_rows(
    model: keras.Model,
    shape: InputShape,
    integers: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> tuple[bool, ...]:
    """Detect which losses of a model are sums over rows, rather than means or functions of weights.

    The model is called on random inputs and on copies of them; its variables do not change. Models
    of Keras layers only have no sums.

    Args:
        model: model to call.
        shape: shape of an input; of several, by name.
        integers: the names of inputs that are whole numbers, and their values.
    """
    if all(type(layer).__module__.startswith("keras.") for layer in model._flatten_layers()):
        return ()
    random = np.random.default_rng(0)
    if isinstance(shape, dict):
        inputs: Any = random_samples(shape, _ROWS, integers, low=0.0)
    else:
        inputs = random.random((_ROWS, *shape), np.float32)
    weights = [
        (
            variable,
            variable + _SMALL * random.standard_normal(variable.shape).astype(variable.dtype),
        )
        for variable in model.trainable_variables
    ]
    try:
        once, often = (
            _losses(model, weights, tree.map_structure(tf.constant, rows))
            for rows in (
                inputs,
                tree.map_structure(lambda part: np.concatenate([part] * _COPIES), inputs),
            )
        )
    except Exception:  # an error of user code is reported in the first step
        return ()
    from_mean = abs(often - once)
    from_sum = abs(often - _COPIES * once)
    if np.any(np.minimum(from_mean, from_sum) > _NOISE * abs(once)):
        warnings.warn(
            "a layer adds a loss that is neither a mean nor a sum over the rows of a batch; it is "
            "treated as the closer of the two, so training depends on the number of trainers",
            NetworkWarning,
            stacklevel=2,
        )
    return tuple((from_sum < from_mean).tolist())


def _losses(model: keras.Model, weights: Sequence[tuple[Any, Any]], inputs: Any) -> np.ndarray:
    with keras.StatelessScope(state_mapping=weights, collect_losses=True):
        model(inputs, training=True)
        return np.array([float(tf.reduce_sum(tf.cast(loss, tf.float32))) for loss in model.losses])


def penalty(losses: Sequence[tf.Tensor], are_sums: Sequence[bool], share: tf.Tensor) -> tf.Tensor:
    """Return a rank's share of a model's losses.

    Args:
        losses: losses of the model after a call, of any shape; Keras sums their numbers.
        are_sums: True for losses that are sums over rows; missing entries are False.
        share: the fraction of the batch's rows on this rank.
    """
    total = tf.constant(0.0)
    for loss, is_sum in zip(
        losses, itertools.chain(are_sums, itertools.repeat(False)), strict=False
    ):
        total += tf.reduce_sum(tf.cast(loss, tf.float32)) * (1.0 if is_sum else share)
    return total
