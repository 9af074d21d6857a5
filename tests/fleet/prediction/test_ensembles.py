"""Ensembles of the best networks of a run, from their saved predictions."""

import math

import numpy as np
import pytest

from fleet.errors import UserError
from fleet.prediction import ensembles as ens
from fleet.prediction.saved_predictions import read_predictions, should_save
from fleet.storage.paths import RunPaths
from fleet.storage.results import Status
from preprocess.target import TargetSpec, class_target
from preprocess.target_kinds import KINDS
from tests.fleet.histories import spec
from tests.fleet.prediction.saved_predictions import keep, row
from tests.refusals import refused


@pytest.fixture
def paths(tmp_path):
    return RunPaths(tmp_path / "run")


def logits(right, rows=8, classes=3):
    """Return logits and targets of a network that is correct for some samples.

    Its confidence is higher for these samples. The class of sample i is i % classes.
    """
    targets, is_right = np.arange(rows) % classes, np.isin(np.arange(rows), right)
    guessed = np.where(is_right, targets, (targets + 1) % classes)
    return np.eye(classes)[guessed] * np.where(is_right, 3, 1)[:, None], targets


def library(paths):
    """Save predictions of three networks; a and c err on different samples, b on those of a."""
    for name, right in {"a": range(6), "b": range(5), "c": range(3, 8)}.items():
        keep(paths, name, *logits(right))
    return [row("a"), row("b"), row("c"), row("d", Status.FAILED)]


def test_select_top_takes_the_best_finished_networks(paths):
    rows = [row("a"), row("f", Status.FAILED), row("b"), row("w", Status.WAITING)]
    assert ens.select_top(ens.make_candidates(rows), 2) == {"a": 1, "b": 1}
    with refused(UserError, "--top 3: only 2 networks can be combined", "use --top 2"):
        ens.select_top(ens.make_candidates(rows), 3)
    with refused(UserError, "no network has finished yet"):
        ens.select_top(ens.make_candidates(rows[3:]), 1)


def test_find_joinable_includes_searched_networks():
    scaled = {"transforms": ["scale"]}
    run = spec(
        {
            "family": "softmax",
            "name": "a",
            "space": {"train.optimizer.momentum": [0.1, 0.5]},
            "search": {"sampler": "grid"},
            "data": scaled,
        },
        {"family": "softmax", "name": "b"},
        {"family": "softmax", "name": "c", "data": scaled},
    )
    key, candidates = ens.find_joinable(
        run, [row("a-1"), row("b"), row("c"), row("added"), row("a-0")]
    )
    assert (run.data_by_pipeline[key].transforms, [entry.row.name for entry in candidates]) == (
        ("scale",),
        ["a-1", "c", "a-0"],
    )
    key, candidates = ens.find_joinable(run, [row("added"), row("a-1"), row("b")])
    assert (key, [entry.row.name for entry in candidates]) == ("", ["added", "b"])


def test_select_greedy_uses_saved_predictions(paths):
    rows = library(paths)
    assert set(ens.select_greedy(paths, ens.make_candidates(rows), KINDS["class"])) == {"a", "c"}
    candidates = {
        entry.name: entry
        for entry in ens.score_ensembles(paths, ens.make_candidates(rows), KINDS["class"])
    }
    assert list(candidates) == ["single", "top 2", "top 3", "greedy"]
    assert candidates["single"].validation.accuracy == 6 / 8
    assert candidates["greedy"].validation.accuracy > 6 / 8
    assert candidates["greedy"].test is None


def test_select_greedy_refuses_runs_without_predictions(paths):
    with refused(UserError, str(paths.root), "no network has saved predictions"):
        ens.select_greedy(paths, ens.make_candidates([row("a")]), KINDS["class"])
    assert ens.score_ensembles(paths, ens.make_candidates([row("a")]), KINDS["class"]) == []


def folded(name, *statuses):
    """Return the rows of a network with folds, its mean first."""
    parts = [
        row(f"{name}-fold{fold}", status)
        for fold, status in enumerate(statuses or [Status.FINISHED] * 3)
    ]
    return [row(name, folds=len(parts)), *parts]


def keep_folds(paths, name, outputs, targets):
    """Save predictions of three folds, each for its held-out samples; row 7 is unreadable."""
    for fold in range(3):
        rows = np.arange(fold, len(targets), 3)
        keep(
            paths,
            f"{name}-fold{fold}",
            outputs[rows],
            np.where(rows == 7, -1, targets[rows]),
            rows=rows,
        )


def test_select_top_counts_folds_as_one_network(paths):
    rows = [*folded("b"), *folded("a")]
    assert ens.select_top(ens.make_candidates(rows), 1) == {"b": 1}
    assert ens.select_top(ens.make_candidates(rows), 2) == {"b": 1, "a": 1}
    assert [part.name for part in ens.make_candidates(rows)[0].parts] == [
        "b-fold0",
        "b-fold1",
        "b-fold2",
    ]
    with refused(UserError, "--top 3: only 2 networks can be combined"):
        ens.select_top(ens.make_candidates(rows), 3)


def test_select_top_names_networks_with_missing_folds(paths):
    rows = [*folded("b", Status.FINISHED, Status.TRAINING, Status.FINISHED), *folded("a")]
    assert ens.select_top(ens.make_candidates(rows), 1) == {"a": 1}
    missing_folds = "only 2 of the 3 folds of b have finished"
    with refused(UserError, "only 1 network can be combined", missing_folds):
        ens.select_top(ens.make_candidates(rows), 2)
    with refused(UserError, "no network has finished yet", missing_folds):
        ens.select_top(ens.make_candidates(rows[:4]), 1)


