"""Compute losses, gradients, accuracy and simple metrics of linear models in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from fleet.errors import SettingError
from fleet.vocabulary.measures import canonical_name
from preprocess.target import TargetSpec


@dataclass(frozen=True)
class LinearOutputs:
    """The outputs of a linear model for some readable samples.

    Softmax regression for classes, logistic regression for multiple labels, linear regression for
    values. The loss of a sample is its cross-entropy; or the mean over its labels, or of the
    squared errors of its values. Each kind has its canonical link, so the gradient is prediction
    minus target (McCullagh and Nelder, Generalized Linear Models, 1989, section 2.2).

    Attributes:
        kind: kind of the targets: class, multilabel or value.
        outputs: (n, outputs), logits or values.
        targets: (n,) classes, or (n, outputs).
        weights: (n,) weights of the samples, or one for all.
        smoothing: label smoothing: share of each class spread over all classes; a label moves
            toward one half.
    """

    kind: str
    outputs: np.ndarray
    targets: np.ndarray
    weights: np.ndarray | float
    smoothing: float

    def losses(self) -> np.ndarray:
        """Return the weighted loss of each sample, (n,)."""
        if self.kind == "class":
            unweighted = -(self._smoothed_targets * self._log_probabilities).sum(axis=1)
        elif self.kind == "multilabel":
            unweighted = (
                np.logaddexp(0, self.outputs) - self.outputs * self._smoothed_targets
            ).mean(axis=1)
        else:
            unweighted = np.square(self.residuals).mean(axis=1)
        return unweighted * self.weights

    def slopes(self) -> np.ndarray:
        """Return the derivative of the summed losses by the outputs, in their shape."""
        width = self.outputs.shape[1]
        factor = {"class": 1.0, "multilabel": 1 / width, "value": 2 / width}[self.kind]
        return self.residuals * np.multiply(self.weights, factor)[..., None]

    def correct(self) -> np.ndarray:
        """Return 1 for each correct sample or its share of correct labels, (n,); 0 for values."""
        if self.kind == "class":
            return self.outputs.argmax(axis=1) == self.targets
        if self.kind == "multilabel":
            return ((self.outputs > 0) == (self.targets > 0)).mean(axis=1)
        return np.zeros(len(self.outputs))

    @cached_property
    def residuals(self) -> np.ndarray:
        """Predictions minus targets, (n, outputs)."""
        if self.kind == "class":
            return np.exp(self._log_probabilities) - self._smoothed_targets
        if self.kind == "multilabel":
            predicted = 0.5 * (1 + np.tanh(self.outputs / 2))
        else:
            predicted = self.outputs
        difference: np.ndarray = predicted - self._smoothed_targets
        return difference

    @cached_property
    def _log_probabilities(self) -> np.ndarray:
        """Logarithm of the softmax, (n, classes)."""
        shifted = self.outputs - self.outputs.max(axis=1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))

    @cached_property
    def _smoothed_targets(self) -> np.ndarray:
        """Dense targets after label smoothing, (n, outputs)."""
        if self.kind == "value":
            return self.targets
        if self.kind == "class":
            width = self.outputs.shape[1]
            dense = np.eye(width)[self.targets]
        else:
            width = 2
            dense = self.targets
        return dense * (1 - self.smoothing) + self.smoothing / width


@dataclass(frozen=True)
class LinearMaskOutputs(LinearOutputs):
    """Softmax regression on each pixel; the loss of a sample is the mean of its counted pixels.

    Outputs, targets and weights are those of all counted pixels, concatenated.

    Attributes:
        counted: (n, height, width), False for pixels excluded from loss and metrics.
    """

    counted: np.ndarray

    def losses(self) -> np.ndarray:  # noqa: D102 - see LinearOutputs
        return self._by_sample(super().losses())

    def slopes(self) -> np.ndarray:  # noqa: D102
        slopes = np.zeros((*self.counted.shape, self.outputs.shape[1]))
        slopes[self.counted] = super().slopes()
        return slopes

    def correct(self) -> np.ndarray:  # noqa: D102
        return self._by_sample(super().correct()) / np.maximum(self.counted.sum(axis=(1, 2)), 1)

    def _by_sample(self, values: np.ndarray) -> np.ndarray:
        """Return values of pixels summed per sample, (n,)."""
        return np.bincount(np.nonzero(self.counted)[0], values, len(self.counted))


# Takes outputs, targets and perhaps weights of samples, and True for training.
Measure: TypeAlias = Callable[[np.ndarray, Sequence[np.ndarray], bool], LinearOutputs]


def make_measure(
    target: TargetSpec, smoothing: float, class_weights: Mapping[str, float] | str | None
) -> Measure:
    """Return a function that evaluates outputs for a kind of targets.

    Args:
        target: target of a sample.
        smoothing: label smoothing.
        class_weights: weights of all classes in order; used in training only.
    """
    if isinstance(class_weights, Mapping):
        training_factors = np.array(list(class_weights.values()))
    else:
        training_factors = None

    def measure(outputs: np.ndarray, labels: Sequence[np.ndarray], training: bool) -> LinearOutputs:
        targets, *weights = labels
        weight: Any = weights[0].astype(np.float64) if weights else 1.0
        if target.kind == "mask":
            counted = targets != target.void
            weight = weight / np.maximum(counted.sum(axis=(1, 2)), 1)
            weight = weight[np.nonzero(counted)[0]]
            outputs = outputs[counted]
            targets = targets[counted].astype(np.int64)
        if training and training_factors is not None and target.kind in ("class", "mask"):
            weight = training_factors[targets] * weight
        if target.kind == "mask":
            return LinearMaskOutputs("class", outputs, targets, weight, smoothing, counted)
        return LinearOutputs(target.kind, outputs, targets, weight, smoothing)

    return measure


_ERRORS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mean_absolute_error": np.abs,
    "mean_squared_error": np.square,
}


def make_metric(name: str, target: TargetSpec) -> Callable[[Any], np.ndarray]:
    """Return a metric: a function from :class:`LinearOutputs` to a number per sample.

    Args:
        name: name of the metric.
        target: target of a sample.

    Raises:
        SettingError: this engine does not have the metric for such targets.
    """
    functions = _ERRORS if target.kind == "value" else {}
    if canonical_name(name) not in functions:
        supported = " and ".join(functions) if functions else "accuracy only"
        raise SettingError(
            f"the numpy engine does not support the metric {name} for {target.kind} targets; it "
            f"supports {supported}",
            "train",
            "metrics",
        )
    return lambda outputs: functions[canonical_name(name)](outputs.residuals).mean(axis=1)
