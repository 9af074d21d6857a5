"""How good predictions are: accuracy, log loss and calibration (pure).

Predictions of ``class`` targets are probabilities of the classes (n, classes), those of ``multilabel`` one probability
for each label (n, labels), those of ``value`` the values (n, values). Predictions for a mask are not kept.
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
    """What predictions are held against.

    Attributes:
        kind: class, multilabel or value (:mod:`preprocess.target`).
        targets: (n,) classes, (n, labels) of 0 and 1, or (n, values).
        weights: (n,) of the samples in the loss; None where all count the same.
    """

    kind: str
    targets: np.ndarray
    weights: np.ndarray | None = None

    def matches(self, other: Truth) -> bool:
        """Whether predictions that are held against the one can be compared with those held against the other."""
        own_arrays, other_arrays = (
            (truth.targets, np.ones(()) if truth.weights is None else truth.weights)
            for truth in (self, other)
        )
        return self.kind == other.kind and all(map(np.array_equal, own_arrays, other_arrays))


@dataclass(frozen=True)
class Scores:
    """How good predictions are.

    Attributes:
        accuracy: share of the samples whose likeliest class is right; of several labels, of all labels. NaN of values.
        log_loss: in nats, of classes by sample, of labels by label; NaN of values.
        calibration_error: the expected calibration error, from 0 to 1; NaN of values.
        squared_error: the mean squared error of values; NaN of all else.
    """

    accuracy: float
    log_loss: float
    calibration_error: float
    squared_error: float = math.nan


def score(predicted: np.ndarray, truth: Truth) -> Scores:
    """Hold predictions against the truth.

    Args:
        predicted: as the module says it.

    >>> score(np.array([[0.9, 0.1], [0.4, 0.6]]), Truth("class", np.array([0, 0]))).accuracy
    0.5
    """
    accuracy, loss = quick_score(predicted, truth)
    if truth.kind == "value":
        return Scores(math.nan, math.nan, math.nan, loss)
    return Scores(accuracy, loss, calibration_error(*_confidence(predicted, truth)))


def quick_score(predicted: np.ndarray, truth: Truth) -> tuple[float, float]:
    """Accuracy and log loss alone, as :class:`Scores` has them; of values NaN and the squared error."""
    losses = _LOSSES[truth.kind](predicted, truth.targets)
    if truth.weights is not None:
        losses = losses * truth.weights
    if truth.kind == "value":
        accuracy = math.nan
    else:
        accuracy = float(_right(predicted, truth).mean())
    return accuracy, float(losses.mean())


def calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """The expected calibration error: how far confidence is from accuracy, in 15 bins of equal width.

    The mean over all predictions of what lies between the mean confidence of their bin and the share of it that is
    right (Guo et al., ICML 2017, section 2).

    Args:
        confidence: (n,) the probability that was given to what was predicted.
        right: (n,) whether that was right.

    >>> round(calibration_error(np.array([0.9, 0.9, 0.6, 0.6]), np.array([1, 1, 1, 0])), 3)
    0.1
    """
    bins = np.clip(np.ceil(confidence * _BINS).astype(int) - 1, 0, _BINS - 1)
    gaps = np.bincount(bins, confidence.astype(np.float64) - right, _BINS)
    return float(np.abs(gaps).sum() / len(confidence))


def _confidence(predicted: np.ndarray, truth: Truth) -> tuple[np.ndarray, np.ndarray]:
    """Of each class or label that is predicted: how sure that is, and whether it is right; (n,) or (n * labels,)."""
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
