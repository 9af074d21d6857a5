"""Compare the saved outputs of networks with the targets: confusion matrices and residuals.

See :mod:`fleet.prediction.saved_predictions` for the files that are read here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fleet.monitor.charts import rounded
from fleet.prediction.saved_predictions import read_predictions
from fleet.prediction.scores import Truth
from fleet.storage.paths import RunPaths
from launch.errors import pluralize
from preprocess.base import flatten_rows
from preprocess.record_target import RecordTarget
from preprocess.target import TargetSpec

MATRIX = 40  # maximum number of classes of a confusion matrix; of more, the worst pairs are listed
PAIRS = 30  # maximum number of listed pairs of classes, and of labels
POINTS = 400  # maximum number of samples drawn of a value


def read_evaluations(paths: RunPaths, network: str, target: TargetSpec) -> list[dict[str, Any]]:
    """Return the evaluations of a network's saved outputs; empty if none were saved.

    Args:
        paths: paths of the run.
        network: name of the network.
        target: the target of its samples.

    Returns:
        For each part of the data and each target, a dictionary for JSON; see :func:`evaluate`.
    """
    if target.semantics.is_of_pixels or not target.semantics.exists:
        return []
    evaluations = []
    for part in ("validation", "test"):
        predictions = read_predictions(paths, network, part, target.semantics)
        if predictions is None or not len(predictions.rows):
            continue
        for name, piece, values, truth in _split(target, predictions.values, predictions.truth):
            samples = pluralize(len(truth), f"{part} sample")
            title = f"{name}, {samples}" if name else samples
            evaluations += [
                {"title": title, **content} for content in evaluate(piece, values, truth)
            ]
    return evaluations


def saved_bytes(paths: RunPaths, network: str) -> int:
    """Return the size of a network's saved outputs."""
    files = (paths.predictions(network, part) for part in ("validation", "test"))
    return sum(file.stat().st_size for file in files if file.is_file())


def _split(
    target: TargetSpec, values: np.ndarray, truth: Truth
) -> Iterator[tuple[str, TargetSpec, np.ndarray, np.ndarray]]:
    """Yield the name, the spec, the predictions and the truth of each target."""
    if isinstance(target, RecordTarget):
        parts = target.split_outputs(values)
        for name, piece in target.parts.items():
            yield name, piece, parts[name], truth.targets[name]
    else:
        yield "", target, values, truth.targets


def evaluate(
    target: TargetSpec, predicted: np.ndarray, truth: np.ndarray
) -> Iterator[dict[str, Any]]:
    """Yield evaluations of predictions, as dictionaries for JSON.

    - Of classes ``kind`` is ``classes``. ``cells`` are (true class, predicted class, samples) of a
      confusion matrix with the ``names`` of the classes, or of its ``PAIRS`` largest errors if
      there are more than ``MATRIX`` classes (``whole`` is then false).
    - Of labels it is ``labels``; ``rows`` are (label, samples that have it, share of these that are
      found, share of the predictions that are right), the most frequent first.
    - Of each value it is ``values``; ``points`` are (true, predicted), evenly spaced in the data.
      ``error`` is the mean absolute error, and ``r2`` the share of the variance that is explained.

    Args:
        target: the target.
        predicted: (n, outputs) probabilities or values.
        truth: (n, ...) the targets.
    """
    names = list(target.names or map(str, range(target.outputs)))
    semantics = target.semantics
    if semantics.has_classes:
        yield _classes(names, predicted.argmax(axis=1), truth.reshape(-1))
    elif semantics.has_label_sets:
        yield _labels(names, predicted.reshape(truth.shape) >= 0.5, truth >= 0.5)
    elif semantics.is_numeric:
        for name, values, true in zip(names, _columns(predicted), _columns(truth), strict=False):
            yield _values(name if target.names else "", values, true)


def _columns(values: np.ndarray) -> np.ndarray:
    return flatten_rows(values).T


def _classes(names: Sequence[str], predicted: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
    counts = Counter(zip(truth.tolist(), predicted.tolist(), strict=True))
    is_whole = len(names) <= MATRIX
    if not is_whole:
        errors = Counter({cell: count for cell, count in counts.items() if cell[0] != cell[1]})
        counts = Counter(dict(errors.most_common(PAIRS)))
    return {
        "kind": "classes",
        "names": names if is_whole else {index: names[index] for cell in counts for index in cell},
        "whole": is_whole,
        "accuracy": rounded(np.mean(predicted == truth)),
        "cells": [[*cell, count] for cell, count in counts.most_common()],
    }


def _labels(names: Sequence[str], predicted: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
    hits = (predicted & truth).sum(axis=0)
    has = truth.sum(axis=0)
    predictions = predicted.sum(axis=0)
    selected = np.argsort(-has, kind="stable")[:PAIRS]
    return {
        "kind": "labels",
        "rows": [
            [
                names[label],
                int(has[label]),
                rounded(hits[label] / has[label]) if has[label] else None,
                rounded(hits[label] / predictions[label]) if predictions[label] else None,
            ]
            for label in selected
        ],
    }


def _values(name: str, predicted: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
    finite = np.isfinite(predicted)
    predicted = predicted[finite].astype(float)
    truth = truth[finite].astype(float)
    selected = np.linspace(0, len(truth) - 1, min(POINTS, len(truth))).astype(int)
    errors = predicted - truth
    variance = float(np.var(truth)) if len(truth) else 0.0
    return {
        "kind": "values",
        "name": name,
        "error": rounded(np.abs(errors).mean()) if len(truth) else None,
        "r2": rounded(1 - np.mean(errors**2) / variance) if variance else None,
        "points": [[rounded(truth[index]), rounded(predicted[index])] for index in selected],
    }
