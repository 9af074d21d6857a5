"""One HDF5 file instead of many images."""

import errno
import io
import os
import pickle

import h5py
import numpy as np
import pytest

from preprocess.base import BadSample, CannotWrite, InputError
from preprocess.pipeline import Pipeline
from preprocess.source import open_data
from preprocess.sources.hdf5 import decode_once, open_hdf5, write_hdf5
from preprocess.transforms import parse_transforms
from tests.preprocess.samples import pattern, write


@pytest.fixture
def data(folder):
    return open_data("image_folder", str(folder), 0.4, seed=7)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "packed.h5")


def test_encoded_files_come_back_byte_for_byte(data, path):
    assert write_hdf5(data, (), path) == []
    back = open_data("hdf5", path, None, seed=0)
    assert back.classes == data.classes
    for source, packed in ((data.train, back.train), (data.validation, back.validation)):
        assert packed.labels.tolist() == source.labels.tolist()
        assert [packed.read(i) for i in range(len(packed))] == [source.read(i) for i in range(len(source))]


def test_a_source_that_has_been_read_can_be_sent_to_another_process(data, path):
    write_hdf5(data, (), path)
    train, _ = open_hdf5(path)
    first = train.read(0)
    assert pickle.loads(pickle.dumps(train)).read(0) == first


def test_decoded_images_come_back_pixel_for_pixel(data, path, folder):
    write_hdf5(data, parse_transforms(["decode", {"center_crop": {"size": [4, 4]}}]), path)
    train, _ = open_hdf5(path)
    decode, crop = parse_transforms(["decode", {"center_crop": {"size": [4, 4]}}])
    for index in range(len(train)):
        expected = crop.apply(decode.apply(data.train.read(index)), None, True)
        assert np.array_equal(train.read(index), expected)


def test_a_sample_keeps_the_name_of_its_file(data, path):
    write_hdf5(data, (), path)
    assert open_hdf5(path)[0].name(0) == f"{path}:/train[{data.train.name(0)}]"


def test_what_cannot_be_decoded_is_left_out_without_a_gap(data, path, folder):
    broken = data.train.name(1)
    with open(broken, "wb") as file:
        file.write(b"no image")
    [bad] = write_hdf5(data, parse_transforms(["decode"]), path)
    assert bad.name == broken
    train, _ = open_hdf5(path)
    assert train.labels.tolist() == np.delete(data.train.labels, 1).tolist()
    assert all(train.read(index).any() for index in range(len(train)))


def test_progress_is_told_of_every_sample(data, path):
    steps = []
    write_hdf5(data, (), path, steps.append)
    assert sum(steps) == 8


@pytest.mark.parametrize("transforms", [["decode", {"flip": {"horizontal": True}}], ["decode", "scale"],
                                        ["decode", "scale", {"center_crop": {"size": [2, 2]}}]])
def test_only_what_is_the_same_in_every_epoch_can_be_done_beforehand(data, path, transforms, tmp_path):
    with pytest.raises(InputError, match="not random and end in uint8"):
        write_hdf5(data, parse_transforms(transforms), path)
    assert not list(tmp_path.glob("*packed*"))


def test_an_interrupted_write_leaves_the_old_file_and_no_other(data, path, tmp_path):
    write_hdf5(data, (), path)

    def interrupt(count):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_hdf5(data, parse_transforms(["decode"]), path, interrupt)
    assert isinstance(open_hdf5(path)[0].read(0), bytes)
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["packed.h5"]


def test_what_a_killed_write_has_left_is_swept_away(data, path, tmp_path):
    (tmp_path / ".packed.h5.1.tmp").touch()
    write_hdf5(data, (), path)
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["packed.h5"]


def test_a_place_that_does_not_exist_is_named(data, tmp_path):
    with pytest.raises(InputError, match="cannot write .*nowhere/x.h5: No such file"):
        write_hdf5(data, (), tmp_path / "nowhere/x.h5")


