"""Compute losses, gradients, accuracy and simple metrics of linear models in NumPy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from fleet.errors import SettingError
from fleet.vocabulary.measures import canonical_name
from preprocess.target import TargetSpec


@dataclass(frozen=True)
class LinearOutputs(ABC):
    """The outputs of a linear model for some readable samples; a subclass for each kind of targets.

    Each kind has its canonical link, so the gradient is prediction minus target (McCullagh and
    Nelder, Generalized Linear Models, 1989, section 2.2).

    Attributes:
        outputs: (n, outputs), logits or values.
        targets: (n,) classes, or (n, outputs).
        weights: (n,) weights of the samples, or one for all.
        smoothing: label smoothing: share of each class spread over all classes; a label moves
            toward one half.
    """

    outputs: np.ndarray
    targets: np.ndarray
    weights: np.ndarray | float
    smoothing: float

    def losses(self) -> np.ndarray:
        """Return the weighted loss of each sample, (n,)."""
        return self._unweighted_losses() * self.weights

    def slopes(self) -> np.ndarray:
        """Return the derivative of the summed losses by the outputs, in their shape."""
        return self.residuals * np.multiply(self.weights, self._slope())[..., None]

    @cached_property
    def residuals(self) -> np.ndarray:
        """Predictions minus targets, (n, outputs)."""
        difference: np.ndarray = self._predicted() - self._expected
        return difference

    @abstractmethod
    def correct(self) -> np.ndarray:
        """Return 1 for each correct sample or its share of correct labels, (n,); 0 for values."""

    @abstractmethod
    def _unweighted_losses(self) -> np.ndarray:
        """Return the loss of each sample, (n,)."""

    @abstractmethod
    def _slope(self) -> float:
        """Return the derivative of a loss by an output, divided by the residual."""

    @abstractmethod
    def _predicted(self) -> np.ndarray:
        """Return the predictions, (n, outputs)."""

    @cached_property
    def _expected(self) -> np.ndarray:
        """Dense targets after label smoothing, (n, outputs)."""
        return self.targets


class LinearClassOutputs(LinearOutputs):
    """Softmax regression: the loss of a sample is its cross-entropy."""

    def correct(self) -> np.ndarray:  # noqa: D102 - see LinearOutputs
        return self.outputs.argmax(axis=1) == self.targets

    def _unweighted_losses(self) -> np.ndarray:
        loss: np.ndarray = -(self._expected * self._log_probabilities).sum(axis=1)
        return loss

    def _slope(self) -> float:
        return 1.0

    def _predicted(self) -> np.ndarray:
        return np.exp(self._log_probabilities)

    @cached_property
    def _log_probabilities(self) -> np.ndarray:
        """Logarithm of the softmax, (n, classes)."""
        shifted = self.outputs - self.outputs.max(axis=1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))

    @cached_property
    def _expected(self) -> np.ndarray:
        width = self.outputs.shape[1]
        return np.eye(width)[self.targets] * (1 - self.smoothing) + self.smoothing / width


class LinearLabelOutputs(LinearOutputs):
    """Logistic regression: the loss of a sample is the mean cross-entropy of its labels."""

    def correct(self) -> np.ndarray:  # noqa: D102
        return ((self.outputs > 0) == (self.targets > 0)).mean(axis=1)

    def _unweighted_losses(self) -> np.ndarray:
        return (np.logaddexp(0, self.outputs) - self.outputs * self._expected).mean(axis=1)

    def _slope(self) -> float:
        return 1 / self.outputs.shape[1]

    def _predicted(self) -> np.ndarray:
        return 0.5 * (1 + np.tanh(self.outputs / 2))

    @cached_property
    def _expected(self) -> np.ndarray:
        return self.targets * (1 - self.smoothing) + self.smoothing / 2


class LinearValueOutputs(LinearOutputs):
    """Linear regression: the loss of a sample is the mean squared error of its values."""

    def correct(self) -> np.ndarray:  # noqa: D102
        return np.zeros(len(self.outputs))

    def _unweighted_losses(self) -> np.ndarray:
        return np.square(self.residuals).mean(axis=1)

    def _slope(self) -> float:
        return 2 / self.outputs.shape[1]

    def _predicted(self) -> np.ndarray:
        return self.outputs


@dataclass(frozen=True)
class LinearMaskOutputs:
    """Softmax regression on each pixel; the loss of a sample is the mean of its counted pixels.

    Attributes:
        outputs: (n, height, width, classes) logits.
        targets: (n, height, width) classes.
        counted: (n, height, width), False for pixels excluded from loss and metrics.
        pixels: outputs of all counted pixels, concatenated.
    """

    outputs: np.ndarray
    targets: np.ndarray
    counted: np.ndarray
    pixels: LinearClassOutputs

    @classmethod
    def of(
        cls,
        outputs: np.ndarray,
        targets: np.ndarray,
        weights: np.ndarray | float,
        void: int,
        smoothing: float,
        class_weights: np.ndarray | None,
    ) -> LinearMaskOutputs:
        """Return the outputs for some weighted samples.

        Args:
            outputs: (n, height, width, classes) logits.
            targets: (n, height, width) classes.
            weights: (n,) weights of the samples, or one for all.
            void: class of pixels excluded from loss and metrics.
            smoothing: label smoothing.
            class_weights: (classes,) weights; None if all classes count the same.
        """
        counted = targets != void
        labels = targets[counted].astype(np.int64)
        pixel_weights = (weights / np.maximum(counted.sum(axis=(1, 2)), 1))[np.nonzero(counted)[0]]
        if class_weights is not None:
            pixel_weights = pixel_weights * class_weights[labels]
        return cls(
            outputs,
            targets,
            counted,
            LinearClassOutputs(outputs[counted], labels, pixel_weights, smoothing),
        )

    def losses(self) -> np.ndarray:  # noqa: D102 - see LinearOutputs
        return self._by_sample(self.pixels.losses())

    def slopes(self) -> np.ndarray:  # noqa: D102
        slopes = np.zeros_like(self.outputs)
        slopes[self.counted] = self.pixels.slopes()
        return slopes

    def correct(self) -> np.ndarray:  # noqa: D102
        return self._by_sample(self.pixels.correct()) / np.maximum(self.counted.sum(axis=(1, 2)), 1)

    def _by_sample(self, values: np.ndarray) -> np.ndarray:
        """Return values of pixels summed per sample, (n,)."""
        return np.bincount(np.nonzero(self.counted)[0], values, len(self.targets))


AnyLinearOutputs: TypeAlias = LinearOutputs | LinearMaskOutputs
# Takes outputs, targets and perhaps weights of samples, and True for training.
Measure: TypeAlias = Callable[[np.ndarray, Sequence[np.ndarray], bool], AnyLinearOutputs]


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

    def measure(
        outputs: np.ndarray, labels: Sequence[np.ndarray], training: bool
    ) -> AnyLinearOutputs:
        targets, *weights = labels
        class_factors = training_factors if training else None
        sample_weights = weights[0].astype(np.float64) if weights else 1.0
        if target.semantics.is_of_pixels:
            return LinearMaskOutputs.of(
                outputs, targets, sample_weights, target.void, smoothing, class_factors
            )
        if target.semantics.has_classes and class_factors is not None:
            sample_weights = class_factors[targets] * sample_weights
        return _OUTPUTS[target.kind](outputs, targets, sample_weights, smoothing)

    return measure


# Masks are LinearMaskOutputs.
_OUTPUTS: dict[str, type[LinearOutputs]] = {
    "class": LinearClassOutputs,
    "multilabel": LinearLabelOutputs,
    "value": LinearValueOutputs,
}
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
    functions = _ERRORS if target.semantics.is_numeric else {}
    if canonical_name(name) not in functions:
        supported = " and ".join(functions) if functions else "accuracy only"
        raise SettingError(
            f"the numpy engine does not support the metric {name} for {target.kind} targets; it "
            f"supports {supported}",
            "train",
            "metrics",
        )
    return lambda outputs: functions[canonical_name(name)](outputs.residuals).mean(axis=1)
