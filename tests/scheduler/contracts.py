"""Promises of every allocator of nodes or GPUs to jobs, as one test class.

An allocator decides how many resources each job gets. Whatever its inputs look
like, its problem can be told as a table: the value of each job on 0, 1, 2, ...
resources, minus infinity where that count is not allowed. A subclass says how
its own problem is drawn, solved and told as such a table:

    class TestGreedy(AllocatorContract):
        exact = False

        def problems(self): return st.builds(Problem, ...)
        def table(self, problem): return Table(problem.gpus, ((-inf, 1.0, 1.5), ...))
        def counts(self, problem): return allocate(problem).gpus   # None where it says "infeasible"
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples

# The inherited tests run once per subclass, which Hypothesis would otherwise report.
inherited = settings(
    deadline=None,
    max_examples=examples(50),
    suppress_health_check=[HealthCheck.differing_executors],
)


@dataclass(frozen=True)
class Table:
    """An allocation problem in a form common to all allocators.

    Attributes:
        resources: how many nodes or GPUs there are to give.
        values: ``values[j][n]`` = worth of job ``j`` on ``n`` of them, minus infinity where the
            job cannot run on (or wait with) ``n``; a count beyond the row's end is not allowed.
    """

    resources: int
    values: tuple[tuple[float, ...], ...]

    def worth(self, counts: tuple[int, ...]) -> float:
        """Return the objective of an allocation; minus infinity if a count is not allowed."""
        return math.fsum(self.value(job, count) for job, count in enumerate(counts))

    def value(self, job: int, count: int) -> float:
        row = self.values[job]
        return row[count] if 0 <= count < len(row) else -math.inf

    def best(self) -> float:
        """Return the best objective of all allocations; minus infinity if none is feasible."""
        allowed = [
            [n for n in range(min(len(row), self.resources + 1)) if row[n] > -math.inf]
            for row in self.values
        ]
        return max(
            (
                self.worth(counts)
                for counts in itertools.product(*allowed)
                if sum(counts) <= self.resources
            ),
            default=-math.inf,
        )


class AllocatorContract:
    """Subclass it as ``TestSomething`` with the three methods below and ``exact``."""

    exact = True
    tolerance = 1e-9  # relative, between the allocator's objective and the best there is

    def problems(self) -> st.SearchStrategy[Any]:
        """Draw problems small enough to try every allocation (about 4 jobs on 8 resources)."""
        raise NotImplementedError

    def table(self, problem: Any) -> Table:
        """Return the problem as a table."""
        raise NotImplementedError

    def counts(self, problem: Any) -> tuple[int, ...] | None:
        """Return the allocator's counts in the order of jobs; None if nothing is feasible."""
        raise NotImplementedError

    @inherited
    @given(data=st.data())
    def test_equal_problems_get_equal_answers_and_are_not_changed(self, data):
        problem = data.draw(self.problems())
        before = self.table(problem)
        assert self.counts(problem) == self.counts(problem)
        assert self.table(problem) == before

    @settings(inherited, max_examples=examples(200))
    @given(data=st.data())
    def test_answers_are_feasible_and_exact_ones_optimal(self, data):
        problem = data.draw(self.problems())
        counts, table = self.counts(problem), self.table(problem)
        best = table.best()
        assert (counts is None) == (best == -math.inf)
        if counts is None:
            return
        assert len(counts) == len(table.values)
        assert all(type(count) is int for count in counts), "counts are plain integers, for JSON"
        assert sum(counts) <= table.resources
        slack = self.tolerance * max(1.0, abs(best))
        assert -math.inf < table.worth(counts) <= best + slack
        if self.exact:
            assert table.worth(counts) == pytest.approx(best, rel=self.tolerance, abs=slack)
