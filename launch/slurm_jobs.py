"""The jobs that run on a Slurm cluster now, as ``squeue`` tells them.

A job may say in its comment what its checkpoints are like, and say so anew
while it runs (this is a line of its batch script or of its program):

    #SBATCH --comment="fleet:interval_min=60,critical_gb=12.5,memory_gb=96"
    scontrol update JobId=$SLURM_JOB_ID Comment="fleet:last_checkpoint=$(date +%s)"

and, where it saves and ends upon a signal, which one and how many minutes that takes:

    #SBATCH --comment="fleet:signal=B:USR2,app_time=2"

A job that can do with fewer nodes while it goes on, since it is a run of FLEET whose launch survives that, names the
run's folder:

    #SBATCH --comment="fleet:signal=B:USR2,app_time=2,yields=/scratch/me/runs/photos"

What follows ``fleet:`` up to the next blank is read, whatever else the comment
holds. Which names mean something is not decided here.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from launch.base import InputError, call

FIELDS = ("%i", "%D", "%M", "%P", "%j", "%k")  # job id, nodes, time used, partition, name, comment

# How a job begins where fields are parted by tabs: id, nodes (1,024 may be 1K), time used, partition.
_BEGINNING = re.compile(r"^([0-9][0-9_+]*)\t([1-9][0-9]*[KM]?)\t([^\t\n]*)\t([^\t\n]*)\t", re.MULTILINE)
TIMES = {"": 1, "K": 1024, "M": 1024 ** 2}


@dataclass(frozen=True)
class SlurmJob:
    """A running job.

    Args:
        id: as ``scancel`` takes it, with the index of an array's task.
        nodes: that it runs on.
        elapsed_s: since it started; None where ``squeue`` does not know.
        partition, name: of the job.
        checkpoint: the numbers that its comment says after ``fleet:``.
        signal: upon which it saves and ends, by its comment, such as ``USR2``; ``B:USR2`` for its batch script alone.
        yields: the folder of the run that gives nodes back, by its comment; None where it cannot.
        unread: why that could not be read; it is its user's word, and stops nobody else.
    """

    id: str
    nodes: int
    elapsed_s: int | None
    partition: str
    name: str
    checkpoint: Mapping[str, float] = field(default_factory=dict)
    signal: str | None = None
    yields: str | None = None
    unread: str = ""

    @property
    def speaks(self) -> bool:
        """Whether its comment has a word for FLEET: its scripts have, and any job that can save."""
        return bool(self.checkpoint or self.signal or self.yields or self.unread)


def running_jobs(partition: str | None = None) -> list[SlurmJob]:
    """Ask ``squeue`` for the jobs that run now.

    Args:
        partition: only the jobs of this one.

    Raises:
        InputError: there is no ``squeue``, it failed, or what it printed cannot be read.
    """
    return parse_squeue(*_told(FIELDS, ["--states=RUNNING"],
                               [f"--partition={partition}"] if partition is not None else []))


def waiting_jobs() -> list[SlurmJob]:
    """Ask ``squeue`` for the jobs that wait, each task of an array for itself.

    Raises:
        InputError: as for :func:`running_jobs`.
    """
    return parse_squeue(*_told(FIELDS, ["--states=PENDING", "--array"]))


def scripts() -> dict[str, str]:
    """The batch scripts of the jobs that run or wait, as they were handed in; by job, where Slurm knows a path.

    Raises:
        InputError: as for :func:`running_jobs`.
    """
    text, mark = _told(("%i", "%o"), ["--states=all", "--array"])
    fields = text.split(mark)
    found = ((fields[start], fields[start + 1]) for start in range(1, len(fields) - 2, 3))
    return {job: script for job, script in found if script.startswith("/")}


def _told(fields: Sequence[str], before: Sequence[str], after: Sequence[str] = ()) -> tuple[str, str]:
    """What ``squeue`` prints of jobs, and the mark before, between and after the fields of each."""
    # What parts the fields is drawn anew each time: a name or a comment may hold tabs, newlines and any line that its
    # user thought of, but not this.
    mark = f"<{secrets.token_hex(8)}>"
    return call(["squeue", "--noheader", *before, f"--format={mark}{mark.join(fields)}{mark}", *after]), mark


def parse_squeue(text: str, mark: str = "\t") -> list[SlurmJob]:
    """Read what ``squeue`` printed: of each job the :data:`FIELDS`, with a mark before, between and after them.

    Text without the mark is read as jobs on lines of their own with tabs between the fields, as a recorded or
    wrapped ``squeue`` may print them. What does not begin like a job then belongs to the name or the comment of
    the job before.

    Raises:
        InputError: no job can be made out, though there is text.

    >>> parse_squeue("17\\t2\\t1-02:00:05\\tdebug\\trelax\\tfleet:interval_min=60\\n")[0].elapsed_s
    93605
    >>> parse_squeue("|17|2|0:10|debug|a\\nb|(null)|\\n", mark="|")[0].name
    'a\\nb'
    """
    records = _marked(text, mark) if mark in text and mark != "\t" else _lines(text)
    jobs = [_job(*record) for record in records]
    if not jobs and text.strip():
        raise InputError(f"squeue printed {text.strip().splitlines()[0][:80]!r}, which is not in the format that was "
                         "asked for")
    return jobs


def _marked(text: str, mark: str) -> Iterator[list[str]]:
    fields = text.split(mark)
    width = len(FIELDS)
    # A job is a mark, six fields with marks between, a mark; between two jobs there is a newline.
    for start in range(1, len(fields) - width, width + 1):
        if re.fullmatch("[1-9][0-9]*[KM]?", fields[start + 1]):
            yield fields[start:start + width]


def _lines(text: str) -> Iterator[list[str]]:
    found = list(_BEGINNING.finditer(text))
    ends = [match.start() for match in found[1:]] + [len(text)]
    for match, end in zip(found, ends, strict=False):
        name, _, comment = text[match.end():end].rstrip("\n").partition("\t")
        yield [*match.groups(), name, comment]


def _job(id_: str, nodes: str, elapsed: str, partition: str, name: str, comment: str) -> SlurmJob:
    try:
        elapsed_s = parse_elapsed(elapsed)
    except InputError:  # such as INVALID, where the clocks of a cluster differ
        elapsed_s = None
    count = int(nodes.rstrip("KM")) * TIMES[nodes.lstrip("0123456789")]
    job = SlurmJob(id_, count, elapsed_s, partition, name)
    try:
        return replace(job, checkpoint=parse_comment(id_, comment), signal=parse_signal(id_, comment),
                       yields=dict(_words(id_, comment)).get("yields"))
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
    said: dict[str, float] = {}
    for name, value in _words(job, comment):
        if name not in ("signal", "yields"):
            try:
                said[name] = float(value)
            except ValueError:
                raise _unlike(job, comment) from None
    return said


def parse_signal(job: str, comment: str) -> str | None:
    """The signal upon which a job saves and ends, by its comment: ``fleet:signal=USR2,app_time=5``.

    Raises:
        InputError: it says something that is no signal.

    >>> parse_signal("17", "fleet:signal=B:USR2,app_time=2")
    'B:USR2'
    """
    signal = dict(_words(job, comment)).get("signal")
    if signal is not None and not re.fullmatch(r"(B:)?([A-Z]{3,6}[12]?|[1-9][0-9]?)", signal):
        raise InputError(f"the comment of job {job} says signal={signal[:20]!r}; it should be one such as "
                         "USR2, or B:USR2 for the batch script alone")
    return signal


def _words(job: str, comment: str) -> list[tuple[str, str]]:
    """The names and values of a comment."""
    match = re.search(r"(?:^|\s)fleet:(\S*)", comment)
    words = [word.partition("=") for word in match[1].split(",")] if match else []
    if not all(name and equals and value for name, equals, value in words):
        raise _unlike(job, comment)
    return [(name, value) for name, _, value in words]


def _unlike(job: str, comment: str) -> InputError:
    match = re.search(r"(?:^|\s)fleet:\S*", comment)
    said = match[0].strip() if match else comment
    return InputError(f"the comment of job {job} says {said!r}; it should be fleet:name=number,name=number")
