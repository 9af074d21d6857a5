"""Read the jobs of a Slurm cluster from ``squeue``.

A job may describe its checkpoints in its comment, and update it while it runs (by a line of its
batch script or of its program):

    #SBATCH --comment="fleet:interval_min=60,critical_gb=12.5,memory_gb=96"
    scontrol update JobId=$SLURM_JOB_ID Comment="fleet:last_checkpoint=$(date +%s)"

A job that saves and ends upon a signal names the signal and the minutes that saving takes:

    #SBATCH --comment="fleet:signal=B:USR2,app_time=2"

A job that can release nodes, because it is a run of FLEET whose launch survives that, names the
run's folder:

    #SBATCH --comment="fleet:signal=B:USR2,app_time=2,yields=/scratch/me/runs/photos"

Only the text from ``fleet:`` to the next blank is read; the comment may contain other text. This
module does not check the names.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple

from launch.base import call, clock_s
from launch.errors import InputError

# States in which a job has nodes.
HOLDING = frozenset(
    {
        "RUNNING",
        "COMPLETING",
        "CONFIGURING",
        "SUSPENDED",
        "STOPPED",
        "STAGE_OUT",
        "RESIZING",
    }
)
# States of a waiting job.
WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"})
# Job id, nodes, time used, partition, name, comment, user, state, start, names of nodes, reason,
# script.
_FIELDS = ("%i", "%D", "%M", "%P", "%j", "%k", "%u", "%T", "%S", "%N", "%r", "%o")
_TIMES = {"": 1, "K": 1024, "M": 1024**2}  # 1,024 nodes may be 1K


@dataclass(frozen=True)
class SlurmJob:
    """A job and its state.

    Args:
        id: as ``scancel`` takes it, with the index of an array's task.
        nodes: number of nodes that the job has or requests.
        elapsed_s: seconds since its start; None if ``squeue`` does not report it.
        partition: its partition; a waiting job may have several.
        checkpoint: the numbers in its comment after ``fleet:``.
        signal: the signal to save and end, from its comment, such as ``USR2``, or ``B:USR2`` for
            the batch script only.
        yields: the folder of a run that can release nodes, from its comment; None if it cannot.
        unread: why the comment could not be read; an invalid comment affects only its job.
        state: the state according to Slurm; a job that receives a signal is RUNNING.
        start: when the job last started.
        listed: its nodes in Slurm's short form; empty if it has none, or they are not reported.
        reason: why it waits, according to Slurm.
        script: the submitted batch script; empty if Slurm knows no path.
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
    def is_resumable(self) -> bool:
        """Return True if its comment, like that of FLEET's scripts, says that it can resume."""
        speaks = self.checkpoint or self.signal or self.yields or self.unread
        return bool(speaks) and self.state in ("RUNNING", "PENDING")

    @property
    def has_nodes(self) -> bool:
        """Return True if the job has nodes."""
        return self.state in HOLDING

    @property
    def is_waiting(self) -> bool:
        """Return True if the job has no nodes and Slurm may start it."""
        return self.state in WAITING

    @property
    def is_held(self) -> bool:
        """Return True if the job is held."""
        return self.is_waiting and self.reason.startswith("JobHeld")

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the names of its nodes, in order.

        Raises:
            InputError: Slurm does not answer.
        """
        if self.has_nodes and self.listed:
            return _hostnames(self.listed)
        return ()


@cache
def _hostnames(listed: str) -> tuple[str, ...]:
    return tuple(call(["scontrol", "show", "hostnames", listed]).split())


def find_jobs(*options: str) -> dict[str, SlurmJob]:
    """Return job id -> job for Slurm's jobs; tasks of an array count as jobs.

    Args:
        options: options of ``squeue`` that select jobs.

    Raises:
        InputError: ``squeue`` is missing or failed, or its output has an unexpected format.
    """
    # The separator of fields is random: a name or a comment may contain tabs, newlines and any line
    # that its user chose, but not this.
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
            f"squeue printed {text.strip().splitlines()[0][:80]!r}, which has an unexpected format"
        )
    fields = text.split(mark)
    # A job is its fields with separators before, between and after them; between two jobs there is
    # a newline or a wrapper's text.
    jobs = [
        _job(*fields[start : start + width])
        for start in range(1, len(fields) - width, width + 1)
        if re.fullmatch("[0-9]+[KM]?", fields[start + 1])
    ]
    return {job.id: job for job in jobs}


def running_jobs(partition: str | None = None) -> list[SlurmJob]:
    """Return the running jobs.

    Args:
        partition: select only jobs of this partition.

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
    if state == "SIGNALING":  # Slurm delivers a signal to a running job
        state = "RUNNING"
    # The time is INVALID if the clocks of the cluster differ.
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
    """The settings in a job's comment: checkpoints, signal to save, run that can release nodes."""

    checkpoint: dict[str, float]
    signal: str | None = None
    yields: str | None = None


def parse_comment(job: str, comment: str) -> CommentSettings:
    """Read the FLEET settings of a job's comment; empty if it does not mention FLEET.

    Raises:
        InputError: the settings are not ``fleet:name=number,name=number``, or the signal is
            invalid.

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
            f"the comment of job {job} says signal={signal[:20]!r}; it should be a signal such as "
            "USR2, or B:USR2 for the batch script only"
        )
    return CommentSettings(numbers, signal, yields)
