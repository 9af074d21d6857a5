"""What the answers of a linear model come to, in NumPy: losses, their slopes, how many are right, simple metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from fleet.errors import SettingError
from fleet.spec.measures import snake
from preprocess.target import TargetSpec


class Answers(Protocol):
    """What a model gives for some samples that can be used."""

    @property
    def targets(self) -> np.ndarray:
        """(n, ...)."""

    def losses(self) -> np.ndarray:
        """(n,), each times the sample's weight."""

    def slopes(self) -> np.ndarray:
        """The derivative of the summed losses by the outputs, of their shape."""

    def correct(self) -> np.ndarray:
        """(n,): 1 for what is right, or the share of labels or pixels that are."""


@dataclass(frozen=True)
class ClassAnswers:
    """Softmax regression.

    Attributes:
        outputs: (n, classes) logits.
        targets: (n,) labels.
        weights: (n,) of the samples; None for all the same.
        smoothing: share of each label that is spread over all classes.
    """

    outputs: np.ndarray
    targets: np.ndarray
    weights: np.ndarray | None
    smoothing: float

    def losses(self) -> np.ndarray:  # noqa: D102 - Answers says it
        with np.errstate(divide="ignore"):  # an infinite loss is a fact, which the trainer reports
            losses = -np.log(self.predicted[np.arange(len(self.targets)), self.targets])
            if self.smoothing:
                spread = -np.log(self.predicted).mean(axis=1)
                losses = (1 - self.smoothing) * losses + self.smoothing * spread
        return losses if self.weights is None else losses * self.weights

    def slopes(self) -> np.ndarray:  # noqa: D102
        slopes = self.predicted.copy()
        slopes[np.arange(len(self.targets)), self.targets] -= 1 - self.smoothing
        slopes = slopes - self.smoothing / slopes.shape[1] if self.smoothing else slopes
        return slopes if self.weights is None else slopes * self.weights[:, None]

    def correct(self) -> np.ndarray:  # noqa: D102
        return self.predicted.argmax(axis=1) == self.targets

    @cached_property
    def predicted(self) -> np.ndarray:
        """(n, classes) probabilities."""
        probabilities: np.ndarray = np.exp(self.outputs - self.outputs.max(axis=1, keepdims=True))
        return probabilities / probabilities.sum(axis=1, keepdims=True)


@dataclass(frozen=True)
class MaskAnswers:
    """Softmax regression on each pixel; a sample's loss is the mean over its pixels that count.

    Attributes:
        outputs: (n, height, width, classes) logits.
        targets: (n, height, width).
        counted: (n, height, width), which pixels count.
        pixels: all of these, one behind another.
    """

    outputs: np.ndarray
    targets: np.ndarray
    counted: np.ndarray
    pixels: ClassAnswers

    @classmethod
    def of(cls, outputs: np.ndarray, targets: np.ndarray, weights: np.ndarray, void: int, smoothing: float,
           class_weights: np.ndarray | None) -> MaskAnswers:
        """What comes out for some samples of such weights."""
        counted = targets != void
        labels = targets[counted].astype(np.int64)
        each = (weights / np.maximum(counted.sum(axis=(1, 2)), 1))[np.nonzero(counted)[0]]
        if class_weights is not None:
            each = each * class_weights[labels]
        return cls(outputs, targets, counted, ClassAnswers(outputs[counted], labels, each, smoothing))

    def losses(self) -> np.ndarray:  # noqa: D102 - Answers says it
        return self._by_sample(self.pixels.losses())

    def slopes(self) -> np.ndarray:  # noqa: D102
        slopes = np.zeros_like(self.outputs)
        slopes[self.counted] = self.pixels.slopes()
        return slopes

    def correct(self) -> np.ndarray:  # noqa: D102
        return self._by_sample(self.pixels.correct()) / np.maximum(self.counted.sum(axis=(1, 2)), 1)

    def _by_sample(self, values: np.ndarray) -> np.ndarray:
        """Values of pixels, added up for each sample: (n,)."""
        return np.bincount(np.nonzero(self.counted)[0], values, len(self.targets))


