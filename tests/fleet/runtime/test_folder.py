"""The folder of a run: who takes it, and what a refusal of the disk leaves behind."""

import errno
import os

import numpy as np
import pytest

from fleet.domain.network import TrainingState
from fleet.errors import StorageError
from fleet.runtime.startup.folder import take_folder
from fleet.storage.checkpoint import find_newest, write_state
from fleet.storage.lease import Lease, Process, Times
from fleet.storage.paths import RunPaths
from tests.fleet.histories import history

QUICK = Times(stale=0.1, renew=0.05, patience=0.05, dying=0.1, poll=0.02)


def take(run):
    """Take the folder of a run as a launch; returns its lease."""
    process = Process()
    lease = Lease(process, process.me, QUICK)
    take_folder(run, False, lease)
    return lease


@pytest.mark.parametrize("call", range(3))
def test_full_disk_while_folders_move_hides_no_checkpoint(tmp_path, monkeypatch, call):
    run = RunPaths(tmp_path / "run")
    take(run).abandon()  # as a launch that was killed
    write_state(run.last("a"), TrainingState({"weights": np.zeros(3)}, "a", history(0.5, 0.6)))
    rename = os.rename
    calls = []

    def refused(*arguments, **options):
        calls.append(arguments)
        if len(calls) > call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return rename(*arguments, **options)

    monkeypatch.setattr(os, "rename", refused)
    process = Process()
    lease = Lease(process, process.me, QUICK)
    if call < 2:  # more calls than there are to make
        with pytest.raises(StorageError):
            take_folder(run, False, lease)
    else:
        take_folder(run, False, lease)
    lease.release()
    monkeypatch.undo()
    take(run).release()
    assert len(find_newest(run, "a").history) == 2
