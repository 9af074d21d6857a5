"""A data set in one HDF5 file, complete or not at all."""

import errno
import io
import os

import numpy as np
import pytest

from launch.errors import InputError
from preprocess.base import CannotWrite
from preprocess.packing import write_hdf5
from preprocess.pipeline import Pipeline
from preprocess.source import open_data
from preprocess.sources.hdf5 import open_hdf5
from preprocess.transforms import parse_transforms
from tests.preprocess.samples import pattern, write


def decoded(data, transforms):
    return {
        name: Pipeline.from_source(source, parse_transforms(transforms), 0)
        for name, source in data.splits().items()
    }


def test_decoded_images_come_back_pixel_for_pixel(data, path, folder):
    write_hdf5(decoded(data, ["decode", {"center_crop": {"size": [4, 4]}}]), path)
    train, _, _ = open_hdf5(path)
    decode, crop = parse_transforms(["decode", {"center_crop": {"size": [4, 4]}}])
    for index in range(len(train)):
        expected = crop.apply(decode.apply(data.train.read(index)), None, True)
        assert np.array_equal(train.read(index), expected)


def test_packing_leaves_out_undecodable_samples(data, path, folder):
    broken = data.train.name(1)
    with open(broken, "wb") as file:
        file.write(b"no image")
    [bad] = write_hdf5(decoded(data, ["decode"]), path)
    assert bad.name == broken
    train, _, _ = open_hdf5(path)
    assert train.labels.tolist() == np.delete(data.train.labels, 1).tolist()
    assert all(train.read(index).any() for index in range(len(train)))


def test_packing_reports_progress_of_every_sample(data, path):
    steps = []
    write_hdf5(data.splits(), path, steps.append)
    assert sum(steps) == 8


@pytest.mark.parametrize(
    "transforms",
    [
        ["decode", {"flip": {"horizontal": True}}],
        ["decode", "scale"],
        ["decode", "scale", {"center_crop": {"size": [2, 2]}}],
    ],
)
def test_write_hdf5_refuses_random_pipelines(data, path, transforms, tmp_path):
    with pytest.raises(InputError, match="not random and end in uint8"):
        write_hdf5(decoded(data, transforms), path)
    assert not list(tmp_path.glob("*packed*"))


def test_packing_interrupted_write_leaves_old_file_and_no_other(data, path, tmp_path):
    write_hdf5(data.splits(), path)

    def interrupt(count):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_hdf5(decoded(data, ["decode"]), path, interrupt)
    assert isinstance(open_hdf5(path)[0].read(0), bytes)
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["packed.h5"]


def test_packing_deletes_files_of_a_killed_write(data, path, tmp_path):
    (tmp_path / ".packed.h5.1.tmp").touch()
    write_hdf5(data.splits(), path)
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["packed.h5"]


def test_packing_names_a_missing_folder(data, tmp_path):
    with pytest.raises(InputError, match="cannot write .*nowhere/x.h5: No such file"):
        write_hdf5(data.splits(), tmp_path / "nowhere/x.h5")


class FullDisk(io.FileIO):
    """A file with room for the first bytes only."""

    free = 4000

    def write(self, data):
        if self.free <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.free -= len(data)
        return super().write(data)


@pytest.mark.parametrize("free", range(0, 12000, 3000))
def test_write_hdf5_keeps_the_old_file_on_a_full_disk(data, path, tmp_path, monkeypatch, free):
    write_hdf5(data.splits(), path)
    monkeypatch.setattr(FullDisk, "free", free)
    monkeypatch.setattr("builtins.open", lambda name, mode, **options: FullDisk(name, mode))
    with pytest.raises(CannotWrite, match="No space left"):
        write_hdf5(decoded(data, ["decode", {"resize": {"size": [64, 64]}}]), path)
    monkeypatch.undo()
    assert isinstance(open_hdf5(path)[0].read(0), bytes)
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["packed.h5"]


def test_write_hdf5_reports_a_full_disk_before_hdf5_errors(data, path, monkeypatch):
    def garbage(self, buffer):
        buffer[:] = b"\xff" * len(buffer)
        return len(buffer)

    monkeypatch.setattr(FullDisk, "free", 0)
    monkeypatch.setattr("preprocess.files.deferred_errors.DeferredErrorFile.readinto", garbage)
    monkeypatch.setattr("builtins.open", lambda name, mode, **options: FullDisk(name, mode))
    with pytest.raises(CannotWrite, match="No space left"):
        write_hdf5(data.splits(), path)


def test_packing_writes_no_empty_file(data, path):
    for part in (data.train, data.validation):
        for index in range(len(part)):
            os.unlink(part.name(index))
    with pytest.raises(
        InputError, match="none of the 5 samples can be used; the first: .* cannot be read"
    ):
        write_hdf5(data.splits(), path)
    assert not os.path.exists(path)


def test_write_hdf5_leaves_out_broken_links(folder, path):
    write(folder / "dog/x.png", pattern(4, 6))
    data = open_data("image_folder", str(folder), None, seed=0)
    (folder / "dog/x.png").unlink()
    assert [bad.name for bad in write_hdf5(data.splits(), path)] == [str(folder / "dog/x.png")]


def test_names_of_any_bytes_are_packed(folder, path):
    raw_folder = os.fsencode(folder) + b"/na\xefve"
    os.mkdir(raw_folder)
    for name in (b"caf\xe9.png", b"gone.png"):
        with open(raw_folder + b"/" + name, "wb") as file:
            file.write(b"content")
    data = open_data("image_folder", str(folder), None, 0)
    os.unlink(raw_folder + b"/gone.png")
    [bad] = write_hdf5(data.splits(), path)
    assert bad.name == f"{folder}/na\\xefve/gone.png"
    train, _, _ = open_hdf5(path)
    assert train.classes == ("cat", "dog", "na\\xefve")
    assert train.name(8).endswith("na\\xefve/caf\\xe9.png]")
