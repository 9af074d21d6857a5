"""Delay the next jobs of chains and harvests while an eviction is active.

A job that has saved submits the next one, which could take the nodes before the eviction sees it.
So an eviction creates an empty file in the folder of each affected run, and touches it with every
snapshot. A job that is submitted for such a run requests a later start; the eviction finds it in
the queue and holds it. If the eviction is killed, the file expires after :data:`LASTS_S`.
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

LASTS_S = 60.0  # since the last touch: snapshots are ten seconds apart, and Slurm may be slow


def find_run(script: str) -> RunPaths | None:
    """Return the run that a script of ``fleet submit`` or ``fleet harvest`` belongs to, or None.

    >>> find_run("/scratch/photos/jobs/job.sh").root.as_posix(), find_run("/home/me/relax.sh")
    ('/scratch/photos', None)
    """
    paths = RunPaths(Path(script).parent.parent)
    name = Path(script).name
    is_of_harvest = name.startswith("harvest-") and name.endswith(".sh")
    if script in map(str, (paths.job_script, paths.jobs / name if is_of_harvest else "")):
        return paths
    return None


class PausedRuns:
    """The runs whose submissions one eviction delays.

    A folder that cannot be written, or does not belong to its user, is left alone: jobs of its run
    are held once they appear in the queue.
    """

    def __init__(self) -> None:
        self._runs: dict[Path, int] = {}  # folder of jobs -> uid of its owner

    def add_jobs(self, scripts: Iterable[tuple[str, str]]) -> None:
        """Delay submissions of the runs of these jobs, given as (script, user)."""
        for script, user in scripts:
            paths = find_run(script)
            if paths is not None:
                with suppress(KeyError):  # a user unknown on this machine
                    self._runs[paths.jobs] = pwd.getpwnam(user).pw_uid

    def touch(self, ahead_s: float = 0.0) -> None:
        """Refresh the marker files; they expire after :data:`LASTS_S` plus `ahead_s` seconds."""
        for folder, user in self._runs.items():
            with suppress(OSError):
                _touch(folder, user, ahead_s)

    def end(self) -> None:
        """Remove the marker files."""
        for folder in self._runs:
            with suppress(OSError):
                os.unlink(RunPaths(folder.parent).eviction_marker)


def _touch(folder: Path, user: int, ahead_s: float) -> None:
    """Refresh a marker file, only in the user's own folder and never through a link."""
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
    """Return how many seconds the next job of a run should wait; 0.0 without an active eviction."""
    try:
        touched = paths.eviction_marker.stat().st_mtime
        with tempfile.TemporaryFile(dir=paths.jobs) as probe:
            now = os.fstat(probe.fileno()).st_mtime  # by the same clock
    except OSError:
        return 0.0
    return max(0.0, touched + LASTS_S - now)


def delay_options(system: System, runs: Sequence[RunPaths]) -> list[str]:
    """Return options that delay the start of a job of these runs while an eviction is active."""
    seconds = max(map(pause_s, runs), default=0.0)
    if seconds:
        return [option.format(seconds=math.ceil(seconds)) for option in system.begin]
    return []
