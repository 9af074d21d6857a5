"""Accuracy, log loss and calibration match scikit-learn and numbers worked out by hand."""

import math

import numpy as np
import pytest

from fleet.prediction.scores import Scores, Truth, calibration_error, score
from preprocess.target_kinds import KINDS


def random_predictions(kind, rows=50, outputs=4):
    random = np.random.default_rng(3)
    logits = random.normal(0, 2, (rows, outputs))
    targets = {
        "class": random.integers(0, outputs, rows),
        "multilabel": random.integers(0, 2, (rows, outputs)),
        "value": random.normal(size=(rows, outputs)),
    }[kind]
    return KINDS[kind].predictions(logits), targets


def test_score_of_classes_matches_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    predicted, targets = random_predictions("class")
    result = score(predicted, Truth(KINDS["class"], targets))
    assert result.accuracy == metrics.accuracy_score(targets, predicted.argmax(axis=1))
    assert result.log_loss == pytest.approx(
        metrics.log_loss(targets, predicted, labels=range(4)), rel=1e-6
    )
    assert math.isnan(result.squared_error)


def test_score_of_labels_matches_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    predicted, targets = random_predictions("multilabel")
    result = score(predicted, Truth(KINDS["multilabel"], targets))
    assert result.accuracy == ((predicted > 0.5) == targets).mean()
    losses = [
        metrics.log_loss(*columns, labels=[0, 1])
        for columns in zip(targets.T, predicted.T, strict=True)
    ]
    assert result.log_loss == pytest.approx(np.mean(losses), rel=1e-6)


def test_score_of_values_has_only_a_squared_error():
    predicted, targets = random_predictions("value")
    result = score(predicted, Truth(KINDS["value"], targets))
    assert result.squared_error == pytest.approx(np.square(predicted - targets).mean())
    assert all(map(math.isnan, [result.accuracy, result.log_loss, result.calibration_error]))


def test_score_applies_weights_only_to_the_loss():
    predicted = np.array([[0.5, 0.5], [0.25, 0.75]])
    result = score(predicted, Truth(KINDS["class"], np.array([0, 0]), np.array([2.0, 1.0])))
    log_loss = pytest.approx((2 * math.log(2) + math.log(4)) / 2)
    assert result == Scores(0.5, log_loss, (0.5 + 0.75) / 2, pytest.approx(math.nan, nan_ok=True))


def test_log_loss_of_impossible_class_is_finite():
    assert score(
        np.array([[1.0, 0.0]]), Truth(KINDS["class"], np.array([1]))
    ).log_loss == pytest.approx(math.log(1e7))


@pytest.mark.parametrize(
    ("confidence", "right", "error"),
    [
        ([0.8] * 10, [1] * 8 + [0] * 2, 0.0),
        ([1.0] * 4, [1, 1, 0, 0], 0.5),
        ([0.95, 0.55], [0, 1], (0.95 + 0.45) / 2),
        ([0.61, 0.65], [1, 0], 0.13),  # both in one bin
    ],
)
def test_calibration_error_is_gap_to_accuracy(confidence, right, error):
    assert calibration_error(np.array(confidence), np.array(right)) == pytest.approx(error)
