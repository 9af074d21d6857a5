"""Score predictions: accuracy, log loss and calibration.

Predictions for ``class`` targets are probabilities of the classes (n, classes); for ``multilabel``
targets, one probability per label (n, labels); for ``value`` targets, the values (n, values).
Those of several targets lie side by side.
Predictions of masks are not saved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from preprocess.target_kinds import TargetKind

_BINS = 15  # bins of confidence, as in Guo et al., ICML 2017, section 5


@dataclass(frozen=True)
class Truth:
    """The targets against which predictions are scored.

    Attributes:
        semantics: what the kind of the targets means (:mod:`preprocess.target_kinds`).
        targets: (n,) classes, (n, labels) of 0 and 1, or (n, values); of several targets, (n,)
            records.
        weights: (n,) weights of the samples in the loss; None if equal.
    """

    semantics: TargetKind
    targets: np.ndarray
    weights: np.ndarray | None = None

    def matches(self, reference: Truth) -> bool:
        """Return True if both describe the same samples, so that predictions can be compared."""
        arrays, reference_arrays = (
            (truth.targets, np.ones(()) if truth.weights is None else truth.weights)
            for truth in (self, reference)
        )
        return self.semantics == reference.semantics and all(
            map(np.array_equal, arrays, reference_arrays)
        )


@dataclass(frozen=True)
class Scores:
    """The scores of predictions.

    Attributes:
        accuracy: share of samples, or labels, that are predicted correctly; NaN for values.
        log_loss: mean log loss in nats, per sample for classes, per label for multiple labels; NaN
            for values.
        calibration_error: expected calibration error, from 0 to 1; NaN for values.
        squared_error: mean squared error of values; NaN for classes and labels. Of several targets,
            the sum of the squared errors and log losses of all.
    """

    accuracy: float
    log_loss: float
    calibration_error: float
    squared_error: float = math.nan


def score(predicted: np.ndarray, truth: Truth) -> Scores:
    """Score predictions against the truth.

    Args:
        predicted: predictions (n, ...), as the module describes.
        truth: truth of the same samples.

    >>> from preprocess.target_kinds import KINDS
    >>> score(np.array([[0.9, 0.1], [0.4, 0.6]]), Truth(KINDS["class"], np.array([0, 0]))).accuracy
    0.5
    """
    accuracy, loss = quick_score(predicted, truth)
    if truth.semantics.is_numeric:
        return Scores(math.nan, math.nan, math.nan, loss)
    confidence = truth.semantics.confidence(predicted).ravel()
    is_correct = truth.semantics.is_correct(predicted, truth.targets).ravel()
    return Scores(accuracy, loss, calibration_error(confidence, is_correct))


def quick_score(predicted: np.ndarray, truth: Truth) -> tuple[float, float]:
    """Return the accuracy and the log loss; for values, NaN and the mean squared error.

    Args:
        predicted: predictions (n, ...), as the module describes.
        truth: truth of the same samples.
    """
    losses = truth.semantics.losses(predicted, truth.targets)
    if truth.weights is not None:
        losses = losses * truth.weights
    is_correct = truth.semantics.is_correct(predicted, truth.targets)
    return float(is_correct.mean()), float(losses.mean())


def calibration_error(confidence: np.ndarray, is_correct: np.ndarray) -> float:
    """Return the expected calibration error over 15 bins of equal width.

    It is the mean over all predictions of the gap between the mean confidence of their bin and its
    accuracy (Guo et al., ICML 2017, section 2).

    Args:
        confidence: (n,) probability of the predicted class or label.
        is_correct: (n,) True if the prediction was correct.

    >>> round(calibration_error(np.array([0.9, 0.9, 0.6, 0.6]), np.array([1, 1, 1, 0])), 3)
    0.1
    """
    bins = np.clip(np.ceil(confidence * _BINS).astype(int) - 1, 0, _BINS - 1)
    gaps = np.bincount(bins, confidence.astype(np.float64) - is_correct, _BINS)
    return float(np.abs(gaps).sum() / len(confidence))
