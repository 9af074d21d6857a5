"""Notes on exports: which checkpoint was exported."""

import errno
import os
from pathlib import Path

import pytest

from fleet.domain.network import TrainingState
from fleet.spec import Checkpoint, Stopping
from fleet.storage import files
from fleet.storage.checkpoint import is_exported
from fleet.storage.paths import RunPaths
from fleet.storage.writer import CheckpointWriter
from tests.fleet.histories import history


@pytest.fixture
def paths(tmp_path):
    return RunPaths(tmp_path)


def save_network(paths, *accuracies, keep="best+last"):
    """Save a network after the last of these epochs."""
    writer = CheckpointWriter(paths, Checkpoint(keep=keep))
    writer.save(
        "net",
        TrainingState({}, "i", history(*accuracies)),
        is_best=accuracies[-1] == max(accuracies),
    )
    writer.close()


def export_network(paths, *accuracies, keep="best+last"):
    """Save and export a network."""
    save_network(paths, *accuracies, keep=keep)
    writer = CheckpointWriter(paths, Checkpoint(keep=keep))
    writer.export(
        "net", Stopping(max_epochs=len(accuracies)), lambda arrays, path: path.write_text("x")
    )
    writer.close()


@pytest.mark.parametrize("keep", ["best+last", "last"])
def test_export_is_current_until_a_better_epoch(paths, keep):
    save_network(paths, 0.5, keep=keep)
    assert not is_exported(paths, "net", keep, ".keras")
    export_network(paths, 0.5, 0.6, keep=keep)
    assert is_exported(paths, "net", keep, ".keras")
    save_network(paths, 0.5, 0.6, 0.7, keep=keep)
    assert not is_exported(paths, "net", keep, ".keras")
    assert paths.foreign_files() == []


def test_export_stays_current_without_better_epoch(paths):
    export_network(paths, 0.5, 0.7)
    save_network(paths, 0.5, 0.7, 0.6)
    assert is_exported(paths, "net", "best+last", ".keras")
    assert not is_exported(paths, "net", "last", ".keras")


def test_export_without_a_note_is_accepted(paths):
    export_network(paths, 0.5)
    paths.export_note("net").unlink()
    assert is_exported(paths, "net", "best+last", ".keras")


def test_export_without_its_checkpoint_is_accepted(paths):
    export_network(paths, 0.5)
    paths.best("net").write_bytes(b"damaged")
    assert is_exported(paths, "net", "best+last", ".keras")


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"history": 3}'])
def test_export_with_a_damaged_note_is_repeated(paths, content):
    export_network(paths, 0.5)
    paths.export_note("net").write_bytes(content)
    assert not is_exported(paths, "net", "best+last", ".keras")


def test_removing_best_retries_transient_errors(paths, monkeypatch):
    save_network(paths, 0.5)
    errors = [OSError(errno.ESTALE, "stale")]
    unlink = Path.unlink

    def fails_once(path, *arguments, **options):
        if path.name == "best.h5" and errors:
            raise errors.pop()
        unlink(path, *arguments, **options)

    monkeypatch.setattr(Path, "unlink", fails_once)
    save_network(paths, 0.5, 0.6, keep="last")
    assert not paths.best("net").exists()


def test_checkpoint_syncs_its_folder(paths, monkeypatch):
    synced = []
    monkeypatch.setattr(files, "_sync_folder", lambda folder: synced.append(os.fstat(folder)))
    save_network(paths, 0.5)
    assert synced[-1].st_ino == paths.model("net").stat().st_ino
