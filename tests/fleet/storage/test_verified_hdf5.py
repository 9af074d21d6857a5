"""HDF5 files with checksums."""

import errno
import fcntl
import json
import os

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import CheckpointError, DamagedError, StorageError
from fleet.storage import verified_hdf5
from fleet.storage.verified_hdf5 import read_verified, write_verified
from tests.examples import examples

ARRAYS = {"weights": np.arange(50.0), "a/b": np.zeros((2, 3), np.float16)}
RECORD = {"history": [1, 2], "text": "\u00e9" * 90}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "file.h5"
    write_verified(path, ARRAYS, RECORD)
    return path


@pytest.fixture(scope="module")
def original(path):
    return path.read_bytes()


def is_refused(path, content, with_arrays=True):
    path.write_bytes(content)
    try:
        read_verified(path, with_arrays)
    except DamagedError:
        return True
    return False


def test_write_verified_writes_hdf5_and_a_json_record(path):
    with h5py.File(path) as file:
        assert file["arrays/weights"][49] == 49.0
    record = path.read_bytes().splitlines()[1].partition(b"\0")[0]
    assert json.loads(record) == RECORD


def test_read_verified_detects_any_flipped_byte(path, original):
    copy = path.with_name("copy.h5")
    missed = []
    for offset in range(len(original)):
        content = bytearray(original)
        # 0x20 changes the case of letters
        content[offset] ^= 0x20 if offset < 100 else 1 << offset % 8
        if not is_refused(copy, content):
            missed.append(offset)
    assert not missed


@settings(max_examples=examples(100))
@given(st.data())
def test_read_verified_detects_torn_or_grown_files(path, original, data):
    copy = path.with_name("copy.h5")
    start = data.draw(st.integers(0, len(original) - 1))
    length = data.draw(st.integers(1, 5000))
    assert is_refused(copy, original[:start])
    assert is_refused(copy, original + bytes(length))
    zeroed = (
        original[:start] + bytes(len(original[start : start + length])) + original[start + length :]
    )
    assert is_refused(copy, zeroed) or zeroed == original


def test_read_verified_checks_the_record_separately(path, original):
    copy = path.with_name("copy.h5")
    block = original.index(b"\x89HDF")
    for offset in range(0, block, 7):
        content = bytearray(original)
        content[offset] ^= 1
        assert is_refused(copy, content, with_arrays=False)
    content = bytearray(original)
    content[-1] ^= 1
    assert not is_refused(copy, content, with_arrays=False)
    assert is_refused(copy, original[:-1], with_arrays=False)


def test_read_verified_checks_before_h5py_reads(path, original, monkeypatch):
    copy = path.with_name("copy.h5")
    monkeypatch.setattr(h5py, "File", None)
    assert is_refused(copy, original[:-1] + bytes([original[-1] ^ 1]))


@pytest.mark.parametrize("content", [b"", b"hello", b"\x89HDF\r\n\x1a\n" + bytes(100)])
def test_read_verified_refuses_other_files(tmp_path, content):
    assert is_refused(tmp_path / "file.h5", content)


def test_read_verified_distinguishes_missing_from_damaged(tmp_path):
    for name in ("none.h5", "."):
        with pytest.raises(CheckpointError) as caught:
            read_verified(tmp_path / name)
        assert not isinstance(caught.value, DamagedError)


def test_read_verified_needs_no_lock(path, original):
    path.write_bytes(original)
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # the library could not lock the file
        arrays, record = read_verified(path)
    assert (record, arrays["weights"].tolist()) == (RECORD, ARRAYS["weights"].tolist())


def test_write_verified_keeps_the_previous_file(tmp_path):
    last, previous = tmp_path / "last.h5", tmp_path / "previous.h5"
    for number in range(3):
        write_verified(last, {}, {"number": number}, previous)
    assert [read_verified(file)[1]["number"] for file in (last, previous)] == [2, 1]


def test_full_disk_error_names_wanted_and_free_space(full_disk):
    path = full_disk / "file.h5"
    write_verified(path, {"small": np.zeros(100)}, {"number": 1})
    with pytest.raises(
        StorageError,
        match=r"file.h5 cannot be written: No space left on device \(8 MB wanted, "
        r".* free\); what was saved before is intact: make room, and the same",
    ):
        write_verified(path, {"large": np.zeros(10**6)}, {"number": 2}, full_disk / "previous.h5")
    assert read_verified(path)[1] == {"number": 1}
    assert os.listdir(full_disk) == ["file.h5"]


def test_full_disk_anywhere_keeps_old_file_intact(
    full_disk,
):
    """The HDF5 library crashed in some of these cases when it met the error itself."""
    path, previous, written = full_disk / "file.h5", full_disk / "previous.h5", []
    for number in range(60):
        arrays = {str(k): np.zeros(5003 * number + k) for k in range(1 + number % 5)}
        try:
            write_verified(path, arrays, {"number": number}, previous)
            written.append(number)
        except StorageError:
            pass
    assert 0 < len(written) < 60
    assert [read_verified(file)[1]["number"] for file in (path, previous)] == [
        written[-1],
        written[-2],
    ]
    assert sorted(os.listdir(full_disk)) == ["file.h5", "previous.h5"]


def test_read_verified_retries_transient_errors(path, monkeypatch):
    errors = [OSError(errno.ESTALE, "stale"), OSError(errno.EIO, "broken")]
    read_once = verified_hdf5._read_once

    def fails_twice(*arguments):
        if errors:
            raise errors.pop()
        return read_once(*arguments)

    monkeypatch.setattr(verified_hdf5, "_read_once", fails_twice)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    assert read_verified(path, with_arrays=False)[1] == RECORD
    assert not errors
