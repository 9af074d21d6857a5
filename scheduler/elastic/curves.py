"""Scaling curves of jobs, and what the optimizer must know of them, worked out for many at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from struct import pack
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler.base import InputError
from scheduler.hulls import concave_hulls

Array = NDArray[np.float64]

MOST_TURNS = 12  # of taking out points that are under the line between their neighbours
AT_ONCE = 32768  # factors that are worked on together: they and what is made of them fit the cache


@dataclass(frozen=True, eq=False)
class ScalingCurve:
    """What a job makes of GPUs.

    Args:
        factors: ``factors[k-1]`` = throughput scaling factor on k GPUs; 0 where it cannot run.
        batches: the global batch on k GPUs, where it is known.
    """

    factors: tuple[float, ...]
    batches: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not (self.factors and math.isfinite(sum(self.factors)) and min(self.factors) >= 0):
            wrong = next((f for f in self.factors if not (math.isfinite(f) and f >= 0)), None)
            if wrong is not None:
                raise InputError(f"scaling factor {wrong}: it must be 0 (cannot run) or positive")
        if not any(self.factors):
            raise InputError("a scaling curve is 0 everywhere; it must be positive on at least one count")

    @cached_property
    def least(self) -> int:
        """The fewest GPUs on which the job runs."""
        return next(k for k, factor in enumerate(self.factors, start=1) if factor > 0)


class Pieces(NamedTuple):
    """Pairs of numbers, some for each of several curves; those of one curve follow one another.

    Attributes:
        owner: which curve; shape (pieces,).
        gpus: whole numbers, as float64.
        value: what belongs to them.
    """

    owner: NDArray[np.int64]
    gpus: Array
    value: Array


@dataclass(frozen=True)
class Shapes:
    """What follows from some curves.

    Attributes:
        places: which curves of those asked for; shape (curves,). Owners are counted among these.
        least: the fewest GPUs on which each job runs.
        choices: the counts that are worth giving (``least``, and each that is faster than all smaller ones): GPUs
            beyond ``least``, rising from 0, and what they add to the factor.
        steps: the straight pieces of the least concave curve above the choices: GPUs, and the gain per GPU, falling.
    """

    places: NDArray[np.int64]
    least: NDArray[np.int64]
    choices: Pieces
    steps: Pieces


def analyse(curves: Sequence[Sequence[float]]) -> Iterator[Shapes]:
    """The shapes of curves, each a scaling factor for 1, 2, ... GPUs of which at least one is positive.

    >>> shapes, = analyse([(0, 1, 1.5, 1.4, 4.0)])
    >>> shapes.choices.gpus, shapes.choices.value, shapes.steps.gpus, shapes.steps.value
    (array([0., 1., 3.]), array([0. , 0.5, 3. ]), array([3.]), array([1.]))
    """
    widths = np.fromiter(map(len, curves), np.int64, len(curves))
    classes = np.ceil(np.log2(widths)).astype(np.int64)  # tables of curves of about one length waste little
    for kind in np.unique(classes).tolist():
        places = np.flatnonzero(classes == kind)
        rows = max(1, AT_ONCE >> kind)
        for start in range(0, len(places), rows):
            own = places[start:start + rows]
            yield _analyse([curves[place] for place in own.tolist()], own, widths[own], kind)


def _analyse(curves: Sequence[Sequence[float]], places: NDArray[np.int64], widths: NDArray[np.int64],
             kind: int) -> Shapes:
    """The shapes of curves of at most 2**kind counts."""
    table = np.zeros((len(curves), 1 << kind))
    numbers = np.frombuffer(b"".join([pack(f"{len(curve)}d", *curve) for curve in curves]))
    table[np.arange(1 << kind) < widths[:, None]] = numbers
    worth = table > 0
    worth[:, 1:] &= table[:, 1:] > np.maximum.accumulate(table, axis=1)[:, :-1]
    cells = np.flatnonzero(worth)
    row, column, value = cells >> kind, cells & (1 << kind) - 1, table.reshape(-1)[cells]
    counts = np.bincount(row, minlength=len(curves))
    first = np.cumsum(counts) - counts
    extra = (column - np.repeat(column[first], counts)).astype(np.float64)
    gain = value - np.repeat(value[first], counts)
    corner, x, slopes = _hulls(row, extra, gain)
    inner = corner[1:] == corner[:-1]  # between two corners of one curve lies a step
    return Shapes(places, column[first] + 1, Pieces(row, extra, gain),
                  Pieces(corner[1:][inner], np.diff(x)[inner], slopes[inner]))


def _hulls(row: NDArray[np.int64], x: Array, y: Array) -> tuple[NDArray[np.int64], Array, Array]:
    """The points on the concave hull of each row (their row and x), and the slope from each of them to the next.

    A point under the line between its neighbours is under the hull, so all such points can go at once; until
    there is none. Points on the hull stay, for steps should be short. What takes long is left to QuickHull.
    """
    for turn in count():
        if turn == MOST_TURNS:
            kept = concave_hulls(row, x, y)
            row, x, y = row[kept], x[kept], y[kept]
        inner = row[1:] == row[:-1]
        slopes = (y[1:] - y[:-1]) / np.maximum(x[1:] - x[:-1], 1)  # from one row to the next they mean nothing
        under = slopes[:-1] < slopes[1:]
        under &= inner[:-1]
        under &= inner[1:]
        if not under.any():
            break
        kept = np.concatenate(([0], 1 + np.flatnonzero(~under), [len(row) - 1]))
        row, x, y = row[kept], x[kept], y[kept]
    return row, x, slopes
