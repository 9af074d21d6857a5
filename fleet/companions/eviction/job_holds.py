"""Hold jobs in the queue, so that they do not take nodes that an eviction frees for an urgent job.

Slurm starts any job that fits, such as a job that was just requeued, or one that FLEET has
submitted for a harvest or a chain. So these jobs are held, and released once the urgent job has
started, its time is over, or the eviction is interrupted. An eviction that is killed cannot release
its jobs; the next one with the same record file does.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType

from fleet.storage.json_lines import read_lines
from launch import slurm_control
from launch.errors import InputError
from launch.slurm_jobs import SlurmJob, find_jobs

_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
# Attempts to release a job, and the pause between them: Slurm may be busy.
_TRIES = 3
_PAUSE_S = 2.0


class HeldJobs:
    """The jobs that one eviction holds.

    Args:
        note: called before or right after each action with (kind, message, **fields).
        is_allowed: returns True if the jobs of a user may be changed.
        jobs: jobs held by earlier evictions that could not release them.
    """

    def __init__(
        self, note: Callable[..., None], is_allowed: Callable[[str], bool], jobs: Sequence[str]
    ) -> None:
        self._note = note
        self._is_allowed = is_allowed
        self._watched: set[str] = set()
        self._job_ids = list(jobs)

    def watch(self, job: str) -> None:
        """Hold this job as soon as it waits again, because it has made room."""
        self._watched.add(job)

    def hold_waiting(self, queue: Mapping[str, SlurmJob], rivals: Collection[str] = ()) -> None:
        """Hold waiting jobs that have made room, and rivals that would take the freed nodes.

        Jobs that another user or command holds are left alone.
        """
        for job in sorted(self._watched.union(rivals).difference(self._job_ids)):
            now = queue.get(job)
            if (
                now is not None
                and now.is_waiting
                and not now.is_held
                and self._is_allowed(now.user)
            ):
                self._hold(job)

    def put_back(self, job: str) -> str:
        """Requeue and hold a job, or cancel it if Slurm refuses; return what was done.

        Raises:
            InputError: Slurm refuses both, or does not answer.
        """
        done = ""
        self._begin(job)
        try:
            done = slurm_control.requeue_or_cancel(job)
        finally:
            if done != slurm_control.REQUEUED:
                self._drop(job, "it was not requeued")
        return done

    def release(self) -> None:
        """Release all held jobs, and note failures."""
        refusals: dict[str, str] = {}
        for attempt in range(_TRIES):
            if self._job_ids and attempt:
                time.sleep(_PAUSE_S)
            for job in list(self._job_ids):
                try:
                    self._drop(job, self._released(job))
                except InputError as error:
                    refusals[job] = str(error)
        for job in self._job_ids:
            self._note(
                "held",
                f"job {job} could not be released: {refusals[job]}; try: scontrol release {job}",
                job=job,
            )

    @staticmethod
    def _released(job: str) -> str:
        """Release a job and return its state as text."""
        try:
            slurm_control.release(job)
        except InputError:
            now = find_jobs(f"--jobs={job}").get(job)
            if now is None or not now.is_waiting:
                return f"it is {now.state if now else 'no longer in the queue'}"
            raise
        return "Slurm may start it"

    def _hold(self, job: str) -> None:
        self._begin(job)
        try:
            slurm_control.hold(job)
        except InputError as error:  # it has started, or ended
            self._watched.discard(job)
            self._drop(job, f"it cannot be held: {error}")

    def _begin(self, job: str) -> None:
        """Note the hold before Slurm makes it, because a killed process could not do so later."""
        self._note(
            "hold",
            f"job {job} is held in the queue; if this command dies, run: scontrol release {job}",
            job=job,
        )
        self._job_ids.append(job)

    def _drop(self, job: str, reason: str) -> None:
        self._job_ids.remove(job)
        self._note("release", f"job {job} is no longer held: {reason}", job=job)


def unreleased_jobs(record: Path) -> list[str]:
    """Return the jobs that a record says were held and not released."""
    jobs: dict[str, None] = {}
    for line in read_lines(record):
        job = str(line.get("job"))
        if line.get("what") == "hold":
            jobs[job] = None
        elif line.get("what") == "release":
            jobs.pop(job, None)
    return list(jobs)


class DeferredSignals:
    """Context manager that defers signals that would end this process; they end its sleep.

    So no action is interrupted halfway, and everything is cleaned up.

    Attributes:
        name: name of the received signal; empty if there was none.
    """

    def __init__(self) -> None:
        self.name = ""
        self._came = threading.Event()

    def sleep(self, seconds: float) -> None:
        """Sleep for at most `seconds`, or until a signal arrives."""
        self._came.wait(seconds)

    def __enter__(self) -> DeferredSignals:
        self._before = {number: signal.signal(number, self._take) for number in _ENDING}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.name = signal.Signals(number).name
        self._came.set()
