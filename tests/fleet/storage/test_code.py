"""Hashes of the source files that define a network."""

import pytest

from fleet.storage.code import hash_sources

MODEL = "def build(input_shape, classes): return None\n"


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Return a function that writes importable modules, and hashes the sources of a target."""
    monkeypatch.syspath_prepend(tmp_path / "here")

    def write_and_hash(target="models:build", spec_folder="here", **texts):
        for name, text in texts.items():
            path = tmp_path / "here" / f"{name.replace('__in__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return hash_sources(target, tmp_path / spec_folder)

    return write_and_hash


def test_hash_sources_covers_the_file_of_the_function(write):
    first = write(models=MODEL)
    assert list(first) == ["models.py"]
    assert write(models=MODEL) == first
    assert write(models=f"{MODEL}# larger\n") != first


@pytest.mark.parametrize(
    "line",
    [
        "import layers",
        "import layers as own",
        "from layers import conv",
        "from layers import *",
        "def build(): import layers",
        "if True:\n    try: import layers\n    except ImportError: pass",
        "import importlib\nown = importlib.import_module('layers')",
        "own = __import__('layers')",
    ],
)
def test_hash_sources_follows_local_imports(write, line):
    first = write(models=line, layers="import blocks, json", blocks="size = 3")
    assert list(first) == ["blocks.py", "layers.py", "models.py"]
    assert write(blocks="size = 4") != first
    assert write(blocks="size = 3", unused="size = 5") == first


@pytest.mark.parametrize(
    "line",
    [
        "from . import layers",
        "from .layers import conv",
        "from ..zoo.layers import conv",
        "import zoo.layers",
        "from zoo import layers",
    ],
)
def test_hash_sources_follows_packages(write, line):
    code = write(
        "zoo.nets:build", zoo__in____init__="", zoo__in__nets=line, zoo__in__layers="size = 3"
    )
    assert list(code) == ["zoo/__init__.py", "zoo/layers.py", "zoo/nets.py"]


def test_hash_sources_follows_reexported_function(write):
    assert "zoo/nets.py" in write(
        "zoo:build", zoo__in____init__="from .nets import build", zoo__in__nets=MODEL
    )


def test_hash_sources_finds_modules_in_spec_folder(write, tmp_path):
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "sizes.py").write_text("width = 3")
    assert list(write(models="import sizes", spec_folder="specs")) == ["models.py", "sizes.py"]


def test_hash_sources_ends_with_circular_imports(write):
    assert list(write(models="import layers", layers="import models")) == ["layers.py", "models.py"]


def test_hash_sources_ignores_installed_packages(write):
    assert list(write(models="import numpy, json, fleet.units, nowhere")) == ["models.py"]
    assert list(hash_sources("yaml.loader:SafeLoader")) == ["yaml/__init__.py", "yaml/loader.py"]
    assert (
        hash_sources("resnet"),
        hash_sources("nowhere:build"),
        hash_sources("sys:exit"),
        hash_sources(":build"),
    ) == ({}, {}, {}, {})


def test_hash_sources_includes_unparsable_module(write):
    first = write(models="def build(:")
    assert list(first) == ["models.py"]
    assert write(models="def build(::") != first
