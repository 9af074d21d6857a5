"""Tests of warnings about data that surely hurts training."""

import numpy as np
import pytest

from fleet.domain.events import RunWarned
from fleet.runtime.startup.data import open_inputs
from fleet.runtime.startup.data_warnings import (
    accuracy_of_chance,
    describe_inputs,
    describe_target,
    find_accuracies_of_chance,
    find_data_warnings,
)
from fleet.spec import parse
from fleet.storage.event_log import events_of
from preprocess.target import TargetSpec
from preprocess.transforms import parse_transforms
from tests.fleet.runtime.runs import launch, write

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (20, 4, 4, 3)).astype(np.uint8)
COLUMNS = (RANDOM.normal(size=(30, 3)) * [1, 1e3, 10]).astype(np.float32)
SMALL = RANDOM.normal(size=(30, 4)).astype(np.float32)


def warnings(folder, models=({"family": "softmax"},), y=None, x=IMAGES, **data):
    """Return the warnings about arrays."""
    arrays = x if isinstance(x, dict) else {"x": x}
    rows = len(next(iter(arrays.values())))
    target = np.arange(rows) % 2 if y is None else y
    np.savez(folder / "data.npz", y=target, **arrays)
    settings = {"source": "npz", "path": str(folder / "data.npz"), "transforms": [], **data}
    spec = parse({"models": list(models), "data": settings})
    return find_data_warnings(spec, open_inputs(spec))


def test_images_that_nothing_scales_are_named_in_one_line(tmp_path):
    [warning] = warnings(tmp_path)
    assert warning.startswith("data: images have values up to 25")
    assert "end data.transforms with `scale: true`" in warning
    assert "\n" not in warning


@pytest.mark.parametrize(
    "scale", ["scale", {"scale": True}, {"scale": "data"}, {"scale": {"mean": 0.5, "std": 0.25}}]
)
def test_scaled_images_give_no_warning(scale, tmp_path):
    assert warnings(tmp_path, transforms=[scale]) == ()


def test_images_that_are_cropped_on_the_device_are_checked(tmp_path):
    crop = {"random_crop": {"size": [3, 3]}}
    data = {"augment_on": "device"}
    assert len(warnings(tmp_path, transforms=[crop], **data)) == 1
    assert warnings(tmp_path, transforms=[crop, {"scale": True}], **data) == ()


def test_images_of_floats_may_be_large_too():
    assert "up to 25" in describe_inputs(IMAGES.astype(np.float32), ())
    assert describe_inputs(IMAGES.astype(np.float32) / 255, ()) == ""


def test_columns_of_different_size_are_named(tmp_path):
    [warning] = warnings(tmp_path, x=COLUMNS)
    assert "column 0 up to" in warning
    assert "column 1 up to" in warning
    assert "standardize" in warning
    assert warnings(tmp_path, x=COLUMNS, transforms=["standardize"]) == ()
    assert warnings(tmp_path, x=SMALL) == ()


def test_columns_of_a_table_are_named(tmp_path):
    path = tmp_path / "table.csv"
    rows = [f"{a},{b},{n % 2}" for n, (a, b) in enumerate(COLUMNS[:, :2])]
    path.write_text("\n".join(["age,income,y", *rows]) + "\n")
    data = {"source": "table", "path": str(path), "options": {"targets": "y"}}
    spec = parse({"models": [{"family": "mlp"}], "data": data})
    [warning] = find_data_warnings(spec, open_inputs(spec))
    assert "age up to" in warning
    assert "income up to" in warning


def test_scale_of_columns_is_answered_with_standardize():
    assert "use `standardize` instead" in describe_inputs(COLUMNS, parse_transforms(["scale"]))


def test_scale_of_small_numbers_is_reported():
    scale = parse_transforms(["scale"])
    assert "divides by 255, but inputs are at most 1" in describe_inputs(IMAGES / 255, scale)
    assert "or use standardize" in describe_inputs(np.minimum(abs(SMALL), 1), scale)


def test_rare_and_constant_columns_give_no_warning():
    flags = np.zeros((200, 3), np.float32)
    flags[0, 0] = 1
    flags[:, 1] = RANDOM.normal(size=200)
    assert describe_inputs(flags, ()) == ""


def test_missing_and_infinite_numbers_give_no_warning():
    numbers = SMALL.copy()
    numbers[0] = np.inf
    numbers[1] = np.nan
    assert describe_inputs(numbers, ()) == ""


