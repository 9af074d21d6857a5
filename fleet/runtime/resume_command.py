"""The command line that resumes a run, for the last line of a launch."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from launch.environment import find_launcher
from launch.processes import command_of

# Set by commands that start the launcher themselves, such as `fleet run`.
COMMAND_VARIABLE = "FLEET_COMMAND"
_MPIRUN = ("mpirun", "mpiexec")
_UNKNOWN = "the same command"


def resume_command(words: Sequence[str]) -> str:
    """Return the command line that resumes a run, given that which started it.

    >>> resume_command(["fleet", "run", "digits.yaml", "--fresh", "-n", "5"])
    'fleet run digits.yaml -n 5'
    """
    return shlex.join(word for word in words if word != "--fresh")


def resume_command_of(environment: Mapping[str, str]) -> str:
    """Return the command line that resumes the run of this process, as far as it is known."""
    if command := environment.get(COMMAND_VARIABLE):
        return command
    words = shlex.split(command_of(os.getpid()))
    # Under other launchers, which are not parents of ranks, only the words of this rank are known.
    if not words or (find_launcher(environment) and Path(words[0]).name not in _MPIRUN):
        return _UNKNOWN
    return resume_command([Path(words[0]).name, *words[1:]])
