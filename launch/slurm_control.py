"""Control jobs of Slurm: signal, requeue, hold, release, shrink and cancel them, if permitted.

Slurm itself lets only operators change another user's job. Callers also check the owner right
before each action, so that no unintended request is sent.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Sequence

from launch.base import ask, call
from launch.errors import InputError
from launch.slurm_jobs import find_jobs

REQUEUED = "requeued, held"


def signal_to_save(job: str, signal: str) -> None:
    """Send a job the signal to save; as for ``sbatch``, ``B:USR2`` goes to its batch script only.

    Raises:
        InputError: Slurm refuses or does not answer.
    """
    to_script, _, name = signal.rpartition(":")
    call(["scancel", *(["--batch"] if to_script else []), f"--signal={name}", job])


def requeue_or_cancel(job: str) -> str:
    """Requeue and hold a job, or cancel it if Slurm refuses; return a description of the action.

    The job is held because it would otherwise be the first to get its nodes back, as it has waited
    longest.

    Raises:
        InputError: Slurm refuses both or does not answer.
    """
    if ask(["scontrol", "requeuehold", job]).returncode == 0:
        return REQUEUED
    call(["scancel", job])
    return "cancelled"


def hold(job: str) -> None:
    """Hold a waiting job until it is released.

    Raises:
        InputError: Slurm refuses or does not answer.
    """
    call(["scontrol", "hold", job])


def release(job: str) -> None:
    """Release a held job.

    Raises:
        InputError: Slurm refuses or does not answer.
    """
    call(["scontrol", "release", job])


def shrink(job: str, nodes: Sequence[str]) -> list[str]:
    """Take nodes away from a running job; return the nodes that it keeps.

    Slurm kills the processes that it started there, and ends job steps with processes there unless
    they were started with ``srun --no-kill``. The job always keeps its first node, where its script
    runs.

    Args:
        job: the id of the job.
        nodes: Slurm's names of the nodes, or their host names with or without the domain.

    Raises:
        InputError: Slurm refuses or does not answer, or the job does not have these nodes.
    """
    current = find_jobs(f"--jobs={job}").get(job)
    hosts = () if current is None else current.hosts
    released = {node.partition(".")[0] for node in nodes}
    unknown = released.difference(hosts[1:])
    if unknown:
        raise InputError(
            f"job {job} cannot release {', '.join(sorted(unknown))}: its nodes are "
            f"{', '.join(hosts)}, and it must keep the first"
        )
    remaining = [node for node in hosts if node not in released]
    call(["scontrol", "update", f"JobId={job}", f"NodeList={','.join(remaining)}"])
    return remaining


def current_user() -> str:
    """Return the name of this process's user."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def is_operator() -> bool:
    """Return True if this user may change other users' jobs.

    Root, Slurm's own user, operators and administrators may. Without accounting, only the first two
    are known.

    Raises:
        InputError: Slurm does not answer.
    """
    if os.geteuid() == 0:
        return True
    owner = re.search(
        r"^SlurmUser\s*=\s*([^\s(]+)", call(["scontrol", "show", "config"]), re.MULTILINE
    )
    if owner is not None and owner[1] == current_user():
        return True
    answer = ask(
        [
            "sacctmgr",
            "--noheader",
            "--parsable2",
            "show",
            "user",
            current_user(),
            "format=adminlevel",
        ]
    )
    return answer.returncode == 0 and answer.stdout.strip() in ("Operator", "Administrator")
