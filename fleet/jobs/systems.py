"""The batch system that a user names: one of the table, or one of the user's own by its import path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from fleet.errors import UserError
from fleet.plugins import load_named
from fleet.storage.lease import Lease, Process, Times
from launch.systems import SYSTEMS, System, knows_job, this_job

SYSTEM_VARIABLE = (
    "FLEET_SYSTEM"  # names a batch system of the user's own to a launch; fleet job sets it
)


def find_system(name: str) -> System:
    """The batch system of a name, or of an import path ``module:system``.

    Raises:
        UserError: there is none.

    >>> find_system("slurm").job_variable
    'SLURM_JOB_ID'
    """
    if name in SYSTEMS:
        return SYSTEMS[name]
    found = load_named(name, "batch system", SYSTEMS, "system")
    if not isinstance(found, System):
        raise UserError(f"system {name!r} is of type {type(found).__name__}; it should be a System")
    return replace(found, name=name, template=found.script)


def known_systems(environment: Mapping[str, str]) -> Mapping[str, System]:
    """The batch systems that a process may be in or ask: those of the table, and the one that its environment names.

    Raises:
        UserError: there is no such system.
    """
    name = environment.get(SYSTEM_VARIABLE, "")
    if not name or name in SYSTEMS:
        return SYSTEMS
    try:
        return {
            name: find_system(name),
            **SYSTEMS,
        }  # its own first: it may be one of the table, changed in a part
    except UserError as error:
        raise UserError(f"{SYSTEM_VARIABLE}: {error}") from None


def lease_of_process(environment: Mapping[str, str]) -> Lease:
    """A lease for this process, which knows the batch job that it is in, and asks the batch systems that there are.

    Raises:
        UserError: the environment says something wrong.
    """
    systems = known_systems(environment)
    process = Process(partial(knows_job, systems=systems), this_job(environment, systems))
    return Lease(process, process.me, Times.of(environment))
