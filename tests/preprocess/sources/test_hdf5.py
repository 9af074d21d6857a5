"""Samples in one HDF5 file, our own or somebody else's."""

import pickle

import h5py
import numpy as np
import pytest

from preprocess.base import BadSample, InputError
from preprocess.packing import write_hdf5
from preprocess.source import open_data
from preprocess.sources.hdf5 import open_hdf5
from tests.preprocess.samples import foreign, pattern


def test_encoded_files_come_back_byte_for_byte(data, path):
    assert write_hdf5(data.parts(), path) == []
    back = open_data("hdf5", path, None, seed=0)
    assert back.classes == data.classes
    for source, packed in ((data.train, back.train), (data.validation, back.validation)):
        assert packed.labels.tolist() == source.labels.tolist()
        assert [packed.read(i) for i in range(len(packed))] == [
            source.read(i) for i in range(len(source))
        ]


def test_another_file_may_be_the_test_data_and_the_same_one_may_not(data, path, tmp_path):
    write_hdf5(data.parts(), path)
    write_hdf5({"train": data.validation}, tmp_path / "test.h5")
    opened = open_data("hdf5", path, None, 0, test=str(tmp_path / "test.h5"))
    assert [len(part) for part in opened.parts().values()] == [
        len(data.train),
        *2 * [len(data.validation)],
    ]
    with pytest.raises(InputError, match="this is training data too"):
        open_data("hdf5", path, None, 0, test=path)


def test_a_source_that_has_been_read_can_be_sent_to_another_process(data, path):
    write_hdf5(data.parts(), path)
    train, _, _ = open_hdf5(path)
    first = train.read(0)
    assert pickle.loads(pickle.dumps(train)).read(0) == first


def test_a_sample_keeps_the_name_of_its_file(data, path):
    write_hdf5(data.parts(), path)
    assert open_hdf5(path)[0].name(0) == f"{path}:/train[{data.train.name(0)}]"


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


@pytest.mark.parametrize(
    ("images", "labels", "complaint"),
    [
        (IMAGES.astype("S3"), [0, 1, 0, 1], r"images is \(4, 3, 4, 3\) of \|S3; it must be"),
        (IMAGES, [0, 1, 0], r"labels is \(3,\) of int64; it must be \(4,\) integers"),
        (IMAGES, [0.0, 1.0, 0.0, 1.0], "of float64"),
        (IMAGES, [0, 1, -1, 1], r"labels: .*\[2\] has the target -1, not one of the 2 classes"),
    ],
)
def test_a_file_of_another_layout_is_told_what_is_wanted(path, images, labels, complaint):
    foreign(path, images, labels)
    with pytest.raises(InputError, match=complaint):
        open_hdf5(path)


def test_a_file_without_labels_or_of_another_kind_is_refused(path, tmp_path):
    with h5py.File(path, "w") as file:
        file["images"] = IMAGES
    with pytest.raises(InputError, match="it has no data set /labels"):
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
    source, _, _ = open_hdf5(path)
    assert np.array_equal(source.read(1), IMAGES[1])
    with pytest.raises(BadSample, match="cannot be read"):
        source.read(2)