class FullDisk(io.FileIO):
    """A file for which there is room for the first bytes only."""

    left = 4000

    def write(self, data):
        if self.left <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.left -= len(data)
        return super().write(data)


@pytest.mark.parametrize("left", range(0, 12000, 3000))
def test_a_full_disk_is_no_wrong_input_and_leaves_the_old_file_and_no_other(data, path, tmp_path, monkeypatch, left):
    write_hdf5(data, (), path)
    monkeypatch.setattr(FullDisk, "left", left)
    monkeypatch.setattr("builtins.open", lambda name, mode, **options: FullDisk(name, mode))
    with pytest.raises(CannotWrite, match="No space left"):
        write_hdf5(data, parse_transforms(["decode", {"resize": {"size": [64, 64]}}]), path)
    monkeypatch.undo()
    assert isinstance(open_hdf5(path)[0].read(0), bytes)
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["packed.h5"]


def test_a_full_disk_is_told_of_even_where_hdf5_stumbles_over_what_is_not_there(data, path, monkeypatch):
    def garbage(self, buffer):
        buffer[:] = b"\xff" * len(buffer)
        return len(buffer)

    monkeypatch.setattr(FullDisk, "left", 0)
    monkeypatch.setattr("preprocess.files.deaf_file.DeafFile.readinto", garbage)
    monkeypatch.setattr("builtins.open", lambda name, mode, **options: FullDisk(name, mode))
    with pytest.raises(CannotWrite, match="No space left"):
        write_hdf5(data, (), path)


def test_a_file_of_nothing_is_not_written(data, path):
    for part in (data.train, data.validation):
        for index in range(len(part)):
            os.unlink(part.name(index))
    with pytest.raises(InputError, match="none of the 5 samples can be used; the first: .* cannot be read"):
        write_hdf5(data, (), path)
    assert not os.path.exists(path)


# ---- decoded once -----------------------------------------------------------------------------


TRANSFORMS = parse_transforms(["decode", {"resize": {"size": [6, 6]}}, {"random_crop": {"size": [4, 4]}},
                               {"flip": {"horizontal": True}}, "scale"])


def batch(data, transforms, epoch=3):
    pipe = Pipeline(data.train, transforms, seed=7)
    images = np.empty((pipe.samples, *pipe.shape), pipe.dtype)
    bad = pipe.load(range(pipe.samples), epoch, images, np.empty(pipe.samples, np.int64))
    return images, bad, pipe.affine


def test_decoding_once_gives_what_decoding_in_every_epoch_gives(data, path):
    copy = decode_once(data, TRANSFORMS, path)
    assert copy.transforms == TRANSFORMS[2:]
    assert copy.data.train.labels.tolist() == data.train.labels.tolist()
    expected, _, affine = batch(data, TRANSFORMS)
    images, bad, left = batch(copy.data, copy.transforms)
    assert np.array_equal(images, expected)
    assert (bad, left) == ([], affine)


def test_the_copy_is_made_once_and_anew_when_it_would_differ(data, path, folder):
    made = []
    decode_once(data, TRANSFORMS, path, made.append)
    decode_once(data, TRANSFORMS, path, made.append)
    assert sum(made) == 8
    decode_once(data, parse_transforms(["decode"]), path, made.append)
    assert sum(made) == 16
    decode_once(open_data("image_folder", str(folder), 0.4, seed=8), parse_transforms(["decode"]), path, made.append)
    assert sum(made) == 24


def test_what_the_copy_leaves_out_is_known_each_time(data, path):
    name = data.train.name(2)
    with open(name, "wb") as file:
        file.write(b"no image")
    for _ in range(2):
        copy = decode_once(data, TRANSFORMS, path)
        assert [(bad.name, "not an image" in bad.reason) for bad in copy.left_out] == [(name, True)]
        assert len(copy.data.train) == 4


