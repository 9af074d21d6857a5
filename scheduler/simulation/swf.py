"""Read and write traces of batch systems in the Standard Workload Format: 18 columns per job.

The format of the Parallel Workloads Archive (Chapin et al., Benchmarks and
Standards for the Evaluation of Parallel Job Schedulers, 1999): header comments
``; Key: value``, then one job a line; times in seconds, memory in kilobytes
per processor, -1 where a value is not known.
"""

from __future__ import annotations

import gzip
import math
import os
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path

from launch.errors import InputError, pluralize
from scheduler.base import MAX_VALUE
from scheduler.files import read_bytes

UNKNOWN = -1
PARTIAL = (2, 3, 4)  # status of lines about parts of a job that has another line as a whole


@dataclass(frozen=True, slots=True)
class SwfJob:
    """One line of a trace; the fields are its columns, in order."""

    job: int
    submit_s: float
    wait_s: float = UNKNOWN
    run_s: float = UNKNOWN
    processors: int = UNKNOWN
    cpu_s: float = UNKNOWN
    memory_kb: float = UNKNOWN
    requested_processors: int = UNKNOWN
    requested_s: float = UNKNOWN
    requested_memory_kb: float = UNKNOWN
    status: int = UNKNOWN  # 0 failed, 1 completed, 5 cancelled
    user: int = UNKNOWN
    group: int = UNKNOWN
    executable: int = UNKNOWN
    queue: int = UNKNOWN
    partition: int = UNKNOWN
    preceding_job: int = UNKNOWN
    think_s: float = UNKNOWN

    @property
    def size(self) -> int:
        """Processors that it ran on, or requested if unknown."""
        if self.processors > 0:
            return self.processors
        return self.requested_processors

    @property
    def ran(self) -> bool:
        """Return True if this line describes a whole job that ran."""
        return self.run_s > 0 and self.size > 0 and self.status not in PARTIAL

    @property
    def completed(self) -> bool:
        """Return True if it ran to its end, according to the trace."""
        return self.ran and self.status in (UNKNOWN, 1)


@dataclass(frozen=True)
class Trace:
    """A trace: its header and its jobs in file order."""

    jobs: tuple[SwfJob, ...]
    header: Mapping[str, str] = field(default_factory=dict)

    @property
    def machine_size(self) -> int | None:
        """Processors of the machine according to the header; None if it does not say."""
        for key in ("MaxProcs", "MaxNodes"):
            number = self.header.get(key, "").split()
            if number and number[0].isdecimal() and len(number[0]) <= 15 and int(number[0]) > 0:
                return int(number[0])
        return None


COLUMNS = tuple(column.name for column in fields(SwfJob))
INTEGERS = frozenset(column.name for column in fields(SwfJob) if column.type == "int")


def read_swf(path: str | Path) -> Trace:
    """Read a trace; a file whose name ends in ``.gz`` is decompressed.

    Raises:
        InputError: the file cannot be read, a line does not have 18 numbers, a number is not whole
            where it must be, a submit time is unknown, a job number appears twice, or there is no
            job.
    """
    header: dict[str, str] = {}
    jobs: dict[int, SwfJob] = {}
    for number, line in enumerate(read_bytes(path).decode("utf-8", "replace").splitlines(), 1):
        if line.startswith(";"):
            key, colon, value = line.lstrip("; ").partition(":")
            if colon:
                header.setdefault(key.strip(), value.strip())
        elif line.strip():
            job = _job(f"{path}:{number}", line.split())
            if job.job in jobs and job.status not in PARTIAL:
                raise InputError(
                    f"{path}:{number}: job {job.job} appears twice; job numbers must be unique"
                )
            jobs.setdefault(job.job, job)
    if not jobs:
        raise InputError(
            f"{path}: it has no jobs; it must have a line of {len(COLUMNS)} columns per job"
        )
    return Trace(tuple(jobs.values()), header)


def write_swf(path: str | Path, trace: Trace) -> None:
    """Write a trace atomically; a file whose name ends in ``.gz`` is compressed.

    Raises:
        InputError: the file cannot be written.
    """
    lines = [f"; {key}: {value}" for key, value in trace.header.items()]
    lines += [" ".join(map(_number, astuple(job))) for job in trace.jobs]
    data = ("\n".join(lines) + "\n").encode()
    path = Path(path)
    unfinished = path.with_name(path.name + ".part")
    try:
        with open(unfinished, "wb") as file:
            file.write(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None


def _job(location: str, cells: list[str]) -> SwfJob:
    if len(cells) != len(COLUMNS):
        raise InputError(
            f"{location}: {pluralize(len(cells), 'column')}, but a job has {len(COLUMNS)}"
        )
    values: list[float] = []
    for column, cell in zip(COLUMNS, cells, strict=True):
        try:
            value = float(cell)
        except ValueError:
            value = math.nan
        if not abs(value) <= MAX_VALUE or (column in INTEGERS and not value.is_integer()):
            requirement = "a whole number" if column in INTEGERS else "a number"
            raise InputError(
                f"{location}: {column} is {cell[:40]!r}; "
                f"it must be {requirement} up to {MAX_VALUE:g}"
            )
        values.append(int(value) if column in INTEGERS else value)
    job = SwfJob(*values)  # type: ignore[arg-type]  # each value has the type of its column by now
    if job.submit_s < 0:
        raise InputError(f"{location}: submit_s is {job.submit_s:g}; it must be at least 0")
    return job


def _number(value: float) -> str:
    if float(value).is_integer():
        return str(int(value))
    return repr(round(value, 6))
