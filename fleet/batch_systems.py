"""Find the batch system that a user names: one of the table, or a custom one by import path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from fleet.errors import UserError
from fleet.plugins import load_named
from fleet.storage.lease import Lease, Process, Times
from launch.systems import SYSTEMS, System, knows_job, this_job

SYSTEM_VARIABLE = "FLEET_SYSTEM"  # names a custom batch system to a launch; fleet job sets it


def find_system(name: str) -> System:
    """Return the batch system of a name, or of an import path ``module:system``.

    Raises:
        UserError: no batch system has this name, or the import path leads to something else.

    >>> find_system("slurm").job_variable
    'SLURM_JOB_ID'
    """
    if name in SYSTEMS:
        return SYSTEMS[name]
    batch_system = load_named(name, "batch system", SYSTEMS, "system")
    if not isinstance(batch_system, System):
        raise UserError(
            f"system {name!r} is of type {type(batch_system).__name__}; it should be a System"
        )
    return replace(batch_system, name=name, template=batch_system.script)


def known_systems(environment: Mapping[str, str]) -> Mapping[str, System]:
    """Return the batch systems that a process may be in: those of the table and of its environment.

    Raises:
        UserError: the environment names an unknown system.
    """
    name = environment.get(SYSTEM_VARIABLE, "")
    if not name or name in SYSTEMS:
        return SYSTEMS
    try:
        # The custom system comes first, since it may modify one of the table.
        return {name: find_system(name), **SYSTEMS}
    except UserError as error:
        raise UserError(f"{SYSTEM_VARIABLE}: {error}") from None


def lease_of_process(environment: Mapping[str, str]) -> Lease:
    """Return a lease for this process that knows its batch job and can query the batch systems.

    Raises:
        UserError: the environment is invalid.
    """
    systems = known_systems(environment)
    process = Process(partial(knows_job, systems=systems), this_job(environment, systems))
    return Lease(process, process.me, Times.of(environment))
