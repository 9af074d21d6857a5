"""Targets of all kinds, weights and arrays in one HDF5 file."""

import pickle

import numpy as np
import pytest
from PIL import Image

from launch.errors import InputError
from preprocess.packing import write_hdf5
from preprocess.pipeline import Pipeline
from preprocess.sources.hdf5 import open_hdf5
from preprocess.sources.image_folder import open_image_folder
from preprocess.target import TargetSpec, TargetWish, read_mask
from preprocess.transforms import parse_transforms
from tests.preprocess.samples import Samples, encode, foreign, pattern, write

INPUTS = np.random.default_rng(0).random((5, 3)).astype(np.float32)


def back(source, path):
    """Return the content of a file that a source was written to."""
    bad = write_hdf5({"train": source}, path)
    opened, validation, test = open_hdf5(path)
    assert (validation, test) == (None, None)
    return pickle.loads(pickle.dumps(opened)), bad


@pytest.mark.parametrize(
    ("spec", "targets"),
    [
        (TargetSpec("value", 2, ("mass", "charge")), np.arange(10).reshape(5, 2) / 8),
        (TargetSpec("value", 1), np.arange(5) / 8),
        (TargetSpec("multilabel", 3), np.arange(15).reshape(5, 3) % 2),
    ],
)
def test_values_and_labels_round_trip(path, spec, targets):
    read_back, _ = back(Samples(INPUTS, target=spec, targets=targets, weights=np.arange(5.0)), path)
    assert read_back.target == spec
    assert np.array_equal(read_back.targets, targets.reshape(5, -1))
    assert read_back.weights.tolist() == [0, 1, 2, 3, 4]
    assert all(np.array_equal(read_back.read(index), INPUTS[index]) for index in range(5))
    assert read_back.read(0).dtype == np.float32


@pytest.mark.parametrize(
    "inputs",
    [
        np.arange(5, dtype=np.int16),
        np.zeros((5, 2, 3, 4), np.float64),
        np.ones((5, 7), np.uint8),
        np.ones((5, 2), bool),
    ],
)
def test_inputs_of_any_rank_and_type_come_back(path, inputs):
    read_back, _ = back(Samples(inputs, labels=np.arange(5) % 2, classes=("a", "b")), path)
    assert (read_back.labels.tolist(), read_back.classes) == ([0, 1, 0, 1, 0], ("a", "b"))
    assert np.array_equal(read_back.read(3), np.atleast_1d(inputs[3]))


MASKS = np.random.default_rng(1).integers(0, 3, (5, 4, 4))


@pytest.mark.parametrize("outputs", [3, 300])
@pytest.mark.parametrize("ignore", [None, 2])
def test_masks_come_back_pixel_for_pixel_beside_their_images(path, outputs, ignore):
    images = [encode(pattern(4, 4, seed=number)) for number in range(5)]
    source = Samples(images, target=TargetSpec("mask", outputs, ignore=ignore), masks=MASKS)
    read_back, _ = back(source, path)
    assert read_back.target.outputs == outputs
    assert read_back.read(2) == images[2]
    for index in range(5):
        expected, actual = (
            read_mask(source, index, source.target),
            read_mask(read_back, index, read_back.target),
        )
        assert np.array_equal(expected, actual)


def test_masks_of_decoded_images_go_through_the_same_transforms(path):
    source = Samples(
        [pattern(6, 6, seed=number) for number in range(5)],
        target=TargetSpec("mask", 3, ("a", "b", "c")),
        masks=np.kron(MASKS, np.ones((1, 2, 2), int))[:, :6, :6],
    )
    transforms = parse_transforms([{"center_crop": {"size": [2, 4]}}])
    write_hdf5({"train": Pipeline.from_source(source, transforms, 0)}, path)
    read_back, _, _ = open_hdf5(path)
    assert np.array_equal(read_back.read(1), source.inputs[1][2:4, 1:5])
    assert np.array_equal(read_back.read_target(1), source.masks[1][2:4, 1:5])
    assert read_back.target.names == ("a", "b", "c")


