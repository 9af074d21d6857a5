"""What is done to jobs of Slurm: told to save, put back into the queue, held there, cancelled; and who may do so.

Slurm itself lets nobody touch another user's job but its operators; the owner is looked at here all
the same, right before each act, so that nothing is even asked for that was not meant.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Sequence

from launch.base import InputError, ask, call
from launch.slurm_jobs import find_jobs

REQUEUED = "requeued, held"


def tell_to_save(job: str, signal: str) -> None:
    """Send a job the signal upon which it saves; ``B:USR2`` goes to its batch script alone, as for ``sbatch``.

    Raises:
        InputError: Slurm refuses, or does not answer.
    """
    to_script, _, name = signal.rpartition(":")
    call(["scancel", *(["--batch"] if to_script else []), f"--signal={name}", job])


def requeue_or_cancel(job: str) -> str:
    """Put a job back into the queue, held, or cancel it where Slurm refuses that: what was done, in words.

    Held, for it would be the first to take its nodes back: it has been waiting for longer than
    others.

    Raises:
        InputError: Slurm refuses both, or does not answer.
    """
    if ask(["scontrol", "requeuehold", job]).returncode == 0:
        return REQUEUED
    call(["scancel", job])
    return "cancelled"


def hold(job: str) -> None:
    """Have a job that waits go on waiting until it is released.

    Raises:
        InputError: Slurm refuses, or does not answer.
    """
    call(["scontrol", "hold", job])


def release(job: str) -> None:
    """Let a job that was held start when its turn comes.

    Raises:
        InputError: Slurm refuses, or does not answer.
    """
    call(["scontrol", "release", job])


def shrink(job: str, nodes: Sequence[str]) -> list[str]:
    """Make a running job smaller by some of its nodes; returns those that it keeps.

    Slurm kills what it has started there, and ends job steps that have processes there, unless they
    were started with ``srun --no-kill``. The job cannot do without its first node, on which its
    script runs.

    Args:
        nodes: by the names that Slurm has for them, or those of the hosts, with or without their
            domain.

    Raises:
        InputError: Slurm refuses, or does not answer, or the job has no such nodes.
    """
    current = find_jobs(f"--jobs={job}").get(job)
    hosts = () if current is None else current.hosts
    released = {node.partition(".")[0] for node in nodes}
    unknown = released.difference(hosts[1:])
    if unknown:
        raise InputError(
            f"job {job} cannot give back {', '.join(sorted(unknown))}: Slurm's names for its nodes are "
            f"{', '.join(hosts)}, and the first stays"
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
    """Return True if this user may act on the jobs of others: root, Slurm's own user, an operator or an administrator.

    Where accounting is switched off, only the first two are known.

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
