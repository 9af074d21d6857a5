"""End a chain of jobs: its next job is taken back, the one that runs saves and ends, and no other follows."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fleet.errors import UserError
from fleet.jobs.chain import jobs_of, note
from fleet.jobs.notes import CalledOff
from fleet.jobs.systems import find_system
from fleet.storage.paths import RunPaths
from launch.queues import QUEUES, QueuedJob
from launch.systems import System, call

_NAME = re.compile(r"^#\S+ (?:--job-name=|-J |-N )(\S+)", re.MULTILINE)
_SYSTEM = re.compile(r" --system=(\S+)")


@dataclass(frozen=True)
class Chain:
    """A chain of jobs, as its folder shows it.

    Attributes:
        paths: of its run.
        system: its batch system.
        name: of its jobs.
    """

    paths: RunPaths
    system: System
    name: str

    @classmethod
    def of(cls, paths: RunPaths) -> Chain:
        """The chain of a run.

        Raises:
            UserError: there is none, or none that can be ended by a command.
        """
        try:
            script = paths.job_script.read_text(encoding="utf-8")
        except OSError:
            raise UserError(f"--end {paths.root}: there is no chain: {paths.job_script} is missing, which fleet submit "
                            "writes") from None
        system, name = _SYSTEM.search(script), _NAME.search(script)
        found = find_system(system[1].strip("'\"")) if system else None
        if found is None or (found.has_queue and name is None):
            raise UserError(f"--end {paths.root}: {paths.job_script} is no script that fleet submit wrote")
        if not found.has_queue:
            raise UserError(f"--end {paths.root}: with --system {found.name} the chain runs in the foreground; "
                            "interrupt it there (Ctrl-C), and it saves and ends")
        if not (found.queue_commands and found.tell):
            raise UserError(f"--end {paths.root}: {found.name} has no queue_commands, or no tell, by which jobs are "
                            "found and told to save; end them by its own commands")
        return cls(paths, found, name[1].strip("'\"") if name else "")

    def jobs(self) -> list[QueuedJob]:
        """Its jobs that wait or run.

        Raises:
            InputError: the batch system does not answer.
        """
        known, _ = jobs_of(self.paths.stops)
        return [job for job in QUEUES[self.system.queue_commands].own_jobs([self.name]) if job.id in known]

    def end(self) -> tuple[list[str], list[str]]:
        """End it: the jobs that were taken back, and those that were told to save and to end.

        Raises:
            UserError: there is nothing to end.
            InputError: the batch system does not answer, or refuses.
        """
        if not self.jobs():
            known, then = jobs_of(self.paths.stops)
            why = "" if not then else f"; at its last stop it was decided: {then}"
            raise UserError(f"--end {self.paths.root}: none of the chain's jobs waits or runs "
                            f"({', '.join(sorted(known)) or f'{self.paths.stops} knows of none'}){why}")
        note(self.paths, CalledOff())  # whatever job begins or ends from now on hands in no other
        back, told = [], []
        for job in self.jobs():
            if job.runs:
                call([word.format(job=job.id) for word in self.system.tell])
                told.append(job.id)
            else:
                QUEUES[self.system.queue_commands].cancel(job.id)
                back.append(job.id)
        return back, told
