"""Samples in one HDF5 file, written by FLEET or another program."""

import os
import pickle
import subprocess
import sys

import h5py
import numpy as np
import pytest

from launch.errors import InputError
from preprocess.base import UnreadableSample
from preprocess.packing import write_hdf5
from preprocess.source import open_data
from preprocess.sources.hdf5 import open_hdf5
from tests.preprocess.samples import foreign, pattern
from tests.refusals import refused


def test_encoded_files_come_back_byte_for_byte(data, path):
    assert write_hdf5(data.splits(), path) == []
    back = open_data("hdf5", path, None, seed=0)
    assert back.classes == data.classes
    for source, packed in ((data.train, back.train), (data.validation, back.validation)):
        assert packed.labels.tolist() == source.labels.tolist()
        assert [packed.read(i) for i in range(len(packed))] == [
            source.read(i) for i in range(len(source))
        ]


def test_test_data_must_be_another_file(data, path, tmp_path):
    write_hdf5(data.splits(), path)
    write_hdf5({"train": data.validation}, tmp_path / "test.h5")
    opened = open_data("hdf5", path, None, 0, test=str(tmp_path / "test.h5"))
    assert [len(part) for part in opened.splits().values()] == [
        len(data.train),
        *2 * [len(data.validation)],
    ]
    with pytest.raises(InputError, match="this is also training data"):
        open_data("hdf5", path, None, 0, test=path)


def test_hdf5_can_be_pickled_after_reading(data, path):
    write_hdf5(data.splits(), path)
    train, _, _ = open_hdf5(path)
    first = train.read(0)
    assert pickle.loads(pickle.dumps(train)).read(0) == first


def test_hdf5_sample_keeps_the_name_of_its_file(data, path):
    write_hdf5(data.splits(), path)
    assert open_hdf5(path)[0].name(0) == f"{path}:/train[{data.train.name(0)}]"


IMAGES = np.stack([pattern(3, 4, seed=number) for number in range(4)])


def test_images_and_labels_at_the_root_are_enough(path):
    foreign(path, IMAGES, [0, 2, 1, 2])
    data = open_data("hdf5", path, None, seed=0)
    assert (data.classes, data.train.labels.tolist()) == (("0", "1", "2"), [0, 2, 1, 2])
    assert np.array_equal(data.train.read(3), IMAGES[3])
    assert data.train.name(3) == f"{path}:/[3]"


def test_hdf5_names_of_the_classes_may_be_given(path):
    foreign(path, IMAGES, [0, 1, 1, 0], classes=["ant", "bee"])
    assert open_hdf5(path)[0].classes == ("ant", "bee")


@pytest.mark.parametrize(
    ("images", "labels", "complaint"),
    [
        (IMAGES.astype("S3"), [0, 1, 0, 1], r"images is \(4, 3, 4, 3\) of \|S3; it must be"),
        (IMAGES, [0, 1, 0], r"labels is \(3,\) of int64; it must be \(4,\) integers"),
        (IMAGES, [0.0, 1.0, 0.0, 1.0], "of float64"),
        (IMAGES, [0, 1, -1, 1], r"labels: .*\[2\] has the target -1, not one of the 2 classes"),
    ],
)
def test_hdf5_describes_the_expected_layout(path, images, labels, complaint):
    foreign(path, images, labels)
    with pytest.raises(InputError, match=complaint):
        open_hdf5(path)


def test_hdf5_file_without_labels_or_of_another_kind_is_refused(path, tmp_path):
    with h5py.File(path, "w") as file:
        file["images"] = IMAGES
    with pytest.raises(InputError, match="there is no data set /labels"):
        open_hdf5(path)
    (tmp_path / "text").write_text("not HDF5")
    with pytest.raises(InputError, match="not an HDF5 file"):
        open_hdf5(str(tmp_path / "text"))


def test_read_reports_a_damaged_chunk_as_unreadable(path):
    with h5py.File(path, "w") as file:
        file["labels"] = [0, 1, 0, 1]
        images = file.create_dataset("images", data=IMAGES, chunks=(1, 3, 4, 3), fletcher32=True)
        offset = images.id.get_chunk_info(2).byte_offset
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(b"\xff\x00\xff")
    source, _, _ = open_hdf5(path)
    assert np.array_equal(source.read(1), IMAGES[1])
    with pytest.raises(UnreadableSample, match="cannot be read"):
        source.read(2)


# ---- labels that are text, or of an enumerated type
# -----------------------------------------------


TEXTS = ["dog", "cat", "dog", "ant"]