def test_input_of_several_is_named(tmp_path):
    x = {"image": IMAGES, "facts": SMALL[:20]}
    models = [{"build": "tests.data_networks:plain"}]
    options = {"inputs": ["image", "facts"]}
    [warning] = warnings(tmp_path, models, x=x, transforms={}, options=options)
    assert warning.startswith("data: input image: images have values")
    assert warning.endswith("end data.transforms.image with `scale: true`")


def test_tokens_of_custom_networks_give_no_warning(tmp_path):
    tokens = RANDOM.integers(0, 5000, (20, 7))
    assert warnings(tmp_path, [{"build": "tests.data_networks:plain"}], x=tokens) == ()
    assert len(warnings(tmp_path, x=tokens)) == 1


def test_networks_that_may_scale_give_no_warning(tmp_path, monkeypatch):
    code = "def scaled(input_shape, classes):\n    return lambda x: x / 255\n"
    (tmp_path / "scaling_networks.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    assert warnings(tmp_path, [{"family": "EfficientNetB0"}]) == ()
    assert len(warnings(tmp_path, [{"family": "MobileNetV2"}])) == 1
    assert len(warnings(tmp_path, [{"build": "tests.data_networks:plain"}])) == 1
    assert warnings(tmp_path, [{"build": "scaling_networks:scaled"}]) == ()


def test_entries_with_other_transforms_are_checked_apart(tmp_path):
    models = [
        {"family": "softmax", "name": "a"},
        {"family": "softmax", "name": "b", "data": {"transforms": ["scale"]}},
    ]
    assert len(warnings(tmp_path, models)) == 1


def test_huge_target_is_reported(tmp_path):
    prices = RANDOM.normal(2e5, 5e4, 20)
    [warning] = warnings(tmp_path, y=prices, target="value", transforms=["scale"])
    assert "the target has values around" in warning
    assert "divide it by 100,000" in warning
    assert warnings(tmp_path, y=prices / 1e5, target="value", transforms=["scale"]) == ()


def test_huge_output_of_a_target_is_named():
    values = np.stack([np.arange(9), np.arange(9) * 1e6], axis=1)
    target = TargetSpec("value", 2, ("size", "price"))
    assert describe_target(values, target).startswith("the target price has values")


def test_accuracy_of_chance_is_that_of_the_largest_class(tmp_path):
    assert accuracy_of_chance([0] * 90 + [1] * 10) == pytest.approx(0.96)
    np.savez(tmp_path / "data.npz", x=IMAGES, y=np.arange(20) % 2)
    data = {"source": "npz", "path": str(tmp_path / "data.npz")}
    spec = parse({"models": [{"family": "softmax"}], "data": data})
    assert list(find_accuracies_of_chance(open_inputs(spec))) == [""]


def run_on_labels(folder, labels, x=SMALL, epochs=6):
    """Train two networks; return the warnings in the log of the run."""
    folder.mkdir(exist_ok=True)
    np.savez(folder / "data.npz", x=x, y=labels)
    path = write(
        folder,
        [{"family": "softmax", "grid": {"train.optimizer.learning_rate": [0.01, 0.02]}}],
        data={"source": "npz", "path": str(folder / "data.npz"), "validation": 0.3},
        train={"batch_size": 8, "epochs": epochs},
    )
    _, prepared = launch(path, 2)
    return [event.warning for event in events_of(prepared.paths.events, RunWarned)]


@pytest.mark.usefixtures("quick")
def test_accuracy_at_chance_is_reported_once(tmp_path):
    numbers = RANDOM.normal(size=(300, 4)).astype(np.float32)
    labels = RANDOM.integers(0, 3, 300)
    [warning] = run_on_labels(tmp_path / "chance", labels, numbers * 1e-6)
    assert "no network is better than chance" in warning
    assert run_on_labels(tmp_path / "short", labels, numbers * 1e-6, epochs=1) == []
    assert run_on_labels(tmp_path / "well", (numbers[:, 0] > 0).astype(int), numbers) == []


@pytest.mark.usefixtures("quick")
def test_warnings_about_data_are_in_the_log_once(tmp_path):
    labels = np.arange(len(COLUMNS)) % 2  # one epoch is not enough to judge accuracies
    first = run_on_labels(tmp_path / "again", labels, COLUMNS, epochs=1)
    assert len(first) == 1
    assert "columns differ" in first[0]
    assert run_on_labels(tmp_path / "again", labels, COLUMNS, epochs=1) == first
