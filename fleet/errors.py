"""Every error that a user of FLEET can meet, as a tree.

FleetError
 +-- UserError                what the user wrote is wrong          exit status 2
 |    +-- SpecError           mistakes in a spec, all of them at once
 |    +-- NotInstalledError   what an engine stands on is not there
 +-- ModelError               one network cannot be built or trained: a row in the report
 |    +-- SettingError        the engine refuses one of its settings
 +-- CheckpointError          a checkpoint cannot be read, or belongs to another network
 |    +-- DamagedError        a checkpoint is torn or corrupted: the one before takes its place
 +-- InfrastructureError      MPI, the stream or a rank failed: ends all ranks
      +-- StorageError        a file cannot be written: the disk is full, the folder read-only, ...
      +-- LeaseLost           another launch has taken the run's folder over; this one ends
      +-- CoordinatorDied     rank 0 died; the others end as well
      +-- GroupFailed         a rank of this one's group died: its network goes back to its last
      checkpoint

NetworkWarning is no error: training goes on, though not as somebody may expect.

The leaves (preprocess, scheduler, launch) do not import this module; for bad
input they raise a subclass of ``ValueError`` named ``InputError``, which counts
like ``UserError`` (:func:`status_of`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum


class ExitStatus(IntEnum):
    """What a command tells the shell and the batch system.

    ``CAN_PASS`` is said to a job that keeps the launch (``fleet job``), of what is otherwise
    ``INFRASTRUCTURE``: a file could not be written for a reason that may pass, such as a full disk.
    """

    OK = 0
    INFRASTRUCTURE = 1
    BAD_INPUT = 2
    NETWORK_FAILED = 3
    CAN_PASS = 74
    RESUMABLE = 75


# The statuses of which the program itself says what they mean: a launcher that calls them errors
# adds nothing.
EXPLAINED = (
    ExitStatus.BAD_INPUT,
    ExitStatus.NETWORK_FAILED,
    ExitStatus.CAN_PASS,
    ExitStatus.RESUMABLE,
)


class FleetError(Exception):
    """Base of all errors that FLEET raises on purpose."""


class UserError(FleetError):
    """Something the user wrote is wrong; the message says where and what would be right."""


class NotInstalledError(UserError, ImportError):
    """A library that an engine stands on is not installed here; the message says how it comes in."""


@dataclass(frozen=True)
class SpecMistake:
    """One mistake in a spec: where it stands, what is wrong, what would be right."""

    file: str
    line: int | None
    key: str
    wrong: str
    right: str

    def __str__(self) -> str:
        position = self.file if self.line is None else f"{self.file}:{self.line}"
        key = f" {self.key}:" if self.key else ""
        right = f"; {self.right}" if self.right else ""
        return " ".join(
            f"{position}:{key} {self.wrong}{right}".split()
        )  # one line, whatever the user wrote


class SpecError(UserError):
    """Mistakes in a spec, all of them at once, in the order of their lines.

    Args:
        mistakes: at least one.
    """

    def __init__(self, mistakes: Sequence[SpecMistake]) -> None:
        self.mistakes = tuple(sorted(mistakes, key=lambda mistake: mistake.line or 0))
        count = "1 mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
        super().__init__(
            "\n".join([f"{count} in the spec", *(f"  {mistake}" for mistake in self.mistakes)])
        )


class ModelError(FleetError):
    """One network cannot be built or trained; the others go on."""


class NetworkWarning(UserWarning):
    """What a network's description asks for is not done; the message says what is done instead.

    Engines give it to :func:`warnings.warn` while they build a network; ``fleet check`` and the run
    then show it once.
    """


class SettingError(ModelError):
    """The engine refuses a setting of a network.

    Args:
        setting: its keys in a spec, such as ``train``, ``optimizer``.
    """

    def __init__(self, message: str, *setting: str) -> None:
        super().__init__(message)
        self.setting = setting


class CheckpointError(FleetError):
    """A checkpoint cannot be read, or belongs to another network."""


class DamagedError(CheckpointError):
    """A checkpoint is torn or corrupted; it will not be better the next time that it is read."""


class InfrastructureError(FleetError):
    """MPI, the stream or a rank failed; no rank may go on."""


class StorageError(InfrastructureError):
    """A file cannot be written; the message says which, why, and what to do: no traceback would add to it.

    Args:
        may_pass: whether the reason may pass, by what others do: a full disk, a file system that is
            away.
    """

    def __init__(self, message: str, may_pass: bool = False) -> None:
        super().__init__(message)
        self.may_pass = may_pass


class LeaseLost(InfrastructureError):
    """Another launch has taken this one's folder over, as it had shown no sign of life; it may write nothing more."""


class CoordinatorDied(InfrastructureError):
    """Rank 0 died; it is raised where the launch would outlive it."""


class GroupFailed(InfrastructureError):
    """A rank of this one's training group died; the others let go of their network, and can be given another.

    It is raised only where a launch outlives its ranks (``mpirun --with-ft ulfm``).
    """


def status_of(error: Exception) -> ExitStatus | None:
    """How a program ends because of an error; None where it is none of these, nor one of a leaf."""
    if isinstance(error, UserError) or (
        isinstance(error, ValueError) and type(error).__name__ == "InputError"
    ):
        return ExitStatus.BAD_INPUT
    if isinstance(error, FleetError):
        return ExitStatus.INFRASTRUCTURE
    return None


def exit_reason(error: SystemExit) -> str:
    """Describe a call of ``sys.exit`` in a user's function.

    >>> exit_reason(SystemExit(3))
    'it exited, by sys.exit(3)'
    """
    return f"it exited, by sys.exit({error.code!r})"


def shortened(message: str, length: int = 1000) -> str:
    """Shorten the lines of a message so that a terminal can show it.

    >>> shortened("x" * 50, length=20)
    'xxxxxxxx ... xxxxxxx'
    """
    half = (length - 5) // 2
    return "\n".join(
        line if len(line) <= length else f"{line[: length - 5 - half]} ... {line[-half:]}"
        for line in message.split("\n")
    )
