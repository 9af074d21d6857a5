"""What the kernel says of processes, and does to them: when they began, under which command, and that one ends."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

# What stands between a command and its ranks; what is above them (a shell, a batch system's daemon)
# began long before.
_LAUNCHERS = frozenset(
    {
        "mpirun",
        "mpiexec",
        "mpiexec.hydra",
        "prterun",
        "prted",
        "orterun",
        "jsrun",
        "hydra_pmi_proxy",
    }
)
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class _Process(NamedTuple):
    """A process: its name, who started it, and when, in seconds since the machine did."""

    name: str
    parent: int
    began_s: float


def command_began_s(pid: int, proc: Path = Path("/proc")) -> tuple[float, float] | None:
    """Return when the launcher of a process began, and when the process itself did.

    Args:
        proc: where the kernel tells of processes.

    Returns:
        Both in seconds of the clock ``CLOCK_BOOTTIME``, to a hundredth; they are equal where no
        launcher is known. None where the kernel does not say.
    """
    try:
        process = began = _stat(proc, pid)
        while began.parent and (parent := _stat(proc, began.parent)).name in _LAUNCHERS:
            began = parent
    except (OSError, ValueError, IndexError):
        return None
    return began.began_s, process.began_s


def started(pid: int) -> str | None:
    """Return when a process of this machine began, in ticks of the kernel; None if there is none, or only its exit status."""
    try:
        _, fields = _fields(Path("/proc"), pid)
    except OSError:
        return None
    if not fields or fields[0] in "ZX":
        return None
    return fields[19]


def end_with_parent(number: int = signal.SIGKILL) -> None:
    """Have Linux send this process a signal when the thread that started it is gone."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, number)


def end_children(patience_s: float = 1.0) -> None:
    """End the processes that this one has started and left, which would keep what it shows its output to waiting.

    Those whose output goes elsewhere are left alone, and so is what Python has started to tidy up
    after this process.

    Args:
        patience_s: seconds for them to end after SIGTERM, before SIGKILL.
    """
    outputs = {_output(os.getpid(), number) for number in (1, 2)} - {""}
    pids = [
        pid
        for pid in _left_by(os.getpid())
        if {_output(pid, 1), _output(pid, 2)} & outputs and not _is_tidying(pid)
    ]
    until = time.monotonic() + patience_s
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids:
            with suppress(OSError):
                os.kill(pid, number)
        while any(map(started, pids)) and time.monotonic() < until:
            time.sleep(0.01)
        pids = [pid for pid in pids if started(pid)]


def _left_by(owner: int) -> list[int]:
    """Return the processes below one, and under Open MPI's mpirun those of its process group."""
    children: dict[int, list[int]] = {}
    in_group = []
    for entry in os.scandir("/proc"):
        with suppress(OSError, ValueError, IndexError):
            pid = int(entry.name)
            _, fields = _fields(Path("/proc"), pid)
            children.setdefault(int(fields[1]), []).append(pid)
            if "PRTE_LAUNCHED" in os.environ and int(fields[2]) == owner != pid:
                in_group.append(pid)
    below = [owner]
    for pid in below:
        below += children.get(pid, [])
    return [pid for pid in dict.fromkeys([*below, *in_group]) if pid != owner]


def _output(pid: int, number: int) -> str:
    """Where a process writes to."""
    try:
        return os.readlink(f"/proc/{pid}/fd/{number}")
    except OSError:
        return ""


def _is_tidying(pid: int) -> bool:
    try:
        return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _stat(proc: Path, pid: int) -> _Process:
    """Read name, parent and start of a process.

    Raises:
        OSError, ValueError, IndexError: nothing, or something else.
    """
    name, fields = _fields(proc, pid)
    return _Process(name, int(fields[1]), int(fields[19]) / os.sysconf("SC_CLK_TCK"))


def _fields(proc: Path, pid: int) -> tuple[str, list[str]]:
    """Read the name of a process, and the fields that follow it in its status."""
    before, _, after = (
        (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
    )
    return before.partition("(")[2], after.split()
