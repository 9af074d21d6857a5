"""The decoded copy of a data set, with all fixed transforms applied."""

import os

import h5py
import numpy as np
import pytest

from launch.errors import InputError
from preprocess.base import DataSet, UnreadableSample, row_numbers
from preprocess.decoded_copy import decode_once
from preprocess.pipeline import Pipeline
from preprocess.probe import infer_sample_spec
from preprocess.source import open_data
from preprocess.transforms import parse_transforms
from tests.preprocess.samples import Memory, encode, foreign, pattern, smooth, write

TRANSFORMS = parse_transforms(
    [
        "decode",
        {"resize": {"size": [6, 6]}},
        {"random_crop": {"size": [4, 4]}},
        {"flip": {"horizontal": True}},
        "scale",
    ]
)


def copied(data, transforms, path, *progress):
    samples = {
        name: infer_sample_spec(source, transforms, 7, keep=True)
        for name, source in data.splits().items()
    }
    return decode_once(data, transforms, samples, path, *progress)


def batch(data, transforms, epoch=3):
    pipe = Pipeline.from_source(data.train, transforms, seed=7)
    images, labels = pipe.empty(pipe.samples)
    bad = pipe.load(range(pipe.samples), epoch, images, labels)
    return images, bad, pipe.sample.affine


def test_decode_once_equals_decoding_every_epoch(data, path):
    copy = copied(data, TRANSFORMS, path)
    assert copy.transforms == TRANSFORMS[2:]
    assert copy.data.train.labels.tolist() == data.train.labels.tolist()
    expected, _, affine = batch(data, TRANSFORMS)
    images, bad, remaining = batch(copy.data, copy.transforms)
    assert np.array_equal(images, expected)
    assert (bad, remaining) == ([], affine)


def test_epochs_have_the_order_that_they_have_without_a_copy(data, path):
    copy = copied(data, TRANSFORMS, path).data
    for epoch in range(3):
        assert copy.train.order(7, epoch).tolist() == data.train.order(7, epoch).tolist()


def test_decoded_copy_of_an_old_format_is_rebuilt(data, path):
    copied(data, TRANSFORMS, path)
    with h5py.File(path, "r+") as file:
        file.attrs["made_from"] = "0" * 64
        del file["train/left_out_at"]
    written = []
    copied(data, TRANSFORMS, path, written.append)
    assert sum(written) == 8


@pytest.mark.parametrize("crop", [{"size": 8}, {"size": [6, 8], "scale": [0.5, 1.0]}])
def test_decode_once_decodes_as_random_resized_crop_does(crop, tmp_path, path):
    for number in range(6):
        write(tmp_path / "jpeg" / "ab"[number % 2] / f"{number}.jpg", smooth(96, 81))
    data = open_data("image_folder", str(tmp_path / "jpeg"), 0.4, seed=7)
    transforms = parse_transforms(["decode", {"random_resized_crop": crop}])
    copy = copied(data, transforms, path)
    assert np.array_equal(batch(copy.data, copy.transforms)[0], batch(data, transforms)[0])


def test_decode_once_rewrites_a_copy_that_would_differ(data, path, folder):
    written = []
    copied(data, TRANSFORMS, path, written.append)
    copied(data, TRANSFORMS, path, written.append)
    assert sum(written) == 8
    copied(data, parse_transforms(["decode"]), path, written.append)
    assert sum(written) == 16
    copied(
        open_data("image_folder", str(folder), 0.4, seed=8),
        parse_transforms(["decode"]),
        path,
        written.append,
    )
    assert sum(written) == 24


def test_decoded_copy_has_the_test_data(folder, path):
    data = open_data("image_folder", str(folder), 0.4, seed=7, test=0.25)
    copy = copied(data, TRANSFORMS, path).data
    assert {name: source.labels.tolist() for name, source in copy.splits().items()} == {
        name: source.labels.tolist() for name, source in data.splits().items()
    }


def test_decoded_copy_reports_left_out_samples_each_time(data, path):
    name = data.train.name(2)
    with open(name, "wb") as file:
        file.write(b"no image")
    for _ in range(2):
        copy = copied(data, TRANSFORMS, path)
        assert [(bad.name, "not an image" in bad.reason) for bad in copy.unreadable] == [
            (name, True)
        ]
        train = copy.data.train
        assert [train.name(index) for index in range(5)] == [
            data.train.name(index) for index in range(5)
        ]
        with pytest.raises(UnreadableSample, match="not an image"):
            train.read(2)
        assert np.array_equal(batch(copy.data, copy.transforms)[0], batch(data, TRANSFORMS)[0])
        assert np.array_equal(row_numbers(train), row_numbers(data.train))


@pytest.mark.parametrize("transforms", [[], ["scale"], [{"flip": {"horizontal": True}}]])
def test_decoded_copy_needs_fixed_transforms(path, transforms):
    decoded = DataSet(Memory([pattern(4, 6)] * 3), None, ("a", "b"))
    with pytest.raises(InputError, match="nothing can be done once"):
        copied(decoded, parse_transforms(transforms), path)


def test_decode_once_allows_different_sizes_of_splits(path):
    data = DataSet(Memory([pattern(6, 6)] * 3), Memory([pattern(8, 7)] * 2), ("a", "b"))
    transforms = parse_transforms(["decode", {"random_crop": {"size": [4, 4]}}])
    copy = copied(data, transforms, path)
    assert [source.read(1).shape for source in copy.data.splits().values()] == [
        (6, 6, 3),
        (8, 7, 3),
    ]
    assert copy.unreadable == []


def test_making_the_copy_reads_each_sample_once(path):
    class Counting(Memory):
        def read(self, index):
            read.append(index)
            return super().read(index)

    read = []
    data = DataSet(Counting([pattern(6, 6)] * 20), None, ("a", "b"))
    transforms = parse_transforms(["decode", {"random_crop": {"size": [4, 4]}}])
    sample = infer_sample_spec(data.train, transforms, 7, keep=True)
    read.clear()
    decode_once(data, transforms, {"train": sample}, path)
    assert read == list(range(20))


def test_decoded_copy_does_not_replace_other_files(data, path):
    foreign(path, np.zeros((4, 3, 4, 3), np.uint8), [0, 1, 0, 1])
    with pytest.raises(
        InputError, match="this program did not make it from images, so it is not replaced"
    ):
        copied(data, TRANSFORMS, path)
    with open(path, "w") as file:
        file.write("a diary")
    with pytest.raises(InputError, match="not an HDF5 file, so it is not replaced"):
        copied(data, TRANSFORMS, path)


def test_samples_of_any_name_are_decoded_once(folder, path):
    with open(os.fsencode(folder) + b"/cat/caf\xe9.png", "wb") as file:
        file.write(encode(pattern(4, 6)))
    copy = copied(open_data("image_folder", str(folder), None, 0), TRANSFORMS, path)
    assert copy.data.train.name(3).endswith("caf\\xe9.png")
    assert len(copy.data.train) == 9
