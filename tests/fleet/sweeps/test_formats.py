"""Tests of how the format of a sweep is recognized."""

import json
import os
import shutil
import sqlite3
from pathlib import Path

import pytest
import yaml

from tests.fleet.sweeps.test_keras_tuner_project import RECORDED

WANDB = {"method": "grid", "parameters": {"x": {"values": [1, 2]}}}
DETERMINED = {
    "searcher": {"name": "grid"},
    "hyperparameters": {"x": {"type": "categorical", "vals": [1, 2]}},
}


@pytest.mark.parametrize("name", ["sweep.yaml", "study.log", "a.db", "no suffix", "c.json"])
@pytest.mark.parametrize(
    ("content", "kind"), [(WANDB, "W&B sweep"), (DETERMINED, "Determined experiment")]
)
@pytest.mark.parametrize("dump", [yaml.safe_dump, json.dumps])
def test_format_is_recognized_whatever_the_name(tmp_path, import_path, name, content, kind, dump):
    (tmp_path / name).write_text(dump(content))
    result = import_path(tmp_path / name)
    assert (result.record["format"], result.space) == (kind, {"x": [1, 2]})


def test_keras_tuner_is_recognized_by_its_oracle_file(import_path):
    result = import_path(RECORDED / "random" / "oracle.json")
    assert result.record["format"] == "Keras Tuner project"


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (b"", ("empty",)),
        (b"just text", (":1:", "not a mapping")),
        (b"[1, 2]", (":1:", "not a mapping")),
        (b"a: [1, 2", (":1:", "not YAML")),
        (b"a: 1\na: 2\n", (":2:", "twice")),
        (b"x: !!python/object:os.system {}\n", (":1:",)),
        (b"\xff\xfe\x00", ("UTF-8",)),
        (b"\x89PNG\r\n\x1a\n\x00", ()),
        (b"{}", ("method", "searcher", "oracle.json")),
        (b"parameters: {x: {values: [1]}}", ("method", "searcher")),
        (b"models: [{family: cnn}]", ("spec of FLEET",)),
        (b"method: grid", (":1:", "parameters")),
        (b"searcher: {}", (":1:", "searcher.name")),
        (b"searcher: 3", (":1:", "searcher")),
        (b'{"op_code": 0}\n', ()),
        (b"SQLite format 3\0 and nothing", ()),
    ],
)
def test_what_is_no_sweep_is_refused(refusal, content, names):
    error = refusal(content)
    assert "sweep" in error
    assert [name for name in names if name not in error] == []


def test_yaml_that_expands_without_end_is_refused(refusal):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]" for n in range(9)]
    assert "expands" in refusal("\n".join(["method: grid", *lines]))


def test_huge_file_is_refused_unread(tmp_path, refusal):
    path = tmp_path / "huge"
    with open(path, "wb") as file:
        file.truncate(10**12)
    assert str(path) in refusal(path)


def test_missing_file_and_foreign_folder_are_refused(tmp_path, refusal):
    assert "none.yaml cannot be read" in refusal(tmp_path / "none.yaml")
    assert "folder without oracle.json; " in refusal(tmp_path)
    shutil.copytree(RECORDED / "random", tmp_path / "my_project")
    assert "my_project has one" in refusal(tmp_path)


def test_foreign_database_is_refused(tmp_path, refusal):
    connection = sqlite3.connect(tmp_path / "other.db")
    connection.execute("CREATE TABLE cats (name)")
    connection.close()
    assert "it should be" in refusal(tmp_path / "other.db")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_unreadable_file_is_refused(tmp_path, refusal):
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(WANDB))
    path.chmod(0)
    assert "cannot be read" in refusal(path)


def test_study_of_another_format_is_refused(refusal):
    assert "--study" in refusal(WANDB, "--study", "x")


def test_project_in_the_current_folder_has_its_name(tmp_path, import_path, monkeypatch):
    shutil.copytree(RECORDED / "random", tmp_path / "my project")
    monkeypatch.chdir(tmp_path / "my project")
    assert import_path(Path(".")).content["name"] == "my-project"
