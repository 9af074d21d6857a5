"""Of which checkpoint an export is."""

import pytest

from fleet.domain.network import TrainingState
from fleet.spec import Checkpoint, Stopping
from fleet.storage.checkpoint import is_exported
from fleet.storage.paths import RunPaths
from fleet.storage.writer import CheckpointWriter
from tests.fleet.histories import history


@pytest.fixture
def paths(tmp_path):
    return RunPaths(tmp_path)


def saved(paths, *accuracies, keep="best+last"):
    """Save a network after the last of these epochs."""
    writer = CheckpointWriter(paths, Checkpoint(keep=keep))
    writer.save(
        "net",
        TrainingState({}, "i", history(*accuracies)),
        is_best=accuracies[-1] == max(accuracies),
    )
    writer.close()


def exported(paths, *accuracies, keep="best+last"):
    """Save it, and export it."""
    saved(paths, *accuracies, keep=keep)
    writer = CheckpointWriter(paths, Checkpoint(keep=keep))
    writer.export(
        "net", Stopping(max_epochs=len(accuracies)), lambda arrays, path: path.write_text("x")
    )
    writer.close()


@pytest.mark.parametrize("keep", ["best+last", "last"])
def test_a_network_is_exported_until_there_is_another_to_export(paths, keep):
    saved(paths, 0.5, keep=keep)
    assert not is_exported(paths, "net", keep, ".keras")
    exported(paths, 0.5, 0.6, keep=keep)
    assert is_exported(paths, "net", keep, ".keras")
    saved(paths, 0.5, 0.6, 0.7, keep=keep)
    assert not is_exported(paths, "net", keep, ".keras")
    assert paths.foreign_files() == []


def test_export_stays_current_without_better_epoch(paths):
    exported(paths, 0.5, 0.7)
    saved(paths, 0.5, 0.7, 0.6)
    assert is_exported(paths, "net", "best+last", ".keras")
    assert not is_exported(paths, "net", "last", ".keras")


def test_an_export_of_an_older_version_is_taken_as_it_is(paths):
    exported(paths, 0.5)
    paths.export_note("net").unlink()
    assert is_exported(paths, "net", "best+last", ".keras")


def test_an_export_whose_checkpoint_is_lost_is_all_that_there_is(paths):
    exported(paths, 0.5)
    paths.best("net").write_bytes(b"damaged")
    assert is_exported(paths, "net", "best+last", ".keras")


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"history": 3}'])
def test_a_note_that_is_damaged_has_the_network_exported_again(paths, content):
    exported(paths, 0.5)
    paths.export_note("net").write_bytes(content)
    assert not is_exported(paths, "net", "best+last", ".keras")
