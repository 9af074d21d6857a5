"""Choose which jobs to checkpoint or kill so that nodes are free in time, for every deadline.

A job that must make room is *killed*, which takes no time and loses its progress since its last
checkpoint; or checkpoints itself (*app*), which loses nothing but waits for its next safe moment;
or is checkpointed by the system (*sys*), which loses nothing, starts immediately and writes more.
Checkpoints are written one after the other, so a plan takes the sum of their times. The plan for a
deadline frees at least the requested nodes within that time and loses the least. Ties are broken by
the least time, then by the fewest needless kills, by *app* before *sys*, and by the fewest stopped
jobs: Maurya et al., CoSim, DS-RT 2020 ([COSIM]), sections II and III.

The algorithm is an exact dynamic program over jobs, nodes and time. It applies to batch jobs on the
nodes of a machine and to training groups on the GPUs of an allocation (:func:`groups_to_stop`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from launch.errors import InputError, pluralize
from scheduler.base import MAX_NODES, NAME, check_range, is_name

Action = Literal["kill", "app", "sys"]
CHECKPOINTS: tuple[Action, ...] = ("app", "sys")  # in the order in which ties are broken
Number = int | float

MAX_BYTES = 4_000_000_000  # of the table and its choices; a larger one is refused
MAX_AMOUNT = 1e30  # node-seconds; minutes
MAX_DEADLINES = 1_000_000
# Cells per NumPy operation: they stay in the CPU cache and in malloc's memory.
CACHED_CELLS = 2**14 - 1


@dataclass(frozen=True)
class RunningJob:
    """A job that could make room.

    Args:
        id: names it in a plan.
        nodes: the number of nodes that it runs on and would free.
        loss: the loss if it is killed, in node-seconds: its nodes times the time since its last
            checkpoint.
        app_time: until it has checkpointed itself, the wait for its next safe moment included;
            None where it cannot.
        sys_time: until the system has checkpointed it; None where it cannot.

    Times are in the unit of the deadline: minutes in files.
    """

    id: str
    nodes: int
    loss: Number
    app_time: Number | None = None
    sys_time: Number | None = None

    def __post_init__(self) -> None:
        if not self.id:
            raise InputError("a job has no id")
        if not is_name(self.id):
            raise InputError(f"the id {ascii(self.id)[:60]} of a job must be {NAME}")
        if not _is_whole(self.nodes) or self.nodes < 1:
            raise InputError(
                f"job {self.id}: nodes is {self.nodes}; it must be a whole number above 0"
            )
        check_range(f"job {self.id}: nodes", self.nodes, 1, MAX_NODES)
        _check_amount(f"job {self.id}: loss", self.loss)
        for name, time in (("app_time", self.app_time), ("sys_time", self.sys_time)):
            if time is not None:
                _check_amount(f"job {self.id}: {name}", time)

    def time(self, action: Action) -> Number | None:
        """Return the time of an action; None if it is not possible."""
        return {"kill": 0, "app": self.app_time, "sys": self.sys_time}[action]

    def rounded_up(self, grain: Number) -> RunningJob:
        """Return the job with its times rounded up to multiples of ``grain``."""
        app_time, sys_time = (
            None if time is None else round_up(time, grain)
            for time in (self.app_time, self.sys_time)
        )
        return replace(self, app_time=app_time, sys_time=sys_time)

    def checkpoint_within(self, deadline: Number) -> tuple[Number, Action] | None:
        """Return its faster checkpoint, *app* on ties; None if that takes too long.

        The slower one is never better: it loses as little and takes longer.
        """
        ways = [(time, way) for way in CHECKPOINTS if (time := self.time(way)) is not None]
        fastest = min(ways, default=None, key=lambda way: way[0])
        if fastest and fastest[0] <= deadline:
            return fastest
        return None


@dataclass(frozen=True)
class Plan:
    """The actions for one deadline.

    Args:
        deadline: by which the nodes are free.
        loss: the loss of killed jobs, in node-seconds.
        checkpoint_time: the checkpoint time of the jobs that are checkpointed, one after the other.
        nodes: the number of nodes that become free.
        actions: the actions of each job that must stop, in the order of the jobs; the others run
            on.
    """

    deadline: Number
    loss: Number
    checkpoint_time: Number
    nodes: int
    actions: Mapping[str, Action]

    @classmethod
    def of(
        cls, jobs: Iterable[RunningJob], deadline: Number, actions: Mapping[str, Action]
    ) -> Plan:
        """Make a plan from actions and compute its sums.

        >>> jobs = [RunningJob("a", 4, 900), RunningJob("b", 2, 300, app_time=3)]
        >>> Plan.of(jobs, 5, {"b": "app", "a": "kill"})
        Plan(deadline=5, loss=900, checkpoint_time=3, nodes=6, actions={'a': 'kill', 'b': 'app'})
        """
        stopped = [(job, actions[job.id]) for job in jobs if job.id in actions]
        losses = [job.loss for job, action in stopped if action == "kill"]
        times = [job.time(action) for job, action in stopped if action != "kill"]
        return cls(
            deadline,
            exact_sum(losses),
            exact_sum(times),
            sum(job.nodes for job, _ in stopped),
            {job.id: action for job, action in stopped},
        )


def plan_evictions(
    jobs: Sequence[RunningJob], nodes: int, deadline: Number, step: Number = 1
) -> list[Plan]:
    """Compute the best plan for each deadline 0, step, 2 step, ... up to ``deadline``.

    See [COSIM] section III-C.

    Args:
        jobs: the jobs that run now, each id once.
        nodes: the number of nodes to free, at most those of all jobs.
        deadline: the last one, in the unit of the jobs' times.
        step: between deadlines.

    Raises:
        InputError: the nodes cannot be freed even by killing all jobs; an id comes twice; a number
            is out of range; the times are so finely graded that the table would not fit.

    Two of these jobs must make room. At once it is cheapest to kill b and c;
    within two minutes c can checkpoint itself; within five, b can be checkpointed as well.

    >>> jobs = [RunningJob("a", 4, 900, app_time=9), RunningJob("b", 4, 200, sys_time=3),
    ...         RunningJob("c", 4, 500, app_time=2)]
    >>> for plan in plan_evictions(jobs, nodes=8, deadline=5):
    ...     print(plan.deadline, plan.loss, plan.checkpoint_time, plan.actions)
    0 700 0 {'b': 'kill', 'c': 'kill'}
    1 700 0 {'b': 'kill', 'c': 'kill'}
    2 200 2 {'b': 'kill', 'c': 'app'}
    3 200 2 {'b': 'kill', 'c': 'app'}
    4 200 2 {'b': 'kill', 'c': 'app'}
    5 0 5 {'b': 'sys', 'c': 'app'}
    """
    problem = _Problem.of(jobs, deadline, step)
    row = problem.row(nodes)
    return _Table(problem, row).plans(row)


def groups_to_stop(
    groups: Sequence[RunningJob], gpus: int, deadline: Number, grain: Number = 0.1
) -> Mapping[str, Action]:
    """Choose which groups must stop, and how, so that ``gpus`` GPUs are free by a deadline.

    This only decides. A group is a :class:`RunningJob` whose ``nodes`` are its GPUs, whose ``loss``
    is GPU-seconds since its last checkpoint, and whose ``app_time`` is the time to finish its step
    and write its state. ``kill`` gives up the training since the last checkpoint; a group that is
    not named continues.

    Args:
        groups: the groups that train now.
        gpus: the number of GPUs to free.
        deadline: in the unit of the groups' times, here seconds.
        grain: measured times are rounded up to its multiples, and the deadline down.

    Raises:
        InputError: as for :func:`plan_evictions`.

    Half a minute is enough for the largest to write its state, a quarter is not:

    >>> groups = [RunningJob("resnet", 2, 240, app_time=20), RunningJob("cnn", 1, 30, app_time=15),
    ...           RunningJob("vit", 1, 90, app_time=25)]
    >>> groups_to_stop(groups, gpus=2, deadline=30)
    {'resnet': 'app'}
    >>> groups_to_stop(groups, gpus=2, deadline=15)
    {'cnn': 'app', 'vit': 'kill'}
    """
    rounded = [group.rounded_up(grain) for group in groups]
    # A deadline beyond the sum of all times changes nothing, but costs a column for every moment.
    enough = sum(exact(max(group.app_time or 0, group.sys_time or 0)) for group in rounded)
    rounded_deadline = plain(min(exact(deadline) // exact(grain) * exact(grain), enough))
    return plan_evictions(rounded, gpus, rounded_deadline, step=rounded_deadline or 1)[-1].actions


class Spectrum:
    """The best plans for every deadline and every count of nodes, from one pass.

    Args:
        jobs: the jobs that run now, each id once.
        deadline: the last one, in the unit of the jobs' times.
        step: between deadlines.

    Raises:
        InputError: as for :func:`plan_evictions`.

    >>> spectrum = Spectrum([RunningJob("a", 2, 10, app_time=1), RunningJob("b", 3, 7)], deadline=1)
    >>> spectrum.losses().tolist()  # of 0, 1, ... 5 nodes, immediately and after a minute
    [[0.0, 0.0], [7.0, 0.0], [7.0, 0.0], [7.0, 7.0], [17.0, 7.0], [17.0, 7.0]]
    >>> spectrum.plans(4)[1].actions
    {'a': 'app', 'b': 'kill'}
    """

    def __init__(self, jobs: Sequence[RunningJob], deadline: Number, step: Number = 1) -> None:
        self._problem = _Problem.of(jobs, deadline, step)
        self._table = _Table(self._problem, self._problem.rows, every_count=True)
        self.deadlines = self._problem.deadlines

    def losses(self) -> NDArray[np.float64]:
        """Return the least loss, node-seconds, of shape (nodes of all jobs + 1, deadlines)."""
        problem = self._problem
        if 8 * (problem.nodes + 1) * len(self.deadlines) > MAX_BYTES:
            raise InputError(
                f"a spectrum of {problem.nodes} nodes and {len(self.deadlines)} deadlines "
                f"would need more than {MAX_BYTES / 1e9:g} GB; choose a coarser step"
            )
        units = np.array([self._table.min_losses(row)[0] for row in range(problem.rows + 1)])
        row_of = -(-np.arange(problem.nodes + 1) // problem.block)
        if units.dtype == object:  # too many of them for a machine's integer, and maybe for a float
            return np.asarray((units * problem.loss_unit).astype(float)[row_of])
        return units.astype(float)[row_of] * float(problem.loss_unit)

    def plans(self, nodes: int) -> list[Plan]:
        """Return the best plan for each deadline to free ``nodes`` nodes.

        Raises:
            InputError: the jobs have fewer.
        """
        return self._table.plans(self._problem.row(nodes))


# ---------------------------------------------------------------- what the planners check and count
# with


def check_jobs(jobs: Sequence[RunningJob], nodes: int) -> None:
    """Check that ids differ and that the jobs have ``nodes`` nodes.

    Raises:
        InputError: they do not.
    """
    seen = set()
    for job in jobs:
        if job.id in seen:
            raise InputError(f"job {job.id} appears twice; ids must be unique")
        seen.add(job.id)
    if not _is_whole(nodes) or nodes < 0:
        raise InputError(
            f"the number of nodes to free is {nodes}; it must be a whole number of at least 0"
        )
    have = sum(job.nodes for job in jobs)
    if nodes > have:
        raise InputError(
            f"{pluralize(nodes, 'node')} cannot be freed: "
            f"{pluralize(len(jobs), 'job')} in all, on {have}"
        )


def deadlines_up_to(deadline: Number, step: Number) -> list[Number]:
    """Return 0, step, 2 step, ... up to ``deadline``.

    Raises:
        InputError: one of them is out of range, or there would be too many.

    >>> deadlines_up_to(1, 0.3)
    [0, 0.3, 0.6, 0.9]
    """
    _check_amount("the deadline", deadline)
    _check_amount("the step between deadlines", step)
    if step == 0 or deadline / step > MAX_DEADLINES:
        raise InputError(
            f"the step between deadlines is {step}, too small for a deadline of {deadline}"
        )
    return [
        plain(number * exact(step))
        for number in range(math.floor(exact(deadline) / exact(step)) + 1)
    ]


def exact(value: Number | None) -> int | Fraction:
    """Return a number as it is written in decimal, without the rounding of binary fractions.

    >>> exact(0.1) * 3 == exact(0.3), 0.1 * 3 == 0.3
    (True, False)
    """
    if isinstance(value, int):
        return value
    return Fraction(str(value))


def plain(value: int | Fraction) -> Number:
    """Return an exact number as int or float."""
    if value.denominator == 1:
        return int(value)
    return float(value)


def exact_sum(values: Iterable[Number | None]) -> Number:
    """Return the sum in decimal.

    >>> exact_sum([0.1, 0.2]), sum([0.1, 0.2])
    (0.3, 0.30000000000000004)
    """
    return plain(sum(map(exact, values)))


def round_up(value: Number, grain: Number) -> Number:
    """Return the smallest multiple of ``grain`` that is at least ``value``.

    >>> round_up(1.23, 0.1), round_up(1.2, 0.1), round_up(3, 1)
    (1.3, 1.2, 3)
    """
    # Rounding to 9 digits removes the noise of floats.
    return plain(math.ceil(exact(round(value, 9)) / exact(grain)) * exact(grain))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _check_amount(name: str, value: Number) -> None:
    check_range(name, value, 0, MAX_AMOUNT)


def _common_unit(values: Iterable[Number]) -> int | Fraction:
    """Return the largest number of which all values are whole multiples; 1 if all are 0."""
    numbers = [exact(value) for value in values]
    below = math.lcm(*(number.denominator for number in numbers))
    above = math.gcd(*(int(number * below) for number in numbers))
    if above:
        return Fraction(above, below)
    return 1


# ---------------------------------------------------------------- the problem in whole numbers


class _Item(NamedTuple):
    """A job in the units of the table."""

    id: str
    rows: int  # its nodes
    kill: int  # the cost of killing it
    pause: int  # the cost of its faster checkpoint
    wait: int  # its duration in columns; more than the table has if it is impossible
    way: Action  # which one that is


@dataclass(frozen=True)
class _Problem:
    """Jobs and deadlines in whole numbers, so that sums are exact and ties are ties.

    Nodes, times and losses are each counted in their greatest common divisor. A
    cost is one number: the loss, and in what is below one unit of loss the
    things that break ties: kills without loss, then system checkpoints, then
    jobs stopped. Time is no part of it, for time is a dimension of the table.
    """

    jobs: Sequence[RunningJob]
    deadlines: Sequence[Number]
    columns: Sequence[int]  # of the deadlines
    items: Sequence[_Item]  # most nodes first: so the windows of the table are narrowest
    block: int  # nodes in a row
    time_unit: int | Fraction  # of a column
    loss_unit: int | Fraction
    ties: int  # one unit of loss is so many of what breaks ties

    @classmethod
    def of(cls, jobs: Sequence[RunningJob], deadline: Number, step: Number) -> _Problem:
        check_jobs(jobs, 0)
        deadlines = deadlines_up_to(deadline, step)
        ways = [job.checkpoint_within(deadlines[-1]) for job in jobs]
        time_unit = _common_unit([step, *(way[0] for way in ways if way)])
        loss_unit = _common_unit(job.loss for job in jobs)
        block = math.gcd(*(job.nodes for job in jobs)) or 1
        columns = [int(exact(moment) / time_unit) for moment in deadlines]
        base = len(jobs) + 1  # more than the jobs of any kind
        items = [
            _Item(
                job.id,
                job.nodes // block,
                kill=int(exact(job.loss) / loss_unit) * base**3 + (job.loss == 0) * base**2 + 1,
                pause=(way is not None and way[1] == "sys") * base + 1,
                wait=int(exact(way[0]) / time_unit) if way else columns[-1] + 1,
                way=way[1] if way else "app",
            )
            for job, way in zip(jobs, ways, strict=True)
        ]
        items.sort(key=lambda item: -item.rows)
        return cls(jobs, deadlines, columns, items, block, time_unit, loss_unit, base**3)

    @property
    def rows(self) -> int:
        """The rows that all jobs together free."""
        return sum(item.rows for item in self.items)

    @property
    def nodes(self) -> int:
        """The nodes of all jobs."""
        return self.rows * self.block

    def row(self, nodes: int) -> int:
        """Return the row of the table in which ``nodes`` are free."""
        check_jobs(self.jobs, nodes)
        return -(-nodes // self.block)


# ---------------------------------------------------------------- the table


class _Stage(NamedTuple):
    """The choices of the table for one job: two bits per cell of the rows that matter to it."""

    item: _Item
    low: int  # the first of those rows
    paused: bytes  # is the job best checkpointed?
    killed: bytes  # if not, is it best killed?


class _Table:
    """The dynamic program of [COSIM] Algorithm 1.

    With the first j jobs considered, cell (n, t) holds the least cost of freeing
    at least n rows in exactly t columns of checkpointing. Job j runs on, which
    leaves its cell as it was; or is killed, from (n - rows, t); or is
    checkpointed, from (n - rows, t - wait). What lies below row 0 is as good as
    row 0, hence "at least".

    A cell does not matter if the jobs considered cannot have freed its rows, or if the later jobs
    cannot free the rest: each job has a window of rows.

    Args:
        problem: in whole numbers.
        last_row: the row that will be asked for.
        every_count: will those below it be asked for too?
    """

    def __init__(self, problem: _Problem, last_row: int, every_count: bool = False) -> None:
        self.problem = problem
        windows = _windows(problem.items, last_row, every_count)
        edge = max((min(item.rows, last_row) for item in problem.items), default=0)
        shape = (edge + last_row + 1, problem.columns[-1] + 1)
        cells = shape[1] * sum(high - low for low, high in windows)
        if 8 * shape[0] * shape[1] + cells // 4 > MAX_BYTES:
            raise InputError(
                f"{len(problem.jobs)} jobs, {last_row} counts of nodes and moments of "
                f"{float(problem.time_unit):g} each would fill more than {MAX_BYTES / 1e9:g} GB; "
                "coarser times and a coarser step make it less"
            )
        never = problem.ties + sum(item.kill + item.pause for item in problem.items)
        narrow = never < 2**61  # else Python's own integers, which are slow and have no bounds
        cost = np.full(shape, never, np.int64 if narrow else object)
        cost[: edge + 1, 0] = 0
        self.stages = []
        for item, (low, high) in zip(problem.items, windows, strict=True):
            paused, killed = _sweep(
                cost,
                edge + low,
                edge + high,
                min(item.rows, last_row),
                item.kill,
                item.pause,
                item.wait,
                never,
            )
            self.stages.append(
                _Stage(item, low, np.packbits(paused).tobytes(), np.packbits(killed).tobytes())
            )
        self.cost = cost[edge:]

    def min_losses(self, row: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the least loss of each deadline, in units, and the first column that has it."""
        loss = self.cost[row] // self.problem.ties
        best = np.minimum.accumulate(loss)
        better = np.concatenate(([True], best[1:] < best[:-1]))
        first = np.maximum.accumulate(np.where(better, np.arange(len(loss)), 0))
        columns = list(self.problem.columns)
        return best[columns], first[columns]

    def plans(self, row: int) -> list[Plan]:
        """Return the best plan for each deadline."""
        columns = self.min_losses(row)[1].tolist()
        plans = {
            column: Plan.of(self.problem.jobs, 0, dict(self._actions(row, column)))
            for column in set(columns)
        }
        return [
            replace(plans[column], deadline=deadline)
            for deadline, column in zip(self.problem.deadlines, columns, strict=True)
        ]

    def _actions(self, row: int, column: int) -> Iterator[tuple[str, Action]]:
        """Follow the choices back from a cell."""
        columns = self.cost.shape[1]
        for item, low, paused, killed in reversed(self.stages):
            if row <= 0:
                return
            # Packbits: the first bit is the highest.
            byte, bit = divmod((row - low) * columns + column, 8)
            if paused[byte] & 128 >> bit:
                yield item.id, item.way
                column -= item.wait
                row -= item.rows
            elif killed[byte] & 128 >> bit:
                yield item.id, "kill"
                row -= item.rows


