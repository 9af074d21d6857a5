"""Compute the concave hulls of many functions together, for bounds and prices."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

TOLERANCE = 1e-13  # of the largest value: a point that is above a line by less is on it


def concave_hulls(
    row: NDArray[np.int64], x: NDArray[Any], y: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Return the vertices of the least concave functions above functions that are given as points.

    QuickHull: of the points above the line between two vertices, the farthest is a vertex as well,
        and points that are not above it are on no hull. All lines of all functions are processed at
        once, so the number of rounds is about the logarithm of the vertices of one hull.

    Args:
        row: the function of each point, not decreasing; int64 of shape (points,).
        x: ascending within each row, shape (points,).
        y: finite values, float64 of shape (points,).

    Returns:
        The indices of the vertices, ascending, int64. They include the first and the last of each
        row.

    >>> row, x, y = [0, 0, 0, 0, 1], [0, 1, 2, 4, 7], [0.0, 1, 3, 4, 9]
    >>> concave_hulls(np.array(row), np.array(x), np.array(y))
    array([0, 2, 3, 4])
    """
    changes = np.flatnonzero(np.diff(row)) + 1
    begin = np.concatenate(([0], changes))
    end = np.concatenate((changes, [len(row)])) - 1
    vertices = [begin, end]
    tolerance = TOLERANCE * float(np.abs(y).max(initial=0.0))
    inner = np.ones(len(row), np.bool_)
    inner[begin] = inner[end] = False
    point = np.flatnonzero(inner)
    # The line from begin to end that the point is above or below.
    line = np.repeat(np.arange(len(begin)), end - begin + 1)[point]
    while len(point):
        width = x[end] - x[begin]
        slope = (y[end] - y[begin]) / np.where(width > 0, width, 1)
        above = (y[point] - y[begin][line]) - slope[line] * (x[point] - x[begin][line])
        is_above = above > tolerance
        point = point[is_above]
        line = line[is_above]
        above = above[is_above]
        if not len(point):
            break
        first = np.flatnonzero(np.diff(line, prepend=-1))
        highest = np.maximum.reduceat(above, first)
        group = np.cumsum(np.diff(line, prepend=line[0]) != 0)
        at_top = np.flatnonzero(above == highest[group])
        vertex = point[at_top[np.flatnonzero(np.diff(group[at_top], prepend=-1))]]
        vertices.append(vertex)
        old = line[first]
        begin = np.stack((begin[old], vertex), 1).reshape(-1)
        end = np.stack((vertex, end[old]), 1).reshape(-1)
        line = 2 * group + (point > vertex[group])
        inside = point != vertex[group]
        point = point[inside]
        line = line[inside]
    return np.unique(np.concatenate(vertices))
