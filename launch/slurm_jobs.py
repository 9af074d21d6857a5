"""The jobs that run on a Slurm cluster now, as ``squeue`` tells them.

A job may say in its comment what its checkpoints are like, and say so anew
while it runs (this is a line of its batch script or of its program):

    #SBATCH --comment="fleet:interval_min=60,critical_gb=12.5,memory_gb=96"
    scontrol update JobId=$SLURM_JOB_ID Comment="fleet:last_checkpoint=$(date +%s)"

What follows ``fleet:`` up to the next blank is read, whatever else the comment
holds. Which names mean something is not decided here.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from launch.base import InputError

# Tabs between the fields: names and comments may hold anything else.
FIELDS = "%i\t%D\t%M\t%P\t%j\t%k"  # job id, nodes, time used, partition, name, comment
TIMEOUT_S = 60


@dataclass(frozen=True)
class SlurmJob:
    """A running job.

    Args:
        id: as ``scancel`` takes it, with the index of an array's task.
        nodes: that it runs on.
        elapsed_s: since it started.
        partition, name: of the job.
        checkpoint: what its comment says after ``fleet:``.
        unread: why that could not be read; it is its user's word, and stops nobody else.
    """

    id: str
    nodes: int
    elapsed_s: int
    partition: str
    name: str
    checkpoint: Mapping[str, float] = field(default_factory=dict)
    unread: str = ""


def running_jobs(partition: str | None = None) -> list[SlurmJob]:
    """Ask ``squeue`` for the jobs that run now.

    Args:
        partition: only the jobs of this one.

    Raises:
        InputError: there is no ``squeue``, it failed, or what it printed cannot be read.
    """
    command = ["squeue", "--noheader", "--states=RUNNING", f"--format={FIELDS}"]
    if partition is not None:
        command.append(f"--partition={partition}")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except FileNotFoundError:
        raise InputError("squeue is not on the PATH: this machine is not part of a Slurm cluster") from None
    except subprocess.TimeoutExpired:
        raise InputError(f"squeue did not answer within {TIMEOUT_S} s") from None
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise InputError(f"squeue failed: {said[-1] if said else f'exit status {done.returncode}'}")
    return parse_squeue(done.stdout)


def parse_squeue(text: str) -> list[SlurmJob]:
    """Read what ``squeue`` printed in the format :data:`FIELDS`.

    Raises:
        InputError: a line has another format.

    >>> parse_squeue("17\\t2\\t1-02:00:05\\tdebug\\trelax\\tfleet:interval_min=60\\n")[0].elapsed_s
    93605
    """
    return [_job(line, number) for number, line in enumerate(text.split("\n"), 1) if line]


def _job(line: str, number: int) -> SlurmJob:
    fields = line.split("\t")
    if len(fields) != FIELDS.count("\t") + 1 or not fields[1].isdecimal():
        raise InputError(f"squeue, line {number}: {line!r} is not in the format that was asked for")
    id_, nodes, elapsed, partition, name, comment = fields
    job = SlurmJob(id_, int(nodes), parse_elapsed(elapsed), partition, name)
    try:
        return replace(job, checkpoint=parse_comment(id_, comment))
    except InputError as error:
        return replace(job, unread=str(error))


def parse_elapsed(text: str) -> int:
    """Seconds from Slurm's ``[[days-]hours:]minutes:seconds``.

    Raises:
        InputError: it is not such a time.

    >>> parse_elapsed("0:10"), parse_elapsed("1:00:00"), parse_elapsed("2-00:00:01")
    (10, 3600, 172801)
    """
    match = re.fullmatch(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)", text)
    if not match:
        raise InputError(f"squeue gives the time {text!r}; it should be [[days-]hours:]minutes:seconds")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def parse_comment(job: str, comment: str) -> dict[str, float]:
    """What a job's comment says of its checkpoints; nothing where it does not mention FLEET.

    Raises:
        InputError: it does, but not as ``fleet:name=number,name=number``.

    >>> parse_comment("17", "asked by me fleet:interval_min=60,memory_gb=96 thanks")
    {'interval_min': 60.0, 'memory_gb': 96.0}
    """
    match = re.search(r"(?:^|\s)fleet:(\S*)", comment)
    said: dict[str, float] = {}
    for word in match[1].split(",") if match else ():
        name, equals, value = word.partition("=")
        try:
            said[name] = float(value)
        except ValueError:
            equals = ""
        if not (name and equals):
            raise InputError(f"the comment of job {job} says {match[0].strip()!r}; "  # type: ignore[index]
                             "it should be fleet:name=number,name=number")
    return said