@dataclass(frozen=True)
class LabelAnswers:
    """Logistic regression for each of several labels; a sample's loss is the mean over them.

    Attributes:
        outputs: (n, labels) logits.
        targets: (n, labels), 0 or 1.
        weights: (n,) of the samples.
        smoothing: share of each label that becomes one half.
    """

    outputs: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    smoothing: float

    def losses(self) -> np.ndarray:  # noqa: D102 - Answers says it
        logits = self.outputs
        each = np.maximum(logits, 0) - logits * self._wanted() + np.log1p(np.exp(-np.abs(logits)))
        return each.mean(axis=1) * self.weights

    def slopes(self) -> np.ndarray:  # noqa: D102
        predicted = 0.5 * (1 + np.tanh(self.outputs / 2))  # the logistic function, without overflow
        return (predicted - self._wanted()) * self.weights[:, None] / self.outputs.shape[1]

    def correct(self) -> np.ndarray:  # noqa: D102
        return ((self.outputs > 0) == (self.targets > 0)).mean(axis=1)

    def _wanted(self) -> np.ndarray:
        return self.targets * (1 - self.smoothing) + 0.5 * self.smoothing


@dataclass(frozen=True)
class ValueAnswers:
    """Linear regression; a sample's loss is the mean of the squared errors of its values.

    Attributes:
        outputs, targets: (n, values).
        weights: (n,) of the samples.
    """

    outputs: np.ndarray
    targets: np.ndarray
    weights: np.ndarray

    def losses(self) -> np.ndarray:  # noqa: D102 - Answers says it
        return np.square(self.errors()).mean(axis=1) * self.weights

    def slopes(self) -> np.ndarray:  # noqa: D102
        return 2 * self.errors() * self.weights[:, None] / self.outputs.shape[1]

    def correct(self) -> np.ndarray:
        """Nothing is."""
        return np.zeros(len(self.targets))

    def errors(self) -> np.ndarray:
        """(n, values)."""
        return self.outputs - self.targets


# outputs, targets, weights of samples, whether it is for training
Measure = Callable[[np.ndarray, np.ndarray, "np.ndarray | None", bool], Answers]


def measure_of(target: TargetSpec, smoothing: float, class_weights: Mapping[str, float] | str | None) -> Measure:
    """What judges the outputs for such targets.

    Args:
        smoothing: of labels.
        class_weights: of all classes in order, which count in training alone.
    """
    of_classes = np.array(list(class_weights.values())) if isinstance(class_weights, Mapping) else None

    def measure(outputs: np.ndarray, targets: np.ndarray, weights: np.ndarray | None, training: bool) -> Answers:
        own = of_classes if training else None
        if target.kind == "class":
            if own is not None:
                weights = own[targets] * (1.0 if weights is None else weights)
            return ClassAnswers(outputs, targets, weights, smoothing)
        assert weights is not None  # all other kinds travel with them
        weights = weights.astype(np.float64)
        if target.kind == "mask":
            return MaskAnswers.of(outputs, targets, weights, target.void, smoothing, own)
        if target.kind == "multilabel":
            return LabelAnswers(outputs, targets, weights, smoothing)
        return ValueAnswers(outputs, targets, weights)

    return measure


_ERRORS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"mean_absolute_error": np.abs,
                                                         "mean_squared_error": np.square}


def metric_of(name: str, target: TargetSpec) -> Callable[[Any], np.ndarray]:
    """A metric: from :class:`ValueAnswers` to a number for each sample.

    Raises:
        SettingError: this engine has no such metric of such targets.
    """
    known = _ERRORS if target.kind == "value" else {}
    if snake(name) not in known:
        has = " and ".join(known) if known else "accuracy alone"
        raise SettingError(f"the numpy engine has no metric {name} of {target.kind} targets; it has {has}", "train",
                           "metrics")
    return lambda answers: known[snake(name)](answers.errors()).mean(axis=1)
