"""What a network's outputs cost: the loss of each sample by the kind of its target, or by a name of Keras.

Networks give logits, so the losses of classes, labels and masks take the softmax, or the logistic function, themselves.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from fleet.errors import SettingError, UserError
from fleet.plugins import load_object
from fleet.spec import Train
from fleet.spec.measures import snake
from preprocess.target import TargetSpec

Loss = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]  # of outputs and targets: a number for each sample, (n,)

# Losses of scores without bounds, which no probability stands in for.
_OF_SCORES = {"hinge", "squared_hinge", "categorical_hinge"}


class LossFunctions(NamedTuple):
    """The loss of each sample, in training and where it is judged, and what of it is right."""

    training: Loss
    judging: Loss
    correct: Loss


def make_losses(train: Train, target: TargetSpec) -> LossFunctions:
    """The losses of a network.

    Raises:
        SettingError: no such loss, or not of such targets.
    """
    judging = _default(target, train.label_smoothing) if train.loss is None else _named(train, target)
    training = judging
    if isinstance(train.class_weights, Mapping):
        training = _weighted(judging, list(train.class_weights.values()), train, target)
    return LossFunctions(training, judging, _CORRECT[target.kind](target))


def _default(target: TargetSpec, smoothing: float) -> Loss:
    if target.kind == "value":
        return lambda outputs, targets: tf.reduce_mean(tf.square(outputs - targets), axis=-1)
    if target.kind == "multilabel":
        def of_labels(outputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
            wanted = tf.cast(targets, tf.float32) * (1 - smoothing) + 0.5 * smoothing
            return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(wanted, outputs), axis=-1)
        return of_labels
    if target.kind == "mask":
        def of_masks(outputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
            labels, counted = _pixels(targets, target)
            return _mean_of_pixels(_cross_entropy(labels, outputs, smoothing), counted)
        return of_masks
    return lambda outputs, targets: _cross_entropy(tf.maximum(targets, 0), outputs, smoothing)


def _cross_entropy(labels: tf.Tensor, logits: tf.Tensor, smoothing: float) -> tf.Tensor:
    """In nats; with smoothing, that of (1 - smoothing) of the label and its share of all classes."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    if not smoothing:
        return losses
    spread = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
    return (1 - smoothing) * losses + smoothing * spread


def _pixels(targets: tf.Tensor, target: TargetSpec) -> tuple[tf.Tensor, tf.Tensor]:
    """The class of each pixel, 0 where it does not count; and whether it counts, 1 or 0."""
    counted = tf.not_equal(targets, tf.constant(target.void, targets.dtype))
    return tf.where(counted, tf.cast(targets, tf.int32), 0), tf.cast(counted, tf.float32)


def _mean_of_pixels(values: tf.Tensor, counted: tf.Tensor) -> tf.Tensor:
    """(n, height, width) -> (n,), over the pixels that count; 0 where none does."""
    axes = (1, 2)
    return tf.reduce_sum(values * counted, axes) / tf.maximum(tf.reduce_sum(counted, axes), 1.0)


