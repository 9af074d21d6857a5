"""Samples that are temporarily unreadable, and errors that are transient."""

import builtins
import errno
import os
import socket
import urllib.error

import h5py
import pytest

from fleet.errors import CheckpointError, DamagedError, ModelError
from preprocess import transient_errors
from preprocess.base import DataSet, UnreadableSample
from preprocess.packing import write_hdf5
from preprocess.sources.hdf5 import open_hdf5
from preprocess.sources.image_folder import ImageFolder
from preprocess.sources.tfrecord import open_tfrecord
from preprocess.transient_errors import is_transient, is_transient_for_writer, read_with_retries
from tests.preprocess.records import labelled, write_records
from tests.preprocess.samples import encode, pattern


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch):
    monkeypatch.setattr(transient_errors, "PAUSES_S", (0.0, 0.0, 0.0))


class Failing:
    """Fail a number of times with a system error."""

    def __init__(self, times, number=errno.ESTALE, then=lambda *arguments, **options: b"x"):
        self.remaining, self._number, self._then = times, number, then

    def __call__(self, *arguments, **options):
        if self.remaining > 0:
            self.remaining -= 1
            raise OSError(self._number, os.strerror(self._number))
        return self._then(*arguments, **options)


def test_read_with_retries_retries_transient_errors():
    attempts = []
    assert read_with_retries(Failing(3), lambda: "a", again=lambda: attempts.append(1)) == b"x"
    assert len(attempts) == 3


def test_transient_error_that_persists_is_raised():
    with pytest.raises(OSError, match="Stale file handle: 'a'") as caught:
        read_with_retries(Failing(4), lambda: "a")
    assert is_transient(caught.value)


def test_permanent_error_is_an_unreadable_sample():
    failing = Failing(2, errno.EACCES)
    with pytest.raises(UnreadableSample, match="a: cannot be read: Permission denied"):
        read_with_retries(failing, lambda: "a")
    assert failing.remaining == 1


def test_files_of_a_folder_are_read_again(folder, monkeypatch):
    source = ImageFolder(folder)
    expected = source.read(0)
    monkeypatch.setattr(builtins, "open", Failing(3, then=open))
    assert source.read(0) == expected
    monkeypatch.setattr(builtins, "open", Failing(4, then=open))
    with pytest.raises(OSError, match="Stale file handle"):
        source.read(0)


def test_transient_errors_reopen_a_shard_with_a_stale_handle(tmp_path, monkeypatch):
    write_records(
        tmp_path / "a.tfrecord", *(labelled(encode(pattern(4, 6)), label) for label in (0, 1))
    )
    source, _ = open_tfrecord(str(tmp_path / "a.tfrecord"))
    expected, stale = source.read(0), list(source._open.values())
    monkeypatch.setattr(os, "pread", Failing(1, then=os.pread))
    assert source.read(0) == expected
    assert len(source._open) == len(stale) == 1


def test_transient_errors_reopen_hdf5_with_a_stale_handle(folder, tmp_path):
    write_hdf5(DataSet(ImageFolder(folder), None, ("cat", "dog")).splits(), tmp_path / "a.h5")
    source, _, _ = open_hdf5(str(tmp_path / "a.h5"))
    expected = source.read(0)

    class Stale:
        ndim = 1

        def __getitem__(self, index):
            raise OSError(errno.ESTALE, "Can't synchronously read data")

    source._h5_group = {"images": Stale(), "names": source._h5_group["names"]}
    assert source.read(0) == expected
    assert isinstance(source._h5_group, h5py.Group)


def after(cause, error=None):
    """Chain an error to another one as Python does, explicitly or implicitly."""
    try:
        try:
            raise cause
        except Exception as caught:
            if error is None:
                raise CheckpointError("last.h5 cannot be read") from caught
            raise error  # noqa: B904 - the other way to raise
    except Exception as raised:
        return raised


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EIO, "Input/output error"),
        OSError(errno.ESTALE, "Stale file handle"),
        TimeoutError(),
        ConnectionResetError(errno.ECONNRESET, "reset"),
        after(OSError(errno.ESTALE, "Stale file handle")),
        after(OSError(errno.EIO, ""), RuntimeError("weights cannot be loaded")),
        after(urllib.error.URLError(TimeoutError()), Exception("URL fetch failure")),
        after(
            urllib.error.URLError(OSError(errno.ENETUNREACH, "")), Exception("URL fetch failure")
        ),
    ],
)
def test_is_transient_for_errors_of_file_systems_and_networks(error):
    assert is_transient(error)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("wanted 900 GB"),
        ValueError("unknown layer"),
        ModelError("a bad model function"),
        KeyError("x"),
        FileNotFoundError(errno.ENOENT, "No such file"),
        PermissionError(errno.EACCES, "Permission denied"),
        OSError("Unable to open file (file signature not found)"),
        DamagedError("last.h5 is torn"),
        after(ValueError("shape"), RuntimeError("layer")),
        urllib.error.URLError("unknown url type"),
        None,
        urllib.error.URLError(socket.gaierror(socket.EAI_NONAME, "Name or service not known")),
    ],
)
def test_is_transient_is_false_for_wrong_networks(error):
    assert not is_transient(error)


def test_is_transient_for_writer_is_false_for_a_broken_pipe():
    assert is_transient_for_writer(OSError(errno.EIO, ""))
    assert is_transient_for_writer(OSError(errno.ENOSPC, ""))
    assert not is_transient_for_writer(BrokenPipeError(errno.EPIPE, ""))
