"""Train linear models in NumPy: float64, exact gradients.

A step takes microseconds, so this engine serves to test the whole runtime: groups, stream, rounds,
checkpoints, failures. It is also an oracle, because its results can be derived by hand. It trains
softmax regression for classes, logistic regression for multiple labels, linear regression for
values, and softmax regression on the channels of each pixel for masks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fleet.comm.protocols import Group
from fleet.engines.base import (
    Arrays,
    EngineContext,
    Rows,
    StepTotals,
    check_arrays,
    select_readable,
)
from fleet.engines.linear import AnyLinearOutputs, make_measure, make_metric
from fleet.errors import ModelError, SettingError
from fleet.spec import NetworkSpec
from fleet.spec.measures import label_of, name_of, parameters_of
from fleet.spec.model import Architecture, InputShape, arguments_for, load_function
from fleet.vocabulary.measures import canonical_name
from preprocess.base import flatten_rows
from preprocess.deferred_augmentation import finished
from preprocess.sample import SampleSpec


class NumpyEngine:
    """Builds linear models, ``family: softmax``.

    ``build: module:function`` may provide the initial weights instead. The function is called with
    ``input_shape``, ``classes`` and the network's arguments, and returns an array (features + 1,
    classes) whose last row holds the biases.
    """

    exchange_name = "mpi"

    def __init__(self, sample: SampleSpec) -> None:
        self._sample = sample

    def build(self, network: NetworkSpec, group: Group) -> SoftmaxRegression:  # noqa: D102 - see Engine
        sample = self._sample.for_pipeline(network.pipeline, network.fold)
        shape = (_features(sample) + 1, sample.classes)
        if network.architecture.kind == "import":
            function = load_function(network.architecture.target)
            weights = function(
                **arguments_for(function, network.architecture, sample.input_shape, shape[1])
            )
            weights = np.array(weights, np.float64)
            if weights.shape != shape:
                raise ModelError(
                    f"{network.architecture.target} returned weights of shape {weights.shape}; "
                    f"they should have the shape (features + 1, classes) = {shape}"
                )
        else:
            weights = np.random.default_rng(network.seed).normal(0, 0.01, shape)
        return SoftmaxRegression(network, group, sample, weights)


def _features(sample: SampleSpec) -> int:
    """Return the number of features: those of a sample, or for masks the channels of a pixel."""
    if sample.target.semantics.is_of_pixels:
        return sample.input.shape[-1]
    return sample.input.size


def make(setup: EngineContext) -> NumpyEngine:
    """Return the engine of a trainer."""
    return NumpyEngine(setup.sample)


def count_parameters(architecture: Architecture, shape: InputShape, classes: int, seed: int) -> int:
    """Return the number of weights of a regression."""
    shapes = shape.values() if isinstance(shape, dict) else (shape,)
    return (sum(map(math.prod, shapes)) + 1) * classes


class SoftmaxRegression:
    """A linear model, trained by gradient descent with momentum.

    Args:
        weights: (features + 1, classes) initial weights; the last row holds the biases.
    """

    def __init__(
        self, network: NetworkSpec, group: Group, sample: SampleSpec, weights: np.ndarray
    ) -> None:
        train, optimizer = network.train, network.train.optimizer
        assert isinstance(optimizer.learning_rate, float)  # the engine supports no schedules
        self._group = group
        self._sample = sample
        self._measure = make_measure(
            sample.target, train.single.label_smoothing, train.single.class_weights
        )
        self._metrics = {
            label_of(name): make_metric(name_of(name), sample.target)
            for name in train.single.metrics
            if canonical_name(name_of(name)) != "accuracy"
        }
        if any(map(parameters_of, train.single.metrics)):
            raise SettingError(
                "metrics of the numpy engine take no parameters; remove them", "train", "metrics"
            )
        self._zero_totals = (0.0,) * (len(self._metrics) + 1 if self._metrics else 0)
        self._rate = self._base_rate = optimizer.learning_rate * network.learning_rate_scale(
            group.size
        )
        self._momentum = optimizer.momentum or 0.0
        self._weights = weights
        self._velocity = np.zeros_like(weights)

    def step(  # noqa: D102
        self,
        inputs: np.ndarray,
        targets: np.ndarray,
        size: int,
        stop: bool = False,
        *weights: np.ndarray,
    ) -> StepTotals:
        gradient = np.zeros_like(self._weights)
        local_totals = StepTotals(stop=stop, metric_totals=self._zero_totals)
        error: BaseException | None = None
        try:
            outputs, features = self._outputs((inputs, targets, *weights), training=True)
            gradient = features.reshape(-1, features.shape[-1]).T @ outputs.slopes().reshape(
                -1, gradient.shape[1]
            )
            local_totals += self._totals(outputs)
        except BaseException as caught:  # the other ranks wait for this rank's gradients
            error = caught
            local_totals = StepTotals(
                stop=stop, failed=True, metric_totals=local_totals.metric_totals
            )
        buffer = np.concatenate([gradient.ravel(), local_totals.pack()])
        self._group.sum(buffer)
        gradient = buffer[: gradient.size].reshape(self._weights.shape)
        totals = StepTotals.unpack(buffer[gradient.size :])
        totals.raise_failure(error)
        if totals.count:  # a batch without readable samples changes nothing
            gradient = gradient / totals.count
            self._velocity = self._momentum * self._velocity - self._rate * gradient
            self._weights = self._weights + self._velocity
        return totals

    def evaluate(self, *rows: np.ndarray) -> StepTotals:  # noqa: D102
        return self._totals(self._outputs(rows)[0])

    def predict(self, *rows: np.ndarray) -> tuple[StepTotals, np.ndarray]:  # noqa: D102
        outputs: np.ndarray = self._features(rows[0]) @ self._weights
        return self.evaluate(*rows), outputs.astype(np.float32)

    def scores(self, metric_totals: Sequence[float]) -> dict[str, float]:  # noqa: D102 - see SupportsMetrics
        *sums, count = metric_totals
        return {name: total / count for name, total in zip(self._metrics, sums, strict=True)}

    def _outputs(self, rows: Rows, training: bool = False) -> tuple[AnyLinearOutputs, np.ndarray]:
        """Return the outputs for the readable samples, and their features."""
        inputs, *labels = select_readable(rows)
        features = self._features(inputs)
        return self._measure(features @ self._weights, labels, training), features

    def _totals(self, outputs: AnyLinearOutputs) -> StepTotals:
        losses = outputs.losses()
        count = len(losses)
        metric_totals = [float(metric(outputs).sum()) for metric in self._metrics.values()]
        return StepTotals(
            float(losses.sum()),
            float(outputs.correct().sum()),
            count,
            metric_totals=(*metric_totals, float(count)) if metric_totals else (),
        )

    def average_statistics(self) -> None:
        """Do nothing: a linear model has no statistics."""

    def learning_rate(self) -> float:  # noqa: D102
        return self._rate

    def scale_learning_rate(self, factor: float) -> None:  # noqa: D102 - see SupportsRateScaling
        self._rate = self._base_rate * factor

    def state(self) -> dict[str, np.ndarray]:  # noqa: D102
        return {"weights": self._weights.copy(), "velocity": self._velocity.copy()}

    def load(self, arrays: Arrays) -> None:  # noqa: D102
        check_arrays({"weights": self._weights.shape, "velocity": self._velocity.shape}, arrays)
        self._weights = np.array(arrays["weights"])
        self._velocity = np.array(arrays["velocity"])

    def export(self, arrays: Arrays, path: Path) -> None:
        """Do nothing: the weights are in the checkpoint."""

    def count_parameters(self) -> int:  # noqa: D102 - see SupportsInspection
        return self._weights.size

    def row_bytes(self) -> int:
        """Return the bytes of the inputs and of the logits with their gradient, all float64."""
        features, classes = self._weights.shape
        return 8 * (features + 2 * classes)

    def try_export(self, folder: Path) -> str:
        """Return an empty note, because nothing is exported."""
        return ""

    def regroup(self, group: Group) -> None:  # noqa: D102
        self._group = group

    def close(self) -> None:
        """Do nothing: no resources are held."""

    def _features(self, inputs: np.ndarray) -> np.ndarray:
        """Return features: (n, features + 1), or for masks (n, height, width, channels + 1)."""
        inputs = finished(inputs, self._sample)
        scaled = list(self._sample.scale(inputs).values())
        if self._sample.target.semantics.is_of_pixels:
            [features] = scaled
        else:
            flat = [flatten_rows(part) for part in scaled]
            features = np.concatenate(flat, axis=1) if len(flat) > 1 else flat[0]
        return np.concatenate(
            [features.astype(np.float64), np.ones((*features.shape[:-1], 1))], axis=-1
        )
