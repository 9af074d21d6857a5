"""Compute the loss of each sample, by the kind of its target or by a Keras name.

Networks return logits, so the losses of classes, labels and masks apply the softmax or sigmoid
themselves.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from fleet.engines.custom import as_targets_first, make_custom_loss
from fleet.engines.measures import LossFunctions, loss_arguments
from fleet.engines.tensor_ops import Loss, TensorOps
from fleet.spec import Train
from fleet.spec.measures import name_of, parameters_of
from fleet.vocabulary.measures import canonical_name
from preprocess.target import TargetSpec

# Losses of unbounded scores, which take logits rather than probabilities.
_OF_SCORES = {"hinge", "squared_hinge", "categorical_hinge"}
# Parameters of losses that a spec cannot set.
_NOT_SET = ("y_true", "y_pred", "from_logits", "axis")

OPS = TensorOps(
    as_float=partial(tf.cast, dtype=tf.float32),
    as_int=partial(tf.cast, dtype=tf.int64),
    one_hot=tf.one_hot,
    argmax=partial(tf.argmax, axis=-1),
    softmax=tf.nn.softmax,
    maximum=tf.maximum,
    mean=tf.reduce_mean,
    sum=tf.reduce_sum,
    sigmoid=tf.sigmoid,
    zeros_like=tf.zeros_like,
    take=tf.gather,
    select=tf.where,
)


def make_losses(train: Train, target: TargetSpec) -> LossFunctions:
    """Return the losses of a network.

    Args:
        train: training settings.
        target: target of a sample.

    Raises:
        SettingError: the loss does not exist, or is not for such targets.
    """
    semantics = target.semantics
    measure = semantics.default_loss if train.loss is None else train.loss
    has_shares = bool(train.batch_transforms) and semantics.is_scalar
    if has_shares and takes_class_numbers(name_of(measure)):
        measure = {"categorical_crossentropy": parameters_of(measure)}
    is_default = train.loss is None and semantics.has_classes
    if is_default and not (train.label_smoothing or has_shares):
        measure = "sparse_categorical_crossentropy"  # equal, but without one-hot targets
    return LossFunctions.of(
        train,
        target,
        _make_named(replace(train, loss=measure), target),
        OPS,
        partial(tf.constant, dtype=tf.float32),
    )


def check_losses(losses: LossFunctions, outputs: tf.Tensor, targets: tf.Tensor) -> None:
    """Check on some samples and the network's outputs for them that losses are usable.

    Args:
        losses: losses to check.
        outputs: (n, ...) finite logits or values.
        targets: (n, ...).

    Raises:
        SettingError: a loss is not usable.
    """

    def slope(loss: Loss) -> tf.Tensor | None:
        random_outputs = tf.constant(
            np.random.default_rng(0).normal(size=outputs.shape), tf.float32
        )
        with tf.GradientTape() as tape:
            tape.watch(random_outputs)
            losses = loss(random_outputs, targets)
        return tape.gradient(losses, random_outputs)

    losses.check(slope, lambda: losses.evaluation(outputs, targets).numpy())


# ---- named losses: Keras or user-defined -------------------------------------------------------


def _make_named(train: Train, target: TargetSpec) -> Loss:
    assert train.loss is not None
    name = name_of(train.loss)
    if ":" in name:
        function = _make_custom(train)
        return lambda outputs, targets: OPS.per_sample(
            function(custom_targets(targets, target), outputs), name, target
        )
    function = getattr(keras.losses, canonical_name(name))
    options = inspect.signature(function).parameters
    arguments = loss_arguments(train, target, [key for key in options if key not in _NOT_SET])
    if "from_logits" in options:
        arguments["from_logits"] = True
    if "axis" in options and options["axis"].default is None:  # the default also reduces the batch
        arguments["axis"] = [1, 2, 3] if target.semantics.is_of_pixels else [1]
    takes_scores = "from_logits" in arguments or canonical_name(name) in _OF_SCORES

    function = partial(function, **arguments)
    if takes_class_numbers(name):
        return lambda outputs, targets: OPS.per_sample(
            function(tf.maximum(targets, 0), outputs), name, target
        )
    compute = OPS.dense_loss(function, target, takes_scores, "axis" in arguments)
    return lambda outputs, targets: OPS.per_sample(compute(outputs, targets), name, target)


def takes_class_numbers(name: str) -> bool:
    """Return True if a loss or metric of Keras takes class indices."""
    return canonical_name(name).startswith("sparse_")


def custom_targets(targets: tf.Tensor, target: TargetSpec) -> tf.Tensor:
    """Return targets as losses and metrics of the user take them: classes stay integers."""
    if target.semantics.is_of_pixels:
        return targets
    if target.semantics.has_classes:
        return tf.maximum(targets, 0)
    return tf.cast(targets, tf.float32)


def _make_custom(train: Train) -> Callable[..., Any]:
    loss, arguments = make_custom_loss(train, keras.losses.Loss)
    call = loss.call if isinstance(loss, keras.losses.Loss) else loss
    return partial(as_targets_first(call), **arguments)
