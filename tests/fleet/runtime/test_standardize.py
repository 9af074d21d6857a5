"""Whole runs whose networks standardize their inputs."""

import numpy as np
import pytest

from fleet.errors import ExitStatus
from fleet.runtime.startup.data import describe_standardizing, open_inputs, standardize
from fleet.spec import load
from fleet.storage.checkpoint import find_newest
from tests.fleet.runtime.runs import launch, launch_in_parts
from tests.fleet.runtime.runs import write as write_spec

pytestmark = pytest.mark.usefixtures("quick")


def table(path, rows=60, more=0.0):
    """Write a table whose columns have very different scales."""
    random = np.random.default_rng(0)
    columns = random.normal(size=(rows, 3)) * [1, 1e-3, 1e3] + [0, 3, -1e4]
    lines = [f"{a},{b},{c},{a + 1e3 * (b - 3)}" for a, b, c in columns]
    lines += [f"{more},{more},{more},1"] * bool(more)
    path.write_text("\n".join(["a,b,c,y", *lines]) + "\n")
    return path


def write(
    folder,
    ranks=1,
    models=({"family": "softmax", "name": "one", "gpus": 1},),
    standardize="standardize",
    **data,
):
    folder.mkdir(exist_ok=True)
    path = folder / "table.csv"
    return write_spec(
        folder,
        models,
        profile={"batches": 4, "timed": 2, "max_gpus": 1},
        data={
            "source": "table",
            "path": str(path if path.exists() else table(path)),
            "options": {"targets": "y"},
            "target": "value",
            "transforms": [standardize],
            **data,
        },
        train={
            "batch": {"size": 8},
            "optimizer": {"name": "sgd", "learning_rate": 0.05},
            "stopping": {"max_epochs": 12},
        },
        resources={"engine": "numpy", "preprocessors": min(1, ranks - 1)},
    )


def history(prepared, name="one"):
    return [
        (record.loss, record.val_loss)
        for record in find_newest(prepared.paths, name, with_arrays=False).history
    ]


def test_standardize_trains_on_any_column_scale(tmp_path):
    results = []
    for cache, ranks in (("none", 1), ("memory", 1), ("none", 2), ("memory", 3)):
        status, prepared = launch(write(tmp_path / f"{cache}{ranks}", ranks, cache=cache), ranks)
        assert status is ExitStatus.OK
        results.append(history(prepared))
    assert results[0][-1][1] < 0.01
    assert all(single == results[0] for single in results)


@pytest.mark.parametrize(
    ("options", "samples"),
    [({}, "the training samples"), ({"folds": 3}, "each fold's training samples")],
)
def test_description_says_which_samples_are_measured(tmp_path, options, samples):
    spec = load(write(tmp_path, **options))
    inputs = open_inputs(spec)
    assert describe_standardizing(spec, inputs) == (
        f"standardize uses means and deviations of {samples}, computed before training and "
        "exported with the networks"
    )
    assert inputs.data.remark == ""


def images(folder, scale):
    """Write a spec of small images whose classes differ in brightness."""
    folder.mkdir()
    labels = np.arange(80) % 2
    pixels = (
        np.random.default_rng(0).integers(0, 200, (80, 4, 4, 1)) + 50 * labels[:, None, None, None]
    )
    np.savez(folder / "images.npz", x=pixels.astype(np.uint8), y=labels)
    return write_spec(
        folder,
        data={"source": "npz", "path": str(folder / "images.npz"), "transforms": [scale]},
        train={"epochs": 6, "batch_size": 8, "optimizer": {"name": "sgd", "lr": 0.05}},
    )


def test_scale_by_data_trains_on_images_and_resumes(tmp_path):
    path = images(tmp_path / "whole", {"scale": "data"})
    status, prepared = launch(path, 2)
    assert status is ExitStatus.OK
    pixels = np.stack(
        [source.read(n) for source in [prepared.inputs.data.train] for n in range(72)]
    )
    assert prepared.inputs.sample.affine.mean == pytest.approx((pixels.mean(),))
    assert prepared.inputs.sample.affine.std == pytest.approx((pixels.std(),))
    assert prepared.paths.standardized.exists()
    parts = launch_in_parts(images(tmp_path / "parts", {"scale": "data"}), 2, 10)
    assert history(parts) == history(prepared)


def test_standardize_uses_training_samples_of_each_fold(tmp_path):
    status, prepared = launch(write(tmp_path, folds=3), 1)
    assert status is ExitStatus.OK
    folds, source = prepared.inputs.folds, prepared.inputs.data.train
    rows = np.stack([source.read(index) for index in range(len(source))]).astype(np.float64)
    for network in prepared.spec.networks:
        affine = prepared.sample.for_pipeline(network.pipeline, network.fold).affine
        np.testing.assert_allclose(
            affine.mean, rows[folds != network.fold].mean(axis=0), rtol=1e-12
        )
        assert history(prepared, network.name)[-1][1] < 0.02
    assert len({prepared.sample.for_pipeline("", fold).affine for fold in range(3)}) == 3


def test_standardize_per_entry_shares_earlier_transforms(tmp_path):
    models = [
        {"family": "softmax", "name": "one", "gpus": 1},
        {
            "family": "softmax",
            "name": "raw",
            "gpus": 1,
            "data": {"transforms": []},
            "train": {"optimizer": {"learning_rate": 1e-12}},
        },
    ]
    status, prepared = launch(write(tmp_path / "both", 2, models), 2)
    assert status is ExitStatus.OK
    assert [
        prepared.sample.for_pipeline(network.pipeline).affine is None
        for network in prepared.spec.networks
    ] == [False, True]
    _, alone = launch(write(tmp_path / "alone", 2), 2)
    assert history(prepared) == history(alone)


def test_standardize_values_are_kept_for_later_launches(tmp_path, monkeypatch):
    _, complete = launch(write(tmp_path / "whole"), 1)
    parts = launch_in_parts(write(tmp_path / "parts"), 1, checks=20)
    assert history(parts) == history(complete)
    assert parts.paths.foreign_files() == []
    monkeypatch.setattr(
        "fleet.runtime.startup.data.compute_standardization", None
    )  # would be called
    _, again = launch(write(tmp_path / "again"), 1, replay=str(complete.paths.root), only="one")
    assert history(again) == history(complete)
    assert launch(write(tmp_path / "whole"), 1)[1].sample == complete.sample


def test_standardize_values_hold_for_added_data_only(tmp_path):
    def computed(before, **data):
        spec = load(write(tmp_path, **data))
        return standardize(open_inputs(spec), spec, before)[1]

    first = computed({})
    table(tmp_path / "table.csv", more=1e5)
    assert computed({}) != first
    assert computed(first) == first
    for data in ({"standardize": {"standardize": {"per": "array"}}}, {"folds": 2}):
        assert computed(first, **data) == computed({}, **data)


def test_standardize_computes_nothing_while_data_is_opened(tmp_path):
    opened = open_inputs(load(write(tmp_path, folds=2)))
    assert opened.sample.affine.mean == 0
