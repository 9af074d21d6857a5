"""When a command was given: what the kernel says of the processes between it and this one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

# What stands between a command and its ranks; what is above them (a shell, a batch system's daemon) began long before.
_LAUNCHERS = frozenset({"mpirun", "mpiexec", "mpiexec.hydra", "prterun", "prted", "orterun", "jsrun",
                        "hydra_pmi_proxy"})


class _Process(NamedTuple):
    """A process: its name, who started it, and when, in seconds since the machine did."""

    name: str
    parent: int
    began_s: float


def command_began_s(pid: int, proc: Path = Path("/proc")) -> tuple[float, float] | None:
    """When the launcher of a process began, and when the process itself did.

    Args:
        proc: where the kernel tells of processes.

    Returns:
        Both in seconds of the clock ``CLOCK_BOOTTIME``, to a hundredth; they are equal where no launcher is known. None
        where the kernel does not say.
    """
    try:
        own = began = _stat(proc, pid)
        while began.parent and (parent := _stat(proc, began.parent)).name in _LAUNCHERS:
            began = parent
    except (OSError, ValueError, IndexError):
        return None
    return began.began_s, own.began_s


def _stat(proc: Path, pid: int) -> _Process:
    """What the kernel says of a process.

    Raises:
        OSError, ValueError, IndexError: nothing, or something else.
    """
    before, _, after = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
    fields = after.split()
    return _Process(before.partition("(")[2], int(fields[1]), int(fields[19]) / os.sysconf("SC_CLK_TCK"))
