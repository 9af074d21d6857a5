"""What is known of jobs' scaling curves, as tables that are kept from one decision to the next.

A decision concerns thousands of jobs, of which most were there at the decision before. So each has a row, which stays
while the job does, and a decision looks at whole columns.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler.elastic.curves import Array, Pieces, ScalingCurve, Shapes, analyse

Counts = NDArray[np.int64]

HEAD = 16  # steps of a curve that most decisions look at
SPARE_ROWS = 64  # rows that no job has are kept, for its curve may come again: so many, and a quarter of those in use


class Heads(NamedTuple):
    """What decisions begin with, in the order of the jobs.

    Attributes:
        least: the fewest GPUs on which each job runs; shape (jobs,).
        steps: how many steps its hull has.
        lengths: GPUs of the first of them, 0 where there are fewer; shape (jobs, HEAD).
        slopes: gain per GPU of each, falling.
    """

    least: Counts
    steps: Counts
    lengths: Array
    slopes: Array


class Jobs(NamedTuple):
    """Where the jobs of one decision are: the row of each, and of each row its job, or -1."""

    rows: Counts
    job: Counts


class Tables:
    """The curves of jobs. Where several jobs have the same one, each has a row of its own."""

    def __init__(self) -> None:
        self._row: dict[ScalingCurve, int] = {}
        self._more: dict[ScalingCurve, list[int]] = {}  # of a curve that several jobs have, the rows beyond the first
        self._factors: list[tuple[float, ...]] = []
        self._heads = _Columns(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, HEAD)), np.zeros((0, HEAD)))
        self._choices = _Columns(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))  # owner, GPUs, gain
        self._steps = _Columns(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))  # owner, GPUs, slope
        self._room = np.zeros((2, 0)), np.zeros(0, np.bool_)  # asking for memory takes longer than computing in it

    def place(self, curves: Sequence[ScalingCurve]) -> Jobs:
        """A row for each job, by its curve; those of new curves are worked out."""
        found = list(map(self._row.get, curves))
        if None in found:
            if found.count(None) == len(found):
                self._keep(np.zeros(0, np.int64))
            new = list(dict.fromkeys([curve for curve, row in zip(curves, found, strict=True) if row is None]))
            self._row.update(zip(new, self._add(new), strict=True))
            found = list(map(self._row.get, curves))
        rows = np.array(found, np.int64)
        numbers = np.arange(len(curves))
        again = np.flatnonzero(self._jobs_of(rows)[rows] != numbers)  # a later job has the same curve
        if len(again):
            rows[again] = self._further_rows([curves[job] for job in again.tolist()])
        jobs = Jobs(rows, self._jobs_of(rows))
        if len(self._heads) - len(rows) > SPARE_ROWS + len(rows) // 4:
            self._keep(np.flatnonzero(jobs.job >= 0))
            return self.place(curves)
        return jobs

    def heads(self, jobs: Jobs) -> Heads:
        """What is known of all jobs at once."""
        return Heads(*(column.take(jobs.rows, axis=0) for column in self._heads.all))

    def steps(self, jobs: Jobs) -> Pieces:
        """All steps of all jobs, in their order; ``owner`` is the job."""
        owner = jobs.job[self._steps[0]]
        used = np.flatnonzero(owner >= 0)
        order = used[np.argsort(owner[used], kind="stable")]
        return Pieces(owner[order], self._steps[1][order], self._steps[2][order])

    def choices(self, jobs: Jobs, price: float, worst: Array) -> Pieces:
        """The choices of jobs that lose no more than ``worst`` of each: ``price`` for each GPU, less what they gain.

        ``owner`` is the job. They are in the order of the jobs, and rising.
        """
        owner, gpus, gain = (self._choices[column] for column in range(3))
        loss, most, is_found = self._room_for(len(owner))
        most_of = np.full(len(self._heads), -math.inf)
        most_of[jobs.rows] = worst
        np.multiply(gpus, price, out=loss)
        np.subtract(loss, gain, out=loss)
        np.take(most_of, owner, out=most, mode="clip")  # "raise" would copy
        found = np.flatnonzero(np.less_equal(loss, most, out=is_found))
        found = found[np.argsort(jobs.job[owner[found]], kind="stable")]
        return Pieces(jobs.job[owner[found]], gpus[found], gain[found])

    def throughput(self, jobs: Jobs, gpus: Sequence[int]) -> float:
        """The sum of the factors of jobs on so many GPUs."""
        factors = self._factors
        return math.fsum([factors[row][count - 1] for row, count in zip(jobs.rows.tolist(), gpus, strict=True)])

    def _room_for(self, size: int) -> tuple[Array, Array, NDArray[np.bool_]]:
        if size > len(self._room[1]):
            self._room = np.empty((2, 2 * size)), np.empty(2 * size, np.bool_)
        (first, second), third = self._room
        return first[:size], second[:size], third[:size]

    def _jobs_of(self, rows: Counts) -> Counts:
        job = np.full(len(self._heads), -1)
        job[rows] = np.arange(len(rows))
        return job

    def _further_rows(self, curves: Sequence[ScalingCurve]) -> list[int]:
        """A row beyond the first for each of these."""
        missing = [curve for curve, count in Counter(curves).items()
                   for _ in range(count - len(self._more.get(curve, ())))]
        for curve, row in zip(missing, self._add(missing), strict=True):
            self._more.setdefault(curve, []).append(row)
        rows = {curve: iter(self._more[curve]) for curve in set(curves)}
        return [next(rows[curve]) for curve in curves]

    def _add(self, curves: Sequence[ScalingCurve]) -> range:
        """Work out these curves; their rows."""
        first = len(self._heads)
        own, factors = self._heads.more(len(curves)), [curve.factors for curve in curves]
        self._factors += factors
        for shapes in analyse(factors):
            for column, values in zip(own, (shapes.least, *_heads(shapes)), strict=True):
                column[shapes.places] = values
            for table, pieces in ((self._choices, shapes.choices), (self._steps, shapes.steps)):
                for column, values in zip(table.more(len(pieces.owner)),
                                          (first + shapes.places[pieces.owner], *pieces[1:]), strict=False):
                    column[:] = values
        return range(first, len(self._heads))

    def _keep(self, rows: Counts) -> None:
        """Forget all other rows; these are numbered anew."""
        number = np.full(len(self._heads), -1)
        number[rows] = np.arange(len(rows))
        self._heads.keep(rows)
        self._factors = [self._factors[row] for row in rows.tolist()]
        for table in (self._choices, self._steps):
            table[0][:] = number[table[0]]
            table.keep(np.flatnonzero(table[0] >= 0))
        new = number.tolist()
        self._row = {curve: new[row] for curve, row in self._row.items() if new[row] >= 0}
        self._more = {curve: [new[row] for row in own if new[row] >= 0] for curve, own in self._more.items()
                      if curve in self._row}


def _heads(shapes: Shapes) -> tuple[Counts, Array, Array]:
    """How many steps each curve has, and the lengths and slopes of the first of them."""
    steps, curves = shapes.steps, len(shapes.places)
    count = np.bincount(steps.owner, minlength=curves)
    there = np.arange(HEAD) < count[:, None]
    places = ((np.cumsum(count) - count)[:, None] + np.arange(HEAD))[there]
    lengths, slopes = np.zeros((2, curves, HEAD))
    lengths[there], slopes[there] = steps.gpus[places], steps.value[places]
    return count, lengths, slopes


class _Columns:
    """Columns that grow together."""

    def __init__(self, *empty: NDArray[Any]) -> None:
        self.all, self._size = list(empty), 0

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, column: int) -> NDArray[Any]:
        return self.all[column][:self._size]

    def more(self, rows: int) -> list[NDArray[Any]]:
        """Room for further rows, to be filled by the caller."""
        start, self._size = self._size, self._size + rows
        if self._size > len(self.all[0]):
            old = self.all
            self.all = [np.empty((2 * self._size, *column.shape[1:]), column.dtype) for column in old]
            for column, before in zip(self.all, old, strict=True):
                column[:start] = before[:start]
        return [column[start:self._size] for column in self.all]

    def keep(self, rows: Counts) -> None:
        """Let go of all other rows."""
        for column in self.all:
            column[:len(rows)] = column[rows]
        self._size = len(rows)
