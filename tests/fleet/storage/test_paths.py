"""Paths of a run, and atomic writes."""

import os
from pathlib import Path

import pytest

from fleet.storage.files import atomic_write, atomic_write_with, write_json
from fleet.storage.paths import RunPaths


class Torn(Exception):
    """An error in the middle of a write."""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "deep" / "file.txt"
    path.parent.mkdir()
    path.write_text("old")
    return path


def test_atomic_write_creates_folders(tmp_path):
    path = tmp_path / "a" / "b" / "file.txt"
    with atomic_write(path) as file:
        file.write("new")
        assert not path.exists()
    assert path.read_text() == "new"
    assert os.listdir(path.parent) == ["file.txt"]


def tear(path):
    with atomic_write(path) as file:
        file.write("half")
        file.flush()
        raise Torn


def tear_in_a_library(path):
    def write(temporary):
        temporary.write_text("half")
        raise Torn

    atomic_write_with(path, write)


@pytest.mark.parametrize(
    ("write", "error"),
    [
        (tear, Torn),
        (tear_in_a_library, Torn),
        (lambda path: write_json(path, {"a": object()}), TypeError),
    ],
)
def test_atomic_write_keeps_old_file_on_exception(path, write, error):
    with pytest.raises(error):
        write(path)
    assert path.read_text() == "old"
    assert os.listdir(path.parent) == ["file.txt"]


def test_atomic_write_writes_bytes(path):
    with atomic_write(path, "wb") as file:
        file.write(b"\xff")
    assert path.read_bytes() == b"\xff"


def test_atomic_write_with_keeps_suffix(path):
    names = []

    def write(temporary):
        names.append(temporary)
        temporary.write_text("new")
        assert path.read_text() == "old"

    atomic_write_with(path, write)
    assert (path.read_text(), names[0].suffix, names[0].parent) == ("new", ".txt", path.parent)
    assert os.listdir(path.parent) == ["file.txt"]


def test_run_paths_are_distinct_and_in_the_folder(tmp_path):
    run = RunPaths(tmp_path)
    named = [path for name in vars(RunPaths) if isinstance(path := getattr(run, name), Path)]
    per_network = [
        getattr(run, name)("net")
        for name in ("model", "history", "last", "best", "failure", "tensorboard", "replay")
    ]
    per_network += [run.exported("net", suffix) for suffix in (".keras", ".safetensors")]
    every = [*named, *per_network, run.log(3)]
    assert len(set(every)) == len(every)
    assert all(path.is_relative_to(tmp_path) for path in every)


def test_segment_name_is_unique_per_run(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to("a")
    name = RunPaths(tmp_path / "a").segment_name
    assert (
        RunPaths(tmp_path / "b" / ".." / "a").segment_name
        == name
        == RunPaths(tmp_path / "b").segment_name
    )
    assert RunPaths(tmp_path / "c").segment_name != name


def test_files_of_exports_are_not_foreign(tmp_path):
    run = RunPaths(tmp_path)
    copy = run.model("a") / "files/0123456789ab-backbone.pt"
    copy.parent.mkdir(parents=True)
    copy.touch()
    assert run.foreign_files() == []
