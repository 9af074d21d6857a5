"""A spec that cannot be opened is refused with the files that may be meant."""

import errno
import os
from pathlib import Path

import pytest

from fleet.errors import SpecError
from fleet.spec import read_yaml


def refusal(path):
    with pytest.raises(SpecError) as caught:
        read_yaml(path)
    [mistake] = caught.value.mistakes
    return mistake.wrong, mistake.right


def test_missing_file_names_one_with_a_similar_name(tmp_path):
    (tmp_path / "photos.yaml").touch()
    (tmp_path / "digits.yaml").touch()
    wrong, right = refusal(tmp_path / "photos.yml")
    assert (wrong, right) == ("does not exist", f"did you mean {tmp_path / 'photos.yaml'}?")
    assert refusal(tmp_path / "wine.yaml") == ("does not exist", "give the path of a YAML file")


def test_missing_file_in_a_missing_folder(tmp_path):
    assert refusal(tmp_path / "none" / "wine.yaml") == (
        "does not exist",
        "give the path of a YAML file",
    )


def test_folder_names_the_files_in_it(tmp_path):
    assert refusal(tmp_path) == ("is a folder", "give the path of a YAML file")
    for name in ("b.yml", "a.yaml", "c.txt"):
        (tmp_path / name).touch()
    files = f"{tmp_path / 'a.yaml'} or {tmp_path / 'b.yml'}"
    assert refusal(tmp_path) == ("is a folder", f"did you mean {files}?")


def test_file_that_cannot_be_read(tmp_path):
    path = tmp_path / "loop.yaml"
    path.symlink_to(path)
    wrong, right = refusal(path)
    assert wrong.startswith("cannot be read: ")
    assert right == "give the path of a YAML file"


def test_spec_is_read_again_after_a_stale_handle(tmp_path, monkeypatch):
    path = tmp_path / "spec.yaml"
    path.write_text("models: []\n")
    errors = [OSError(errno.ESTALE, os.strerror(errno.ESTALE))]
    read_text = Path.read_text

    def refused_once(path, encoding):
        if errors:
            raise errors.pop()
        return read_text(path, encoding)

    monkeypatch.setattr(Path, "read_text", refused_once)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    assert read_yaml(path)[0] == {"models": []}
