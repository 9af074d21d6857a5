"""Solve the dynamic program of TOptimal on large laws, in blocks for NumPy.

With values v_0 < v_1 < ... and Q_j the probability that a run outlives the first
j of them, the least expected cost from there on is (Gainaru et al., ICPP 2019,
Theorem 2 without backfill)

    E_j = min over i >= j of  v_i Q_j + E_{i+1},    E_n = 0

For each i this is a line in Q_j. Going down in j, Q_j grows and new lines are
flatter, so the best i never rises. Hence all j from some a up to b - 1 find
their best line among i >= b - 1, whose heights are known, exactly if j = a
does: one comparison tells for the whole block, and its costs are read off the
lower envelope of those lines. The first j for which that fails begins the next
block. From within a block the best request leads beyond it, so there are no
more blocks than requests in an optimal sequence: some dozens, for a million
values.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

ROW = 1024  # terms that are added one after the other
FIRST = 64  # states of a block that are tried first; twice as many next, as long as they fit


def cumulative_sums(terms: Array) -> Array:
    """Compute ``numpy.cumsum`` with an error that grows only with the square root of numpy's.

    The distribution of a million equal values has many sequences of one cost, which rounding must
    not tell apart.

    >>> cumulative_sums(np.array([1.0, 2.0, 4.0]))
    array([1., 3., 7.])
    """
    rows = np.zeros((-(-len(terms) // ROW), ROW))
    rows.reshape(-1)[: len(terms)] = terms
    np.cumsum(rows, axis=1, out=rows)
    rows[1:] += np.cumsum(rows[:-1, -1])[:, None]
    return rows.reshape(-1)[: len(terms)]


class _Envelope(NamedTuple):
    """A lower envelope: ``lines[k]`` is lowest from ``begins[k]`` to the next; steepest first."""

    lines: Indices
    begins: Array


def solve_in_blocks(values: Array, alive: Array, tie: float) -> tuple[float, Indices]:
    """Return the least expected cost, and for each j the index of the value to ask for.

    Args:
        values: increasing, shape (n,).
        alive: Q, not increasing, shape (n,) or longer.
        tie: costs that differ by less, relatively, are equal; the longer request wins.

    >>> cost, following = solve_in_blocks(np.array([1.0, 2, 4]), np.array([1, 2/3, 1/3]), 1e-12)
    >>> round(cost, 6), following.tolist()
    (3.333333, [1, 2, 2])
    """
    problem = _Blocks(values, alive, tie)
    envelope = _Envelope(np.array([len(values) - 1]), np.array([-math.inf]))
    below = len(values)
    while True:
        first = problem.fill(envelope, below)
        if first == 0:
            return float(problem.cost[0]), problem.following
        envelope = problem.merged(envelope, problem.lines_between(first - 1, below - 2), first)
        below = first


class _Blocks:
    def __init__(self, values: Array, alive: Array, tie: float) -> None:
        self.values = values
        self.alive = alive
        self.tie = tie
        self.cost = np.zeros(len(values) + 1)
        self.heights = self.cost[1:]  # of the lines
        self.following: Indices = np.zeros(len(values), np.int64)

    def at(self, line: Indices | int, x: Array | float) -> Array:
        """Return the height of lines at Q = x."""
        return np.asarray(self.values[line] * x + self.heights[line])

    # --- a block ---

    def fill(self, envelope: _Envelope, below: int) -> int:
        """Fill in the states for which the envelope holds the best line; return the first."""
        solved = below
        size = FIRST
        while True:
            first = max(0, solved - size)
            self._read(envelope, first, solved)
            if self._better_line(first, below) is not None:
                return self._first_right(first, solved, below)
            if first == 0:
                return 0
            solved = first
            size = 2 * size

    def _read(self, envelope: _Envelope, first: int, end: int) -> None:
        """Set the costs and best lines of states first..end - 1."""
        x = self.alive[first:end]
        last, start = np.searchsorted(envelope.begins, (x[0], x[-1]), side="right")
        lines = envelope.lines[start - 1 : last]
        begins = envelope.begins[start:last]
        # x falls, so each line is lowest on a stretch of it.
        ends = len(x) - np.searchsorted(x[::-1], begins)
        self.following[first:end] = np.repeat(
            lines[::-1], np.diff(ends[::-1], prepend=0, append=len(x))
        )
        line = self.following[first:end]
        cost = self.values[line]
        cost *= x
        cost += self.heights[line]
        self.cost[first:end] = cost

    def _better_line(self, state: int, below: int) -> int | None:
        """Return the block's best line for a state if it is below the envelope."""
        if state >= below - 1:
            return None
        costs = self.values[state : below - 1] * self.alive[state]
        costs += self.heights[state : below - 1]
        best = int(costs.argmin())
        if costs[best] < self.cost[state] * (1 - self.tie):
            return state + best
        return None

    def _first_right(self, wrong: int, right: int, below: int) -> int:
        """Return the first state from which on the envelope holds the best lines, by bisection."""
        state = wrong
        while wrong < right - 1:
            line = self._better_line(state, below)
            if line is None:
                right = state
                state = (wrong + right) // 2
            else:
                wrong = self._last_better(line, state, right)
                state = min(wrong + 1, right - 1)
        return right

    def _last_better(self, line: int, state: int, right: int) -> int:
        """Return the last state for which a line of the block is below the envelope."""
        end = min(line + 1, right)
        while end - state > 1:
            middle = (state + end) // 2
            if self.at(line, self.alive[middle]) < self.cost[middle] * (1 - self.tie):
                state = middle
            else:
                end = middle
        return state

    # --- the envelope ---

    def lines_between(self, first: int, last: int) -> _Envelope:
        """Return the envelope of lines first..last, where the states before them will read it."""
        lines = np.arange(last, first - 1, -1)
        steepest = int(self.at(lines, self.alive[first]).argmin())
        lines = lines[steepest:]
        lines = lines[: int(self.at(lines, self.alive[0]).argmin()) + 1]
        while True:
            begins = np.diff(self.heights[lines]) / -np.diff(self.values[lines])
            # A line that the next one undercuts no later than it undercuts the one before is lowest
            # nowhere.
            lowest = np.concatenate(([True], begins[:-1] < begins[1:], [True] * (len(lines) > 1)))
            if lowest.all():
                return _Envelope(lines, np.concatenate(([-math.inf], begins)))
            lines = lines[lowest]

    def merged(self, old: _Envelope, new: _Envelope, first: int) -> _Envelope:
        """Merge two envelopes: new lines are flatter, so they are lowest from one crossing on."""
        # Steeper lines are no longer lowest anywhere.
        start = int(np.searchsorted(old.begins, self.alive[first], side="right")) - 1
        lines = old.lines[start:]
        begins = old.begins[start:]
        x = begins[1:]
        undercut = self.at(
            new.lines[np.searchsorted(new.begins, x, side="right") - 1], x
        ) < self.at(lines[1:], x)
        count = 1 + (int(undercut.argmax()) if undercut.any() else len(x))
        last = int(lines[count - 1])
        x = new.begins[1:]
        undercut = self.at(new.lines[1:], x) < self.at(last, x)
        to = int(undercut.argmax()) if undercut.any() else len(x)
        line = int(new.lines[to])
        crossing = (self.heights[line] - self.heights[last]) / (
            self.values[last] - self.values[line]
        )
        return _Envelope(
            np.concatenate((lines[:count], new.lines[to:])),
            np.concatenate((begins[:count], [crossing], new.begins[to + 1 :])),
        )
