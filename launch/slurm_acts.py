"""What is done to jobs of Slurm: told to save, put back into the queue, held there, cancelled; and who may do so.

Slurm itself lets nobody touch another user's job but its operators; the owner is looked at here all the same, right
before each act, so that nothing is even asked for that was not meant.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from launch.base import InputError, ask, call, printed
from launch.slurm_jobs import TIMES

HOLDING = frozenset({"RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT",
                     "RESIZING"})  # states in which a job has nodes
REQUEUED = "requeued, held"
WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"})
_FIELDS = "%i|%u|%T|%D|%S|%P|%N|%r"  # none but the last can hold the mark
_LINE = re.compile(r"([0-9][0-9_]*)\|([^|]+)\|([A-Z_]+)\|([0-9]+)([KM]?)\|([^|\s]*)"
                   r"(?:\|([^|]*)\|([\w.,\[\]-]*)[^|]*\|(.*))?")


@dataclass(frozen=True)
class JobStanding:
    """How a job stands: its user, Slurm's word for its state, its nodes, and when it started this time.

    Args:
        partition: of it; of one that waits there may be several.
        listed: the names of its nodes, in Slurm's short form; empty where it has none, or that is not told.
        reason: Slurm's word for why it waits.
    """

    id: str
    user: str
    state: str
    nodes: int
    start: str
    partition: str = field(default="", compare=False)
    listed: str = field(default="", compare=False)
    reason: str = field(default="", compare=False)

    @property
    def holds(self) -> bool:
        """Whether it has nodes."""
        return self.state in HOLDING

    @property
    def waits(self) -> bool:
        """Whether it has none yet, or none any more, and Slurm may start it."""
        return self.state in WAITING

    @property
    def is_held(self) -> bool:
        """Whether it waits because somebody holds it."""
        return self.waits and self.reason.startswith("JobHeld")

    @property
    def names(self) -> frozenset[str]:
        """The names of its nodes.

        Raises:
            InputError: Slurm does not answer.
        """
        return hostnames(self.listed) if self.holds and self.listed else frozenset()


def standings(job: str | None = None) -> dict[str, JobStanding]:
    """How the jobs of the cluster stand, or one of them; a job that Slurm has forgotten is not there.

    Raises:
        InputError: Slurm does not answer, or not in the format that was asked for.
    """
    command = ["squeue", "--noheader", "--states=all", "--array", f"--format={_FIELDS}"]
    command += [f"--jobs={job}"] if job is not None else []
    done = ask(command)
    if done.returncode and "Invalid job id" in done.stderr:
        return {}
    found = {}
    for line in printed(done).splitlines():
        if match := _LINE.fullmatch(line.strip()):  # others are what wrappers print
            id_, user, state, nodes, times, start, partition, listed, reason = match.groups(default="")
            found[id_] = JobStanding(id_, user, state, int(nodes) * TIMES[times], start, partition, listed,
                                     "" if reason == "None" else reason.strip("()"))
    return found


@cache
def hostnames(listed: str) -> frozenset[str]:
    """The names of nodes that Slurm gives in its short form, such as ``n[1-3]``.

    Raises:
        InputError: Slurm does not answer.
    """
    return frozenset(call(["scontrol", "show", "hostnames", listed]).split())


def tell_to_save(job: str, signal: str) -> None:
    """Send a job the signal upon which it saves; ``B:USR2`` goes to its batch script alone, as for ``sbatch``.

    Raises:
        InputError: Slurm refuses, or does not answer.
    """
    to_script, _, name = signal.rpartition(":")
    call(["scancel", *(["--batch"] if to_script else []), f"--signal={name}", job])


def put_back(job: str) -> str:
    """Put a job back into the queue, held, or cancel it where Slurm refuses that: what was done, in words.

    Held, for it would be the first to take its nodes back: it has been waiting for longer than others.

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

    Slurm kills what it has started there, and ends job steps that have processes there, unless they were started with
    ``srun --no-kill``. The job cannot do without its first node, on which its script runs.

    Args:
        nodes: by the names that Slurm has for them, or those of the hosts, with or without their domain.

    Raises:
        InputError: Slurm refuses, or does not answer, or the job has no such nodes.
    """
    listed = re.search(r" NodeList=(\S+)", call(["scontrol", "--oneliner", "show", "job", job]))
    had = call(["scontrol", "show", "hostnames", listed[1] if listed else "(null)"]).split()
    gone = {node.partition(".")[0] for node in nodes}
    if unknown := gone.difference(had[1:]):
        raise InputError(f"job {job} cannot give back {', '.join(sorted(unknown))}: Slurm's names for its nodes are "
                         f"{', '.join(had)}, and the first stays")
    keeps = [node for node in had if node not in gone]
    call(["scontrol", "update", f"JobId={job}", f"NodeList={','.join(keeps)}"])
    return keeps


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
    owner = re.search(r"^SlurmUser\s*=\s*([^\s(]+)", call(["scontrol", "show", "config"]), re.MULTILINE)
    if owner is not None and owner[1] == myself():
        return True
    told = ask(["sacctmgr", "--noheader", "--parsable2", "show", "user", myself(), "format=adminlevel"])
    return told.returncode == 0 and told.stdout.strip() in ("Operator", "Administrator")
