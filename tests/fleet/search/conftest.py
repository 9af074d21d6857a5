"""Make the searchers of the examples importable."""

import sys

import pytest

from tests.places import ROOT


@pytest.fixture(autouse=True)
def examples_are_found(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    yield
    for name in [name for name in sys.modules if name.endswith("_searcher")]:
        del sys.modules[name]
