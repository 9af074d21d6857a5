"""Runs that make room: while an eviction is at work, the next jobs of their chains and harvests wait.

A job that has saved hands in the next one, and that could take the nodes back before the eviction has looked. So an
eviction leaves an empty file in the folder of each run that it meets, and touches it whenever it looks. Whoever hands
a job in for such a run asks for it to begin later; the eviction finds it in the queue, and holds it there. If the
eviction is killed the file gets old, and counts no more after :data:`LASTS_S`.
"""

from __future__ import annotations

import math
import os
import pwd
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from fleet.storage.paths import RunPaths
from launch.systems import System

LASTS_S = 60.0  # since it was touched: looks are ten seconds apart, and Slurm may be slow


def find_run(script: str) -> RunPaths | None:
    """The run whose folder a batch script lies in, if it is one of ``fleet submit`` or ``fleet harvest``.

    >>> find_run("/scratch/photos/jobs/job.sh").root.as_posix(), find_run("/home/me/relax.sh")
    ('/scratch/photos', None)
    """
    paths = RunPaths(Path(script).parent.parent)
    name = Path(script).name
    of_harvest = name.startswith("harvest-") and name.endswith(".sh")
    if script in map(str, (paths.job_script, paths.jobs / name if of_harvest else "")):
        return paths
    return None


class PausedRuns:
    """The runs that one eviction has met.

    A folder that cannot be written, or that is not its user's, is left alone: jobs of its run are held once they are
    seen in the queue.
    """

    def __init__(self) -> None:
        self._runs: dict[Path, int] = {}  # the folder of its jobs -> whose it is

    def add_jobs(self, scripts: Iterable[tuple[str, str]]) -> None:
        """Jobs by their scripts and users: their runs make room from now on."""
        for script, user in scripts:
            paths = find_run(script)
            if paths is not None:
                with suppress(KeyError):  # a user whom only other machines know
                    self._runs[paths.jobs] = pwd.getpwnam(user).pw_uid

    def touch(self, ahead_s: float = 0.0) -> None:
        """It goes on: for :data:`LASTS_S`, and for as long as nobody will look."""
        for folder, user in self._runs.items():
            with suppress(OSError):
                _touch(folder, user, ahead_s)

    def end(self) -> None:
        """The runs need not make room any more."""
        for folder in self._runs:
            with suppress(OSError):
                os.unlink(RunPaths(folder.parent).eviction_marker)


def _touch(folder: Path, user: int, ahead_s: float) -> None:
    """An operator writes for others: into no folder but the user's own, and through no link."""
    inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(inside).st_uid != user:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        file = os.open(RunPaths(folder.parent).eviction_marker.name, flags, 0o644, dir_fd=inside)
        try:
            os.utime(file)  # the clock of the file system
            if ahead_s:
                now = os.fstat(file).st_mtime
                os.utime(file, (now + ahead_s, now + ahead_s))
        finally:
            os.close(file)
    finally:
        os.close(inside)


def pause_s(paths: RunPaths) -> float:
    """For how many seconds the next job of a run should wait; 0.0 where no eviction is at work."""
    try:
        touched = paths.eviction_marker.stat().st_mtime
        with tempfile.TemporaryFile(dir=paths.jobs) as probe:
            now = os.fstat(probe.fileno()).st_mtime  # of the same clock
    except OSError:
        return 0.0
    return max(0.0, touched + LASTS_S - now)


def delay_options(system: System, runs: Sequence[RunPaths]) -> list[str]:
    """Further options for a job that is handed in for one of some runs: to begin later, where one makes room."""
    seconds = max(map(pause_s, runs), default=0.0)
    if seconds:
        return [option.format(seconds=math.ceil(seconds)) for option in system.begin]
    return []