def test_unreadable_samples_leave_no_gap(path):
    source = Samples(
        [INPUTS[0], None, *INPUTS[2:]],
        target=TargetSpec("value", 1),
        targets=np.arange(5.0),
        weights=np.arange(5),
        groups=np.array([7, 7, 8, 8, 9]),
        strata=np.arange(5),
    )
    read_back, bad = back(source, path)
    assert [sample.name for sample in bad] == ["sample 1"]
    assert [
        array.tolist()
        for array in (
            read_back.targets[:, 0],
            read_back.weights,
            read_back.groups,
            read_back.strata,
        )
    ] == [[0, 2, 3, 4], [0, 2, 3, 4], [7, 8, 8, 9], [0, 2, 3, 4]]


def test_packing_targets_of_all_splits_are_read_back(path):
    parts = {
        name: Samples(INPUTS[:count], target=TargetSpec("value", 1), targets=np.arange(count) / 2)
        for name, count in (("train", 5), ("validation", 3), ("test", 2))
    }
    write_hdf5(parts, path)
    assert [len(part) for part in open_hdf5(path)] == [5, 3, 2]


@pytest.mark.parametrize("odd", [np.zeros(4, np.float32), np.zeros(3, np.uint8), b"file"])
def test_samples_that_are_unlike_the_first_are_refused(path, odd):
    with pytest.raises(
        InputError, match="sample 3 is .*, unlike the first sample; all samples of one file"
    ):
        write_hdf5(
            {"train": Samples([*INPUTS[:3], odd], labels=np.zeros(4, int), classes=("a", "b"))},
            path,
        )


# ---- files of somebody else's
# ---------------------------------------------------------------------


def test_targets_of_a_foreign_file_follow_dtype_and_shape(path):
    foreign(
        path,
        INPUTS,
        np.arange(5),
        targets=np.arange(5) / 2,
        y=np.arange(15).reshape(5, 3) % 2,
        w=np.ones(5),
    )
    source, _, _ = open_hdf5(path, targets="targets", weights="w")
    assert (source.target, source.weights.tolist()) == (TargetSpec("value", 1), [1] * 5)
    assert open_hdf5(path, targets="y")[0].target == TargetSpec("multilabel", 3)
    assert open_hdf5(path)[0].labels.tolist() == [0, 1, 2, 3, 4]
    assert open_hdf5(path, target=TargetWish("value"))[0].targets.tolist() == [
        [0],
        [1],
        [2],
        [3],
        [4],
    ]


def test_masks_of_a_foreign_file_are_arrays(path):
    foreign(
        path, np.zeros((5, 4, 4, 1), np.uint8), np.zeros(5, int), masks=(MASKS * 100)[..., None]
    )
    source, _, _ = open_hdf5(path, targets="masks")
    assert source.target == TargetSpec("mask", 3, ("0", "100", "200"))
    assert np.array_equal(source.read_target(4), MASKS[4])


def test_masks_are_packed_as_they_are_read(path, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    palettes = ([0, 0, 0, 255, 255, 255], [255, 255, 255, 0, 0, 0])
    numbers = np.array([[0, 0, 1], [0, 1, 1]], np.uint8)
    for number, palette in enumerate(palettes):
        write(tmp_path / f"images/{number}.png", pattern(2, 3), exif=exif)
        mask = Image.fromarray(abs(numbers - number).astype(np.uint8)).convert("P")
        mask.putpalette(palette)
        (tmp_path / "masks").mkdir(exist_ok=True)
        mask.save(tmp_path / f"masks/{number}.png", exif=exif)
    source, _ = open_image_folder(str(tmp_path))
    read_back, bad = back(source, path)
    assert (bad, read_back.target.names) == ([], ("0", "255"))
    for number in range(2):
        assert np.array_equal(read_back.read_target(number), np.rot90(numbers, -1))
