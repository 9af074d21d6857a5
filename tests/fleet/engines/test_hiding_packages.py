"""Packages can be hidden from the imports of a library that does not need them."""

import sys
from importlib import import_module

import pytest

from fleet.engines.registry import hiding_packages


def test_hiding_packages_makes_imports_fail(monkeypatch):
    monkeypatch.delitem(sys.modules, "this", raising=False)
    with hiding_packages("this", "json"):
        import json

        with pytest.raises(ImportError):
            import_module("this")
    assert json is sys.modules["json"]  # json was imported before
    assert "this" not in sys.modules
