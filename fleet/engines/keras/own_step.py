"""Compute losses and metrics by a function of the user instead of a named loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from fleet.engines.keras.inputs import Inputs, as_bytes, as_rows, model_inputs
from fleet.engines.keras.outputs import targets_of
from fleet.engines.own_step import (
    ACCURACY,
    INDEX,
    INPUT,
    LOSS,
    WEIGHT,
    OwnStep,
    StepBatch,
    StepMetrics,
)
from fleet.spec import Train
from preprocess.sample import SampleSpec
from preprocess.target import TargetSpec

_ROWS = 2  # rows of a trial batch


class Returned(NamedTuple):
    """What a step returned for some rows.

    Attributes:
        losses: (n,) float32.
        values: (n,) float32 by name: the other numbers.
        is_scalar: True if the loss was one number for all rows.
    """

    losses: tf.Tensor
    values: dict[str, tf.Tensor]
    is_scalar: bool


@dataclass(frozen=True)
class KerasStep:
    """A step of the user.

    Attributes:
        user_step: the function.
        target: target of a sample.
        metrics: what the function returns beside the loss and the accuracy.
        returns_accuracy: whether it returns an accuracy.
    """

    user_step: OwnStep
    target: TargetSpec
    metrics: StepMetrics
    returns_accuracy: bool

    @classmethod
    def of(cls, train: Train, model: keras.Model, sample: SampleSpec) -> KerasStep:
        """Call the function on two made-up samples, and return it with what it returns.

        Args:
            train: settings that name the function.
            model: the network.
            sample: shape and type of the samples.

        Raises:
            SettingError: the function does not exist, raises, or returns something else.
        """
        trial = cls(OwnStep(train), sample.target, StepMetrics([]), False)
        trial.user_step.check_sample(sample)
        random = np.random.default_rng(0)
        inputs = sample.input.random_inputs(random, _ROWS)
        if sample.parts:
            model_samples = model_inputs(tf.constant(as_rows(inputs, sample)), sample)
        else:
            scaled = inputs if sample.affine is None else sample.affine.apply(inputs)
            model_samples = tf.constant(scaled, tf.float32)
        targets = sample.target.split(sample.target.random_targets(random, _ROWS))
        names: dict[str, None] = {}
        is_scalar = False
        before = [(variable, np.array(variable.numpy())) for variable in model.variables]
        for training in (True, False):
            batch = trial.batch_of(
                model_samples,
                tf.range(_ROWS, dtype=tf.int64),
                *(tf.constant(as_bytes(part)) for part in targets),
            )
            with tf.GradientTape() as tape:
                returned = trial.user_step(model, batch, training)
                trial.user_step.check_names(list(returned))
                read = trial.read(returned, _ROWS)
                loss = tf.reduce_sum(read.losses)
            weights = [variable.value for variable in model.trainable_variables]
            if training and all(gradient is None for gradient in tape.gradient(loss, weights)):
                raise trial.user_step.error(
                    "returned a loss that has no gradient; compute it from outputs of the model, "
                    "without numpy() or tf.stop_gradient"
                )
            is_scalar = is_scalar or read.is_scalar
            names.update(dict.fromkeys(returned))
        for variable, value in before:
            variable.assign(value)
        if is_scalar:
            trial.user_step.warn_of_scalar()
        trial.user_step.check_monitor(train, list(names))
        metrics = StepMetrics([name for name in names if name not in (LOSS, ACCURACY)])
        return cls(trial.user_step, sample.target, metrics, ACCURACY in names)

    def batch_of(
        self,
        inputs: Inputs,
        indices: tf.Tensor,
        targets: tf.Tensor,
        weights: tf.Tensor | None = None,
    ) -> StepBatch:
        """Return the batch that the function is called with.

        Args:
            inputs: (n, ...), scaled; of several inputs, by name.
            indices: (n,) int64, rows in the data set.
            targets: (n, ...), as they travel; of several, (n, bytes).
            weights: (n,) float32; None for classes without weights.
        """
        if weights is None:
            weights = tf.ones(tf.shape(targets)[:1], tf.float32)
        named = dict(inputs) if isinstance(inputs, dict) else {INPUT: inputs}
        tensors = targets_of(targets, self.target)
        for name, target in self.target.by_name.items():
            if target.semantics.exists:
                is_number = len(target.shape) == 1  # values or labels, not classes
                tensor = tensors[name] if self.target.parts else tensors
                named[name] = tf.cast(tensor, tf.float32 if is_number else tf.int64)
        return StepBatch({**named, WEIGHT: weights, INDEX: indices})

    def read(self, returned: dict[str, Any], rows: int | tf.Tensor) -> Returned:
        """Return the numbers of what the function returned.

        Args:
            returned: numbers by name.
            rows: number of rows of the batch; a tensor in a graph.

        Raises:
            SettingError: a number has the wrong shape or type.
        """
        values = {}
        is_scalar = False
        for name, value in returned.items():
            try:
                number = tf.cast(tf.convert_to_tensor(value), tf.float32)
            except (TypeError, ValueError, tf.errors.OpError) as error:
                raise self.user_step.shape_error(name, f"a {type(value).__name__}", rows) from error
            shape = number.shape
            known_rows = rows if isinstance(rows, int) else None
            if shape.rank not in (0, 1) or (
                shape.rank == 1 and known_rows is not None and shape[0] != known_rows
            ):
                raise self.user_step.shape_error(name, shape.as_list(), rows)
            if name == LOSS:
                is_scalar = shape.rank == 0
            values[name] = tf.broadcast_to(number, [rows]) if shape.rank == 0 else number
        return Returned(values.pop(LOSS), values, is_scalar)

    def losses(
        self, model: keras.Model, batch: StepBatch, training: bool
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Call the function in a graph; return the weighted loss of each row, and other numbers.

        Args:
            model: the network.
            batch: the batch.
            training: False in evaluation.
        """
        # AutoGraph converts the function itself, not code around it.
        returned = self.user_step.named(self.user_step.function(model, batch, training))
        read = self.read(returned, tf.shape(batch[WEIGHT])[0])
        return read.losses * batch[WEIGHT], read.values

    def sums(self, losses: tf.Tensor, values: dict[str, tf.Tensor]) -> tf.Tensor:
        """Return the totals of some rows, (6 + metrics,) float32.

        Args:
            losses: (n,) weighted losses.
            values: (n,) numbers by name.
        """
        count = tf.cast(tf.shape(losses)[0], tf.float32)
        zero = tf.constant(0.0)
        correct = tf.reduce_sum(values[ACCURACY]) if ACCURACY in values else zero
        parts = [tf.reduce_sum(losses), correct, count, zero, zero, zero]
        for name in self.metrics.names:
            if name in values:
                parts += [tf.reduce_sum(values[name]), count]
            else:
                parts += [zero, zero]
        return tf.stack(parts)
