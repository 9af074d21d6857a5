"""The hooks that the core offers to companions (:mod:`fleet.companions`), by name.

The core never imports a companion. It looks a hook up here where it would call one, and goes on
without those of companions that are not installed.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from fleet.errors import UserError

# Name of a hook -> import path of what a companion provides: a function, or a class derived from
# the hook's default.
HOOKS = {
    "shared run": "fleet.companions.shared_run.shared_run:SharedRun",
    "node release": "fleet.companions.node_release.release:PlannedRelease",
    "harvest end": "fleet.companions.harvest.harvest_log:find_end",
}


def is_installed(module: str) -> bool:
    """Return True if a module of a companion, or of another package, can be imported."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it belongs to
        return False


def find_hook(name: str, default: Any = None, required_by: str = "") -> Any:
    """Return what a companion provides for a hook.

    Args:
        name: a name of :data:`HOOKS`.
        default: returned if the companion is not installed.
        required_by: the option that needs the companion; empty if none does.

    Raises:
        UserError: an option needs the companion, and it is not installed.
    """
    module, _, function = HOOKS[name].partition(":")
    if is_installed(module):
        return getattr(import_module(module), function)
    if required_by:
        raise UserError(f"{required_by} is not installed ({module} is missing)")
    return default
