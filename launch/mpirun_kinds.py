"""Tell the mpirun of one MPI from that of another.

They take different options, and pass different signals on to their ranks.
"""

from __future__ import annotations

import os
import signal
import subprocess
from functools import cache

_MPIRUNS = frozenset({"mpirun", "mpiexec", "mpiexec.hydra"})


@cache
def _version(program: str) -> str:
    """Return the version that an mpirun prints; empty if it prints none."""
    try:
        return subprocess.run(
            [program, "--version"], capture_output=True, text=True, errors="replace", timeout=20
        ).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def is_open_mpi(program: str) -> bool:
    """Return True unless an mpirun says that it belongs to another MPI, such as MPICH."""
    version = _version(program)
    return not version or "Open MPI" in version or "OpenRTE" in version


def is_mpich(program: str) -> bool:
    """Return True if a launcher is the mpirun of MPICH, whose name is Hydra."""
    return os.path.basename(program) in _MPIRUNS and "HYDRA" in _version(program)


def stop_signal(program: str) -> signal.Signals:
    """Return the signal on which a launcher lets its ranks save everything and end.

    Launchers forward SIGUSR2 to the ranks, and Open MPI's mpirun ends them at once on SIGTERM. That
    of MPICH forwards SIGTERM, and dies of SIGUSR2.
    """
    return signal.SIGTERM if is_mpich(program) else signal.SIGUSR2
