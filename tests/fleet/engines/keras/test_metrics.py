"""Metrics from sums of uneven parts match scikit-learn and NumPy in float64."""

import math
from dataclasses import replace

import numpy as np
import pytest
from sklearn import metrics as sk

from fleet.errors import SettingError
from fleet.spec import parse
from fleet.spec.measures import describe_unfit
from fleet.vocabulary.measures import METRICS, canonical_name
from preprocess.probe import infer_sample_spec
from preprocess.target import TargetSpec
from tests.preprocess.samples import Memory
from tests.refusals import refused

pytestmark = pytest.mark.tensorflow

N, CLASSES, SIDE = 203, 4, 5
TARGETS = {
    "class": TargetSpec("class", CLASSES),
    "multilabel": TargetSpec("multilabel", CLASSES),
    "value": TargetSpec("value", 3),
    "mask": TargetSpec("mask", CLASSES, size=(SIDE, SIDE)),
}
PARAMETERS = {
    "q": 0.5,
    "target_class_ids": [1, 2],
    "recall": 0.6,
    "precision": 0.6,
    "specificity": 0.6,
    "sensitivity": 0.6,
}


def make_outputs(kind, seed=0):
    """Return random outputs, which are correlated with the targets, and targets."""
    random, target = np.random.default_rng(seed), TARGETS[kind]
    if kind == "value":
        targets = random.gamma(2, 1, (N, 3)).astype(np.float32) + 0.1
        return (targets + random.uniform(0, 1, targets.shape)).astype(np.float32), targets
    shape = target.shape if kind != "class" else ()
    targets = random.integers(0, 2 if kind == "multilabel" else CLASSES, (N, *shape))
    expected = targets if kind == "multilabel" else np.eye(CLASSES)[targets]
    outputs = (random.normal(size=expected.shape) + 1.5 * expected - 0.5).astype(np.float32)
    if kind == "mask":
        targets[random.random(targets.shape) < 0.2] = target.void
    return outputs, targets.astype(target.dtype)


def computed(measure, kind, outputs, targets, target=None):
    """Return a metric summed over uneven parts with unreadable rows, and the readable rows."""
    import tensorflow as tf

    from fleet.engines.keras.metrics import make_metrics

    train = (
        parse({"models": [{"family": "softmax"}], "train": {"metrics": [measure]}})
        .networks[0]
        .train
    )
    predicted = make_metrics(train, target or TARGETS[kind])
    valid, total = np.arange(len(targets)) % 17 != 5, np.zeros(predicted.width)
    for first, last in ((0, 1), (1, 90), (90, 93), (93, len(targets))):
        total += np.asarray(
            predicted.sums(
                tf.constant(outputs[first:last]),
                tf.constant(targets[first:last]),
                tf.constant(valid[first:last]),
            ),
            np.float64,
        )
    [value] = predicted.scores(total).values()
    return value, outputs[valid].astype(np.float64), targets[valid]


def dense(kind, outputs, targets):
    """Return probabilities and dense targets, one row per sample or counted pixel."""
    if kind == "value":
        return outputs, targets.astype(np.float64)
    if kind == "multilabel":
        return 1 / (1 + np.exp(-outputs)), targets.astype(np.float64)
    if kind == "mask":
        counts = targets != TARGETS[kind].void
        outputs, targets = outputs[counts], targets[counts]
    exponentials = np.exp(outputs - outputs.max(-1, keepdims=True))
    predicted = exponentials / exponentials.sum(-1, keepdims=True)
    return predicted, np.eye(CLASSES)[targets.astype(int)]


def at_thresholds(expected, predicted):
    """Return true and false positive rates and precision at each of Keras' 200 thresholds."""
    positive = (predicted.ravel()[:, None] > np.linspace(0, 1, 200)[None]).astype(float)
    flat = expected.ravel()[:, None]
    tp, fp = (positive * flat).sum(0), (positive * (1 - flat)).sum(0)
    return tp / flat.sum(), fp / (1 - flat).sum(), tp / np.maximum(tp + fp, 1)


def class_iou(expected, predicted):
    """Return the intersection over union of each class, by the most likely class."""
    matrix = sk.confusion_matrix(expected.argmax(1), predicted.argmax(1), labels=range(CLASSES))
    both = np.diag(matrix)
    return both / (matrix.sum(0) + matrix.sum(1) - both)