@pytest.mark.parametrize(
    "labels",
    [
        np.array(TEXTS, "S"),
        np.array(TEXTS, object),
        np.array([text.encode() for text in TEXTS], object),
        np.array([2, 1, 2, 0]),
    ],
    ids=["fixed length", "text", "bytes", "numbers of an enumerated type"],
)
def test_labels_that_are_text_are_classes_by_name(path, labels):
    types = {
        "S": labels.dtype,
        "O": h5py.string_dtype("ascii" if isinstance(labels[0], bytes) else "utf-8"),
        "i": h5py.enum_dtype({"dog": 2, "ant": 0, "cat": 1}, "i1"),
    }
    foreign(path, IMAGES, [0] * 4)
    for shape in ((4,), (4, 1)):
        with h5py.File(path, "a") as file:
            del file["labels"]
            values = labels.reshape(shape)
            file.create_dataset("labels", data=values, dtype=types[labels.dtype.kind])
        source, _, _ = open_hdf5(path)
        assert (source.classes, source.labels.tolist()) == (("ant", "cat", "dog"), [2, 1, 2, 0])


def test_truth_values_are_two_classes(path):
    foreign(path, IMAGES, [True, False, True, True])
    source, _, _ = open_hdf5(path)
    assert (source.classes, source.labels.tolist()) == (("False", "True"), [1, 0, 1, 1])


def test_hdf5_list_of_classes_gives_text_its_numbers(path):
    foreign(path, IMAGES, TEXTS, classes=["dog", "cat", "ant", "bee"])
    source, _, _ = open_hdf5(path)
    assert source.classes == ("dog", "cat", "ant", "bee")
    assert source.labels.tolist() == [0, 1, 0, 2]
    foreign(path, IMAGES, TEXTS, classes=["dog", "cat"])
    with pytest.raises(
        InputError, match=r"labels: .*\[3\] has the class 'ant', which is not among "
    ):
        open_hdf5(path)


def test_labels_that_are_no_utf_8_stay_different(path):
    foreign(path, IMAGES, np.array([b"caf\xe9", b"caf\xe8", b"caf\xe9", b"tea"]))
    assert open_hdf5(path)[0].labels.tolist() == [1, 0, 1, 2]


# ---- files that are not whole
# ---------------------------------------------------------------------


def test_hdf5_truncated_file_is_refused_by_its_path(path):
    foreign(path, IMAGES, [0, 1, 0, 1])
    os.truncate(path, os.path.getsize(path) // 2)
    with pytest.raises(InputError, match=rf"{path}: cannot be read as HDF5: .*truncated"):
        open_hdf5(path)


def test_hdf5_file_that_its_writer_left_open_is_refused(path):
    writer = (
        "import h5py, os, sys; file = h5py.File(sys.argv[1], 'w', libver='latest'); "
        "file['images'] = file['labels'] = [0, 1]; file.swmr_mode = True; file.flush(); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", writer, path], check=True)
    with pytest.raises(InputError, match=rf"{path}: .*already open for write.*h5clear"):
        open_hdf5(path)


def parts(folder, *, rows=(2, 2)):
    """Make a virtual data set of two files, and the labels."""
    layout = h5py.VirtualLayout((4, *IMAGES.shape[1:]), IMAGES.dtype)
    for part in range(2):
        with h5py.File(folder / f"part{part}.h5", "w") as file:
            file["images"] = IMAGES[2 * part : 2 * part + rows[part]]
        layout[2 * part : 2 * part + 2] = h5py.VirtualSource(
            f"part{part}.h5", "images", (2, *IMAGES.shape[1:])
        )[:]
    with h5py.File(folder / "whole.h5", "w") as file:
        file.create_virtual_dataset("images", layout)
        file["labels"] = [0, 1, 0, 1]
    return str(folder / "whole.h5")


def test_hdf5_virtual_data_set_is_read_from_its_sources(tmp_path):
    source, _, _ = open_hdf5(parts(tmp_path))
    assert np.array_equal([source.read(index) for index in range(4)], IMAGES)


def test_hdf5_missing_source_of_a_virtual_data_set_is_refused(tmp_path):
    path = parts(tmp_path)
    (tmp_path / "part1.h5").unlink()
    with pytest.raises(InputError, match="images is virtual, and its source .*part1.h5 is not "):
        open_hdf5(path)


def test_hdf5_source_that_is_too_small_or_cut_is_refused(tmp_path):
    path = parts(tmp_path, rows=(2, 1))
    with refused(InputError, "part1.h5: /images", "smaller"):
        open_hdf5(path)
    os.truncate(tmp_path / "part1.h5", 600)
    with pytest.raises(InputError, match="part1.h5: cannot be read as HDF5: .*truncated"):
        open_hdf5(path)


