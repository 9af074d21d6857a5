"""Requests of a chain whose jobs resume where the previous one stopped."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.errors import InputError
from scheduler.reservation.chained_requests import best_chain, evaluate_chain
from scheduler.reservation.distributions import Discrete, discretize, make_law


@st.composite
def laws(draw):
    values = sorted(draw(st.sets(st.integers(1, 40), min_size=1, max_size=7)))
    weights = (
        np.array(draw(st.lists(st.integers(0, 5), min_size=len(values), max_size=len(values))))
        + 1e-3
    )
    return Discrete(values, weights / weights.sum())


@given(laws(), st.sampled_from([0.0, 0.5, 3.0, 100.0]), st.integers(1, 5))
def test_no_other_choice_of_ends_asks_for_less(law, overhead, jobs):
    values = law.values.tolist()
    choices = [
        (*inner, values[-1])
        for count in range(min(jobs, len(values)))
        for inner in combinations(values[:-1], count)
    ]
    sums = [
        evaluate_chain(law, (np.diff((0.0, *ends)) + overhead).tolist(), overhead).requested
        for ends in choices
    ]
    chain = best_chain(law, overhead, jobs)
    assert chain.requested == pytest.approx(min(sums))
    assert len(chain.requests) <= jobs


def test_best_chain_depends_on_the_overhead():
    law = Discrete([1, 2, 3], [0.5, 0.25, 0.25])
    assert best_chain(law, overhead=10, jobs=9).requests == (13,)
    assert best_chain(law, overhead=0, jobs=9).requests == (1, 1, 1)
    assert best_chain(law, overhead=0, jobs=9).used == law.mean


def test_best_chain_coarsens_large_laws():
    law = discretize(make_law("truncnorm", mu=8, sigma=2, low=0, high=20), 20_000)
    chain = best_chain(law, overhead=0.05, jobs=20)
    assert law.mean < chain.used < chain.requested < 20
    assert sum(chain.requests) - 0.05 * len(chain.requests) >= law.longest * (1 - 1e-9)


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([1.0, 5.0], "longer than the overhead of a job, 1"),
        ([3.0, 2.0], "do 3 together, and the longest run takes 4"),
        ([], "longer than the overhead"),
    ],
)
def test_requests_that_cannot_be_are_refused(requests, message):
    with pytest.raises(InputError, match=message):
        evaluate_chain(Discrete([4], [1]), requests, overhead=1)


@pytest.mark.parametrize(("overhead", "jobs"), [(-1, 3), (1, 0), (float("inf"), 1)])
def test_best_chain_rejects_impossible_arguments(overhead, jobs):
    with pytest.raises(InputError, match="at least one"):
        best_chain(Discrete([4], [1]), overhead, jobs)
