"""Importing packages without some that they can do without."""

import sys
from importlib import import_module

import pytest

from fleet.engines.registry import hiding_packages


def test_what_is_not_wanted_seems_not_to_be_there(monkeypatch):
    monkeypatch.delitem(sys.modules, "this", raising=False)
    with hiding_packages("this", "json"):
        import json

        with pytest.raises(ImportError):
            import_module("this")
    assert json is sys.modules["json"]  # it had been imported before
    assert "this" not in sys.modules
