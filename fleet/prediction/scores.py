"""Score predictions: accuracy, log loss and calibration.

Predictions for ``class`` targets are probabilities of the classes (n, classes), for ``multilabel``
one probability per label (n, labels), for ``value`` the values (n, values). Predictions of masks
are not saved.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

_LEAST = 1e-7  # of a probability, as its loss sees it: about what float32 tells from 0
_BINS = 15  # of confidence, as in Guo et al., ICML 2017, section 5


@dataclass(frozen=True)
class Truth:
    """The targets against which predictions are scored.

    Attributes:
        kind: class, multilabel or value (:mod:`preprocess.target`).
        targets: (n,) classes, (n, labels) of 0 and 1, or (n, values).
        weights: (n,) weights of the samples in the loss; None if equal.
    """

    kind: str
    targets: np.ndarray
    weights: np.ndarray | None = None

    def matches(self, reference: Truth) -> bool:
        """Return True if both describe the same samples, so predictions can be compared."""
        own_arrays, other_arrays = (
            (truth.targets, np.ones(()) if truth.weights is None else truth.weights)
            for truth in (self, reference)
        )
        return self.kind == reference.kind and all(map(np.array_equal, own_arrays, other_arrays))


@dataclass(frozen=True)
class Scores:
    """The scores of predictions.

    Attributes:
        accuracy: share of samples, or labels, that are predicted correctly; NaN for values.
        log_loss: mean log loss in nats, per sample for classes, per label for labels; NaN for
            values.
        calibration_error: expected calibration error, from 0 to 1; NaN for values.
        squared_error: mean squared error of values; otherwise NaN.
    """

    accuracy: float
    log_loss: float
    calibration_error: float
    squared_error: float = math.nan


def score(predicted: np.ndarray, truth: Truth) -> Scores:
    """Score predictions against the truth.

    Args:
        predicted: as the module describes.
        truth: truth of the same samples.

    >>> score(np.array([[0.9, 0.1], [0.4, 0.6]]), Truth("class", np.array([0, 0]))).accuracy
    0.5
    """
    accuracy, loss = quick_score(predicted, truth)
    if truth.kind == "value":
        return Scores(math.nan, math.nan, math.nan, loss)
    return Scores(accuracy, loss, calibration_error(*_confidence(predicted, truth)))


def quick_score(predicted: np.ndarray, truth: Truth) -> tuple[float, float]:
    """Return accuracy and log loss only; for values NaN and the squared error.

    Args:
        predicted: as the module describes.
        truth: truth of the same samples.
    """
    losses = _LOSSES[truth.kind](predicted, truth.targets)
    if truth.weights is not None:
        losses = losses * truth.weights
    if truth.kind == "value":
        accuracy = math.nan
    else:
        accuracy = float(_right(predicted, truth).mean())
    return accuracy, float(losses.mean())


def calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """Return the expected calibration error over 15 bins of equal width.

    It is the mean over all predictions of the gap between the mean confidence of their bin and its
    accuracy (Guo et al., ICML 2017, section 2).

    Args:
        confidence: (n,) probability of what was predicted.
        right: (n,) True if the prediction was correct.

    >>> round(calibration_error(np.array([0.9, 0.9, 0.6, 0.6]), np.array([1, 1, 1, 0])), 3)
    0.1
    """
    bins = np.clip(np.ceil(confidence * _BINS).astype(int) - 1, 0, _BINS - 1)
    gaps = np.bincount(bins, confidence.astype(np.float64) - right, _BINS)
    return float(np.abs(gaps).sum() / len(confidence))


def _confidence(predicted: np.ndarray, truth: Truth) -> tuple[np.ndarray, np.ndarray]:
    """Return confidence and correctness of each predicted class or label; (n,) or (n * labels,)."""
    right = _right(predicted, truth)
    if truth.kind == "class":
        return predicted.max(axis=1), right
    return np.maximum(predicted, 1 - predicted).ravel(), right.ravel()


def _right(predicted: np.ndarray, truth: Truth) -> np.ndarray:
    if truth.kind == "class":
        return predicted.argmax(axis=1) == truth.targets
    return (predicted > 0.5) == (truth.targets > 0)


def _of_classes(predicted: np.ndarray, targets: np.ndarray) -> np.ndarray:
    return -np.log(
        np.clip(predicted[np.arange(len(targets)), targets].astype(np.float64), _LEAST, 1)
    )


def _of_labels(predicted: np.ndarray, targets: np.ndarray) -> np.ndarray:
    exact = predicted.astype(np.float64)
    return -np.log(np.clip(np.where(targets > 0, exact, 1 - exact), _LEAST, 1)).mean(axis=1)


def _of_values(predicted: np.ndarray, targets: np.ndarray) -> np.ndarray:
    return np.square(predicted.astype(np.float64) - targets).mean(axis=1)


_LOSSES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "class": _of_classes,
    "multilabel": _of_labels,
    "value": _of_values,
}
