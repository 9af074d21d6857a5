"""Inspect and end processes: their start times, commands, parents and children."""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

# Programs between a command and its ranks; those above them (a shell, a batch system's daemon)
# started long before.
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
    """A process: its name, its parent, and its start in seconds since the machine booted."""

    name: str
    parent: int
    began_s: float


def command_of(pid: int, proc: Path = Path("/proc")) -> str:
    """Return the command line that started a process: that of its launcher, if one is known.

    Args:
        pid: the process.
        proc: the folder ``/proc``.

    Returns:
        The words as a shell reads them; empty if the kernel does not report them.
    """
    try:
        top = _launcher_of(pid, proc)[0]
        line = (proc / str(top) / "cmdline").read_bytes().decode(errors="replace")
    except (OSError, ValueError, IndexError):
        return ""
    words = line.removesuffix("\0").split("\0")
    if words[0].endswith("prterun"):  # as the mpirun of Open MPI 5 calls itself
        words[0] = words[0].removesuffix("prterun") + "mpirun"
    return shlex.join(words) if line else ""


def command_began_s(pid: int, proc: Path = Path("/proc")) -> tuple[float, float] | None:
    """Return when the launcher of a process and the process itself started.

    Args:
        proc: the folder ``/proc``.

    Returns:
        Both in seconds of the clock ``CLOCK_BOOTTIME``, to a hundredth; equal if no launcher is
        known. None if the kernel does not report them.
    """
    try:
        return _launcher_of(pid, proc)[1].began_s, _stat(proc, pid).began_s
    except (OSError, ValueError, IndexError):
        return None


def _launcher_of(pid: int, proc: Path) -> tuple[int, _Process]:
    """Return the first of the launchers above a process; the process itself without any.

    Raises:
        OSError: the process does not exist.
        ValueError, IndexError: its status has another format.
    """
    began = _stat(proc, pid)
    while began.parent:
        parent = _stat(proc, began.parent)
        if parent.name not in _LAUNCHERS:
            break
        pid, began = began.parent, parent
    return pid, began


def started(pid: int) -> str | None:
    """Return a process's start in ticks of the kernel; None if it does not exist or is a zombie."""
    try:
        _, fields = _fields(Path("/proc"), pid)
    except OSError:
        return None
    if not fields or fields[0] in "ZX":
        return None
    return fields[19]


def end_with_parent(number: int = signal.SIGKILL) -> None:
    """Ask Linux to send this process a signal when the thread that started it ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, number)


def session_members(session: int) -> list[int]:
    """Return the living processes of a session."""
    return [process.pid for process in _scan() if process.session == session]


def launch_members(launcher: int) -> dict[int, str]:
    """Return the living processes of a launch, and when each started; see :func:`started`.

    They are one session. But MPICH's mpirun gives each rank its own, so all processes below the
    launcher are members, too.

    Args:
        launcher: the process that started the launch; it leads the session.
    """
    pids = {*session_members(launcher), *_descendants(launcher)}
    return {pid: began for pid in pids if (began := started(pid)) is not None}


def kill_launch(launcher: int, members: Mapping[int, str], patience_s: float = 5.0) -> None:
    """Kill all processes of a launch, and wait until they have ended.

    Args:
        launcher: its launcher, which has ended.
        members: its processes before that.
        patience_s: how long to wait, in seconds.
    """
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        living = {pid for pid, began in members.items() if started(pid) == began}
        living.update(session_members(launcher))
        if not living:
            return
        for pid in living:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def end_children(patience_s: float = 1.0) -> None:
    """End the remaining children of this process, which would keep its output open.

    Children with another output are left alone, and so are Python's helpers that clean up after
    this process.

    Args:
        patience_s: seconds between SIGTERM and SIGKILL.
    """
    outputs = {_output(os.getpid(), number) for number in (1, 2)} - {""}
    pids = [
        pid
        for pid in _remaining_children(os.getpid())
        if {_output(pid, 1), _output(pid, 2)} & outputs and not _is_python_helper(pid)
    ]
    until = time.monotonic() + patience_s
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids:
            with suppress(OSError):
                os.kill(pid, number)
        while any(map(started, pids)) and time.monotonic() < until:
            time.sleep(0.01)
        pids = [pid for pid in pids if started(pid)]


def _remaining_children(owner: int) -> list[int]:
    """Return the descendants of a process, and under Open MPI's mpirun its process group."""
    members = _descendants(owner)
    if "PRTE_LAUNCHED" in os.environ:
        members += [process.pid for process in _scan() if process.group == owner]
    return [pid for pid in dict.fromkeys(members) if pid != owner]


def _descendants(owner: int) -> list[int]:
    """Return the living processes below a process, parents before their children."""
    children: dict[int, list[int]] = {}
    for process in _scan():
        children.setdefault(process.parent, []).append(process.pid)
    members = list(children.get(owner, []))
    for pid in members:
        members += children.get(pid, [])
    return members


class _Relations(NamedTuple):
    """A process, and the numbers of its parent, process group and session."""

    pid: int
    parent: int
    group: int
    session: int


def _scan() -> Iterator[_Relations]:
    """Yield all living processes."""
    for entry in os.scandir("/proc"):
        with suppress(OSError, ValueError, IndexError):
            pid = int(entry.name)
            _, fields = _fields(Path("/proc"), pid)
            if fields[0] not in "ZX":
                yield _Relations(pid, *map(int, fields[1:4]))


def _output(pid: int, number: int) -> str:
    """Return the files that a process writes its output to."""
    try:
        return os.readlink(f"/proc/{pid}/fd/{number}")
    except OSError:
        return ""


def _is_python_helper(pid: int) -> bool:
    try:
        return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _stat(proc: Path, pid: int) -> _Process:
    """Read name, parent and start of a process.

    Raises:
        OSError: the process does not exist.
        ValueError, IndexError: its status has another format.
    """
    name, fields = _fields(proc, pid)
    return _Process(name, int(fields[1]), int(fields[19]) / os.sysconf("SC_CLK_TCK"))


def _fields(proc: Path, pid: int) -> tuple[str, list[str]]:
    """Read the name of a process and the fields after it in its status."""
    before, _, after = (
        (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
    )
    return before.partition("(")[2], after.split()
