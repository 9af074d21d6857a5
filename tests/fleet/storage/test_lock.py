"""One launch at a time in a folder."""

import errno
import fcntl
import os
import signal
import subprocess
import sys

import pytest

from fleet.errors import StorageError, UserError
from fleet.storage.lock import FolderLock

HOLDER = """
import pathlib, subprocess, sys, time
from fleet.storage.lock import FolderLock
lock = FolderLock()
lock.take(pathlib.Path(sys.argv[1]))
child = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / ".fleet-lock"


@pytest.fixture
def holder(path):
    """Another process that holds the lock, and has started one of its own."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    yield process
    process.kill()
    process.communicate()
    os.kill(child, signal.SIGKILL)


def test_a_second_one_is_told_who_is_there(path, holder):
    with pytest.raises(UserError, match=rf"another launch is at work in this folder \(process {holder.pid} on "):
        FolderLock(patience_s=0).take(path)


def test_a_lock_ends_with_a_process_that_is_killed_whatever_that_has_started(path, holder):
    holder.kill()
    with FolderLock() as lock:  # which waits for it to die
        lock.take(path)
        with pytest.raises(UserError, match=f"process {os.getpid()} on "):
            FolderLock(patience_s=0).take(path)
    with FolderLock(patience_s=0) as lock:
        lock.take(path)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_where_nothing_can_be_locked_a_launch_goes_on(path, monkeypatch, number):
    def refuse(file, how):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with FolderLock(patience_s=0) as lock:
        lock.take(path)


def test_a_folder_that_cannot_be_written_is_told_of(tmp_path):
    (tmp_path / "run").touch()
    with pytest.raises(StorageError, match="cannot be written"):
        FolderLock().take(tmp_path / "run" / ".fleet-lock")
