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
from fleet.engines.measures import (
    Loss,
    LossFunctions,
    loss_arguments,
    mask_weights_error,
    scalar_result_error,
)
from fleet.spec import Train
from fleet.spec.measures import LOSS_OF, name_of
from fleet.vocabulary.measures import canonical_name
from preprocess.target import TargetSpec

# Losses of unbounded scores, which take logits rather than probabilities.
_OF_SCORES = {"hinge", "squared_hinge", "categorical_hinge"}
# Parameters of losses that a spec cannot set.
_NOT_SET = ("y_true", "y_pred", "from_logits", "axis")


def make_losses(train: Train, target: TargetSpec) -> LossFunctions:
    """Return the losses of a network.

    Args:
        train: training settings.
        target: target of a sample.

    Raises:
        SettingError: the loss does not exist, or is not for such targets.
    """
    measure = LOSS_OF[target.kind] if train.loss is None else train.loss
    if train.loss is None and target.kind in ("class", "mask") and not train.label_smoothing:
        measure = "sparse_categorical_crossentropy"  # equal, but without one-hot targets
    loss = _make_named(replace(train, loss=measure), target)
    return LossFunctions.of(
        train,
        target,
        lambda weights: _with_class_weights(
            loss, target, None if weights is None else tf.constant(weights, tf.float32)
        ),
        _CORRECT[target.kind](target),
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


def _with_class_weights(loss: Loss, target: TargetSpec, by_class: tf.Tensor | None = None) -> Loss:
    """Turn a loss of samples or pixels into a loss of samples with class weights.

    Args:
        loss: loss of outputs and targets; for masks, excluded pixels have the target -1.
        target: target of a sample.
        by_class: (classes,) weights; None for equal weights.
    """
    if target.kind != "mask":
        if by_class is None:
            return loss
        return lambda outputs, targets: loss(outputs, targets) * tf.gather(
            by_class, tf.maximum(targets, 0)
        )

    def of_masks(outputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        labels, counted = _pixels(targets, target)
        losses = loss(outputs, tf.where(counted > 0, labels, -1))
        if losses.shape.rank != 3:
            if by_class is not None:
                raise mask_weights_error("the loss")
            return losses
        if by_class is not None:
            losses *= tf.gather(by_class, labels)
        return _mean_of_pixels(tf.where(counted > 0, losses, 0.0), counted)

    return of_masks


def _pixels(targets: tf.Tensor, target: TargetSpec) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the class of each pixel, 0 if excluded, and 1 for counted pixels, else 0."""
    counted = tf.not_equal(targets, tf.constant(target.void, targets.dtype))
    return tf.where(counted, tf.cast(targets, tf.int32), 0), tf.cast(counted, tf.float32)


def _mean_of_pixels(values: tf.Tensor, counted: tf.Tensor) -> tf.Tensor:
    """Return means over counted pixels, (n, height, width) -> (n,); 0 if none counts."""
    axes = (1, 2)
    return tf.reduce_sum(values * counted, axes) / tf.maximum(tf.reduce_sum(counted, axes), 1.0)


# ---- named losses: Keras or user-defined -------------------------------------------------------


def _make_named(train: Train, target: TargetSpec) -> Loss:
    assert train.loss is not None
    name = name_of(train.loss)
    if ":" in name:
        function = _make_custom(train)
        return lambda outputs, targets: _per_sample(
            function(_custom_targets(targets, target), outputs), name, target
        )
    function = getattr(keras.losses, canonical_name(name))
    options = inspect.signature(function).parameters
    arguments = loss_arguments(train, target, [key for key in options if key not in _NOT_SET])
    if "from_logits" in options:
        arguments["from_logits"] = True
    if "axis" in options and options["axis"].default is None:  # the default also reduces the batch
        arguments["axis"] = [1, 2, 3] if target.kind == "mask" else [1]
    takes_scores = "from_logits" in arguments or canonical_name(name) in _OF_SCORES

    def of_keras(outputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        predicted = outputs if takes_scores else probabilities(outputs, target)
        if takes_class_numbers(name):
            return _per_sample(
                function(tf.maximum(targets, 0), predicted, **arguments), name, target
            )
        expected = to_dense(targets, target)
        if target.kind == "mask" and "axis" in arguments:
            # Excluded pixels get neither a target nor a prediction.
            counted = tf.cast(targets >= 0, tf.float32)[..., None]
            expected = expected * counted
            predicted = predicted * counted
        return _per_sample(function(expected, predicted, **arguments), name, target)

    return of_keras


def takes_class_numbers(name: str) -> bool:
    """Return True if a loss or metric of Keras takes class indices."""
    return canonical_name(name).startswith("sparse_")


def to_dense(targets: tf.Tensor, target: TargetSpec) -> tf.Tensor:
    """Return targets as float32 with one number per output; classes are one-hot.

    Args:
        targets: (n, ...).
        target: target of a sample.
    """
    if target.kind in ("class", "mask"):
        return tf.one_hot(tf.maximum(targets, 0), target.outputs)
    return tf.cast(targets, tf.float32)


def probabilities(outputs: tf.Tensor, target: TargetSpec) -> tf.Tensor:
    """Return the probabilities of logits; values are unchanged.

    Args:
        outputs: (n, ...) logits or values.
        target: target of a sample.
    """
    if target.kind == "value":
        return outputs
    if target.kind == "multilabel":
        return tf.sigmoid(outputs)
    return tf.nn.softmax(outputs)


def _custom_targets(targets: tf.Tensor, target: TargetSpec) -> tf.Tensor:
    if target.kind == "mask":
        return targets
    if target.kind == "class":
        return tf.maximum(targets, 0)
    return tf.cast(targets, tf.float32)


def _make_custom(train: Train) -> Callable[..., Any]:
    loss, arguments = make_custom_loss(train, keras.losses.Loss)
    call = loss.call if isinstance(loss, keras.losses.Loss) else loss
    return partial(as_targets_first(call), **arguments)


def _per_sample(losses: Any, name: str, target: TargetSpec) -> tf.Tensor:
    """Return one loss per sample or pixel: the mean over further dimensions."""
    losses = tf.cast(losses, tf.float32)
    if losses.shape.rank == 0:
        raise scalar_result_error(name, "loss")
    if losses.shape.rank == 1 or (target.kind == "mask" and losses.shape.rank == 3):
        return losses
    return tf.reduce_mean(losses, axis=list(range(1, losses.shape.rank)))


# ---- accuracy ----------------------------------------------------------------------------------


def _correct_pixels(target: TargetSpec) -> Loss:
    def correct_share(outputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        labels, counted = _pixels(targets, target)
        is_correct = tf.equal(tf.argmax(outputs, axis=-1, output_type=tf.int32), labels)
        return _mean_of_pixels(tf.cast(is_correct, tf.float32), counted)

    return correct_share


_CORRECT: dict[str, Callable[[TargetSpec], Loss]] = {
    "class": lambda target: lambda outputs, targets: tf.cast(
        tf.equal(tf.argmax(outputs, axis=1, output_type=tf.int64), targets), tf.float32
    ),
    "multilabel": lambda target: lambda outputs, targets: tf.reduce_mean(
        tf.cast(tf.equal(outputs > 0, targets > 0), tf.float32), axis=-1
    ),
    "mask": _correct_pixels,
    "value": lambda target: lambda outputs, targets: tf.zeros(tf.shape(outputs)[:1]),
}