def binary_iou(expected, predicted):
    """Return the intersection over union of negatives and of positives, at a threshold of 0.5."""
    matrix = sk.confusion_matrix(expected.ravel() > 0.5, predicted.ravel() > 0.5)
    both = np.diag(matrix)
    return both / (matrix.sum(0) + matrix.sum(1) - both)


def decisions(kind, predicted):
    """Return the most likely class, one-hot, or the labels above a threshold of 0.5."""
    return (predicted > 0.5) if kind == "multilabel" else np.eye(CLASSES)[predicted.argmax(1)]


def top(expected, predicted, k=5):
    order = np.argsort(-predicted, axis=1)[:, :k]
    return np.mean([row in best for row, best in zip(expected.argmax(1), order, strict=True)])


def unit(rows):
    return rows / np.maximum(np.sqrt((rows**2).sum(1, keepdims=True)), 1e-12)


def rowwise(expected, predicted):
    return [
        (np.corrcoef(a, b)[0, 1], np.cov(a, b, bias=True)[0, 1], a, b)
        for a, b in zip(expected, predicted, strict=True)
    ]


def signs(expected):
    return 2 * expected - 1 if set(np.unique(expected)) <= {0, 1} else expected


def best(reached, values, minimum):
    return max(
        (value for entry, value in zip(reached, values, strict=True) if entry >= minimum), default=0
    )


EPS = 1e-7
# name -> value from (kind, targets, predictions)
ORACLES = {
    "binary_accuracy": lambda k, w, f: np.mean((f > 0.5) == (w > 0.5)),
    "categorical_accuracy": lambda k, w, f: np.mean(w.argmax(1) == f.argmax(1)),
    "sparse_categorical_accuracy": lambda k, w, f: np.mean(w.argmax(1) == f.argmax(1)),
    "top_k_categorical_accuracy": lambda k, w, f: top(w, f),
    "sparse_top_k_categorical_accuracy": lambda k, w, f: top(w, f),
    "auc": lambda k, w, f: sk.roc_auc_score(w.ravel(), f.ravel()),
    "f1_score": lambda k, w, f: sk.f1_score(w, decisions(k, f), average="macro"),
    "f_beta_score": lambda k, w, f: sk.fbeta_score(w, decisions(k, f), beta=1.0, average="macro"),
    "precision": lambda k, w, f: sk.precision_score(w.ravel(), f.ravel() > 0.5),
    "recall": lambda k, w, f: sk.recall_score(w.ravel(), f.ravel() > 0.5),
    "true_positives": lambda k, w, f: np.sum((f > 0.5) & (w > 0.5)),
    "true_negatives": lambda k, w, f: np.sum((f <= 0.5) & (w <= 0.5)),
    "false_positives": lambda k, w, f: np.sum((f > 0.5) & (w <= 0.5)),
    "false_negatives": lambda k, w, f: np.sum((f <= 0.5) & (w > 0.5)),
    "precision_at_recall": lambda k, w, f: best(*(at_thresholds(w, f)[i] for i in (0, 2)), 0.6),
    "recall_at_precision": lambda k, w, f: best(*(at_thresholds(w, f)[i] for i in (2, 0)), 0.6),
    "sensitivity_at_specificity": lambda k, w, f: best(
        1 - at_thresholds(w, f)[1], at_thresholds(w, f)[0], 0.6
    ),
    "specificity_at_sensitivity": lambda k, w, f: best(
        at_thresholds(w, f)[0], 1 - at_thresholds(w, f)[1], 0.6
    ),
    "io_u": lambda k, w, f: np.mean(class_iou(w, f)[[1, 2]]),
    "one_hot_io_u": lambda k, w, f: np.mean(class_iou(w, f)[[1, 2]]),
    "mean_io_u": lambda k, w, f: np.mean(class_iou(w, f)),
    "one_hot_mean_io_u": lambda k, w, f: np.mean(class_iou(w, f)),
    "binary_io_u": lambda k, w, f: np.mean(binary_iou(w, f)),
    "r2_score": lambda k, w, f: sk.r2_score(w, f),
    "pearson_correlation": lambda k, w, f: np.mean(
        [correlation for correlation, *_ in rowwise(w, f)]
    ),
    "concordance_correlation": lambda k, w, f: np.mean(
        [
            2 * cov / (a.var() + b.var() + (a.mean() - b.mean()) ** 2)
            for _, cov, a, b in rowwise(w, f)
        ]
    ),
    "cosine_similarity": lambda k, w, f: np.mean((unit(w) * unit(f)).sum(1)),
    "binary_crossentropy": lambda k, w, f: -np.mean(
        w * np.log(f + EPS) + (1 - w) * np.log(1 - f + EPS)
    ),
    "categorical_crossentropy": lambda k, w, f: -np.mean(
        (w * np.log(f / f.sum(1, keepdims=True))).sum(1)
    ),
    "sparse_categorical_crossentropy": lambda k, w, f: -np.mean((w * np.log(f)).sum(1)),
    "categorical_hinge": lambda k, w, f: np.mean(
        np.maximum(0, ((1 - w) * f).max(1) - (w * f).sum(1) + 1)
    ),
    "hinge": lambda k, w, f: np.mean(np.maximum(0, 1 - signs(w) * f)),
    "squared_hinge": lambda k, w, f: np.mean(np.maximum(0, 1 - signs(w) * f) ** 2),
    "kl_divergence": lambda k, w, f: np.mean(
        (np.clip(w, EPS, 1) * np.log(np.clip(w, EPS, 1) / np.clip(f, EPS, 1))).sum(1)
    ),
    "log_cosh_error": lambda k, w, f: np.mean(np.log(np.cosh(f - w))),
    "mean_absolute_error": lambda k, w, f: sk.mean_absolute_error(w, f),
    "mean_absolute_percentage_error": lambda k, w, f: 100
    * np.mean(np.abs(w - f) / np.maximum(np.abs(w), EPS)),
    "mean_squared_error": lambda k, w, f: sk.mean_squared_error(w, f),
    "root_mean_squared_error": lambda k, w, f: math.sqrt(sk.mean_squared_error(w, f)),
    "mean_squared_logarithmic_error": lambda k, w, f: sk.mean_squared_log_error(
        w, np.maximum(f, EPS)
    ),
    "poisson": lambda k, w, f: np.mean(f - w * np.log(f + EPS)),
}


