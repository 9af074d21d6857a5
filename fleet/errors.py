"""Every error that a user of FLEET can meet, as a tree.

FleetError
 +-- UserError                what the user wrote is wrong          exit status 2
 |    +-- SpecError           mistakes in a spec, all of them at once
 +-- ModelError               one network cannot be built or trained: a row in the report
 +-- CheckpointError          a checkpoint cannot be read or written
 +-- InfrastructureError      MPI, the stream or a rank failed: ends all ranks

The leaves (preprocess, scheduler, launch) do not import this module; for bad
input they raise a subclass of ``ValueError`` named ``InputError``, which the
command line treats like ``UserError``.
"""

from enum import IntEnum


class ExitStatus(IntEnum):
    """What a command tells the shell and the batch system."""

    OK = 0
    INFRASTRUCTURE = 1
    BAD_INPUT = 2
    NETWORK_FAILED = 3
    RESUMABLE = 75


class FleetError(Exception):
    """Base of all errors that FLEET raises on purpose."""


class UserError(FleetError):
    """Something the user wrote is wrong; the message says where and what would be right."""


class ModelError(FleetError):
    """One network cannot be built or trained; the others go on."""


class CheckpointError(FleetError):
    """A checkpoint cannot be read or written."""


class InfrastructureError(FleetError):
    """MPI, the stream or a rank failed; no rank may go on."""
