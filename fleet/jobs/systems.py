"""The batch system that a user names: one of the table, or one of the user's own by its import path."""

from __future__ import annotations

from dataclasses import replace

from fleet.errors import UserError
from fleet.plugins import load_object
from launch.systems import SYSTEMS, System


def find_system(name: str) -> System:
    """The batch system of a name, or of an import path ``module:system``.

    Raises:
        UserError: there is none.

    >>> find_system("slurm").job_variable
    'SLURM_JOB_ID'
    """
    if name in SYSTEMS:
        return SYSTEMS[name]
    if ":" not in name:
        raise UserError(f"no batch system is named {name!r}; one of {', '.join(SYSTEMS)}, or an import path "
                        "module:system")
    found = load_object(name, "system")
    if not isinstance(found, System):
        raise UserError(f"system {name!r} is of type {type(found).__name__}; it should be a System")
    return replace(found, name=name, template=found.script)