def test_each_metric_has_an_oracle():
    assert set(ORACLES) == set(METRICS) - {"accuracy"}


@pytest.mark.long_but_first
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for name in sorted(ORACLES)
        for kind in TARGETS
        if not describe_unfit(name, kind, METRICS)
    ],
)
def test_metric_of_parts_matches_the_oracle(name, kind):
    needed = METRICS[canonical_name(name)].needs
    measure = {name: {needed: PARAMETERS[needed]}} if needed else name
    value, outputs, targets = computed(measure, kind, *make_outputs(kind))
    predicted, expected = dense(kind, outputs, targets)
    tolerance = 5e-3 if name == "auc" else 2e-5  # Keras uses only 200 thresholds
    assert value == pytest.approx(
        float(ORACLES[name](kind, expected, predicted)), rel=tolerance, abs=1e-6
    )


@pytest.mark.parametrize("mean", [2000, 100_000, -3e6])
def test_r2_score_does_not_depend_on_the_mean(mean):
    random = np.random.default_rng(0)
    targets = (mean + random.normal(size=(N, 2)) * (1, 10) * max(1, abs(mean) / 1e5)).astype(
        np.float32
    )
    outputs = (targets + random.normal(size=(N, 2)) * 0.5).astype(np.float32)
    target = replace(
        TargetSpec("value", 2), center=tuple(targets.mean(0, dtype=np.float64).tolist())
    )
    value, predicted, expected = computed("r2_score", "value", outputs, targets, target)
    assert value == pytest.approx(sk.r2_score(expected.astype(np.float64), predicted), abs=1e-5)


def test_infer_sample_spec_centers_values():
    source = Memory([np.zeros(3, np.float32)] * 2)
    source.target, source.targets = (
        TargetSpec("value", 2),
        np.array([[2000, 1], [2002, 3]], np.float32),
    )
    assert infer_sample_spec(source, [], 0).target.center == (2001, 2)


def test_correlations_need_several_values_per_sample():
    outputs, targets = make_outputs("value")
    for name in ("pearson_correlation", "concordance_correlation"):
        with refused(SettingError, name, "several values per sample"):
            computed(name, "value", outputs[:, :1], targets[:, :1], TargetSpec("value", 1))
