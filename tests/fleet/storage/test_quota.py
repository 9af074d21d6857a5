"""The quota of checkpoints."""

import errno
import os

import numpy as np
import pytest

from fleet.domain.network import TrainingState
from fleet.errors import StorageError
from fleet.spec import Checkpoint
from fleet.storage.checkpoint import copy_parent, write_state
from fleet.storage.paths import RunPaths
from fleet.storage.quota import Quota
from tests.fleet.histories import record
from tests.refusals import refused


@pytest.fixture
def paths(tmp_path):
    """Write two networks with three checkpoints of 100 bytes each."""
    paths = RunPaths(tmp_path)
    for name in ("a", "b"):
        paths.model(name).mkdir(parents=True)
        for path in (paths.last(name), paths.previous(name), paths.best(name)):
            path.write_bytes(bytes(100))
    return paths


def remaining_files(paths):
    return {f"{path.parent.name}/{path.stem}" for path in paths.root.rglob("*.h5")}


BASE = {"a/last", "a/best", "b/last", "b/best"}


@pytest.mark.parametrize(
    ("quota", "saved"),
    [
        (None, {"a/previous", "b/previous"}),
        (700, {"a/previous", "b/previous"}),
        (699, {"a/previous"}),
        (600, {"a/previous"}),
        (599, set()),
        (500, set()),
    ],
)
def test_make_room_deletes_previous_of_same_network_first(paths, quota, saved):
    Quota(paths, Checkpoint(quota=quota)).make_room(paths.last("b"), 100)
    assert remaining_files(paths) == BASE | saved


def test_make_room_never_deletes_what_is_needed(paths):
    with refused(StorageError, "b/last.h5", "101 B", "501 B", "checkpoint.quota", "500 B"):
        Quota(paths, Checkpoint(quota=500)).make_room(paths.last("b"), 101)
    assert remaining_files(paths) == BASE


def test_make_room_keeps_previous_without_last(
    paths,
):
    paths.last("a").unlink()
    Quota(paths, Checkpoint(quota=500)).make_room(paths.last("b"), 100)
    assert remaining_files(paths) == {"a/previous", "a/best", "b/last", "b/best"}


def test_make_room_keeps_the_first_checkpoint_of_a_child(paths):
    # 200 bytes
    state = TrainingState({"weights": np.zeros(25)}, "", (record(1),), architecture="softmax")
    write_state(paths.last("a"), state)
    expected = Quota(paths, Checkpoint()).used() + state.size
    with refused(StorageError, "c/first.h5"):
        copy_parent(
            paths, "c", "a", "softmax", Quota(paths, Checkpoint(quota=expected - 201)).make_room
        )
    copy_parent(paths, "c", "a", "softmax", Quota(paths, Checkpoint()).make_room)
    Quota(paths, Checkpoint(quota=10**6)).make_room(paths.last("c"), 100)
    assert paths.first("c").exists()


def test_quota_of_a_run_without_checkpoints(tmp_path):
    assert Quota(RunPaths(tmp_path / "none"), Checkpoint()).used() == 0


def test_folder_that_cannot_be_listed_may_pass(paths, monkeypatch):
    def fail(folder):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(folder))

    monkeypatch.setattr(os, "scandir", fail)
    quota = Quota(paths, Checkpoint(quota=500))
    for call in (lambda: quota.make_room(paths.last("b"), 1), lambda: quota.has_room(1)):
        with pytest.raises(StorageError, match="Input/output error") as caught:
            call()
        assert caught.value.may_pass
