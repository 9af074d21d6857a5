"""Data without targets: ``data.target: none``."""

import numpy as np
import pytest
from PIL import Image

from launch.errors import InputError
from preprocess.base import RandomAccess
from preprocess.pipeline import Pipeline
from preprocess.source import open_data
from preprocess.target import TargetSpec, TargetWish, target_of
from tests.refusals import refused

NONE = TargetWish("none")


class Unlabeled(RandomAccess):
    """Ten samples without labels."""

    def __len__(self):
        return 10

    def read(self, index):
        return np.full((2, 2, 1), index, np.uint8)

    def name(self, index):
        return f"sample {index}"


def unlabeled(path):
    return Unlabeled()


def opened(source, path=None, options=None):
    return open_data(source, path and str(path), 0.2, 0, options, target=NONE)


def check(data, count):
    """Check that all samples of a data set can be prepared without targets."""
    assert len(data.train) + len(data.validation) == count
    for source in data.splits().values():
        assert target_of(source) == TargetSpec("none", 0)
        pipeline = Pipeline.from_source(source, (), 0)
        inputs, targets = pipeline.empty(len(source))
        assert not list(pipeline.load(np.arange(len(source)), 0, inputs, targets))
        assert not targets.any()


def test_open_data_needs_no_labels_of_a_source():
    check(opened("tests.preprocess.test_no_targets:unlabeled"), 10)


def test_open_data_ignores_labels():
    check(opened("builtin:noise", options={"samples": 30}), 30)


def test_open_npz_needs_no_targets(tmp_path):
    np.savez(tmp_path / "data.npz", x=np.zeros((10, 3), np.float32))
    check(opened("npz", tmp_path / "data.npz"), 10)


def test_open_table_needs_no_targets(tmp_path):
    (tmp_path / "data.csv").write_text("a,b\n" + "1,2\n" * 10)
    check(opened("table", tmp_path / "data.csv"), 10)


def test_open_image_folder_needs_no_classes(tmp_path):
    for index in range(10):
        Image.new("L", (4, 4), index).save(tmp_path / f"{index}.png")
    data = opened("image_folder", tmp_path)
    assert len(data.train) == 8
    assert target_of(data.train) == TargetSpec("none", 0)


def test_open_data_still_asks_for_targets_without_the_wish(tmp_path):
    np.savez(tmp_path / "data.npz", x=np.zeros((10, 3), np.float32))
    with refused(InputError, "'y'"):
        open_data("npz", str(tmp_path / "data.npz"), 0.2, 0)


def test_target_none_travels_as_plain_numbers():
    target = TargetSpec("none", 0)
    targets = target.random_targets(np.random.default_rng(0), 3)
    assert targets.dtype == target.wire == np.int64
    target.mark_unusable(targets, 1)
    assert target.is_usable(targets).tolist() == [True, False, True]
    assert str(target) == "no targets"


@pytest.mark.parametrize("weighted", [False, True])
def test_target_none_has_weights(weighted):
    assert TargetSpec("none", 0, weighted=weighted).is_plain != weighted
