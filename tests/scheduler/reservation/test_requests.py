"""Sequences of walltime requests, compared with enumeration and the paper's Theorem 2."""

import math
from functools import cache
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.errors import InputError
from scheduler.reservation import blocks
from scheduler.reservation import requests as req
from scheduler.reservation.distributions import Discrete, discretize, empirical_law, make_law
from scheduler.reservation.log import read_runs
from tests.examples import examples
from tests.places import SHARED

WALLTIMES = SHARED / "walltimes"
PAPER = make_law("truncnorm", mu=8, sigma=2, low=0, high=20)

rates = st.sampled_from([0.0, 0.01, 0.1, 0.25, 1 / 3, 0.5, 0.75, 0.9, 0.99])


@st.composite
def laws(draw, max_values=7):
    """Draw values, equally spaced or not, some with zero probability (but never the last)."""
    values = draw(st.lists(st.integers(1, 40), min_size=1, max_size=max_values, unique=True))
    weights = draw(st.lists(st.integers(0, 4), min_size=len(values) - 1, max_size=len(values) - 1))
    weights = np.array([*weights, draw(st.integers(1, 4))])
    return Discrete(np.sort(values), weights / weights.sum())


def makespan(law, requests, rate, spent=0.0):
    """Compute the cost by the definition, run by run."""
    total = 0.0
    for value, probability in zip(law.values, law.probabilities, strict=True):
        failed = spent
        for request in requests:
            if value <= request:
                total += probability * max(failed + request, (failed + value) / (1 - rate))
                break
            failed += request
    return total


def every_sequence(law):
    *shorter, last = law.values
    for count in range(len(shorter) + 1):
        for chosen in combinations(shorter, count):
            yield (*chosen, last)


def theorem_2(first, step, mass, rate):
    """Run the literal dynamic program: E(i, m, k) over grid indices, started at E(0, 0, 0)."""
    n = len(mass) - 1

    def value(i):
        return first + i * step

    @cache
    def min_cost(i, m, k):
        if i == n:
            return 0.0
        best = math.inf
        for to in range(i + 1, n + 1):
            x = max(i, math.floor(to - rate * (to + k + (m + 1) * first / step)))
            cost = sum(mass[i + 1 : x + 1]) * value(to)
            cost += rate * (m * first + k * step) / (1 - rate) * sum(mass[x + 1 : to + 1])
            cost += sum(value(j) * mass[j] for j in range(x + 1, to + 1)) / (1 - rate)
            cost += sum(mass[to + 1 :]) * value(to) + min_cost(to, m + 1, k + to)
            best = min(best, cost)
        return best

    return min_cost(0, 0, 0)


@settings(max_examples=examples(300), deadline=None)
@given(laws(), rates, st.sampled_from([0.0, 3.0, 50.0]))
def test_no_sequence_is_better_than_the_optimal_one(law, rate, spent):
    sequence = req.optimal_requests(law, rate, spent)
    best = min(makespan(law, requests, rate, spent) for requests in every_sequence(law))
    assert sequence.expected_makespan == pytest.approx(best, rel=1e-12)
    assert makespan(law, sequence.requests, rate, spent) == pytest.approx(best, rel=1e-12)


@settings(max_examples=examples(200), deadline=None)
@given(laws(max_values=9), rates, st.sampled_from([0.0, 3.0, 50.0]), st.integers(1, 2))
def test_bounding_the_search_loses_no_optimum(law, rate, spent, coarse):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(req, "COARSE", coarse)  # use bounds from 4 values on
        patch.setattr(req, "SWEEP_EVERY", 1)
        bounded = req.at_optimal(law, rate, spent)
    best = min(makespan(law, requests, rate, spent) for requests in every_sequence(law))
    assert bounded.expected_makespan == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.6])
@pytest.mark.parametrize(
    "law",
    [
        PAPER,
        make_law("pareto", alpha=1.1, low=1, high=1000),
        make_law("lognormal", mu=1, sigma=1.5, low=0, high=400),
    ],
)
def test_requests_bounded_search_agrees_with_the_full_one(monkeypatch, law, rate):
    full = discretize(law, 300)
    bounded = req.at_optimal(full, rate, spent=2.0)
    monkeypatch.setattr(req, "COARSE", 1000)
    assert bounded.expected_makespan == pytest.approx(
        req.at_optimal(full, rate, 2.0).expected_makespan, rel=1e-12
    )


