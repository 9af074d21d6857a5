"""Delete files that dead processes left on this node, and give each rank a temporary folder.

Open MPI's launchers and daemons make folders named after their process, and remove them unless they
are killed. Its ranks, and those of MPICH, share memory in files that they unlink as they finalize
MPI. TensorFlow writes generated functions into files and removes them when Python exits normally.
So each rank has its own folder for temporary files, and the next launch on a node, or the job whose
launch has ended, deletes the files of dead processes. Names tell the node and the process, but for
the shared memory of MPICH, which is deleted if no process maps it; files of other users are left
alone.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from launch.memory import SHARED
from launch.processes import started

_LEAST_AGE_S = (
    10.0  # of memory that no process maps, and of an empty folder: somebody may be about to use it
)
# Where libraries of GPUs keep compiled kernels. Ranks that share a folder, such as the default in
# the home folder on a shared file system, wait for locks, or damage each other's files.
CACHES = {
    "MIOPEN_USER_DB_PATH": "miopen",
    "MIOPEN_CUSTOM_CACHE_DIR": "miopen",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
}
_OF_A_LAUNCHER = re.compile(r"(?:ompi|prted|prterun)\.(\d+)")


def use_separate_folder() -> None:
    """Give this process a separate folder for temporary files, deleted when Python exits.

    The caches of compiled kernels lie there, too, unless their variables are set. Libraries read
    these variables when they are imported, so call this before.
    """
    owner = os.getpid()
    folder = Path(tempfile.gettempdir(), f"fleet.{_host(os.environ)}.{owner}")
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier process of the same number
    try:
        folder.mkdir(mode=0o700)
    except OSError:  # the disk is full: code that needs a temporary file will report it
        return
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
    for variable, name in CACHES.items():
        os.environ.setdefault(variable, str(folder / name))

    def remove() -> None:
        if os.getpid() == owner:  # not in a forked process
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)


def remove_leftovers(temporary: Path | None = None, shared: Path = Path(SHARED)) -> list[Path]:
    """Delete files that dead processes of this user left on this node; return their paths.

    Args:
        temporary: the folder for temporary files; that of this process by default.
        shared: the folder of shared memory.
    """
    host = _host(os.environ)
    temporary = temporary or Path(tempfile.gettempdir())
    leftovers = [*_folders(temporary, host), *_segments(shared, host)]
    for path in leftovers:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()
    return [path for path in leftovers if not path.exists()]


def _host(environment: Mapping[str, str]) -> str:
    """Return the name of this node in Open MPI's files, which may be the one from Slurm."""
    return (environment.get("SLURMD_NODENAME") or socket.gethostname()).partition(".")[0]


def _folders(temporary: Path, host: str) -> Iterator[Path]:
    """Yield the folders of dead launchers and ranks."""
    rank_folder = re.compile(rf"fleet\.{re.escape(host)}\.(\d+)")
    for entry in _own_entries(temporary):
        match = rank_folder.fullmatch(entry.name) or _OF_A_LAUNCHER.fullmatch(entry.name)
        if match:
            is_here = match.re is rank_folder or os.path.exists(f"{entry.path}/pmix.{host}.tool")
            if is_here and not started(int(match[1])):
                yield Path(entry.path)
        elif entry.name == f"ompi.{host}.{os.getuid()}":
            # Ranks that outlive their launcher leave empty folders.
            if not any(
                files or _age_s(Path(folder)) < _LEAST_AGE_S
                for folder, _, files in os.walk(entry.path)
            ):
                yield Path(entry.path)


def _segments(shared: Path, host: str) -> Iterator[Path]:
    """Yield files of shared memory that no process maps any more."""
    user = os.getuid()
    beginnings = (f"sm_segment.{host}.{user}.", f"fleet-{user}-", "mpich_shm_")
    named = [
        Path(entry.path) for entry in _own_entries(shared) if entry.name.startswith(beginnings)
    ]
    old = [path for path in named if _age_s(path) > _LEAST_AGE_S]
    mapped = _mapped(str(shared)) if old else set()
    return (path for path in old if str(path) not in mapped)


def _own_entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.stat(follow_symlinks=False).st_uid == os.getuid():
                    yield entry


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:  # it has just been deleted
        return 0.0


def _mapped(folder: str) -> set[str]:
    """Return the files of a folder that processes of this user map."""
    mapped_files = set[str]()
    for process in os.scandir("/proc"):
        if process.name.isdecimal():
            with (
                suppress(OSError),
                open(f"{process.path}/maps", encoding="utf-8", errors="replace") as maps,
            ):
                mapped_files.update(
                    line[line.index(folder) :].rstrip("\n") for line in maps if folder in line
                )
    return mapped_files
