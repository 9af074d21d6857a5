"""Fixtures that import sweeps as ``fleet import`` does."""

import json

import pytest
import yaml

from fleet.__main__ import main
from fleet.spec.space import space_of


class Imported:
    """What ``fleet import --json`` prints."""

    def __init__(self, record):
        self.record = record
        self.content = record["spec"]
        [self.entry] = self.content["models"]
        self.space = self.entry.get("space", {})
        self.search = self.entry.get("search")
        self.train = self.content.get("train", {})
        self.prune = self.content.get("prune")
        self.left_out = {note["key"] for note in record["left_out"]}
        self.changed = {note["key"] for note in record["changed"]}

    @property
    def dimensions(self):
        return space_of(self.space)


@pytest.fixture
def import_path(capsys):
    """Return a function that imports a file or folder."""

    def run(path, *options):
        capsys.readouterr()
        status = main(["import", str(path), *map(str, options), "--json"])
        out, err = capsys.readouterr()
        assert status == 0, err
        return Imported(json.loads(out))

    return run


@pytest.fixture
def import_content(tmp_path, import_path):
    """Return a function that imports the content of a YAML file."""

    def run(content, *options):
        path = tmp_path / "sweep.yaml"
        path.write_text(
            content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False)
        )
        return import_path(path, *options)

    return run


@pytest.fixture
def refusal(tmp_path, capsys):
    """Return a function that imports something invalid: the line that explains it."""

    def run(source, *options):
        if isinstance(source, dict):
            path = tmp_path / "sweep.yaml"
            path.write_text(yaml.safe_dump(source, sort_keys=False))
        elif isinstance(source, bytes | str):
            path = tmp_path / "sweep"
            path.write_bytes(source if isinstance(source, bytes) else source.encode())
        else:
            path = source
        status = main(["import", str(path), *map(str, options)])
        out, err = capsys.readouterr()
        assert (status, out, err.count("\n")) == (2, "", 1), err
        return err

    return run
