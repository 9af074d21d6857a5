"""Read the files of an idle-node replay: idle nodes over time, trainers, node names.

Three formats (``.gz`` allowed for each), all checked as they are read: a mistake
is one :class:`~launch.errors.InputError` that names the file and the line, or the
place in the JSON.

- *events*, CSV with the heading ``t_s,node,delta``: at ``t_s`` seconds from the start, node number
  ``node`` became idle (``delta`` 1) or was taken away (-1). Sorted by time; rows of one moment
  are one event, in which departures come first.
- *trainers*, JSON: ``curves``: name -> {``nodes``, ``samples_per_s``, ``objective`` (optional)},
  and ``jobs``: [name of the curve, submit_s, t_up_s, t_down_s, n_min, n_max, total_samples].
- *node names*, text: line ``i``, counted from 0, is the name of node ``i``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from launch.errors import InputError
from scheduler.base import MAX_VALUE, NAME, check_range, is_name, is_number
from scheduler.files import (
    ProgressCallback,
    check_record,
    iter_line_blocks,
    parse_json,
    parse_numbers,
    read_bytes,
)
from scheduler.idle.allocate import FloatArray, IntArray, RateCurve, Trainer

HEADING = "t_s,node,delta"

NodeArray = NDArray[np.int32]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class Trace:
    """The idle nodes, as changes over time.

    Attributes:
        times_s: when something changes, rising (R,).
        starts: the rows of change ``i`` are ``starts[i]:starts[i + 1]`` (R + 1,).
        nodes: node number of each row.
        joined: whether the node joins the idle pool in that row, else it leaves.
        size: how many nodes there are; they are numbered from 0.
        end_s: when the trace ends; from the last change to here the pool stays as it is.
    """

    times_s: FloatArray
    starts: IntArray
    nodes: NodeArray | IntArray
    joined: BoolArray
    size: int
    end_s: float

    @staticmethod
    def of(
        times_s: FloatArray, nodes: NodeArray | IntArray, joined: BoolArray, size: int, end_s: float
    ) -> Trace:
        """Make a trace from its rows, sorted by time."""
        first = np.flatnonzero(np.diff(times_s, prepend=-math.inf))
        return Trace(
            times_s[first], np.append(first, len(times_s)), nodes, joined, size, float(end_s)
        )

    @staticmethod
    def constant(nodes: int, seconds: float) -> Trace:
        """Return a constant pool: dedicated nodes."""
        return Trace.of(
            np.zeros(nodes), np.arange(nodes), np.ones(nodes, dtype=bool), nodes, seconds
        )

    def select(self, first: int = 0, last: int | None = None, end_s: float | None = None) -> Trace:
        """Return the trace of nodes first..last - 1 alone, renumbered from 0, up to a time.

        Args:
            first: number of the first node.
            last: number after the last one; all there are by default.
            end_s: when it ends; as the trace itself by default. Beyond the trace's own end the
                pool stays as it was.

        Raises:
            InputError: the selection has no nodes or no duration.
        """
        last = self.size if last is None else min(last, self.size)
        end_s = self.end_s if end_s is None else end_s
        if not 0 <= first < last:
            raise InputError(f"nodes {first}:{last} select none of the nodes 0:{self.size}")
        if not end_s > 0:
            raise InputError(
                f"a replay of {end_s:g} s shows nothing; it must last longer than that"
            )
        check_range("the end of a replay", end_s, 0, MAX_VALUE, "s")
        if (first, last, end_s) == (0, self.size, self.end_s):
            return self
        times = np.repeat(self.times_s, np.diff(self.starts))
        selected = (self.nodes >= first) & (self.nodes < last) & (times <= end_s)
        return Trace.of(
            times[selected],
            self.nodes[selected] - first,
            self.joined[selected],
            last - first,
            end_s,
        )

    def arranged(self, order: IntArray) -> Trace:
        """Return the trace with renumbered nodes: node ``order[i]`` becomes node ``i``."""
        rank = np.empty(self.size, dtype=np.int64)
        rank[order] = np.arange(self.size)
        return replace(self, nodes=rank[self.nodes])

    @cached_property
    def idle(self) -> IntArray:
        """Number of idle nodes after each change (R,)."""
        return np.cumsum(np.where(self.joined, 1, -1))[self.starts[1:] - 1]

    def node_seconds(self, until_s: float | None = None) -> float:
        """Integrate idle nodes over time from 0 (Eq. 17 of BFTrainer, there in hours).

        >>> trace = Trace.of(times_s=np.array([0.0, 0.0, 60.0]), nodes=np.array([0, 1, 0]),
        ...                  joined=np.array([True, True, False]), size=2, end_s=90)
        >>> trace.node_seconds(), trace.node_seconds(until_s=30)
        (150.0, 60.0)
        """
        until_s = self.end_s if until_s is None else until_s
        lasting = np.diff(np.minimum(np.append(self.times_s, until_s), until_s))
        return float(self.idle @ lasting)


@dataclass(frozen=True)
class TrainerJob:
    """A trainer that a user submits.

    Attributes:
        curve: name of its curve, such as the network it trains.
        submit_s: when, in seconds from the start.
        total_samples: how much there is to do.
        samples: samples per second against nodes.
        trainer: its properties for decisions.
    """

    curve: str
    submit_s: float
    total_samples: float
    samples: RateCurve
    trainer: Trainer

    @cached_property
    def sample_rates(self) -> FloatArray:
        """Samples per second on 0..n_max nodes; 0 on fewer than n_min, where it does not run."""
        return self.samples.table(self.trainer.n_max, self.trainer.n_min)


# The gain of a trainer: its samples, its speed-up over one node, or the values of its file.
OBJECTIVES: dict[str, Callable[[TrainerJob], RateCurve]] = {
    "samples": lambda job: job.samples,
    "efficiency": lambda job: job.samples.normalized(),
    "file": lambda job: job.trainer.objective,
}


def with_objective(
    jobs: Sequence[TrainerJob],
    objective: str,
    weights: Mapping[str, float] | None = None,
    rescale_factor: float = 1.0,
) -> tuple[TrainerJob, ...]:
    """Return the jobs with another objective, weights by curve, or costlier rescaling.

    Args:
        jobs: the jobs.
        objective: a key of ``OBJECTIVES``.
        weights: name of a curve -> by how much its objective counts (1 unless said).
        rescale_factor: multiplies the seconds that going up and down takes.

    Raises:
        InputError: the objective or a curve is unknown, or a number is negative.
    """
    weights = weights or {}
    if objective not in OBJECTIVES:
        raise InputError(f"unknown objective {objective!r}; there are: {', '.join(OBJECTIVES)}")
    curves = {job.curve for job in jobs}
    for name, weight in weights.items():
        if name not in curves:
            raise InputError(
                f"a weight for the unknown network {name!r}; there are: "
                + ", ".join(sorted(curves))
            )
        check_range(f"the weight of {name}", weight, 0, MAX_VALUE)
    check_range("the rescale factor", rescale_factor, 0, MAX_VALUE)

    def changed(job: TrainerJob) -> TrainerJob:
        curve = OBJECTIVES[objective](job).scaled(weights.get(job.curve, 1.0))
        return replace(
            job,
            trainer=replace(
                job.trainer,
                objective=curve,
                up_s=job.trainer.up_s * rescale_factor,
                down_s=job.trainer.down_s * rescale_factor,
            ),
        )

    return tuple(map(changed, jobs))


# --- Events -------------------------------------------------------------------------------------


def read_events(
    path: str | Path, on_progress: ProgressCallback = lambda done, total: None
) -> Trace:
    """Read an events file.

    It is read and checked in blocks, so that beside the trace itself (13 bytes a row, and 16 for
    each moment) it needs some hundred MB for any length.

    Args:
        path: CSV, gzip where the name ends in ``.gz``.
        on_progress: called after each block with the bytes read so far and the total.

    Returns:
        The trace, which ends with its last event.

    Raises:
        InputError: the file cannot be read, a row is not three numbers, time is negative or goes
            back, a node joins that is idle or leaves that is not.
    """
    rows = _Rows(path)
    for line, block in iter_line_blocks(path, on_progress):
        rows.add(line, block)
    return rows.trace()


class _Block(NamedTuple):
    """Rows and their lines in the file."""

    times: FloatArray
    nodes: NodeArray
    joined: BoolArray
    lines: IntArray

    def take(self, rows: Any) -> _Block:
        return _Block(*(column[rows] for column in self))

    def concatenate(self, more: _Block) -> _Block:
        return _Block(
            np.append(self.times, more.times),
            np.append(self.nodes, more.nodes),
            np.append(self.joined, more.joined),
            np.append(self.lines, more.lines),
        )


_NO_ROWS = _Block(np.empty(0), np.empty(0, np.int32), np.empty(0, np.bool_), np.empty(0, np.int64))


class _Rows:
    """The rows of an events file so far: checked, sorted within each moment, and packed."""

    def __init__(self, path: str | Path) -> None:
        self.path = path
        self.blank = 1  # the first of the blank lines that are the last so far
        self.is_idle = np.zeros(0, np.bool_)  # whether each node is idle now
        self.done: list[tuple[FloatArray, NodeArray, BoolArray]] = []
        self.open = _NO_ROWS  # those of the last moment, of which the next block may have more

    def add(self, line: int, text: bytes) -> None:
        """Read a block of lines; blank lines may only end the file."""
        if line == 1 and text.strip():
            heading, _, text = text.partition(b"\n")
            if heading.strip().decode("utf-8", "replace") != HEADING:
                raise InputError(f"{self.path}:1: the heading must be {HEADING!r}")
            line = self.blank = 2
        content = text.rstrip()
        if not content:
            return
        if self.blank < line:
            line, content = self.blank, b"\n" * (line - self.blank) + content
        self.blank = line + content.count(b"\n") + 1
        rows = _parse(self.path, line, content + b"\n")
        _check_rows(self.path, line, rows, self.open.times[-1] if len(self.open.times) else 0.0)
        block = self.open.concatenate(
            _Block(
                rows[:, 0],
                rows[:, 1].astype(np.int32),
                rows[:, 2] > 0,
                np.arange(line, line + len(rows)),
            )
        )
        end = int(block.times.searchsorted(block.times[-1]))
        self._close(block.take(slice(end)))
        self.open = block.take(np.arange(end, len(block.times)))

    def trace(self) -> Trace:
        """Return the trace of all rows."""
        self._close(self.open)
        if self.blank == 1:
            raise InputError(f"{self.path}: the file is empty")
        if not self.done:
            raise InputError(f"{self.path}:2: there are no events")
        times, nodes, joined = map(np.concatenate, zip(*self.done, strict=True))
        self.done.clear()
        return Trace.of(times, nodes, joined, int(nodes.max()) + 1, times[-1])

    def _close(self, block: _Block) -> None:
        """Add the rows of complete moments."""
        if len(block.times):
            block = block.take(np.lexsort((block.nodes, block.joined, block.times)))
            self._check_alternation(block.nodes, block.joined, block.lines)
            self.done.append(block[:3])

    def _check_alternation(self, nodes: NodeArray, joined: BoolArray, lines: IntArray) -> None:
        """Check that each node joins and leaves in turn; at one moment it leaves first."""
        if nodes.max() >= len(self.is_idle):
            self.is_idle = np.concatenate((self.is_idle, np.zeros(nodes.max() + 1, dtype=bool)))
        order = np.argsort(nodes, kind="stable")
        node = nodes[order]
        joins = joined[order]
        before = np.roll(joins, 1)
        first = np.flatnonzero(np.diff(node, prepend=-1))
        before[first] = self.is_idle[node[first]]
        wrong = joins == before
        if wrong.any():
            row = order[wrong][lines[order][wrong].argmin()]
            if joined[row]:
                problem = "joins, but is idle already"
            else:
                problem = "leaves, but is not idle"
            raise InputError(f"{self.path}:{lines[row]}: node {nodes[row]} {problem}")
        last = np.append(first[1:], len(node)) - 1
        self.is_idle[node[last]] = joins[last]


def _parse(path: str | Path, line: int, block: bytes) -> FloatArray:
    """Parse a CSV of three numbers per row, shape (rows, 3)."""
    rows = parse_numbers(block, 3)
    if rows is not None and len(rows) == block.count(b"\n"):
        return rows
    for number, words in enumerate(block.decode("utf-8", "replace").split("\n")[:-1], line):
        try:
            _, _, _ = map(float, words.split(","))
        except ValueError:
            raise InputError(
                f"{path}:{number}: {words[:60]!r} must be three numbers, {HEADING}"
            ) from None
    raise InputError(f"{path}: lines must end in a newline, and have three numbers each")


def _check_rows(path: str | Path, line: int, rows: FloatArray, since: float) -> None:
    times, nodes, deltas = rows.T
    back = np.diff(times, prepend=since) < 0
    for wrong, problem in (
        (
            ~(np.abs(rows) <= MAX_VALUE).all(axis=1),
            f"t_s, node and delta must be numbers up to {MAX_VALUE:g}",
        ),
        (times < 0, "t_s is negative"),
        (back, "t_s goes back; events must be sorted by time"),
        (
            (nodes < 0) | (nodes != np.floor(nodes)) | (nodes >= _MAX_NODES),
            "node must be 0, 1, 2, ...",
        ),
        (np.abs(deltas) != 1, "delta must be 1 (joins) or -1 (leaves)"),
    ):
        if wrong.any():
            raise InputError(f"{path}:{int(wrong.argmax()) + line}: {problem}")


# A node number beyond this is a mistake, and would only cost memory.
_MAX_NODES = 10_000_000


# --- Trainers and names -------------------------------------------------------------------------


def read_trainers(path: str | Path) -> tuple[TrainerJob, ...]:
    """Read a trainers file.

    Args:
        path: JSON, gzip where the name ends in ``.gz``.

    Returns:
        The jobs by time of submission; their objective is the one of the file.

    Raises:
        InputError: the file cannot be read, a key is unknown or missing, or a value is wrong.
    """
    document = check_record(
        parse_json(_read(path), path),
        str(path),
        ("curves", "jobs"),
        ("name", "time_zero", "source", "job_columns"),
    )
    if document.get("job_columns", list(JOB_COLUMNS)) != list(JOB_COLUMNS):
        raise InputError(f"{path}: job_columns must be {list(JOB_COLUMNS)}")
    if not isinstance(document["curves"], dict) or not isinstance(document["jobs"], list):
        raise InputError(f"{path}: curves must be an object and jobs a list")
    wrong = [name for name in document["curves"] if not is_name(name)]
    if wrong:
        raise InputError(f"{path}: curves: {ascii(wrong[0])[:60]} must be {NAME}")
    curves = {name: _curves(path, name, value) for name, value in document["curves"].items()}
    jobs = [
        _job(path, f"jobs[{index}]", value, curves) for index, value in enumerate(document["jobs"])
    ]
    if not jobs:
        raise InputError(f"{path}: there are no jobs")
    return tuple(sorted(jobs, key=lambda job: job.submit_s))


JOB_COLUMNS = ("dnn", "submit_s", "t_up_s", "t_down_s", "n_min", "n_max", "total_samples")


def _curves(path: str | Path, name: str, value: Any) -> tuple[RateCurve, RateCurve]:
    location = f"curves.{name}"
    value = check_record(value, f"{path}: {location}", ("nodes", "samples_per_s"), ("objective",))
    for key, items in value.items():
        if not isinstance(items, list) or not all(
            is_number(item) and abs(item) <= MAX_VALUE for item in items
        ):
            raise InputError(
                f"{path}: {location}.{key} must be a list of numbers up to {MAX_VALUE:g}"
            )
    if not all(float(count).is_integer() for count in value["nodes"]):
        raise InputError(f"{path}: {location}.nodes must be whole numbers")
    nodes = tuple(map(int, value["nodes"]))
    both = []
    for key in ("samples_per_s", "objective"):
        try:
            both.append(RateCurve(nodes, tuple(map(float, value.get(key, value["samples_per_s"])))))
        except InputError as error:
            raise InputError(f"{path}: {location}.{key}: {error}") from None
    return both[0], both[1]


def _job(
    path: str | Path, location: str, value: Any, curves: Mapping[str, tuple[RateCurve, RateCurve]]
) -> TrainerJob:
    if not isinstance(value, list) or len(value) != len(JOB_COLUMNS):
        raise InputError(f"{path}: {location} must be a list: {', '.join(JOB_COLUMNS)}")
    name, *numbers = value
    if name not in list(curves):  # a list, for the name may be anything
        raise InputError(f"{path}: {location}: no curve {name!r}; there are: {', '.join(curves)}")
    for column, number in zip(JOB_COLUMNS[1:], numbers, strict=True):
        if not (is_number(number) and 0 <= number <= MAX_VALUE):
            raise InputError(
                f"{path}: {location}: {column} is {repr(number)[:40]}; "
                f"it must be a number from 0 to {MAX_VALUE:g}"
            )
    submit_s, up_s, down_s, n_min, n_max, total = map(float, numbers)
    if not (n_min.is_integer() and n_max.is_integer()):
        raise InputError(f"{path}: {location}: n_min and n_max must be whole numbers")
    samples, objective = curves[name]
    try:
        trainer = Trainer(objective, int(n_min), int(n_max), up_s, down_s)
    except InputError as error:
        raise InputError(f"{path}: {location}: {error}") from None
    return TrainerJob(name, submit_s, total, samples, trainer)


def read_node_names(path: str | Path) -> tuple[str, ...]:
    """Read the names of nodes: line ``i``, counted from 0, is the name of node ``i``.

    Raises:
        InputError: the file cannot be read, a line is empty or a name comes twice.
    """
    names = tuple(line.strip() for line in _read(path).decode("utf-8", "replace").splitlines())
    lines: dict[str, int] = {}
    for line, name in enumerate(names, 1):
        if not name:
            raise InputError(f"{path}:{line}: a node must have a name")
        if not is_name(name):
            raise InputError(f"{path}:{line}: node name {ascii(name)[:60]} must be {NAME}")
        if name in lines:
            raise InputError(f"{path}:{line}: node name {name!r} is that of line {lines[name]}")
        lines[name] = line
    return names


def _read(path: str | Path) -> bytes:
    """Return the decompressed content of a file; it must not be empty."""
    data = read_bytes(path)
    if not data.strip():
        raise InputError(f"{path}: the file is empty")
    return data
