"""Compute Keras and custom metrics from states that add up over steps, ranks and groups.

The state of a metric is a few numbers that grow with each batch: a total and a count, a confusion
matrix, the hits and misses at each threshold. Each batch adds numbers that depend only on that
batch, so ranks add up their states, and AUC, F1 or IoU are exact in a group of any size. Other
metrics are refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from fleet.engines.custom import ArgumentOrder, load_custom, takes_outputs_first
from fleet.engines.keras.losses import OPS, custom_targets, make_losses, takes_class_numbers
from fleet.engines.measures import Measures, Metrics
from fleet.engines.several_targets import MetricsOfTargets, metrics_by_target
from fleet.engines.tensor_ops import scalar_result_error
from fleet.errors import SettingError
from fleet.spec import Train
from fleet.spec.engines import find_engine
from fleet.spec.measures import Measure, label_of, name_of, parameters_of
from fleet.spec.model import wrapping_errors
from fleet.vocabulary.measures import ACROSS_VALUES, canonical_name
from preprocess.record_target import record_of
from preprocess.target import TargetSpec

_PROBES = 12  # random samples on which a metric is tried


@dataclass(frozen=True)
class _Metric:
    """One metric.

    Attributes:
        name: column of the results.
        keras: the Keras metric; its own state is never used.
        inputs_of: (outputs, targets) -> the metric's inputs (targets, predictions).
    """

    name: str
    keras: keras.metrics.Metric
    inputs_of: Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]

    def batch_state(self, outputs: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """Return what some samples add to the state: (width,) float32."""
        expected, predicted = self.inputs_of(outputs, targets)
        # Keras counts single numbers of this metric; give each the weight of its sample.
        if isinstance(self.keras, keras.metrics.BinaryIoU):
            further_axes = [1] * (predicted.shape.rank - 1)
            repeated = tf.ones_like(predicted) * tf.reshape(weights, [-1, *further_axes])
            expected, predicted, weights = (
                tf.reshape(part, [-1]) for part in (expected, predicted, repeated)
            )
        if "int" in str(self.keras.dtype):  # the state is a table of counts
            weights = tf.cast(weights, tf.int32)
        zeros = [tf.zeros(variable.shape, variable.dtype) for variable in self.keras.variables]
        state = self.keras.stateless_update_state(zeros, expected, predicted, sample_weight=weights)
        return tf.concat([tf.reshape(tf.cast(part, tf.float32), [-1]) for part in state], axis=0)

    @property
    def width(self) -> int:
        """Number of elements of the state."""
        return sum(int(np.prod(variable.shape)) for variable in self.keras.variables)

    def result(self, state: np.ndarray) -> float:
        """Return the value of a flat state, (width,); the mean, if there are several values."""
        parts = []
        first = 0
        for variable in self.keras.variables:
            size = int(np.prod(variable.shape))
            parts.append(
                tf.cast(state[first : first + size].reshape(variable.shape), variable.dtype)
            )
            first += size
        return float(np.mean(keras.ops.convert_to_numpy(self.keras.stateless_result(parts))))


class MetricSet(Metrics):
    """The metrics of a network."""

    def sums(self, outputs: tf.Tensor, targets: tf.Tensor, valid: tf.Tensor) -> tf.Tensor:
        """Return what some rows add to the states of all metrics: (width,) float32.

        Args:
            outputs: (n, ...) logits or values.
            targets: (n, ...).
            valid: (n,), True for readable rows.
        """
        weights = tf.cast(valid, tf.float32)
        if self._target.semantics.is_of_pixels:
            counted = tf.cast(
                tf.not_equal(targets, tf.constant(self._target.void, targets.dtype)), tf.float32
            )
            weights = tf.reshape(weights[:, None, None] * counted, [-1])
        return tf.concat(
            [metric.batch_state(outputs, targets, weights) for metric in self._metrics], axis=0
        )


def make_measures(train: Train, target: TargetSpec) -> Measures:
    """Return the losses and metrics of a network.

    Args:
        train: training settings.
        target: target of a sample.

    Raises:
        SettingError: a loss or metric does not exist, or is not for such targets.
    """
    losses = make_losses(train, target)
    if not target.parts:
        return Measures(losses, make_metrics(train, target))
    targets = record_of(target)
    words = find_engine("keras").words.metrics
    metrics = metrics_by_target(train, targets, words, make_metrics)
    return Measures(losses, MetricsOfTargets(targets, metrics, losses, tf.reshape, _join_states))


def _join_states(states: Sequence[tf.Tensor]) -> tf.Tensor:
    """Concatenate scalars and vectors as float32."""
    return tf.concat([tf.reshape(tf.cast(state, tf.float32), [-1]) for state in states], axis=0)


def make_metrics(train: Train, target: TargetSpec) -> MetricSet:
    """Return the metrics of a network; see :meth:`fleet.engines.measures.Metrics.of`.

    Args:
        train: training settings.
        target: target of a sample.
    """
    return MetricSet.of(train, target, _make_metric)


def _make_metric(measure: Measure, target: TargetSpec) -> _Metric:
    name = name_of(measure)
    if canonical_name(name) in ACROSS_VALUES and target.outputs == 1:
        raise SettingError(
            f"the metric {name} needs several values per sample, because it is computed across "
            "them; use r2_score, which is computed across samples",
            "train",
            "metrics",
        )
    with wrapping_errors(
        f"the metric {name} cannot be computed for {target}:", SettingError, "train", "metrics"
    ):
        metric = _Metric(
            label_of(measure),
            _make_keras_metric(name, parameters_of(measure), target),
            lambda outputs, targets: _metric_inputs(outputs, targets, target, name),
        )
        _check_adds_up(metric, target, name)
    return metric


def _metric_inputs(
    outputs: tf.Tensor, targets: tf.Tensor, target: TargetSpec, name: str
) -> tuple[tf.Tensor, tf.Tensor]:
    is_sparse = takes_class_numbers(name) or ":" in name
    if canonical_name(name) == "r2_score":
        # Center the values: differences of the squares of large numbers lose all digits.
        return tuple(
            tf.cast(part, tf.float64) - tf.constant(target.center or 0.0, tf.float64)
            for part in (targets, outputs)
        )
    predicted = OPS.probabilities(outputs, target.kind)
    if target.semantics.is_of_pixels:  # count each pixel
        predicted = tf.reshape(predicted, (-1, target.outputs))
        flat = tf.cast(tf.reshape(targets, [-1]), tf.int64)
        labels = tf.where(tf.equal(flat, target.void), tf.zeros_like(flat), flat)
        if not is_sparse:
            labels = tf.one_hot(labels, target.outputs)
        return labels, predicted
    if not is_sparse:
        return OPS.to_dense(targets, target), predicted
    return custom_targets(targets, target), predicted


def _make_keras_metric(
    name: str, arguments: Mapping[str, Any], target: TargetSpec
) -> keras.metrics.Metric:
    if ":" in name:
        metric = load_custom(name, "metric", "metrics")
        if isinstance(metric, type) and issubclass(metric, keras.metrics.Metric):
            metric = metric(**arguments)
        if isinstance(metric, keras.metrics.Metric):
            return metric
        order = ArgumentOrder(takes_outputs_first(metric) is True)
        return _make_mean_metric(
            partial(
                order.as_targets_first(metric),
                **{key: value for key, value in arguments.items() if key != "name"},
            ),
            name,
        )
    kind = next(
        getattr(keras.metrics, class_name)
        for class_name in dir(keras.metrics)
        if class_name[0].isupper() and canonical_name(class_name) == canonical_name(name)
    )
    parameters = inspect.signature(kind).parameters
    defaults: dict[str, Any] = {}
    if "num_classes" in parameters:
        defaults["num_classes"] = target.outputs
        if "sparse_y_true" in parameters:
            defaults |= {"sparse_y_true": False, "sparse_y_pred": False}
    if "average" in parameters:
        defaults["average"] = "macro"
        # Without a threshold only the most likely label counts.
        if target.semantics.has_label_sets:
            defaults["threshold"] = 0.5
    if kind is keras.metrics.R2Score:
        defaults["dtype"] = "float64"
    wrong = [key for key in arguments if key not in parameters]
    if wrong:
        raise SettingError(
            f"the metric {name} has no parameter {', '.join(wrong)}; its parameters are "
            f"{', '.join(parameters)}",
            "train",
            "metrics",
        )
    return kind(**{**defaults, **arguments})


def _make_mean_metric(function: Callable[..., Any], name: str) -> keras.metrics.Metric:
    """Return the mean over samples of a function as a metric."""

    def checked(targets: tf.Tensor, predicted: tf.Tensor) -> tf.Tensor:
        values = tf.convert_to_tensor(function(targets, predicted))
        if values.shape.rank == 0:
            raise scalar_result_error(
                f"the metric {name}", "metrics", ", or be a keras.metrics.Metric"
            )
        return tf.cast(values, tf.float32)

    return keras.metrics.MeanMetricWrapper(checked, name=label_of(name))


def _check_adds_up(metric: _Metric, target: TargetSpec, name: str) -> None:
    """Check on random samples that a metric can be computed and that its state adds up."""
    random = np.random.default_rng(0)
    targets = tf.constant(target.split(target.random_targets(random, _PROBES))[0])
    # Positive outputs, because some metrics take logarithms.
    outputs = tf.constant(random.uniform(0.1, 2, (_PROBES, *target.output_shape)), tf.float32)
    pixels = int(np.prod(target.shape)) if target.semantics.is_of_pixels else 1

    def batch_state(first: int, last: int) -> np.ndarray:
        weights = tf.ones((last - first) * pixels)
        return np.asarray(metric.batch_state(outputs[first:last], targets[first:last], weights))

    # Some metrics create their variables in the first update.
    metric.keras.update_state(*metric.inputs_of(outputs, targets))
    parts = batch_state(0, 5) + batch_state(5, _PROBES)
    combined = batch_state(0, _PROBES)
    if not np.allclose(parts, combined, rtol=1e-4, atol=1e-4, equal_nan=True):
        raise SettingError(
            f"the metric {name} is not supported: its state is not a sum over batches, so the "
            "ranks of a group cannot compute it together",
            "train",
            "metrics",
        )
    metric.result(combined.astype(np.float64))
