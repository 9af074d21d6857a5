"""What a network's outputs cost: the loss of each sample by the kind of its target, or by a name of Keras.

Networks give logits, so the losses of classes, labels and masks take the softmax, or the logistic function, themselves.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from fleet.engines.reasons import reason_of
from fleet.errors import SettingError, UserError
from fleet.plugins import load_object
from fleet.spec import Train
from fleet.spec.measures import LEAST_LOSS, LOSS_OF, name_of, parameters_of, snake
from preprocess.target import TargetSpec

Loss = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]  # of outputs and targets: a number for each sample, (n,)

# Losses of scores without bounds, which no probability stands in for.
_OF_SCORES = {"hinge", "squared_hinge", "categorical_hinge"}
_ROUNDED = 1e-4  # what a loss may be below its least


class LossFunctions(NamedTuple):
    """The loss of each sample, in training and where it is judged, and what of it is right; what it is called, and the
    least that it can be."""

    training: Loss
    judging: Loss
    correct: Loss
    name: str
    least: float

    def check(self, outputs: tf.Tensor, targets: tf.Tensor) -> None:
        """See on some samples that this is a loss: it depends on what a network gives, and is not below its least.

        Args:
            outputs: of a network.

        Raises:
            SettingError: it is none.
        """
        random = np.random.default_rng(0)
        with tf.GradientTape() as tape:
            any_outputs = tf.constant(random.normal(size=outputs.shape), tf.float32)
            tape.watch(any_outputs)
            try:
                losses = self.training(any_outputs, targets)
            except SettingError:
                raise
            except Exception as error:  # of the user's own function
                raise self._mistake(f"cannot be computed of (targets, outputs): {reason_of(error)}") from error
        slope = tape.gradient(losses, any_outputs)
        if slope is None or not np.any(slope):
            raise self._mistake("does not depend on what the network gives, so that no weight is connected to it and "
                                "nothing can be learned")
        found = self.judging(outputs, targets).numpy()
        if not np.isfinite(found).all() and np.isfinite(outputs).all():
            raise self._mistake(f"is no number for what the network gives: {found[~np.isfinite(found)][0]}")
        if found.min() < self.least - _ROUNDED:
            raise self._mistake(f"is {found.min():.4g} for samples of the data, less than it can be ({self.least:g}): "
                                "it is not of such targets")

    def _mistake(self, wrong: str) -> SettingError:
        return SettingError(f"the loss {self.name} {wrong}", "train", "loss")


def make_losses(train: Train, target: TargetSpec) -> LossFunctions:
    """The losses of a network.

    Raises:
        SettingError: no such loss, or not of such targets.
    """
    judging = _default(target, train.label_smoothing) if train.loss is None else _named(train, target)
    training = judging
    if isinstance(train.class_weights, Mapping):
        training = _weighted(judging, list(train.class_weights.values()), train, target)
    name = LOSS_OF[target.kind] if train.loss is None else name_of(train.loss)
    least = -math.inf if ":" in name else LEAST_LOSS.get(snake(name), 0.0)
    return LossFunctions(training, judging, _CORRECT[target.kind](target), name, least)


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
        return _of_masks(train, target, by_class)

    def of_masks(outputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        labels, counted = _pixels(targets, target)
        losses = _cross_entropy(labels, outputs, train.label_smoothing) * tf.gather(by_class, labels)
        return _mean_of_pixels(losses, counted)
    return of_masks


# ---- losses of Keras, and of one's own ---------------------------------------------------------


def _named(train: Train, target: TargetSpec) -> Loss:
    assert train.loss is not None
    name = name_of(train.loss)
    if target.kind == "mask":
        return _of_masks(train, target)
    if ":" in name:
        function = _own(train)
        return lambda outputs, targets: _each(function(_shown(targets, target), outputs), name)
    function, given = _of_keras(train, target)
    takes_scores = "from_logits" in given or snake(name) in _OF_SCORES

    def of_keras(outputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        wanted = _shown(targets, target) if name_is_sparse(name) else dense(targets, target)
        return _each(function(wanted, outputs if takes_scores else probabilities(outputs, target), **given), name)
    return of_keras


def _of_keras(train: Train, target: TargetSpec) -> tuple[Callable[..., Any], dict[str, Any]]:
    """A loss of Keras, and what it is called with."""
    assert train.loss is not None
    name, given = name_of(train.loss), parameters_of(train.loss)
    function = getattr(keras.losses, snake(name))
    options = inspect.signature(function).parameters
    if wrong := [key for key in given if key not in options or key in ("y_true", "y_pred", "from_logits", "axis")]:
        known = ", ".join(key for key in options if key not in ("y_true", "y_pred", "from_logits", "axis"))
        raise SettingError(f"{name} takes no {', '.join(wrong)}; it takes {known or 'no parameters'}", "train", "loss")
    if name_is_sparse(name) and target.kind not in ("class", "mask"):
        raise SettingError(f"{name} is of classes, not of {target.kind} targets", "train", "loss")
    if "from_logits" in options:
        given["from_logits"] = True
    if "axis" in options and options["axis"].default is None:  # without it, of a whole batch
        given["axis"] = [1, 2, 3] if target.kind == "mask" else [1]
    if train.label_smoothing:
        if "label_smoothing" not in options:
            raise SettingError(f"label_smoothing: {name} has none", "train", "label_smoothing")
        given["label_smoothing"] = train.label_smoothing
    return function, given


def _of_masks(train: Train, target: TargetSpec, by_class: tf.Tensor | None = None) -> Loss:
    """A loss of Keras, or of one's own, of each pixel or each mask; pixels that count for nothing do so here, too.

    A function of one's own is given -1 for these pixels. One of Keras is given class 0, if it takes numbers; a loss of
    whole masks, such as ``dice``, neither target nor probability.
    """
    assert train.loss is not None
    name = name_of(train.loss)
    own = _own(train) if ":" in name else None
    function, given = (own, {}) if own is not None else _of_keras(train, target)
    weighs_masks = SettingError(f"class_weights: {name} gives a number for each mask, and weights are of pixels",
                                "train", "class_weights")
    if by_class is not None and "axis" in given and given["axis"] == [1, 2, 3]:
        raise weighs_masks

    def losses(outputs: tf.Tensor, labels: tf.Tensor, counted: tf.Tensor) -> Any:
        if own is not None:
            return own(tf.where(counted > 0, labels, -1), outputs)
        if name_is_sparse(name):
            return function(labels, outputs, **given)
        wanted = tf.one_hot(labels, target.outputs)
        found = outputs if "from_logits" in given or snake(name) in _OF_SCORES else probabilities(outputs, target)
        if "axis" in given:
            wanted, found = wanted * counted[..., None], found * counted[..., None]
        return function(wanted, found, **given)

    def of_masks(outputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        labels, counted = _pixels(targets, target)
        found = tf.cast(losses(outputs, labels, counted), tf.float32)
        if found.shape.rank != 3:
            if by_class is not None:
                raise weighs_masks
            return _each(found, name)
        if by_class is not None:
            found *= tf.gather(by_class, labels)
        return _mean_of_pixels(tf.where(counted > 0, found, 0.0), counted)
    return of_masks


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


def _own(train: Train) -> Callable[..., Any]:
    assert train.loss is not None
    name, given = name_of(train.loss), parameters_of(train.loss)
    if train.label_smoothing:
        raise SettingError("label_smoothing works with the losses that FLEET has; your own loss may do it itself",
                           "train", "label_smoothing")
    try:
        function = load_object(name, "loss")
    except UserError as error:
        raise SettingError(str(error), "train", "loss") from error
    if not callable(function):
        raise SettingError(f"{name} is a {type(function).__name__}, not a function", "train", "loss")
    if isinstance(function, type) and issubclass(function, keras.losses.Loss):
        return _called(function, given, name).call
    if isinstance(function, keras.losses.Loss):
        return function.call
    return partial(function, **given)


def _called(kind: Callable[..., Any], given: Mapping[str, Any], name: str) -> Any:
    try:
        return kind(**given)
    except (TypeError, ValueError) as error:
        raise SettingError(f"{name}: {error}", "train", "loss") from error


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