def test_rows_of_a_virtual_data_set_need_a_source(tmp_path):
    path = parts(tmp_path)
    layout = h5py.VirtualLayout((4, *IMAGES.shape[1:]), IMAGES.dtype)
    layout[:2] = h5py.VirtualSource("part0.h5", "images", (2, *IMAGES.shape[1:]))
    with h5py.File(path, "a") as file:
        del file["images"]
        file.create_virtual_dataset("images", layout)
    with pytest.raises(InputError, match=r"images is virtual, and row 2 \(and 1 more\) has no "):
        open_hdf5(path)


@pytest.mark.parametrize("missing", [0, 1])
def test_hdf5_missing_number_among_sources_is_refused(tmp_path, missing):
    path = parts(tmp_path)
    with h5py.File(path, "a") as file:
        del file["images"]
        form = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        rows = h5py.h5s.create_simple((4, 3, 4, 3), (h5py.h5s.UNLIMITED, 3, 4, 3))
        rows.select_hyperslab(
            (0, 0, 0, 0), (h5py.h5s.UNLIMITED, 1, 1, 1), (2, 1, 1, 1), (2, 3, 4, 3)
        )
        form.set_virtual(rows, b"part%b.h5", b"images", h5py.h5s.create_simple((2, 3, 4, 3)))
        h5py.h5d.create(file.id, b"images", h5py.h5t.NATIVE_UINT8, rows, form)
    assert len(open_hdf5(path)[0]) == 4
    (tmp_path / "part1.h5").rename(tmp_path / "part2.h5")
    if not missing:
        (tmp_path / "part0.h5").rename(tmp_path / "part1.h5")
    with pytest.raises(InputError, match=f"its source .*part{missing}.h5 is not there"):
        open_hdf5(path)


def test_missing_or_short_external_storage_is_refused(tmp_path, path):
    raw = tmp_path / "pixels.raw"
    with h5py.File(path, "w") as file:
        file["labels"] = [0, 1, 0, 1]
        file.create_dataset("images", IMAGES.shape, "u1", external=[(raw, 0, IMAGES.nbytes)])
        file["images"][:] = IMAGES
    assert np.array_equal(open_hdf5(path)[0].read(3), IMAGES[3])
    os.truncate(raw, 100)
    with refused(InputError, "pixels.raw", "100 bytes"):
        open_hdf5(path)
    raw.unlink()
    with refused(InputError, "pixels.raw", "missing"):
        open_hdf5(path)


@pytest.mark.parametrize("name", ["images", "weights", "classes"])
def test_hdf5_link_that_leads_nowhere_is_refused(path, name):
    with h5py.File(path, "w") as file:
        file["images"], file["labels"] = IMAGES, [0, 1, 0, 1]
        file.pop(name, None)
        file[name] = h5py.ExternalLink("gone.h5", "/data")
    with pytest.raises(InputError, match=f"the link /{name} is broken: it leads to gone.h5:/data"):
        open_hdf5(path)


# ---- parts of the data ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["val", "valid", "dev", "Validation"])
@pytest.mark.parametrize(
    "layout", ["/{part}/images /{part}/labels", "/images_{part} /labels_{part}"]
)
def test_hdf5_parts_have_their_usual_names(path, layout, name):
    with h5py.File(path, "w") as file:
        for part, count in (("Train", 6), (name, 4), ("test", 2)):
            images, labels = layout.format(part=part).split()
            file[images] = np.zeros((count, 4, 4, 3), np.uint8)
            file[labels] = np.arange(count) % 2
    assert [len(part) for part in open_hdf5(str(path))] == [6, 4, 2]


def test_hdf5_test_data_never_validates(path):
    with h5py.File(path, "w") as file:
        for part, count in (("train", 8), ("Testing", 2)):
            file[f"{part}/images"] = np.zeros((count, 4, 4, 3), np.uint8)
            file[f"{part}/labels"] = np.arange(count) % 2
    data = open_data("hdf5", str(path), 0.25, 0)
    assert [len(part) for part in data.splits().values()] == [6, 2, 2]


def test_hdf5_text_may_be_no_utf8(path):
    latin = np.array([b"caf\xe9", b"caf\xe8"])
    foreign(
        path, np.zeros((4, 2, 2, 1), np.uint8), [0, 1, 0, 1], classes=latin, names=latin[[0, 1] * 2]
    )
    source, _, _ = open_hdf5(path)
    assert source.classes == ("caf\\xe9", "caf\\xe8")
    assert source.name(1) == f"{path}:/[caf\\xe8]"