def test_greedy_uses_out_of_fold_predictions(
    paths,
):
    for name, right in {"a": range(6), "b": range(5), "c": range(3, 8)}.items():
        keep_folds(paths, name, *logits(right))
    candidates = ens.make_candidates([*folded("a"), *folded("b"), *folded("c")])
    assert set(ens.select_greedy(paths, candidates, KINDS["class"])) == {"a", "c"}
    results = {
        entry.name: entry for entry in ens.score_ensembles(paths, candidates, KINDS["class"])
    }
    single = results["single"]
    assert list(results) == ["single", "top 2", "top 3", "greedy"]
    assert (single.members, single.samples) == ({"a": 1}, 7)  # each sample once
    assert single.validation.accuracy == 6 / 7
    assert results["greedy"].validation.accuracy > 6 / 7


def test_score_ensembles_averages_folds_on_test_data(paths):
    targets = np.array([0, 1])
    for name in "ab":
        keep_folds(paths, name, *logits(range(8)))
        for fold, logit in enumerate([-1.0, 2.0, 2.0]):
            keep(
                paths,
                f"{name}-fold{fold}",
                np.array([[logit, 0.0], [0.0, logit]]),
                targets,
                part="test",
            )
    single = ens.score_ensembles(
        paths, ens.make_candidates([*folded("a"), *folded("b")]), KINDS["class"]
    )[0]
    share = np.mean([1 / (1 + np.exp(-logit)) for logit in (-1, 2, 2)])
    assert single.test.log_loss == pytest.approx(-np.log(share))
    assert single.test.accuracy == 1


def test_saved_predictions_have_rows_of_the_data(paths):
    outputs, targets = logits(range(4))
    targets[2] = -1
    keep(paths, "a", outputs, targets, rows=np.arange(8) * 10)
    with np.load(paths.predictions("a", "validation")) as file:
        assert set(file) == {"outputs", "targets", "rows"}
        assert file["rows"].tolist() == [0, 10, 20, 30, 40, 50, 60, 70]
    assert read_predictions(paths, "a", "validation", KINDS["class"]).rows.tolist() == [
        0,
        10,
        30,
        40,
        50,
        60,
        70,
    ]


@pytest.mark.parametrize(("reference", "rows"), [(1, 0), (0, 1)])
def test_comparable_excludes_other_samples_or_rows(paths, reference, rows):
    library_ = library(paths)
    outputs, targets = logits(range(8))
    keep(paths, "c", outputs, (targets + reference) % 3, rows=np.arange(8) + rows)
    assert "c" not in ens.select_greedy(paths, ens.make_candidates(library_), KINDS["class"])


def test_read_predictions_ignores_damaged_files(paths):
    rows = library(paths)
    saved = paths.predictions("a", "validation")
    saved.write_bytes(saved.read_bytes()[:-30])
    assert read_predictions(paths, "a", "validation", KINDS["class"]) is None
    assert "a" not in ens.select_greedy(paths, ens.make_candidates(rows), KINDS["class"])


def test_select_greedy_compares_only_what_fits_memory(paths, monkeypatch):
    rows = library(paths)
    monkeypatch.setattr(ens, "_MAX_NUMBERS", 2 * 8 * 3)
    assert set(ens.select_greedy(paths, ens.make_candidates(rows), KINDS["class"])) <= {"a", "b"}


def test_ensembles_of_values_are_scored_by_squared_error(paths):
    targets = np.arange(6.0).reshape(6, 1).astype(np.float32)
    for name, error in {"a": 1.0, "b": -1.0, "c": 5.0}.items():
        keep(paths, name, targets + error, targets, np.ones(6, np.float32))
    rows = [row("a"), row("b"), row("c")]
    assert ens.select_greedy(paths, ens.make_candidates(rows), KINDS["value"]) == {"a": 1, "b": 1}
    greedy = ens.score_ensembles(paths, ens.make_candidates(rows), KINDS["value"])[-1].validation
    assert greedy.squared_error == 0
    assert math.isnan(greedy.accuracy)


def test_read_ensembles_returns_the_written_table(paths):
    rows = library(paths)
    for name, right in {"a": range(6), "b": range(5), "c": range(3, 8)}.items():
        keep(paths, name, *logits(right, rows=9), part="test")
    candidates = ens.score_ensembles(paths, ens.make_candidates(rows), KINDS["class"])
    ens.write_ensembles(paths, candidates)
    results = ens.read_ensembles(paths.root)
    assert [
        (entry.name, entry.members, entry.samples, entry.validation.accuracy, entry.test.log_loss)
        for entry in results
    ] == [
        (entry.name, entry.members, entry.samples, entry.validation.accuracy, entry.test.log_loss)
        for entry in candidates
    ]
    headers, lines = ens.make_table(results)
    assert headers == [
        "networks",
        "val acc",
        "val log loss",
        "val calibration error",
        "test acc",
        "test log loss",
        "test calibration error",
        "which",
    ]
    assert lines[0][:2] == ["single", "0.7500"]
    assert ens.read_ensembles(paths.root.parent) == []


def test_read_ensembles_refuses_damaged_tables(paths):
    paths.root.mkdir(parents=True)
    paths.ensembles.write_text("name,members\nsingle,{\n")
    with refused(UserError, str(paths.ensembles), "is not a table of ensembles"):
        ens.read_ensembles(paths.root)


def test_should_save_excludes_masks_and_large_outputs():
    assert should_save(class_target(1000), 50_000)
    assert not should_save(class_target(1000), 100_000)
    assert not should_save(TargetSpec("mask", 3, size=(4, 4)), 10)
    assert not should_save(class_target(3), 0)
