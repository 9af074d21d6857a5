"""The exceptions of FLEET, as a tree.

FleetError
 +-- UserError                invalid input by the user: exit status 2
 |    +-- SpecError           all mistakes in a spec
 |    +-- SearchKeyError      a key of a search has a wrong value
 |    +-- NotInstalledError   an engine's library is not installed
 +-- ModelError               one network cannot be built or trained: a row in the report
 |    +-- SettingError        the engine refuses one of its settings
 +-- CheckpointError          a checkpoint cannot be read, or belongs to another network
 |    +-- DamagedError        a checkpoint is incomplete or corrupted: the previous one replaces it
 +-- InfrastructureError      MPI, the stream or a rank failed: ends all ranks
      +-- StorageError        a file cannot be written: the disk is full, the folder read-only, ...
      +-- LeaseLost           another launch has taken over the run's folder; this launch ends
      +-- CoordinatorDied     rank 0 died; all other ranks end as well
      +-- GroupMemberDied     a rank of this group died: its network returns to its last checkpoint

NetworkWarning is not an error: training continues, but perhaps not as expected.

The base packages (preprocess, scheduler, launch) do not import this module. For bad input they
raise :class:`launch.errors.InputError`, which is treated like ``UserError`` (:func:`status_of`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from launch.errors import InputError


class ExitStatus(IntEnum):
    """The exit status of a command.

    ``CAN_PASS`` replaces ``INFRASTRUCTURE`` for the job around a launch (``fleet job``) if a file
    could not be written for a transient reason, such as a full disk.
    """

    OK = 0
    INFRASTRUCTURE = 1
    BAD_INPUT = 2
    NETWORK_FAILED = 3
    CAN_PASS = 74
    RESUMABLE = 75


# Statuses that the program explains itself: what a launcher prints about them is noise.
EXPLAINED = (
    ExitStatus.BAD_INPUT,
    ExitStatus.NETWORK_FAILED,
    ExitStatus.CAN_PASS,
    ExitStatus.RESUMABLE,
)


class FleetError(Exception):
    """Base class of all errors that FLEET raises on purpose."""


class UserError(FleetError):
    """Invalid input by the user; the message says where, and what would be right."""


class NotInstalledError(UserError, ImportError):
    """An engine's library is not installed; the message says how to install it."""


@dataclass(frozen=True)
class SpecMistake:
    """A mistake in a spec: where it is, what is wrong, and what would be right."""

    file: str
    line: int | None
    key: str
    wrong: str
    right: str

    def __str__(self) -> str:
        position = self.file if self.line is None else f"{self.file}:{self.line}"
        # one line, even if a value has several
        return " ".join(f"{position}: {self.text}".split())

    @property
    def text(self) -> str:
        """The mistake without its file and line."""
        key = f"{self.key}: " if self.key else ""
        right = f"; {self.right}" if self.right else ""
        return f"{key}{self.wrong}{right}"


class SpecError(UserError):
    """All mistakes in a spec, in the order of their lines.

    Args:
        mistakes: the mistakes, at least one.
    """

    def __init__(self, mistakes: Sequence[SpecMistake]) -> None:
        self.mistakes = tuple(sorted(mistakes, key=lambda mistake: mistake.line or 0))
        count = "1 mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
        super().__init__(
            "\n".join([f"{count} in the spec", *(f"  {mistake}" for mistake in self.mistakes)])
        )


class SearchKeyError(UserError):
    """A key of a search has a wrong value.

    Args:
        path: the key path below `search`, or that of a key of the space, from ``space``.
        wrong: what is wrong.
        right: what would be right.
    """

    def __init__(self, path: tuple[str | int, ...], wrong: str, right: str = "") -> None:
        super().__init__(f"{wrong}; {right}" if right else wrong)
        self.path = path


class ModelError(FleetError):
    """One network cannot be built or trained; all others continue."""


class NetworkWarning(UserWarning):
    """A setting of a network is ignored; the message says what the engine does instead.

    Engines pass it to :func:`warnings.warn` while they build a network; ``fleet check`` and the run
    then show it once.
    """


class SettingError(ModelError):
    """The engine refuses a setting of a network.

    Args:
        setting: the path of its key in a spec, such as ``train``, ``optimizer``.
    """

    def __init__(self, message: str, *setting: str) -> None:
        super().__init__(message)
        self.setting = setting


class CheckpointError(FleetError):
    """A checkpoint cannot be read, or belongs to another network."""


class DamagedError(CheckpointError):
    """A checkpoint is incomplete or corrupted, so reading it again is useless."""


class InfrastructureError(FleetError):
    """MPI, the stream or a rank failed; no rank can continue."""


class StorageError(InfrastructureError):
    """A file cannot be written; the message says which, why, and what to do.

    Args:
        may_pass: whether the reason is transient, such as a full disk or an unavailable file
            system.
    """

    def __init__(self, message: str, may_pass: bool = False) -> None:
        super().__init__(message)
        self.may_pass = may_pass


class LeaseLost(InfrastructureError):
    """Another launch has taken over the folder of this unresponsive one, which must not write."""


class CoordinatorDied(InfrastructureError):
    """Rank 0 died, in a launch that outlives the deaths of other ranks."""


class GroupMemberDied(InfrastructureError):
    """A rank of this training group died; the others release their network and are idle.

    It is raised only if launches outlive their ranks (``mpirun --with-ft ulfm``).
    """


def status_of(error: Exception) -> ExitStatus | None:
    """Return the exit status for an error; None if it is neither FLEET's nor an ``InputError``."""
    if isinstance(error, UserError | InputError):
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


def short_repr(value: object) -> str:
    """Return a value for a message, in one line of at most 80 characters.

    >>> short_repr("x" * 90)[-5:]
    'xx...'
    """
    text = " ".join(repr(value).split())
    if len(text) <= 80:
        return text
    return text[:77] + "..."
