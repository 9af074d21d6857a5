"""Importing large packages in less time."""

import gc
import sys
from importlib import import_module

import pytest

from fleet.engines.importing import as_if_missing, without_collecting


def test_nothing_is_collected_meanwhile():
    with without_collecting():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    with without_collecting():
        pass
    was_on = gc.isenabled()
    gc.enable()
    assert not was_on  # who had switched it off finds it so


def test_what_is_not_wanted_seems_not_to_be_there(monkeypatch):
    monkeypatch.delitem(sys.modules, "this", raising=False)
    with as_if_missing("this", "json"):
        import json

        with pytest.raises(ImportError):
            import_module("this")
    assert json is sys.modules["json"]  # it had been imported before
    assert "this" not in sys.modules
