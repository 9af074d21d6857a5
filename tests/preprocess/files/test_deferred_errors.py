"""HDF5 files on a disk that may be full."""

import errno
import io
from pathlib import Path

import h5py
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from preprocess.base import CannotWrite
from preprocess.files.deferred_errors import DeferredErrorFile

PLACE = Path("a.h5")


class Full(io.BytesIO):
    def write(self, data):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_file_has_the_written_bytes():
    memory = io.BytesIO()
    with DeferredErrorFile(memory, PLACE).hdf5() as file:
        file["numbers"] = [1, 2, 3]
    with h5py.File(memory) as file:
        assert file["numbers"][:].tolist() == [1, 2, 3]


def test_file_reports_a_full_disk_after_hdf5():
    target = DeferredErrorFile(Full(), PLACE)
    with (
        pytest.raises(CannotWrite, match=r"No space left on device: 'a\.h5'") as caught,
        target.hdf5() as file,
    ):
        file["numbers"] = range(10_000)
    assert caught.value.errno == errno.ENOSPC


def test_hdf5_raises_other_errors_unchanged():
    with pytest.raises(KeyError), DeferredErrorFile(io.BytesIO(), PLACE).hdf5() as file:
        file["nothing"]


class Small(io.BytesIO):
    """A file on a disk with room for a number of bytes."""

    def __init__(self, room):
        super().__init__()
        self.room = room

    def write(self, data):
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = super().write(data[: self.room])
        self.room -= written
        return written


@example(0, [(1, b"a")], 0, 1)  # a read of bytes that were skipped
@given(
    st.integers(0, 40),
    st.lists(st.tuples(st.integers(0, 30), st.binary(min_size=1, max_size=20)), max_size=8),
    st.integers(0, 30),
    st.integers(1, 30),
)
def test_file_reads_back_although_the_disk_is_full(room, writes, start, size):
    target, content_before = DeferredErrorFile(Small(room), PLACE), io.BytesIO()
    for position, data in writes:
        for file in (target, content_before):
            file.seek(position)
            file.write(data)
    content = bytearray(b"\xff" * size)
    target.seek(start)
    count = target.readinto(content)
    content_before.seek(start)
    expected = content_before.read(size)
    assert (count, content[:count]) == (len(expected), expected)