@settings(max_examples=examples(100), deadline=None)
@given(laws(), rates)
def test_makespan_by_count_is_the_best_of_each_count(law, rate):
    law = Discrete(law.values[law.probabilities > 0], law.probabilities[law.probabilities > 0])
    expected = {}
    for requests in every_sequence(law):
        expected[len(requests)] = min(
            expected.get(len(requests), math.inf), makespan(law, requests, rate)
        )
    assert req.makespan_by_count(law, rate, max_requests=99) == pytest.approx(
        [expected[count] for count in sorted(expected)]
    )


@settings(max_examples=examples(100), deadline=None)
@given(laws(), rates, st.data())
def test_requests_makespan_of_any_sequence_is_its_definition(law, rate, data):
    requests = data.draw(st.sampled_from(list(every_sequence(law))))
    assert req.expected_makespan(law, requests, rate) == pytest.approx(
        makespan(law, requests, rate)
    )


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=11), st.integers(0, 6), rates)
def test_labels_agree_with_the_table_of_theorem_2(weights, first, rate):
    mass = np.array([0, *weights, 1]) / (sum(weights) + 1)  # no probability at v_0
    law = Discrete(first + 2.0 * np.arange(len(mass)), mass)
    assert req.at_optimal(law, rate).expected_makespan == pytest.approx(
        theorem_2(first, 2.0, mass, rate)
    )


def test_theorem_2_from_the_first_value_loses_probability():
    law = Discrete([1, 2, 3], [0.5, 0.25, 0.25])
    assert theorem_2(1.0, 1.0, (0.5, 0.25, 0.25), 0.0) == 1.5  # 0.5 x 0 for the runs that take 1
    # Correct if started one value lower.
    assert theorem_2(0.0, 1.0, (0.0, 0.5, 0.25, 0.25), 0.0) == 2.5
    assert req.t_optimal(law).expected_makespan == 2.5


@pytest.mark.parametrize("seed", range(5))
def test_requests_envelope_and_the_labels_agree_without_backfill(seed):
    rng = np.random.default_rng(seed)
    law = empirical_law(rng.lognormal(1.0, 1.0, 300))
    labels = req.at_optimal(law, 0.0).expected_makespan
    assert req.t_optimal(law).expected_makespan == pytest.approx(labels, rel=1e-12)


LARGE = {
    "truncnorm": PAPER,
    "uniform": make_law("uniform", low=0, high=20),
    "exponential": make_law("exponential", rate=1, low=0, high=20),
    "pareto": make_law("pareto", alpha=1.1, low=1, high=1e5),
    "beta": make_law("beta", alpha=0.3, beta=3, low=0, high=9),
}


@pytest.mark.parametrize("name", LARGE)
def test_solve_in_blocks_equals_the_sweep(name, monkeypatch):
    law = discretize(LARGE[name], 20_000)
    sequence = req.t_optimal(law)
    monkeypatch.setattr(req, "BLOCKS_FROM", 10**9)
    assert req.t_optimal(law) == req.RequestSequence(
        sequence.requests, pytest.approx(sequence.expected_makespan, rel=1e-12)
    )


