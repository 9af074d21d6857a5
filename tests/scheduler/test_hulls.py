"""Concave hulls, compared with the textbook algorithm."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.hulls import concave_hulls


def chain(x, y):
    """Andrew's monotone chain: return the height of the hull at each point."""
    hull = []
    for point in range(len(x)):
        while len(hull) > 1 and (
            (y[hull[-1]] - y[hull[-2]]) * (x[point] - x[hull[-2]])
            <= (y[point] - y[hull[-2]]) * (x[hull[-1]] - x[hull[-2]])
        ):
            hull.pop()
        hull.append(point)
    return np.interp(x, x[hull], y[hull])


functions = st.lists(
    st.lists(st.integers(-50, 50), min_size=1, max_size=30), min_size=1, max_size=6
)


@given(functions, st.integers(0, 2**32))
def test_hulls_are_those_of_the_monotone_chain(heights, seed):
    rng = np.random.default_rng(seed)
    row = np.repeat(np.arange(len(heights)), list(map(len, heights)))
    x = np.concatenate([np.cumsum(rng.integers(1, 5, len(row_points))) for row_points in heights])
    y = np.concatenate(heights).astype(float)
    vertices = concave_hulls(row, x, y)
    for number in range(len(heights)):
        row_vertices = row == number
        row_points = vertices[row[vertices] == number]
        assert np.interp(x[row_vertices], x[row_points], y[row_points]) == pytest.approx(
            chain(x[row_vertices], y[row_vertices]), abs=1e-9
        )


def test_hulls_of_collinear_points_are_the_ends():
    x = np.arange(1000)
    assert concave_hulls(np.zeros(1000, int), x, 0.1 * x).tolist() == [0, 999]
