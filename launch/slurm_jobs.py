"""The jobs of a Slurm cluster, as ``squeue`` tells them.

A job may say in its comment what its checkpoints are like, and say so anew
while it runs (this is a line of its batch script or of its program):

    #SBATCH --comment="fleet:interval_min=60,critical_gb=12.5,memory_gb=96"
    scontrol update JobId=$SLURM_JOB_ID Comment="fleet:last_checkpoint=$(date +%s)"

and, where it saves and ends upon a signal, which one and how many minutes that takes:

    #SBATCH --comment="fleet:signal=B:USR2,app_time=2"

A job that can do with fewer nodes while it goes on, since it is a run of FLEET whose launch
survives that, names the run's folder:

    #SBATCH --comment="fleet:signal=B:USR2,app_time=2,yields=/scratch/me/runs/photos"

What follows ``fleet:`` up to the next blank is read, whatever else the comment
holds. Which names mean something is not decided here.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple

from launch.base import InputError, call, clock_s

HOLDING = frozenset(
    {
        "RUNNING",
        "COMPLETING",
        "CONFIGURING",
        "SUSPENDED",
        "STOPPED",
        "SIGNALING",
        "STAGE_OUT",
        "RESIZING",
    }
)  # states in which a job has nodes
WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"})
# Job id, nodes, time used, partition, name, comment, user, state, start, names of nodes, reason,
# script.
_FIELDS = ("%i", "%D", "%M", "%P", "%j", "%k", "%u", "%T", "%S", "%N", "%r", "%o")
_TIMES = {"": 1, "K": 1024, "M": 1024**2}  # 1,024 nodes may be 1K


@dataclass(frozen=True)
class SlurmJob:
    """A job, and how it stands.

    Args:
        id: as ``scancel`` takes it, with the index of an array's task.
        nodes: that it has, or asks for.
        elapsed_s: since it started; None where ``squeue`` does not know.
        partition: of it; of one that waits there may be several.
        checkpoint: the numbers that its comment says after ``fleet:``.
        signal: upon which it saves and ends, by its comment, such as ``USR2``; ``B:USR2`` for its
            batch script alone.
        yields: the folder of the run that gives nodes back, by its comment; None where it cannot.
        unread: why that could not be read; it is its user's word, and stops nobody else.
        state: Slurm's word for it.
        start: when it started this time.
        listed: the names of its nodes, in Slurm's short form; empty where it has none, or that is
            not told.
        reason: Slurm's word for why it waits.
        script: its batch script as it was handed in; empty where Slurm knows no path.
    """

    id: str
    nodes: int
    elapsed_s: float | None
    partition: str
    name: str
    checkpoint: Mapping[str, float] = field(default_factory=dict)
    signal: str | None = None
    yields: str | None = None
    unread: str = ""
    user: str = ""
    state: str = "RUNNING"
    start: str = ""
    listed: str = ""
    reason: str = ""
    script: str = ""

    @property
    def is_patient(self) -> bool:
        """Return True if it runs or waits, and can do so later: its comment speaks to FLEET, as those of FLEET's scripts."""
        speaks = self.checkpoint or self.signal or self.yields or self.unread
        return bool(speaks) and self.state in ("RUNNING", "PENDING")

    @property
    def holds(self) -> bool:
        """Return True if it has nodes."""
        return self.state in HOLDING

    @property
    def waits(self) -> bool:
        """Return True if it has none yet, or none any more, and Slurm may start it."""
        return self.state in WAITING

    @property
    def is_held(self) -> bool:
        """Return True if it waits because somebody holds it."""
        return self.waits and self.reason.startswith("JobHeld")

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names of its nodes, in order.

        Raises:
            InputError: Slurm does not answer.
        """
        if self.holds and self.listed:
            return _hostnames(self.listed)
        return ()


@cache
def _hostnames(listed: str) -> tuple[str, ...]:
    return tuple(call(["scontrol", "show", "hostnames", listed]).split())


def find_jobs(*options: str) -> dict[str, SlurmJob]:
    """Return the jobs that Slurm knows by their ids; tasks of an array count as jobs.

    Args:
        options: of ``squeue``, where not all are wanted.

    Raises:
        InputError: there is no ``squeue``, it failed, or what it printed cannot be read.
    """
    # What parts the fields is drawn anew each time: a name or a comment may hold tabs, newlines and
    # any line that its user thought of, but not this.
    mark = f"<{secrets.token_hex(8)}>"
    width = len(_FIELDS)
    text = call(
        [
            "squeue",
            "--noheader",
            "--states=all",
            "--array",
            f"--format={mark}{mark.join(_FIELDS)}{mark}",
            *options,
        ],
        missing_pattern="Invalid job id",
    )
    if text.strip() and mark not in text:
        raise InputError(
            f"squeue printed {text.strip().splitlines()[0][:80]!r}, which is not in the format that was "
            "asked for"
        )
    fields = text.split(mark)
    # A job is a mark, its fields with marks between, a mark; between two jobs there is a newline,
    # or a wrapper's word.
    jobs = [
        _job(*fields[start : start + width])
        for start in range(1, len(fields) - width, width + 1)
        if re.fullmatch("[0-9]+[KM]?", fields[start + 1])
    ]
    return {job.id: job for job in jobs}


def running_jobs(partition: str | None = None) -> list[SlurmJob]:
    """Return the jobs that run now.

    Args:
        partition: only the jobs of this one.

    Raises:
        InputError: as for :func:`find_jobs`.
    """
    jobs = find_jobs(*([f"--partition={partition}"] if partition is not None else []))
    return [job for job in jobs.values() if job.state == "RUNNING"]


def _job(
    id_: str,
    nodes: str,
    elapsed: str,
    partition: str,
    name: str,
    comment: str,
    user: str,
    state: str,
    start: str,
    listed: str,
    reason: str,
    script: str,
) -> SlurmJob:
    # The time is INVALID where the clocks of a cluster differ.
    job = SlurmJob(
        id_,
        int(nodes.rstrip("KM")) * _TIMES[nodes.lstrip("0123456789")],
        clock_s(elapsed),
        partition,
        name,
        user=user,
        state=state,
        start=start,
        script=script if script.startswith("/") else "",
        listed="" if listed == "(null)" else listed,
        reason="" if reason == "None" else reason.strip("()"),
    )
    try:
        return replace(job, **parse_comment(id_, comment)._asdict())
    except InputError as error:
        return replace(job, unread=str(error))


class CommentSettings(NamedTuple):
    """What a job's comment says: numbers about its checkpoints, the signal upon which it saves, the run that yields."""

    checkpoint: dict[str, float]
    signal: str | None = None
    yields: str | None = None


