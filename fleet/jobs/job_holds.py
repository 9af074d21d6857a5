"""Jobs are held in the queue, so that they do not take the nodes that become free before the urgent one.

Slurm starts what fits: a job that has just been requeued may well be the first that does, or one that FLEET has handed
in for a harvest or a chain. So these are held, and released when the urgent job has begun, or its time is over; also
when the eviction is broken off. An eviction that is killed at once cannot release anything: what it held stands in its
record, and the next one with the same record releases it.
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
from launch.base import InputError
from launch.slurm_jobs import SlurmJob, find_jobs

_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
# of each release: Slurm may be busy
_TRIES = 3
_PAUSE_S = 2.0


class HeldJobs:
    """The jobs that one eviction holds.

    Args:
        note: what is done is noted before, or right after it: (a word for it, it in words, what else is known of it).
        is_allowed: whether the jobs of a user may be touched.
        held: by evictions before, which could not release them.
    """

    def __init__(
        self, note: Callable[..., None], is_allowed: Callable[[str], bool], held: Sequence[str] = ()
    ) -> None:
        self._note = note
        self._is_allowed = is_allowed
        self._watched: set[str] = set()
        self._job_ids = list(held)

    def watch(self, job: str) -> None:
        """A job has made room: hold it as soon as it waits again."""
        self._watched.add(job)

    def hold_waiting(self, standing: Mapping[str, SlurmJob], rivals: Collection[str] = ()) -> None:
        """Hold what waits by now: jobs that have made room, and others that would take what becomes free.

        What somebody else holds is left to them.
        """
        for job in sorted(self._watched.union(rivals).difference(self._job_ids)):
            now = standing.get(job)
            if now is not None and now.waits and not now.is_held and self._is_allowed(now.user):
                self._hold(job)

    def put_back(self, job: str) -> str:
        """Put a job back into the queue, held, or cancel it where Slurm refuses that: what was done, in words.

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

    def release(self, sleep: Callable[[float], None] = time.sleep) -> None:
        """Release all that is held, and note what cannot be."""
        refusals: dict[str, str] = {}
        for again in range(_TRIES):
            if self._job_ids and again:
                sleep(_PAUSE_S)
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
        """Release a job; what became of it, in words."""
        try:
            slurm_control.release(job)
        except InputError:
            now = find_jobs(f"--jobs={job}").get(job)
            if now is None or not now.waits:
                return f"it is {now.state if now else 'gone'}"
            raise
        return "Slurm may start it"

    def _hold(self, job: str) -> None:
        self._begin(job)
        try:
            slurm_control.hold(job)
        except InputError as error:  # it has begun, or is gone
            self._watched.discard(job)
            self._drop(job, f"it cannot be held: {error}")

    def _begin(self, job: str) -> None:
        """Noted first: who is killed right after the act could not do it."""
        self._note(
            "hold",
            f"job {job} is held in the queue; should this command be killed: scontrol release {job}",
            job=job,
        )
        self._job_ids.append(job)

    def _drop(self, job: str, said: str) -> None:
        self._job_ids.remove(job)
        self._note("release", f"job {job} is not held any more: {said}", job=job)


def unreleased_jobs(record: Path) -> list[str]:
    """The jobs that evictions have held and not released, by their record."""
    held: dict[str, None] = {}
    for line in read_lines(record):
        job = str(line.get("job"))
        if line.get("what") == "hold":
            held[job] = None
        elif line.get("what") == "release":
            held.pop(job, None)
    return list(held)


class DeferredSignals:
    """While it is entered, a signal that would end this process only says so, and wakes who sleeps.

    So no act is broken off half-way, and what was begun is put right.

    Attributes:
        name: of the signal that came; empty if none did.
    """

    def __init__(self) -> None:
        self.name = ""
        self._came = threading.Event()

    def sleep(self, seconds: float) -> None:
        """Sleep until a signal comes, but no longer than this."""
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
