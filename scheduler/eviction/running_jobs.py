"""Read running jobs from a file, with the costs of checkpointing and losing them.

A file is CSV with a header, or JSON: a list of objects, or ``{"jobs": [...]}``.
It has one of two forms. The direct one says what each job costs; an empty cell,
null, or in JSON a key left out, is a checkpoint that the job cannot take:

    id,nodes,loss,app_time,sys_time                                     minutes, node-seconds

The raw one says what that follows from ([COSIM] section III-B), given the
bandwidths of the file system:

    id,nodes,memory_gb,critical_gb,since_checkpoint_min,interval_min
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.errors import InputError, pluralize
from scheduler.base import MAX_VALUE, MIN_VALUE, check_range, is_number
from scheduler.eviction.plan import Action, Number, RunningJob, exact, plain, round_up
from scheduler.files import read_bytes, read_json

DIRECT = ("id", "nodes", "loss", "app_time", "sys_time")
RAW = ("id", "nodes", "memory_gb", "critical_gb", "since_checkpoint_min", "interval_min")
MAY_BE_EMPTY = ("app_time", "sys_time", "memory_gb", "critical_gb", "interval_min")
RESOLUTION = 0.1  # minutes to whose multiples computed times are rounded up


@dataclass(frozen=True)
class FileSystem:
    """The bandwidths that bound a checkpoint, GB/s: of the whole file system and of one node."""

    aggregate_gbps: float
    node_gbps: float

    def __post_init__(self) -> None:
        for name, value in (("aggregate", self.aggregate_gbps), ("node", self.node_gbps)):
            check_range(f"the {name} bandwidth", value, MIN_VALUE, MAX_VALUE, "GB/s")

    def seconds(self, node_gb: Sequence[float]) -> float:
        """Return how long a job takes to write a checkpoint ([COSIM] Eq. 1).

        Its nodes together may fill the file system, or its fullest node its own link.

        Args:
            node_gb: what each node writes, GB.

        Four nodes of 30 GB: 120 GB at 20 GB/s take 6 s, but 30 GB at 4 GB/s take 7.5 s.

        >>> FileSystem(aggregate_gbps=20, node_gbps=4).seconds([30, 30, 30, 30])
        7.5
        """
        return max(
            math.fsum(node_gb) / self.aggregate_gbps, max(node_gb, default=0) / self.node_gbps
        )


@dataclass(frozen=True)
class Checkpointing:
    """The data from which the costs of stopping a job follow.

    Args:
        id, nodes: of the job.
        since_checkpoint_min: since its last checkpoint, or since its start where there was none.
        interval_min: between its own checkpoints; None where it takes none.
        critical_gb: what its own checkpoint writes on a node, or on each node; None where it takes
            none.
        memory_gb: what it has in memory on a node, or on each node; None where the system cannot
            checkpoint it.
    """

    id: str
    nodes: int
    since_checkpoint_min: Number
    interval_min: Number | None = None
    critical_gb: Number | Sequence[Number] | None = None
    memory_gb: Number | Sequence[Number] | None = None

    def __post_init__(self) -> None:
        RunningJob(self.id, self.nodes, loss=0)  # which checks both
        _check(self.id, "since_checkpoint_min", self.since_checkpoint_min)
        if self.interval_min is not None:
            _check(self.id, "interval_min", self.interval_min, above_zero=True)
        for name, sizes in (("critical_gb", self.critical_gb), ("memory_gb", self.memory_gb)):
            if isinstance(sizes, Sequence):
                for size in sizes:
                    _check(self.id, name, size)
                if len(sizes) != self.nodes:
                    raise InputError(
                        f"job {self.id}: {name} has {pluralize(len(sizes), 'size')} for "
                        f"{pluralize(self.nodes, 'node')}"
                    )
            elif sizes is not None:
                _check(self.id, name, sizes)

    @property
    def loss(self) -> int:
        """The loss of killing it, in whole node-seconds."""
        return round(self.nodes * self.since_checkpoint_min * 60)

    @property
    def wait_min(self) -> Number | None:
        """Minutes until its next own checkpoint is due."""
        if self.interval_min is None:
            return None
        since = exact(self.since_checkpoint_min)
        interval = exact(self.interval_min)
        return plain(-since % interval if since else interval)

    def sizes(self, way: Action) -> Sequence[Number] | None:
        """Return the GB that a checkpoint writes on each node; None if it is not possible."""
        sizes = {"app": self.critical_gb, "sys": self.memory_gb}[way]
        if sizes is None or isinstance(sizes, Sequence):
            return sizes
        return [sizes] * self.nodes

    def running_job(self, storage: FileSystem, resolution: Number = RESOLUTION) -> RunningJob:
        """Return the job as input of the planner.

        Args:
            storage: the storage to which checkpoints are written.
            resolution: minutes to whose multiples times are rounded up.

        Killed 40 minutes after its checkpoint, four nodes lose 9,600 node-seconds.
        Its next one is due in 20 minutes and writes 40 GB in 4 s; the system could write 400 GB in
        40 s.

        >>> Checkpointing("17", 4, since_checkpoint_min=40, interval_min=60, critical_gb=10,
        ...               memory_gb=100).running_job(FileSystem(10, 10))
        RunningJob(id='17', nodes=4, loss=9600, app_time=20.1, sys_time=0.7)
        """
        app = self.sizes("app")
        system = self.sizes("sys")
        app_time = sys_time = None
        if app is not None and self.wait_min is not None:
            app_time = round_up(self.wait_min + storage.seconds(app) / 60, resolution)
        if system is not None:
            sys_time = round_up(storage.seconds(system) / 60, resolution)
        return RunningJob(self.id, self.nodes, self.loss, app_time, sys_time)


def _check(id_: str, name: str, value: Number, *, above_zero: bool = False) -> None:
    check_range(f"job {id_}: {name}", value, MIN_VALUE if above_zero else 0, MAX_VALUE)


# ---------------------------------------------------------------- files


def read_jobs(
    path: str | Path, storage: FileSystem | None = None, resolution: Number | None = None
) -> list[RunningJob]:
    """Read the running jobs of a file.

    Args:
        path: ends in ``.csv`` or ``.json``.
        storage: the file system, required by the raw form only.
        resolution: times are rounded up to multiples of this many minutes. By default, times of the
            direct form are not rounded, and times from the raw form are rounded to
            :data:`RESOLUTION`.

    Raises:
        InputError: the file cannot be read or has an error.
    """
    if resolution is not None:
        check_range("the resolution", resolution, MIN_VALUE, MAX_VALUE, "min")
    reader = {".csv": _csv_records, ".json": _json_records}.get(Path(path).suffix.lower())
    if reader is None:
        raise InputError(f"{path}: the name of a file of jobs must end in .csv or .json")
    jobs = []
    first: dict[str, str] = {}
    for location, record, number in reader(path):
        try:
            job = _job(_read(record, number), storage, resolution)
        except InputError as error:
            raise InputError(f"{location}: {error}") from None
        if job.id in first:
            raise InputError(f"{location}: job {job.id} appears twice, first at {first[job.id]}")
        first[job.id] = location
        jobs.append(job)
    return jobs


def _job(
    record: Mapping[str, Any], storage: FileSystem | None, resolution: Number | None
) -> RunningJob:
    if "loss" in record:
        job = RunningJob(**record)
        if resolution is None:
            return job
        return job.rounded_up(resolution)
    if storage is None:
        raise InputError(
            "a job in the raw form needs the bandwidths of the file system and of a node"
        )
    return Checkpointing(**record).running_job(
        storage, RESOLUTION if resolution is None else resolution
    )


# Place, values by name, what makes numbers.
Records = Iterator[tuple[str, dict[str, Any], Callable[[str, Any], Any]]]


def _csv_records(path: str | Path) -> Records:
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: cannot be read: it is not text") from None
    reader = csv.reader(text.splitlines(), strict=True, skipinitialspace=True)
    header: list[str] = []
    try:
        for cells in filter(None, reader):
            cells = [cell.strip() for cell in cells]
            if not header:
                _check_names(header := cells, required=_form(cells))
            elif len(cells) != len(header):
                raise InputError(
                    f"{pluralize(len(cells), 'cell')}, but the header has {len(header)}"
                )
            else:
                values = [cell or None for cell in cells]
                yield f"{path}:{reader.line_num}", dict(zip(header, values, strict=True)), _cell
    except (csv.Error, InputError) as error:
        raise InputError(f"{path}:{reader.line_num}: {error}") from None
    if not header:
        raise InputError(f"{path}:1: the file is empty; its first line must be {','.join(DIRECT)}")


def _json_records(path: str | Path) -> Records:
    document = read_json(path)
    if isinstance(document, dict) and document.keys() == {"jobs"}:
        jobs = document["jobs"]
    else:
        jobs = document
    if not isinstance(jobs, list):
        raise InputError(f'{path}: it must be a list of jobs, or {{"jobs": [...]}}')
    for number, record in enumerate(jobs):
        location = f"{path}: jobs[{number}]"
        if not isinstance(record, dict):
            raise InputError(
                f"{location}: {json.dumps(record)} is not a job, which is an object with the keys "
                f"{', '.join(DIRECT)}"
            )
        yield location, record, _value


def _form(names: Iterable[str]) -> tuple[str, ...]:
    """Return the form that has more of these names."""
    names = set(names)
    if len(names & set(RAW)) > len(names & set(DIRECT)):
        return RAW
    return DIRECT


def _check_names(names: Sequence[str], required: Iterable[str]) -> None:
    form = _form(names)
    for name in names:
        if name not in form:
            raise InputError(f"{name!r} is unknown; a job has {','.join(form)}")
        if names.count(name) > 1:
            raise InputError(f"{name!r} appears twice")
    for name in required:
        if name not in names:
            raise InputError(f"{name!r} is missing; a job has {','.join(form)}")


def _read(record: Mapping[str, Any], number: Callable[[str, Any], Any]) -> dict[str, Any]:
    """Return the values of a record as numbers, except the id."""
    _check_names(
        list(record), required=[name for name in _form(record) if name not in MAY_BE_EMPTY]
    )
    for name, value in record.items():
        if value is None and name not in MAY_BE_EMPTY:
            raise InputError(f"{name} is empty")
    values: dict[str, Any] = {}
    for name, value in record.items():
        if name == "id":
            values[name] = str(value)
        elif value is None:
            values[name] = None
        else:
            values[name] = number(name, value)
    return values


def _cell(name: str, text: str) -> Number:
    try:
        if re.fullmatch(r"[+-]?[0-9]+", text):
            return int(text)
        return float(text)
    except ValueError:
        raise InputError(f"{name} is {text[:40]!r}; it must be a number") from None


def _value(name: str, value: Any) -> Any:
    if name in ("critical_gb", "memory_gb") and isinstance(value, list):
        return [_value(name, size) for size in value]
    if not is_number(value):
        raise InputError(f"{name} is {json.dumps(value)[:40]}; it must be a number")
    return value
