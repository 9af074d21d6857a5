"""What the optimizer must know of scaling curves, worked out for many curves at once.

A decision concerns thousands of jobs, of which most had their curve at the decision before. So what follows from a
curve alone is worked out once, and kept as the bytes of arrays: those of all jobs are then one array after a join,
which takes microseconds where numpy's concatenate takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from struct import pack
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler.hulls import concave_hulls

Array = NDArray[np.float64]

HEAD = 16  # steps of a curve that most decisions look at
MOST_TURNS = 12  # of taking out points that are under the line between their neighbours


class Shape(NamedTuple):
    """What follows from a curve.

    Attributes:
        least: the fewest GPUs on which the job runs.
        options: how many counts are worth giving: ``least``, and each that is faster than all smaller ones.
        extra: GPUs beyond ``least`` of each option, rising from 0 (int64).
        gain: what each adds to the factor on ``least`` GPUs (float64).
        steps: how many straight pieces the least concave curve above the options has.
        lengths: GPUs of each piece (int64).
        slopes: gain per GPU of each, falling (float64).
        head: ``least``, ``steps``, and the lengths and slopes of the first pieces, 0 where there are fewer: as many
            numbers for each curve, so that those of all jobs are one table (float64).
    """

    least: int
    options: int
    extra: bytes
    gain: bytes
    steps: int
    lengths: bytes
    slopes: bytes
    head: bytes


def heads(shapes: Sequence[Shape]) -> tuple[NDArray[np.int64], NDArray[np.int64], Array, Array]:
    """Of all shapes: ``least``, ``steps`` (jobs,), and the lengths and slopes of their first pieces (jobs, HEAD)."""
    table = np.frombuffer(b"".join([shape.head for shape in shapes])).reshape(len(shapes), 2 + 2 * HEAD)
    return (table[:, 0].astype(np.int64), table[:, 1].astype(np.int64), table[:, 2:2 + HEAD], table[:, 2 + HEAD:])


def analyse(curves: Sequence[Sequence[float]]) -> list[Shape]:
    """The shapes of curves, each a scaling factor for 1, 2, ... GPUs of which at least one is positive.

    >>> [shape] = analyse([(0, 1, 1.5, 1.4, 4.0)])
    >>> np.frombuffer(shape.extra, np.int64), np.frombuffer(shape.lengths, np.int64), np.frombuffer(shape.slopes)
    (array([0, 1, 3]), array([3]), array([1.]))
    """
    shapes: list[Shape | None] = [None] * len(curves)
    widths = np.array([len(curve) for curve in curves])
    classes = np.ceil(np.log2(widths)).astype(np.int64)  # tables of curves of about one length waste little
    for kind in np.unique(classes).tolist():
        places = np.flatnonzero(classes == kind).tolist()
        for place, shape in zip(places, _analyse([curves[place] for place in places]), strict=True):
            shapes[place] = shape
    return shapes  # type: ignore[return-value]  # each has been given one


def _analyse(curves: Sequence[Sequence[float]]) -> list[Shape]:
    sizes = np.array([len(curve) for curve in curves])
    table = np.zeros((len(curves), int(sizes.max())))
    numbers = np.frombuffer(b"".join([pack(f"{len(curve)}d", *curve) for curve in curves]))
    table[np.arange(table.shape[1]) < sizes[:, None]] = numbers
    worth = table > 0
    worth[:, 1:] &= table[:, 1:] > np.maximum.accumulate(table, axis=1)[:, :-1]
    row, column = np.nonzero(worth)
    counts = np.bincount(row, minlength=len(curves))
    first = np.cumsum(counts) - counts
    value = table[worth]
    extra, gain = column - np.repeat(column[first], counts), value - np.repeat(value[first], counts)
    corner, slopes = _hulls(row, extra, gain)
    inner = row[corner][1:] == row[corner][:-1]  # between two corners of one curve lies a step
    steps = np.bincount(row[corner][1:][inner], minlength=len(curves))
    lengths, slopes = np.diff(extra[corner])[inner], slopes[inner]
    least = column[first] + 1
    options = zip(least.tolist(), counts.tolist(), _cut(extra, counts), _cut(gain, counts), steps.tolist(),
                  _cut(lengths, steps), _cut(slopes, steps), _heads(least, steps, lengths, slopes), strict=True)
    return [Shape(*shape) for shape in options]


def _heads(least: NDArray[np.int64], steps: NDArray[np.int64], lengths: NDArray[np.int64],
           slopes: NDArray[np.float64]) -> list[bytes]:
    table = np.zeros((len(least), 2 + 2 * HEAD))
    table[:, 0], table[:, 1] = least, steps
    job = np.repeat(np.arange(len(least)), steps)
    place = np.arange(len(job)) - np.repeat(np.cumsum(steps) - steps, steps)
    kept = np.flatnonzero(place < HEAD)
    job, place = job[kept], place[kept]
    table[job, 2 + place], table[job, 2 + HEAD + place] = lengths[kept], slopes[kept]
    data, size = table.tobytes(), table.itemsize * table.shape[1]
    return [data[start:start + size] for start in range(0, len(data), size)]


def _hulls(row: NDArray[np.int64], x: NDArray[np.int64], y: NDArray[np.float64]
           ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Which points of each row lie on the concave hull, and the slope from each of those to the next.

    A point under the line between its neighbours is under the hull, so all such points can go at once; until
    there is none. Points on the hull stay, for steps should be short. What takes long is left to QuickHull.
    """
    corner = np.arange(len(row))
    for turn in count():
        if turn == MOST_TURNS:
            kept = concave_hulls(row, x, y)
            corner, row, x, y = corner[kept], row[kept], x[kept], y[kept]
        inner = row[1:] == row[:-1]
        slopes = (y[1:] - y[:-1]) / np.maximum(x[1:] - x[:-1], 1)  # from one row to the next they mean nothing
        under = slopes[:-1] < slopes[1:]
        under &= inner[:-1]
        under &= inner[1:]
        if not under.any():
            break
        kept = np.concatenate(([0], 1 + np.flatnonzero(~under), [len(row) - 1]))
        corner, row, x, y = corner[kept], row[kept], x[kept], y[kept]
    return corner, slopes


def _cut(values: NDArray, sizes: NDArray[np.int64]) -> list[bytes]:
    """The bytes of consecutive pieces."""
    data, ends = values.tobytes(), (values.itemsize * np.cumsum(sizes)).tolist()
    return [data[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