def _weighted(loss: Loss, weights: list[float], train: Train, target: TargetSpec) -> Loss:
    by_class = tf.constant(weights, tf.float32)
    if target.kind == "class":
        return lambda outputs, targets: loss(outputs, targets) * tf.gather(by_class, tf.maximum(targets, 0))
    if train.loss is not None:
        raise SettingError("class_weights of masks go with the loss that masks have by default", "train", "loss")

    def of_masks(outputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        labels, counted = _pixels(targets, target)
        losses = _cross_entropy(labels, outputs, train.label_smoothing) * tf.gather(by_class, labels)
        return _mean_of_pixels(losses, counted)
    return of_masks


# ---- losses of Keras, and of one's own ---------------------------------------------------------


def _named(train: Train, target: TargetSpec) -> Loss:
    name = str(train.loss)
    if target.kind == "mask":
        raise SettingError(f"{name}: masks have the cross-entropy of each pixel alone", "train", "loss")
    if ":" in name:
        if train.label_smoothing:
            raise SettingError("label_smoothing is of the losses that FLEET has; your own loss may do it itself",
                               "train", "label_smoothing")
        function = _own(name)
        return lambda outputs, targets: _each(function(_shown(targets, target), outputs), name)
    function = getattr(keras.losses, snake(name))
    options = inspect.signature(function).parameters
    is_sparse = name_is_sparse(name)
    if is_sparse and target.kind != "class":
        raise SettingError(f"{name} is of classes, not of {target.kind} targets", "train", "loss")
    given: dict[str, Any] = {"from_logits": True} if "from_logits" in options else {}
    if train.label_smoothing:
        if "label_smoothing" not in options:
            raise SettingError(f"label_smoothing: {name} has none", "train", "label_smoothing")
        given["label_smoothing"] = train.label_smoothing
    takes_scores = "from_logits" in options or snake(name) in _OF_SCORES

    def of_keras(outputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        wanted = _shown(targets, target) if is_sparse else dense(targets, target)
        return _each(function(wanted, outputs if takes_scores else probabilities(outputs, target), **given), name)
    return of_keras


def name_is_sparse(name: str) -> bool:
    """Whether a loss or metric of Keras takes classes by their numbers."""
    return snake(name).startswith("sparse_")


def dense(targets: tf.Tensor, target: TargetSpec) -> tf.Tensor:
    """Targets as float32, one number for each output: classes are 1 at their place."""
    if target.kind == "class":
        return tf.one_hot(tf.maximum(targets, 0), target.outputs)
    return tf.cast(targets, tf.float32)


def probabilities(outputs: tf.Tensor, target: TargetSpec) -> tf.Tensor:
    """What logits stand for; values stand for themselves."""
    if target.kind == "value":
        return outputs
    return tf.sigmoid(outputs) if target.kind == "multilabel" else tf.nn.softmax(outputs)


def _shown(targets: tf.Tensor, target: TargetSpec) -> tf.Tensor:
    return tf.maximum(targets, 0) if target.kind == "class" else tf.cast(targets, tf.float32)


def _own(name: str) -> Callable[..., Any]:
    try:
        function = load_object(name, "loss")
    except UserError as error:
        raise SettingError(str(error), "train", "loss") from error
    if not callable(function):
        raise SettingError(f"{name} is a {type(function).__name__}, not a function", "train", "loss")
    if isinstance(function, type) and issubclass(function, keras.losses.Loss):
        function = function()
    return function.call if isinstance(function, keras.losses.Loss) else function


def _each(losses: Any, name: str) -> tf.Tensor:
    """A number for each sample: the mean of its own, where it has more than one."""
    losses = tf.cast(losses, tf.float32)
    if losses.shape.rank == 0:
        raise SettingError(f"{name} gives one number for a whole batch, which ranks cannot add up; it should give one "
                           "for each sample", "train", "loss")
    return tf.reduce_mean(losses, axis=list(range(1, losses.shape.rank))) if losses.shape.rank > 1 else losses


# ---- what is right -----------------------------------------------------------------------------


def _right_classes(target: TargetSpec) -> Loss:
    return lambda outputs, targets: tf.cast(
        tf.equal(tf.argmax(outputs, axis=1, output_type=tf.int64), targets), tf.float32)


def _right_labels(target: TargetSpec) -> Loss:
    return lambda outputs, targets: tf.reduce_mean(tf.cast(tf.equal(outputs > 0, targets > 0), tf.float32), axis=-1)


def _right_pixels(target: TargetSpec) -> Loss:
    def correct(outputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        labels, counted = _pixels(targets, target)
        right = tf.equal(tf.argmax(outputs, axis=-1, output_type=tf.int32), labels)
        return _mean_of_pixels(tf.cast(right, tf.float32), counted)
    return correct


def _no_right(target: TargetSpec) -> Loss:
    return lambda outputs, targets: tf.zeros(tf.shape(outputs)[:1])


_CORRECT: dict[str, Callable[[TargetSpec], Loss]] = {
    "class": _right_classes, "multilabel": _right_labels, "mask": _right_pixels, "value": _no_right}
