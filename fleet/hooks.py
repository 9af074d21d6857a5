"""The hooks that the core offers to companions (:mod:`fleet.companions`), by name.

The core never imports a companion. It looks a hook up here where it would call one, and goes on
without those of companions that are not installed.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

# Name of a hook -> import path of the function that a companion provides.
HOOKS = {
    "harvest end": "fleet.companions.harvest.harvest_log:find_end",
}


def is_installed(module: str) -> bool:
    """Return True if a module of a companion, or of another package, can be imported."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it belongs to
        return False


def find_hook(name: str) -> Any | None:
    """Return the function that a companion provides for a hook; None if it is not installed."""
    module, _, function = HOOKS[name].partition(":")
    if not is_installed(module):
        return None
    return getattr(import_module(module), function)
