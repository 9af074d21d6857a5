"""What is done to running jobs of Slurm: told to save, put back into the queue, cancelled; and who may do so.

Slurm itself lets nobody touch another user's job but its operators; the owner is looked at here all the same, right
before each act, so that nothing is even asked for that was not meant.
"""

from __future__ import annotations

import os
import pwd
import re
from dataclasses import dataclass

from launch.slurm_jobs import TIMES, answer, ask

HOLDING = frozenset({"RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT",
                     "RESIZING"})  # states in which a job has nodes
_FIELDS = "%i|%u|%T|%D|%S"  # none can hold the mark


@dataclass(frozen=True)
class Standing:
    """How a job stands: its user, Slurm's word for its state, its nodes, and when it started this time."""

    id: str
    user: str
    state: str
    nodes: int
    start: str

    @property
    def holds(self) -> bool:
        """Whether it has nodes."""
        return self.state in HOLDING


def standings(partition: str | None = None, job: str | None = None) -> dict[str, Standing]:
    """How the jobs of the cluster stand, of a partition, or one of them; a job that Slurm has forgotten is not there.

    Raises:
        InputError: Slurm does not answer, or not in the format that was asked for.
    """
    command = ["squeue", "--noheader", "--states=all", "--array", f"--format={_FIELDS}"]
    command += [f"--partition={partition}"] if partition is not None else []
    command += [f"--jobs={job}"] if job is not None else []
    done = ask(command)
    if done.returncode and "Invalid job id" in done.stderr:
        return {}
    found = {}
    for line in answer(command, done).splitlines():
        match = re.fullmatch(r"([0-9][0-9_]*)\|([^|]+)\|([A-Z_]+)\|([0-9]+)([KM]?)\|(\S*)", line.strip())
        if match:  # others are what wrappers print
            id_, user, state, nodes, times, start = match.groups()
            found[id_] = Standing(id_, user, state, int(nodes) * TIMES[times], start)
    return found


def tell_to_save(job: str, signal: str) -> None:
    """Send a job the signal upon which it saves; ``B:USR2`` goes to its batch script alone, as for ``sbatch``.

    Raises:
        InputError: Slurm refuses, or does not answer.
    """
    to_script, _, name = signal.rpartition(":")
    command = ["scancel", *(["--batch"] if to_script else []), f"--signal={name}", job]
    answer(command, ask(command))


def put_back(job: str) -> str:
    """Put a job back into the queue, or cancel it where Slurm refuses that: what was done, in words.

    Raises:
        InputError: Slurm refuses both, or does not answer.
    """
    if ask(["scontrol", "requeue", job]).returncode == 0:
        return "requeued"
    command = ["scancel", job]
    answer(command, ask(command))
    return "cancelled"


def myself() -> str:
    """The name of the user of this process."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def is_operator() -> bool:
    """Whether this user may act on the jobs of others: root, Slurm's own user, an operator or an administrator.

    Where accounting is switched off, only the first two are known.

    Raises:
        InputError: Slurm does not answer.
    """
    if os.geteuid() == 0:
        return True
    command = ["scontrol", "show", "config"]
    owner = re.search(r"^SlurmUser\s*=\s*([^\s(]+)", answer(command, ask(command)), re.MULTILINE)
    if owner is not None and owner[1] == myself():
        return True
    told = ask(["sacctmgr", "--noheader", "--parsable2", "show", "user", myself(), "format=adminlevel"])
    return told.returncode == 0 and told.stdout.strip() in ("Operator", "Administrator")
