"""Tests of confusion matrices and residuals of saved outputs."""

import numpy as np
import pytest

from fleet.monitor.evaluations import MATRIX, PAIRS, evaluate, read_evaluations
from fleet.storage.paths import RunPaths
from preprocess.record_target import RecordTarget
from preprocess.target import TargetSpec


def save(paths, part, outputs, targets, **weights):
    paths.model("a").mkdir(parents=True, exist_ok=True)
    np.savez(
        paths.predictions("a", part),
        outputs=np.asarray(outputs, np.float32),
        targets=targets,
        rows=np.arange(len(outputs)),
        **weights,
    )


def test_confusion_matrix_counts_true_and_predicted_classes(tmp_path):
    paths = RunPaths(tmp_path)
    # An unreadable sample has the class -1.
    save(paths, "validation", [[2, 0], [0, 1], [3, 0], [3, 0]], np.array([0, 0, 0, -1]))
    target = TargetSpec("class", 2, names=("cat", "dog"))
    (evaluation,) = read_evaluations(paths, "a", target)
    assert evaluation == {
        "title": "3 validation samples",
        "kind": "classes",
        "names": ["cat", "dog"],
        "whole": True,
        "accuracy": 0.66667,
        "cells": [[0, 0, 2], [0, 1, 1]],
    }


def test_many_classes_have_a_list_of_their_most_frequent_errors():
    classes = MATRIX + 1
    truth = np.repeat(np.arange(classes), 3)
    predicted = np.eye(classes)[(truth + (np.arange(len(truth)) % 3 > 0)) % classes]
    (evaluation,) = evaluate(TargetSpec("class", classes), predicted, truth)
    assert not evaluation["whole"]
    assert len(evaluation["cells"]) == PAIRS
    assert {count for *_, count in evaluation["cells"]} == {2}


def test_labels_have_recall_and_precision_by_frequency():
    truth = np.array([[1, 0, 0], [1, 1, 0]])
    predicted = np.array([[0.9, 0.9, 0.1], [0.2, 0.9, 0.1]])
    (evaluation,) = evaluate(TargetSpec("multilabel", 3, names=("a", "b", "c")), predicted, truth)
    assert evaluation["rows"] == [["a", 2, 0.5, 1.0], ["b", 1, 1.0, 0.5], ["c", 0, None, None]]


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_values_have_their_mean_error_and_explained_variance(shape):
    truth = np.array([1.0, 2.0, 3.0, 4.0]).reshape(shape)
    predicted = np.array([[1.0], [2.0], [3.0], [np.nan]])
    (evaluation,) = evaluate(TargetSpec("value", 1), predicted, truth)
    assert (evaluation["error"], evaluation["r2"]) == (0.0, 1.0)
    assert evaluation["points"] == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]


def test_each_of_several_targets_is_evaluated(tmp_path):
    paths = RunPaths(tmp_path)
    target = RecordTarget.of({"price": TargetSpec("value", 1), "kind": TargetSpec("class", 2)})
    targets = np.zeros(2, target.dtype)
    targets["price"] = np.array([1.0, 3.0]).reshape(targets["price"].shape)
    targets["kind"] = [0, 1]
    save(paths, "test", [[1.5, 4, 0], [3, 4, 0]], targets, weights=np.ones(2, np.float32))
    price, kind = read_evaluations(paths, "a", target)
    assert (price["title"], price["error"]) == ("price, 2 test samples", 0.25)
    assert (kind["title"], kind["cells"]) == ("kind, 2 test samples", [[0, 0, 1], [1, 0, 1]])


def test_network_without_outputs_has_no_evaluations(tmp_path):
    assert read_evaluations(RunPaths(tmp_path), "a", TargetSpec("class", 2)) == []
    assert read_evaluations(RunPaths(tmp_path), "a", TargetSpec("mask", 2)) == []
