"""Distributions of run times, compared with scipy.stats."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from launch.errors import InputError
from scheduler.reservation.distributions import (
    Discrete,
    coarsen,
    discretize,
    empirical_law,
    make_law,
)

LAWS = {
    "truncnorm": ({"mu": 8, "sigma": 2, "low": 6, "high": 16}, stats.norm(8, 2)),
    "beta": ({"alpha": 2, "beta": 3, "low": 1, "high": 5}, stats.beta(2, 3, loc=1, scale=4)),
    "exponential": ({"rate": 0.7, "low": 0.01, "high": 16}, stats.expon(scale=1 / 0.7)),
    "pareto": ({"alpha": 2.1, "low": 1, "high": 20}, stats.pareto(2.1)),
    "lognormal": ({"mu": 1, "sigma": 0.5, "low": 0, "high": 9}, stats.lognorm(0.5, scale=np.e)),
    "uniform": ({"low": 2, "high": 6}, stats.uniform(2, 4)),
}


@pytest.fixture(params=LAWS)
def pair(request):
    """Draw a distribution, and the same one before truncation from scipy."""
    parameters, uncut = LAWS[request.param]
    return make_law(request.param, **parameters), uncut


def test_cdf_is_the_scaled_uncut_distribution(pair):
    law, uncut = pair
    times = np.linspace(law.low - 1, law.high + 1, 60)
    inside = uncut.cdf(law.high) - uncut.cdf(law.low)
    expected = (uncut.cdf(np.clip(times, law.low, law.high)) - uncut.cdf(law.low)) / inside
    assert law.cdf(times) == pytest.approx(expected)


def test_distribution_density_is_rescaled_by_truncation(pair):
    law, uncut = pair
    times = np.linspace(law.low, law.high, 41)[1:-1]
    inside = uncut.cdf(law.high) - uncut.cdf(law.low)
    assert law.pdf(times) == pytest.approx(uncut.pdf(times) / inside)
    assert law.pdf([law.low - 0.5, law.high + 0.5]) == pytest.approx(0)


def test_samples_follow_the_law(pair):
    law, _ = pair
    sample = law.sample(np.random.default_rng(0), 4000)
    assert stats.kstest(sample, law.cdf).pvalue > 0.01
    assert law.mean == pytest.approx(sample.mean(), abs=4 * sample.std() / 4000**0.5)


def test_discretize_keeps_the_distribution_at_its_values(pair):
    law, _ = pair
    discrete = discretize(law, 50)
    assert np.cumsum(discrete.probabilities) == pytest.approx(law.cdf(discrete.values))
    assert discrete.mean - law.mean == pytest.approx(0.5 * (law.high - law.low) / 50, rel=0.3)


@pytest.mark.parametrize(
    ("name", "parameters", "uncut"),
    [
        ("truncnorm", {"mu": -30, "sigma": 1}, stats.norm(-30, 1)),
        ("lognormal", {"mu": -30, "sigma": 2}, stats.lognorm(2, scale=np.exp(-30))),
        ("exponential", {"rate": 40}, stats.expon(scale=1 / 40)),
    ],
)
def test_distribution_cut_far_out_in_its_tail_keeps_its_digits(name, parameters, uncut):
    law = make_law(name, low=1, high=2, **parameters)
    times = np.array([1.01, 1.1, 1.5])
    inside = uncut.sf(1) - uncut.sf(2)
    assert law.cdf(times) == pytest.approx((uncut.sf(1) - uncut.sf(times)) / inside, rel=1e-9)
    assert law.pdf(times) == pytest.approx(uncut.pdf(times) / inside, rel=1e-9)
    assert stats.kstest(law.sample(np.random.default_rng(0), 1000), law.cdf).pvalue > 0.01


def test_distribution_of_past_runs_counts_equal_ones_together():
    law = empirical_law([5.0, 2.0, 5.0, 2.0, 9.0])
    assert law.values.tolist() == [2.0, 5.0, 9.0]
    assert law.probabilities.tolist() == [0.4, 0.4, 0.2]


def test_distribution_beyond_a_time_is_conditional():
    law = Discrete([1, 2, 3], [0.5, 0.25, 0.25])
    assert law.longer_than(1).probabilities.tolist() == [0.5, 0.5]
    assert law.longer_than(3) is None
    assert Discrete([1, 2], [1, 0]).longer_than(1) is None


def test_work_within_a_time_is_what_a_run_stopped_there_achieves():
    law = Discrete([1, 2, 4], [0.5, 0.25, 0.25])
    assert [law.work_within(t) for t in (0.5, 1, 3, 9)] == [0.0, 0.5, 1.0, 2.0]
    assert law.work_within(3, after=1) == pytest.approx(1.0)
    assert law.work_within(3, after=3) == 0.0


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("normal", {}, "unknown distribution 'normal'; there are: truncnorm"),
        (
            "truncnorm",
            {"low": 0, "high": 1, "mu": 0},
            "takes low, high, mu, sigma; given: low, high, mu",
        ),
        (
            "uniform",
            {"low": 0, "high": 1, "mu": 0},
            "uniform takes low, high; given: low, high, mu",
        ),
        ("truncnorm", {"low": 0, "high": 1, "mu": 0, "sigma": 0}, "sigma is 0; it must be above 0"),
        ("truncnorm", {"low": 0, "high": float("inf"), "mu": 0, "sigma": 1}, "high is inf"),
        (
            "truncnorm",
            {"low": 50, "high": 60, "mu": 0, "sigma": 1},
            "no probability between 50 and 60",
        ),
        ("uniform", {"low": 3, "high": 3}, "0 <= low < high"),
        ("uniform", {"low": -3, "high": 3}, "0 <= low < high"),
        ("pareto", {"low": 0, "high": 3, "alpha": 2}, "low is 0; it must be above 0"),
        ("exponential", {"low": 0, "high": 3, "rate": float("nan")}, "rate is nan"),
    ],
)
def test_distribution_is_refused_if_impossible(name, parameters, message):
    with pytest.raises(InputError, match=message):
        make_law(name, **parameters)


@pytest.mark.parametrize(
    ("values", "probabilities", "message"),
    [
        ([1, 2], [0.5, 0.4], "the sum is 0.9"),
        ([1, 2], [1.5, -0.5], "the smallest -0.5"),
        ([1, 2], [float("nan"), 1], "sum to 1"),
        ([2, 1], [0.5, 0.5], "increasing"),
        ([1, 1], [0.5, 0.5], "increasing"),
        ([-1, 1], [0.5, 0.5], "at least 0"),
        ([1, float("inf")], [0.5, 0.5], "finite"),
        ([1], [0.5, 0.5], "as many values as probabilities"),
        ([], [], "at least one"),
    ],
)
def test_values_and_probabilities_that_are_no_law_are_refused(values, probabilities, message):
    with pytest.raises(InputError, match=message):
        Discrete(values, probabilities)


@pytest.mark.parametrize("runs", [[1, 0], [1, float("inf")], [1, float("nan")]])
def test_runs_that_are_no_times_are_refused(runs):
    with pytest.raises(InputError, match="finite and above 0"):
        empirical_law(runs)


def test_distribution_needs_a_point():
    with pytest.raises(InputError, match="the number of points is 0"):
        discretize(make_law("uniform", low=0, high=1), 0)


@given(
    st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=60, unique=True),
    st.integers(1, 20),
    st.booleans(),
)
def test_coarsen_stays_within_its_excess(values, max_values, zero):
    values = np.sort([0.0, *values] if zero else values)
    law = Discrete(values, np.full(len(values), 1 / len(values)))
    coarse, excess = coarsen(law, max_values + zero)
    assert len(coarse.values) <= max_values + zero
    rounded = coarse.values[np.searchsorted(coarse.values, values)]
    assert (rounded >= values).all()
    assert (rounded <= values * (1 + excess) * (1 + 1e-12)).all()
    assert np.allclose(coarse.probabilities, [(rounded == value).mean() for value in coarse.values])


def test_distribution_of_few_values_stays_as_it_is():
    coarse, excess = coarsen(Discrete([1, 2, 3], [0.5, 0, 0.5]), 2)
    assert (coarse.values.tolist(), excess) == ([1, 3], 0.0)
