"""Compute the loss of each sample, by the kind of its target or by a Keras name.

Networks return logits, so the losses of classes, labels and masks apply the softmax or sigmoid
themselves.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import partial

import keras
import numpy as np
import tensorflow as tf

from fleet.engines.custom import (
    ArgumentOrder,
    find_argument_order,
    make_custom_loss,
    takes_outputs_first,
)
from fleet.engines.measures import LossFunctions, loss_arguments
from fleet.engines.several_targets import check_each, losses_of_targets
from fleet.engines.tensor_ops import Loss, TensorOps
from fleet.spec import Train
from fleet.spec.engines import find_engine
from fleet.spec.measures import name_of, parameters_of
from fleet.vocabulary.measures import canonical_name
from preprocess.record_target import record_of
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
    if target.parts:
        return losses_of_targets(
            train, record_of(target), find_engine("keras").words.metrics, make_losses, tf.reshape
        )
    semantics = target.semantics
    measure = semantics.default_loss if train.single.loss is None else train.single.loss
    has_shares = bool(train.batch_transforms) and semantics.is_scalar
    if has_shares and takes_class_numbers(name_of(measure)):
        measure = {"categorical_crossentropy": parameters_of(measure)}
    is_default = train.single.loss is None and semantics.has_classes
    if is_default and not (train.single.label_smoothing or has_shares):
        measure = "sparse_categorical_crossentropy"  # equal, but without one-hot targets
    order = ArgumentOrder(True)
    if ":" in name_of(measure):
        loss, order = _make_custom(train, target)
    else:
        loss = _make_named(replace(train, loss=measure), target)
    return LossFunctions.of(
        train, target, loss, OPS, partial(tf.constant, dtype=tf.float32), order=order
    )


def check_losses(
    losses: LossFunctions, outputs: tf.Tensor, targets: tf.Tensor | dict[str, tf.Tensor]
) -> None:
    """Check on some samples and the network's outputs for them that losses are usable.

    Args:
        losses: losses to check.
        outputs: (n, ...) finite logits or values.
        targets: (n, ...); of several targets, by name.

    Raises:
        SettingError: a loss is not usable.
    """
    if losses.parts:
        check_each(losses, outputs, targets, check_losses)
        return

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
    assert train.single.loss is not None
    name = name_of(train.single.loss)
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


def _make_custom(train: Train, target: TargetSpec) -> tuple[Loss, ArgumentOrder]:
    """Return a user function, or a loss of Keras by its import path."""
    assert train.single.loss is not None
    name = name_of(train.single.loss)
    loss, arguments = make_custom_loss(train, keras.losses.Loss)
    function = loss.call if isinstance(loss, keras.losses.Loss) else loss

    def ordered(order: ArgumentOrder) -> Loss:
        call = partial(order.as_targets_first(function), **arguments)
        return lambda outputs, targets: OPS.per_sample(
            call(custom_targets(targets, target), outputs), name, target
        )

    if isinstance(loss, keras.losses.Loss):
        order = ArgumentOrder(takes_outputs_first(function) is True)
    else:
        order = find_argument_order(
            function, lambda order: _depends_on_outputs(ordered(order), target), outputs_first=False
        )
    return ordered(order), order


def _depends_on_outputs(loss: Loss, target: TargetSpec) -> bool:
    """Return True if a loss of made-up samples has a finite derivative by the outputs."""
    random = np.random.default_rng(0)
    targets = tf.constant(np.array(target.split(target.random_targets(random, 4))[0]))
    outputs = tf.constant(random.normal(size=(4, *target.output_shape)), tf.float32)
    try:
        with tf.GradientTape() as tape:
            tape.watch(outputs)
            losses = loss(outputs, targets)
        slope = np.asarray(tape.gradient(losses, outputs))
        return bool(np.isfinite(slope).all() and slope.any())
    except Exception:  # the function may raise anything; without a derivative, slope is None
        return False
