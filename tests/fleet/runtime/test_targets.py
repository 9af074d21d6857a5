"""Whole runs on targets of every kind."""

import csv
import math

import numpy as np
import pytest

from fleet.domain.events import NetworkTested
from fleet.errors import ExitStatus, UserError
from fleet.runtime.replay import compare, largest_difference
from fleet.storage.checkpoint import find_newest
from fleet.storage.event_log import events_of
from fleet.storage.leaderboard import leaderboard
from fleet.storage.results import read_results
from launch.errors import InputError
from preprocess.base import RandomAccess, UnreadableSample
from preprocess.target import TargetSpec
from tests.fleet.runtime.runs import launch, launch_in_parts, prepare
from tests.fleet.runtime.runs import write as write_spec
from tests.refusals import refused

KINDS = ("class", "weighted", "multilabel", "value", "mask")

pytestmark = pytest.mark.usefixtures("quick")


class SyntheticImages(RandomAccess):
    """Small float32 images whose targets are functions of their pixels; some cannot be read."""

    def __init__(self, kind, count, seed, bad=()):
        random = np.random.default_rng(seed)
        self._images = random.normal(size=(count, 4, 4, 2)).astype(np.float32)
        self._kind, self._count, self._bad = kind, count, bad
        means = self._images.mean(axis=(1, 2))
        if kind in ("class", "weighted"):
            self.labels, self.classes = (means[:, 0] > means[:, 1]).astype(int), ("less", "more")
        elif kind == "multilabel":
            self.target, self.targets = (
                TargetSpec("multilabel", 2, ("a", "b")),
                (means > 0).astype(int),
            )
        elif kind == "value":
            self.target, self.targets = TargetSpec("value", 2), means * 3 + 1
        else:
            self.target = TargetSpec("mask", 2)
        if kind == "weighted":
            self.weights = random.uniform(0.5, 2, count)

    def __len__(self):
        return self._count

    def read(self, index):
        if index in self._bad:
            raise UnreadableSample(self.name(index), "gone")
        return self._images[index]

    def read_target(self, index):
        return (self._images[index, :, :, 0] > 0).astype(np.uint8)

    def name(self, index):
        return f"sample {index}"


def synthetic_images(path):
    """Return training and validation samples with targets of a kind."""
    return SyntheticImages(path, 50, 1, bad=(7,)), SyntheticImages(path, 20, 2)


def write(folder, kind, models=None, data=None, **train):
    return write_spec(
        folder,
        models or (),
        profile={"batches": 4, "timed": 2, "max_gpus": 2},
        data={
            "source": f"{__name__}:synthetic_images",
            "path": kind,
            "validation": None,
            "transforms": [],
            "max_unreadable": 0.5,
            **(data or {}),
        },
        train={
            "batch": {"size": 8},
            "stopping": {"max_epochs": 4},
            "optimizer": {"name": "sgd", "learning_rate": 0.1, "momentum": 0.5},
            **train,
        },
    )


def history(prepared):
    return find_newest(prepared.paths, "one", with_arrays=False).history


def run(folder, kind, ranks, **train):
    gpus = ranks - 1
    path = write(folder, kind, [{"family": "softmax", "name": "one", "gpus": gpus}], **train)
    status, prepared = launch(path, ranks)
    assert status is ExitStatus.OK
    return history(prepared)


@pytest.mark.long_but_first
@pytest.mark.parametrize("kind", KINDS)
def test_targets_give_equal_results_on_1_to_3_gpus(kind, tmp_path):
    train = {"metrics": ["mae"]} if kind == "value" else {}
    alone = run(tmp_path / "1", kind, 2, **train)
    assert alone[-1].loss < alone[0].loss
    assert alone[-1].samples == 49
    for ranks in (3, 4):
        history_of_group = run(tmp_path / str(ranks), kind, ranks, **train)
        assert {record.gpus for record in history_of_group} == {ranks - 1}
        assert largest_difference(alone, history_of_group) < 1e-9


@pytest.mark.long_but_first
@pytest.mark.parametrize("kind", ["value", "mask"])
def test_targets_give_equal_results_after_interruptions(kind, tmp_path):
    complete = run(tmp_path / "whole", kind, 3, batch={"size": 3})
    path = write(
        tmp_path / "parts",
        kind,
        [{"family": "softmax", "name": "one", "gpus": 2}],
        batch={"size": 3},
    )
    prepared = launch_in_parts(path, 3, checks=6)
    assert largest_difference(complete, history(prepared)) < 1e-12