@st.composite
def odd_laws(draw):
    """Draw values and probabilities of many magnitudes, with ties, steps and long tails."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    size = draw(st.integers(1, 300))
    values = draw(
        st.sampled_from(
            [
                lambda: rng.random(size) * 100,
                lambda: rng.pareto(1, size) + 1,
                lambda: np.exp(rng.normal(0, 3, size)),
                lambda: rng.integers(1, 50, size),
                lambda: np.geomspace(1, 1e6, size),
                lambda: np.arange(1, size + 1),
            ]
        )
    )()
    values = np.unique(values.astype(float))
    weights = rng.random(len(values)) ** draw(st.integers(0, 12)) + 1e-300
    return Discrete(values, weights / weights.sum())


@settings(max_examples=300)
@given(odd_laws(), st.sampled_from([1, 2, 64]))
def test_blocks_of_any_size_find_the_least_cost(law, first):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(req, "BLOCKS_FROM", 0)
        patch.setattr(blocks, "FIRST", first)
        sequence = req.t_optimal(law)
        patch.setattr(req, "BLOCKS_FROM", 10**9)
        expected = req.t_optimal(law)
    assert sequence.expected_makespan == pytest.approx(expected.expected_makespan, rel=1e-11)
    assert req.expected_makespan(law, sequence.requests) == pytest.approx(
        expected.expected_makespan, rel=1e-9
    )


@settings(max_examples=60)
@given(odd_laws(), rates.filter(bool), st.integers(2, 12), st.sampled_from([0.0, 3.0]))
def test_optimal_requests_on_fewer_values_stay_within_excess(law, rate, max_values, spent):
    best = req.at_optimal(law, rate, spent).expected_makespan
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(req, "MAX_EXACT", max_values)
        sequence = req.optimal_requests(law, rate, spent)
    assert sequence.excess == 0 or len(law.values) > max_values
    assert sequence.expected_makespan == pytest.approx(
        req.expected_makespan(law, sequence.requests, rate, spent), rel=1e-12
    )
    assert (
        best * (1 - 1e-9) <= sequence.expected_makespan <= best * (1 + sequence.excess) * (1 + 1e-9)
    )


def test_requests_million_equal_values_get_one_request():
    assert req.t_optimal(discretize(LARGE["uniform"], 10**6)).requests == (20.0,)


def test_table_1_toptimal():
    assert req.t_optimal(discretize(PAPER, 200)).requests == (10.8, 13.4, 15.4, 17.1, 18.7, 20.0)


@pytest.mark.parametrize(
    ("rate", "requests"),
    [(0.1, [10.86, 13.91, 18.69, 20.0]), (0.5, [13.04, 20.0]), (0.9, [17.39, 20.0])],
)
def test_table_1_atoptimal(rate, requests):
    sequence = req.at_optimal(discretize(PAPER, 46), rate).requests
    assert [math.floor(100 * request + 1e-9) / 100 for request in sequence] == requests


def test_requests_skip_values_without_probability():
    assert req.optimal_requests(Discrete([0, 1, 2], [0, 1, 0])).requests == (1.0,)


@pytest.mark.parametrize("rate", [0.0, 1e-15])
def test_requests_skip_requests_without_gain(rate):
    uniform = discretize(make_law("uniform", low=0, high=3), 30)
    assert req.optimal_requests(uniform, rate).requests == (3.0,)


def test_after_a_failure_the_optimal_sequence_goes_on():
    runs = np.random.default_rng(1).lognormal(0.0, 1.0, 50)
    first, *remaining = req.requests_from_runs(runs).requests
    assert list(req.requests_from_runs(runs, failed=[first]).requests) == remaining
    assert req.requests_from_runs(runs, failed=[first]).requests[0] == remaining[0]


def test_backfill_counts_the_time_of_the_failed_requests():
    runs, failed = [1, 2, 5, 6, 9, 12], [4.0]
    law = empirical_law(runs).longer_than(4)
    sequence = req.requests_from_runs(runs, failed, backfill_rate=0.3)
    assert sequence.expected_makespan == pytest.approx(
        min(makespan(law, requests, 0.3, spent=4.0) for requests in every_sequence(law))
    )


def test_fewer_than_five_runs_ask_for_twice_the_longest():
    assert req.requests_from_runs([3, 4, 5, 2]).requests == (10.0,)
    assert req.requests_from_runs([3, 4, 5, 2]).expected_makespan == 10.0
    assert req.requests_from_runs([3, 4, 5, 2], failed=[10.0]).requests == (20.0,)


def test_outlived_job_requests_twice_its_failed_time():
    sequence = req.requests_from_runs([1, 2, 3, 4, 5], failed=[5.0, 10.0])
    assert (sequence.requests, sequence.expected_makespan) == ((20.0,), 35.0)


@pytest.mark.skipif(not WALLTIMES.is_dir(), reason="the logs of run times are not here")
@pytest.mark.parametrize("name", ["SLANT_walltime.log", "CT_eye_segmentation.log"])
def test_requests_from_real_logs_beat_the_longest_run(name):
    law = empirical_law(read_runs(WALLTIMES / name))
    for rate in (0.0, 0.1):
        assert req.optimal_requests(law, rate).expected_makespan < req.expected_makespan(
            law, [law.longest], rate
        )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: req.optimal_requests(empirical_law([1]), 1.0), "at least 0 and below 1"),
        (lambda: req.optimal_requests(empirical_law([1]), float("nan")), "at least 0 and below 1"),
        (lambda: req.optimal_requests(empirical_law([1]), spent=-1), "at least 0"),
        (lambda: req.expected_makespan(empirical_law([1, 3]), [2]), "below the longest run time 3"),
        (lambda: req.expected_makespan(empirical_law([1, 3]), [3, 3]), "increasing"),
        (lambda: req.requests_from_runs([]), "no past run"),
        (lambda: req.requests_from_runs([1, -2]), "above 0"),
        (lambda: req.requests_from_runs([1, 2], failed=[0]), "failed requests"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