def parse_comment(job: str, comment: str) -> CommentSettings:
    """Read the FLEET settings of a job's comment; empty if it does not mention FLEET.

    Raises:
        InputError: it does, but not as ``fleet:name=number,name=number``, or with something that is
            no signal.

    >>> parse_comment("17", "asked by me fleet:interval_min=60,signal=B:USR2 thanks")
    CommentSettings(checkpoint={'interval_min': 60.0}, signal='B:USR2', yields=None)
    """
    match = re.search(r"(?:^|\s)fleet:(\S*)", comment)
    if match is None:
        return CommentSettings({})
    words = [word.partition("=") for word in match[1].split(",")]
    settings = {name: value for name, _, value in words}
    signal = settings.pop("signal", None)
    yields = settings.pop("yields", None)
    try:
        if not all(name and equals and value for name, equals, value in words):
            raise ValueError
        numbers = {name: float(value) for name, value in settings.items()}
    except ValueError:
        raise InputError(
            f"the comment of job {job} says {match[0].strip()!r}; it should be "
            "fleet:name=number,name=number"
        ) from None
    if signal is not None and not re.fullmatch(r"(B:)?([A-Z]{3,6}[12]?|[1-9][0-9]?)", signal):
        raise InputError(
            f"the comment of job {job} says signal={signal[:20]!r}; it should be one such as "
            "USR2, or B:USR2 for the batch script alone"
        )
    return CommentSettings(numbers, signal, yields)
