"""The best networks of a run as one, read from what they have kept."""

import math

import numpy as np
import pytest

from fleet.errors import UserError
from fleet.prediction import ensembles
from fleet.prediction.ensembles import (
    chosen,
    judge_ensembles,
    read_ensembles,
    table_of,
    top,
    write_ensembles,
)
from fleet.prediction.kept import is_kept, read_predicted
from fleet.storage.paths import RunPaths
from fleet.storage.results import Status
from preprocess.target import TargetSpec, class_target
from tests.fleet.prediction.kept import keep, row


@pytest.fixture
def paths(tmp_path):
    return RunPaths(tmp_path / "run")


def logits(right, rows=8, classes=3):
    """Of a network that is right about some samples, and surer there; the class of sample i is i % classes."""
    targets, is_right = np.arange(rows) % classes, np.isin(np.arange(rows), right)
    guessed = np.where(is_right, targets, (targets + 1) % classes)
    return np.eye(classes)[guessed] * np.where(is_right, 3, 1)[:, None], targets


def library(paths):
    """Three networks, the best first; a and c err on different samples, b on those of a."""
    for name, right in {"a": range(6), "b": range(5), "c": range(3, 8)}.items():
        keep(paths, name, *logits(right))
    return [row("a"), row("b"), row("c"), row("d", Status.FAILED)]


def test_the_best_that_are_finished_are_joined(paths):
    rows = [row("a"), row("f", Status.FAILED), row("b"), row("w", Status.WAITING)]
    assert top(rows, 2) == {"a": 1, "b": 1}
    with pytest.raises(UserError, match="--top 3: only 2 networks finished, and no others.*: --top 2 joins all"):
        top(rows, 3)
    with pytest.raises(UserError, match="no network has finished yet"):
        top(rows[3:], 1)


def test_networks_are_chosen_by_what_they_have_kept(paths):
    rows = library(paths)
    assert set(chosen(paths, rows, "class")) == {"a", "c"}
    found = {one.name: one for one in judge_ensembles(paths, rows, "class")}
    assert list(found) == ["single", "top 2", "top 3", "greedy"]
    assert found["single"].validation.accuracy == 6 / 8
    assert found["greedy"].validation.accuracy > 6 / 8
    assert found["greedy"].test is None


def test_without_anything_kept_nothing_can_be_chosen(paths):
    with pytest.raises(UserError, match="no network has kept what it gives"):
        chosen(paths, [row("a")], "class")
    assert judge_ensembles(paths, [row("a")], "class") == []


def test_networks_that_were_judged_by_other_samples_are_left_out(paths):
    rows = library(paths)
    outputs, targets = logits(range(8))
    keep(paths, "c", outputs, (targets + 1) % 3)
    assert "c" not in chosen(paths, rows, "class")


def test_networks_of_folds_are_not_compared(paths):
    rows = library(paths)
    assert judge_ensembles(paths, [row("all", folds=3), *rows], "class") == []


def test_samples_that_could_not_be_read_count_for_nothing(paths):
    outputs, targets = logits(range(4))
    targets[4:] = -1
    keep(paths, "a", outputs, targets)
    assert len(read_predicted(paths, "a", "validation", "class").values) == 4


def test_a_damaged_file_is_as_none(paths):
    rows = library(paths)
    kept = paths.predictions("a", "validation")
    kept.write_bytes(kept.read_bytes()[:-30])
    assert read_predicted(paths, "a", "validation", "class") is None
    assert "a" not in chosen(paths, rows, "class")


def test_as_many_are_compared_as_can_be_held_the_best_first(paths, monkeypatch):
    rows = library(paths)
    monkeypatch.setattr(ensembles, "_MOST_NUMBERS", 2 * 8 * 3)
    assert set(chosen(paths, rows, "class")) <= {"a", "b"}


def test_values_are_averaged_and_judged_by_their_error(paths):
    targets = np.arange(6.0).reshape(6, 1).astype(np.float32)
    for name, error in {"a": 1.0, "b": -1.0, "c": 5.0}.items():
        keep(paths, name, targets + error, targets, np.ones(6, np.float32))
    rows = [row("a"), row("b"), row("c")]
    assert chosen(paths, rows, "value") == {"a": 1, "b": 1}
    greedy = judge_ensembles(paths, rows, "value")[-1].validation
    assert greedy.squared_error == 0
    assert math.isnan(greedy.accuracy)


def test_the_table_reads_back_as_it_was_written(paths):
    rows = library(paths)
    for name, right in {"a": range(6), "b": range(5), "c": range(3, 8)}.items():
        keep(paths, name, *logits(right, rows=9), part="test")
    found = judge_ensembles(paths, rows, "class")
    write_ensembles(paths, found)
    read = read_ensembles(paths.root)
    assert [(one.name, one.members, one.samples, one.validation.accuracy, one.test.log_loss) for one in read] == [
        (one.name, one.members, one.samples, one.validation.accuracy, one.test.log_loss) for one in found]
    headers, lines = table_of(read)
    assert headers == ["networks", "val acc", "val log loss", "val calibration error", "test acc", "test log loss",
                       "test calibration error", "which"]
    assert lines[0][:2] == ["single", "0.7500"]
    assert read_ensembles(paths.root.parent) == []


def test_a_table_that_is_none_is_one_line(paths):
    paths.root.mkdir(parents=True)
    paths.ensembles.write_text("name,members\nsingle,{\n")
    with pytest.raises(UserError, match="is not a table of ensembles"):
        read_ensembles(paths.root)


def test_masks_and_what_is_too_large_are_not_kept():
    assert is_kept(class_target(1000), 50_000)
    assert not is_kept(class_target(1000), 100_000)
    assert not is_kept(TargetSpec("mask", 3, size=(4, 4)), 10)
    assert not is_kept(class_target(3), 0)