@pytest.mark.parametrize("transforms", [[], ["scale"], [{"flip": {"horizontal": True}}]])
def test_there_must_be_something_to_do_once(data, path, transforms):
    with pytest.raises(InputError, match="nothing can be done once"):
        decode_once(data, parse_transforms(transforms), path)


def test_a_file_that_is_something_else_is_not_replaced(data, path):
    foreign(path, IMAGES, [0, 1, 0, 1])
    with pytest.raises(InputError, match="not made from images by this program: not replaced"):
        decode_once(data, TRANSFORMS, path)
    with open(path, "w") as file:
        file.write("a diary")
    with pytest.raises(InputError, match="not an HDF5 file: not replaced"):
        decode_once(data, TRANSFORMS, path)


# ---- files of others --------------------------------------------------------------------------


def foreign(path, images, labels, **more):
    with h5py.File(path, "w") as file:
        file["images"], file["labels"] = images, labels
        for name, content in more.items():
            file[name] = content


IMAGES = np.stack([pattern(3, 4, seed=number) for number in range(4)])


def test_images_and_labels_at_the_root_are_enough(path):
    foreign(path, IMAGES, [0, 2, 1, 2])
    data = open_data("hdf5", path, None, seed=0)
    assert (data.classes, data.train.labels.tolist()) == (("0", "1", "2"), [0, 2, 1, 2])
    assert np.array_equal(data.train.read(3), IMAGES[3])
    assert data.train.name(3) == f"{path}:/[3]"


def test_the_names_of_the_classes_may_be_given(path):
    foreign(path, IMAGES, [0, 1, 1, 0], classes=["ant", "bee"])
    assert open_hdf5(path)[0].classes == ("ant", "bee")


@pytest.mark.parametrize(("images", "labels", "complaint"), [
    (IMAGES[:, :, :, 0], [0, 1, 0, 1], r"images is \(4, 3, 4\) of uint8; wanted are"),
    (IMAGES.astype(np.float32), [0, 1, 0, 1], "of float32; wanted are"),
    (IMAGES, [0, 1, 0], r"labels is \(3,\) of int64; \(4,\) integers are wanted"),
    (IMAGES, [0.0, 1.0, 0.0, 1.0], "of float64"),
    (IMAGES, [0, 1, -1, 1], r"labels are not all in 0..1"),
])
def test_a_file_of_another_layout_is_told_what_is_wanted(path, images, labels, complaint):
    foreign(path, images, labels)
    with pytest.raises(InputError, match=complaint):
        open_hdf5(path)


def test_a_file_without_labels_or_of_another_kind_is_refused(path, tmp_path):
    with h5py.File(path, "w") as file:
        file["images"] = IMAGES
    with pytest.raises(InputError, match="no data set /labels in it"):
        open_hdf5(path)
    (tmp_path / "text").write_text("not HDF5")
    with pytest.raises(InputError, match="not an HDF5 file"):
        open_hdf5(str(tmp_path / "text"))


def test_a_damaged_chunk_is_a_bad_sample(path):
    with h5py.File(path, "w") as file:
        file["labels"] = [0, 1, 0, 1]
        images = file.create_dataset("images", data=IMAGES, chunks=(1, 3, 4, 3), fletcher32=True)
        place = images.id.get_chunk_info(2).byte_offset
    with open(path, "r+b") as file:
        file.seek(place)
        file.write(b"\xff\x00\xff")
    source, _ = open_hdf5(path)
    assert np.array_equal(source.read(1), IMAGES[1])
    with pytest.raises(BadSample, match="cannot be read"):
        source.read(2)


def test_a_broken_link_in_the_source_is_left_out_of_an_encoded_file_too(folder, path):
    write(folder / "dog/x.png", pattern(4, 6))
    data = open_data("image_folder", str(folder), None, seed=0)
    (folder / "dog/x.png").unlink()
    assert [bad.name for bad in write_hdf5(data, (), path)] == [str(folder / "dog/x.png")]
