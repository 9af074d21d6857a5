"""Writing HDF5 where the disk may be full."""

import errno
import io
from pathlib import Path

import h5py
import pytest

from preprocess.base import CannotWrite
from preprocess.files.deaf_file import DeafFile

PLACE = Path("a.h5")


class Full(io.BytesIO):
    def write(self, data):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_what_is_written_is_there():
    memory = io.BytesIO()
    with DeafFile(memory, PLACE).hdf5() as file:
        file["numbers"] = [1, 2, 3]
    with h5py.File(memory) as file:
        assert file["numbers"][:].tolist() == [1, 2, 3]


def test_a_full_disk_is_told_once_hdf5_is_done():
    target = DeafFile(Full(), PLACE)
    with pytest.raises(CannotWrite, match=r"No space left on device: 'a\.h5'") as caught, target.hdf5() as file:
        file["numbers"] = range(10_000)
    assert caught.value.errno == errno.ENOSPC


def test_what_goes_wrong_inside_is_raised_where_the_disk_is_not_to_blame():
    with pytest.raises(KeyError), DeafFile(io.BytesIO(), PLACE).hdf5() as file:
        file["nothing"]