@pytest.mark.parametrize("kind", ["value", "mask"])
def test_targets_are_replayed_with_equal_results(kind, tmp_path):
    path = write(tmp_path / "first", kind, metrics=["mae"] if kind == "value" else [])
    _, first = launch(path, 2)
    _, again = launch(path, 2, replay=str(first.paths.root), only="one")
    assert largest_difference(history(first), history(again)) == 0
    output = compare(history(first), history(again))
    assert "val_loss: bitwise equal in all of 4 epochs" in output
    assert ("val_mae: bitwise equal" in output) == (kind == "value")


@pytest.mark.parametrize("cache", ["memory", "none"])
def test_targets_that_are_masks_may_be_cached_in_memory(cache, tmp_path):
    path = write(
        tmp_path / cache,
        "mask",
        data={
            "cache": cache,
            "transforms": [{"flip": {"horizontal": True}}, {"random_crop": {"size": [3, 3]}}],
        },
    )
    status, prepared = launch(path, 3)
    assert status is ExitStatus.OK
    assert history(prepared)[-1].loss < history(prepared)[0].loss


def test_results_of_values_have_their_metrics_and_no_accuracy(tmp_path):
    models = [
        {"family": "softmax", "name": "slow", "train": {"optimizer": {"learning_rate": 0.0001}}},
        {"family": "softmax", "name": "one"},
    ]
    path = write(tmp_path, "value", models, metrics=["mae", "mean_squared_error"])
    _, prepared = launch(path, 2)
    with open(prepared.paths.results, newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["one", "slow"]  # by val_loss
    assert [(row["accuracy"], row["val_accuracy"], row["test_accuracy"]) for row in rows] == [
        ("", "", "")
    ] * 2
    best = history(prepared)[int(rows[0]["best_epoch"]) - 1]
    assert (
        float(rows[0]["val_loss"])
        == best.val_loss
        == min(record.val_loss for record in history(prepared))
    )
    assert float(rows[0]["val_mae"]) == best.metrics["val_mae"]
    assert float(rows[0]["mean_squared_error"]) == pytest.approx(best.loss)
    read = read_results(prepared.paths.root)
    assert read[0].metrics["mae"] == best.metrics["mae"]
    assert math.isnan(read[0].accuracy)
    headers, _ = leaderboard(read)
    assert headers == [
        "network",
        "status",
        "epochs",
        "best",
        "val loss",
        "loss",
        "val mae",
        "val mean_squared_error",
        "params",
        "s",
        "why",
    ]


def test_any_metric_may_be_monitored(tmp_path):
    converge = {"max_epochs": 9, "monitor": "val_mae", "stop_at": 0.3}
    path = write(tmp_path, "value", metrics=["mae"], stopping=converge)
    _, prepared = launch(path, 2)
    last = history(prepared)[-1]
    assert last.metrics["val_mae"] <= 0.3 < history(prepared)[-2].metrics["val_mae"]
    assert read_results(prepared.paths.root)[0].reason.startswith("val_mae reached")


@pytest.mark.parametrize("epochs", [1, 4])
def test_diverged_network_fails_and_is_not_best(tmp_path, epochs):
    models = [
        {"family": "softmax", "name": name, "train": {"optimizer": {"learning_rate": rate}}}
        for name, rate in (("good", 0.01), ("diverged", 200.0))
    ]
    path = write(tmp_path, "value", models, stopping={"max_epochs": epochs})
    status, prepared = launch(path, 2)
    assert status is ExitStatus.NETWORK_FAILED
    good, diverged = read_results(prepared.paths.root)
    assert (good.name, str(good.status)) == ("good", "finished")
    assert (diverged.name, str(diverged.status)) == ("diverged", "failed")
    assert diverged.reason.startswith("diverged: the loss became ")
    assert launch(path, 2)[0] is ExitStatus.NETWORK_FAILED  # it is not tried again


def test_targets_that_are_classes_keep_their_table(tmp_path):
    _, prepared = launch(write(tmp_path, "class"), 2)
    header = prepared.paths.results.read_text().splitlines()[0]
    assert header == (
        "name,status,reason,parameters,epochs,best_epoch,loss,accuracy,val_loss,val_accuracy,test_loss,"
        "test_accuracy,seconds,drawn"
    )
    assert prepared.spec.networks[0].train.stopping.metric == "val_accuracy"
    assert "metrics" not in prepared.paths.history("one").read_text()


# Recorded before targets of other kinds: loss, accuracy, val_loss and val_accuracy of each epoch.
BEFORE = (
    (2.3766086162524402, 0.1031562740569669, 2.437821131965179, 0.07323943661971831),
    (2.424056794131314, 0.09545804464973057, 2.3915757431312237, 0.05352112676056338),
    (2.421016216697384, 0.11855273287143957, 2.503400174136787, 0.09859154929577464),
)
BEFORE_TEST = (2.4584595596248535, 0.11888111888111888)


def test_class_results_equal_recorded_ones(tmp_path):
    pytest.importorskip("sklearn")  # has the digits
    _, prepared = launch(
        write_spec(
            tmp_path,
            seed=11,
            resources={"engine": "numpy"},
            schedule={"policy": "baseline"},
            data={
                "source": "builtin:digits",
                "test": "10%",
                "cache": "none",
                "transforms": [
                    {"decode": {"mode": "L"}},
                    {"random_crop": {"size": [8, 8], "padding": 1}},
                    {"scale": {"mean": 0.5, "std": 0.5}},
                ],
            },
            train={
                "batch": {"size": 32},
                "optimizer": {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9},
                "stopping": {"max_epochs": 3},
            },
        ),
        1,
    )
    scores = [
        (record.loss, record.accuracy, record.val_loss, record.val_accuracy)
        for record in history(prepared)
    ]
    [row] = read_results(prepared.paths.root)
    # Another BLAS may sum in another order; on one machine they are bitwise equal.
    np.testing.assert_allclose(scores, BEFORE, rtol=1e-9)
    np.testing.assert_allclose((row.test_loss, row.test_accuracy), BEFORE_TEST, rtol=1e-9)


@pytest.mark.parametrize("kind", ["class", "mask"])
def test_class_weights_may_be_balanced_for_images_and_pixels(kind, tmp_path):
    _, prepared = launch(write(tmp_path, kind, class_weights="balanced"), 2)
    source = prepared.inputs.data.train
    if kind == "class":
        labels = source.labels
    else:
        labels = np.concatenate([source.read_target(index).ravel() for index in range(len(source))])
    counts = np.bincount(labels)
    expected = counts.sum() / (2 * counts)
    assert list(prepared.spec.networks[0].train.class_weights.values()) == pytest.approx(
        expected.tolist()
    )


def test_metrics_are_computed_on_the_test_data_too(tmp_path):
    path = write(tmp_path, "value", data={"test": 0.2}, metrics=["mae"])
    _, prepared = launch(path, 2)
    [row] = read_results(prepared.paths.root)
    tested = events_of(prepared.paths.events, NetworkTested)
    assert row.metrics["test_mae"] == tested[0].tested.metrics["mae"] != row.metrics["val_mae"]
    assert 0 < row.metrics["test_mae"] < 2 * row.metrics["val_mae"]
    assert "test mae" in leaderboard([row])[0]
    before = prepared.paths.results.read_text()
    _, again = launch(path, 2)  # everything has finished, and results are kept
    assert again.paths.results.read_text() == before


@pytest.mark.parametrize(
    ("kind", "train", "names"),
    [
        ("value", {"label_smoothing": 0.1}, ["train.label_smoothing", "values"]),
        ("value", {"stopping": {"monitor": "val_accuracy"}}, ["accuracy", "values"]),
        ("multilabel", {"class_weights": {"a": 2}}, ["class_weights", "has no single class"]),
        ("class", {"class_weights": {"most": 2}}, ["class_weights", "'most'", "less, more"]),
    ],
)
def test_targets_refuse_unfit_settings(kind, train, names, tmp_path):
    with refused(UserError, *names):
        prepare(str(write(tmp_path, kind, **train)), [0, 0], None)


def test_mask_refuses_family_with_one_output_per_image(tmp_path):
    path = write(tmp_path, "mask", [{"family": "softmax"}])
    text = (
        path.read_text()
        .replace("family: softmax", "family: cnn")
        .replace("engine: numpy", "engine: keras")
    )
    path.write_text(text)
    with pytest.raises(
        UserError, match="predicts one class per image, but masks need one per pixel"
    ):
        prepare(str(path), [0, 0], None)


def test_targets_of_plain_labels_are_set_by_the_spec(tmp_path):
    path = write(tmp_path, "class", data={"target": "value"})
    _, prepared = launch(path, 2)
    assert (prepared.sample.target.kind, prepared.sample.classes) == ("value", 1)
    with pytest.raises(
        InputError, match="data.target: value, but the source has targets of kind multilabel"
    ):
        prepare(
            str(write(tmp_path / "other", "multilabel", data={"target": "value"})), [0, 0], None
        )