def _windows(items: Sequence[_Item], last_row: int, every_count: bool) -> list[tuple[int, int]]:
    """Return for each job the range of rows that matter; row 0 never changes."""
    windows = []
    done = 0
    later = sum(item.rows for item in items)
    for item in items:
        done += item.rows
        later -= item.rows
        low = 1 if every_count else max(1, last_row - later)
        windows.append((low, max(low, min(last_row, done) + 1)))
    return windows


def _sweep(
    cost: Any, low: int, high: int, rows: int, kill: int, pause: int, wait: int, never: int
) -> tuple[Any, Any]:
    """Add one more job to the table, in place.

    Args:
        cost: shape (rows, columns), contiguous, without this job.
        low, high: the range of rows that matter to it.
        rows: the number of table rows that it frees.
        kill, pause: what killing and checkpointing it cost.
        wait: the columns that checkpointing takes, at most all.
        never: more than any cost.

    Returns:
        For each cell of the range: is it best checkpointed? If not, is it best killed?
    """
    columns = cost.shape[1]
    paused = np.empty((high - low, columns), bool)
    killed = np.empty((high - low, columns), bool)
    at_once = max(1, CACHED_CELLS // columns)
    for end in range(high, low, -at_once):  # downwards, for a row builds on one below it
        start = max(low, end - at_once)
        without = cost[start - rows : end - rows]
        cells = cost[start:end]
        if_killed = without + kill
        if_paused = _later(without, wait, pause, never)
        np.less(if_killed, cells, out=killed[start - low : end - low])
        np.minimum(if_killed, cells, out=cells)
        np.less(if_paused, cells, out=paused[start - low : end - low])
        np.minimum(if_paused, cells, out=cells)
    return paused, killed


def _later(cost: Any, wait: int, pause: int, never: int) -> Any:
    """Return rows shifted by ``wait`` columns, plus the cost of a checkpoint.

    They are shifted as one run, which is several times faster than row by row; cells that spilled
    from the end of one row into the next are then reset.
    """
    later = np.empty_like(cost)
    np.add(cost.reshape(-1)[: max(cost.size - wait, 0)], pause, out=later.reshape(-1)[wait:])
    later[:, :wait] = never
    return later
