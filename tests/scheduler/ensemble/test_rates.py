"""Training rates: measured, estimated, and useful numbers of GPUs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.errors import InputError
from scheduler.base import Network, RateTable
from scheduler.ensemble import rates as rt
from scheduler.simulation.draw import with_errors
from tests.examples import examples
from tests.scheduler.strategies import ensembles


def table(*rates, gpus_per_node=4):
    return RateTable(100, gpus_per_node, tuple(Network(f"n{i}", r) for i, r in enumerate(rates)))


def test_beyond_two_nodes_the_rate_is_equation_5_of_the_paper():
    measured = (30.8, 60.662, 89.607, 117.656, 146.307, 174.656, 202.707, 230.462)
    network = Network("a", measured)
    for m in (9, 20, 160):
        expected = m * measured[7] / 8 * (measured[7] / measured[6] * 7 / 8) ** (m - 8)
        assert rt.rate(network, m) == pytest.approx(expected, rel=1e-12)
    assert [rt.rate(network, m) for m in range(1, 9)] == list(measured)
    # A growing gain is not extrapolated.
    assert rt.rate(Network("a", (10.0, 22.0)), 4) == pytest.approx(44.0)
    assert rt.curve(Network("a", (10.0,)), 3).tolist() == [10.0, 10.0, 10.0]


@pytest.mark.parametrize(
    ("rates", "bounds", "useful"),
    [
        ((10.0,), {}, [True, False, False]),  # one measurement shows no scaling
        ((10.0, 9.0, 12.0, 12.0, 13.0), {}, [True, False, True, False, True]),
        ((10.0, 5.0, 6.0, 7.0), {"min_gpus": 2, "max_gpus": 3}, [False, True, True, False]),
    ],
)
def test_useful_counts_are_in_bounds_and_faster_than_fewer(rates, bounds, useful):
    assert rt.curves(
        RateTable(100, 4, (Network("a", rates, **bounds),)), len(useful)
    ).useful.tolist() == [useful]


@given(ensembles())
@settings(max_examples=examples(50), deadline=None)
def test_curves_equal_single_curves_for_any_gpus(drawn):
    rates, cluster = drawn
    for gpus in {1, cluster.gpus, cluster.gpus + 3}:
        curves_ = rt.curves(rates, gpus)
        for row, network in enumerate(rates.models):
            assert curves_.rate[row].tolist() == rt.curve(network, gpus).tolist()


def test_smooth_rates_keep_measured_rates_without_noise():
    exact = table(tuple(10.0 * m * 0.95 ** (m - 1) for m in range(1, 9)))
    steady = rt.smooth_rates(exact, 12).models[0].rates
    assert steady[:8] == exact.models[0].rates
    assert steady == pytest.approx(rt.curve(exact.models[0], 12).tolist())


def test_smooth_rates_err_less_than_equation_5_with_noise():
    falls = np.linspace(0.96, 0.99, 20)
    exact = table(*[tuple(10.0 * m * fall ** (m - 1) for m in range(1, 9)) for fall in falls])

    def error(estimate):
        logs = [
            np.log(rt.curve(a, 30)[29] / rt.curve(b, 30)[29])
            for a, b in zip(estimate.models, exact.models, strict=True)
        ]
        return np.std(logs)

    measured = with_errors(exact, 0.05, seed=1)
    assert error(rt.smooth_rates(measured, 30)) < error(measured) / 4


def test_steadied_slopes_differ_as_far_as_measurements_are_exact():
    steep, flat = (tuple(10.0 * m * fall ** (m - 1) for m in range(1, 5)) for fall in (0.8, 0.99))
    exact = table(steep, flat)
    for before, after in zip(exact.models, rt.smooth_rates(exact, 8).models, strict=True):
        assert after.rates == pytest.approx(rt.curve(before, 8).tolist())


@pytest.mark.parametrize(
    ("single", "per_node", "gpus", "expected"),
    [
        ((176.0, 21.0), 4, 100, 9),  # M_a = ceil(176 / 21)
        ((40.0, 20.0), 4, 100, 8),  # M_b = two nodes
        ((176.0, 21.0), 4, 3, 3),  # no more GPUs than the cluster has
        ((), 4, 100, 8),
    ],
)
def test_counts_to_measure_are_those_of_appendix_b3(single, per_node, gpus, expected):
    assert rt.counts_to_measure(single, per_node, gpus) == expected


@given(st.lists(st.floats(1, 100), min_size=1, max_size=6), st.floats(0, 200))
def test_preprocessors_needed_is_the_least_that_is_enough(throughput, demand):
    count = rt.preprocessors_needed(throughput, demand)
    if max(throughput) >= demand:
        assert throughput[count - 1] >= demand
        assert all(reached < demand for reached in throughput[: count - 1])
    else:
        assert throughput[count - 1] == max(throughput)


def test_no_measured_preprocessor_is_an_error():
    with pytest.raises(InputError, match="that of at least one"):
        rt.preprocessors_needed([], 10.0)


@given(ensembles(most_gpus=60, bounded=True), st.integers(1, 60))
def test_columns_that_are_left_out_are_useful_to_no_network(case, width):
    table, cluster = case
    wide, narrow = rt.curves(table, cluster.gpus), rt.useful_curves(table, cluster.gpus, width)
    useful = narrow.rate.shape[1]
    assert (narrow.rate == wide.rate[:, :useful]).all()
    assert (narrow.useful == wide.useful[:, :useful]).all()
    assert not wide.useful[:, useful:width].any()


def test_on_a_large_cluster_few_columns_are_kept():
    assert rt.useful_curves(table((10.0, 19.0), (10.0,)), 10**6, 10**6).rate.shape[1] < 40
    assert rt.bent_curves(table((10.0, 20.0), (10.0, 19.0)), 10**6).rate.shape[1] < 40


def test_rates_with_rounding_errors_scale_linearly():
    assert rt.is_straight(Network("a", (0.1, 0.2, 0.3)))  # 0.3 / 3 < 0.2 / 2
    assert not rt.is_straight(Network("a", (0.1, 0.2, 0.2999)))
    assert not rt.is_straight(Network("a", (10.0,)))


def test_extend_as_printed_starts_from_two_nodes():
    measured = tuple(10.0 * m * 0.97 ** (m - 1) * (1 if m <= 4 else 0.8) for m in range(1, 8))
    extended = rt.extend_as_printed(table(measured, gpus_per_node=2), 12).models[0]
    assert extended.rates[:7] == measured
    for m in range(8, 13):  # r(m) = m r(4)/4 (r(4)/r(3) x 3/4)^(m-4)
        expected = m * measured[3] / 4 * (measured[3] / measured[2] * 3 / 4) ** (m - 4)
        assert rt.rate(extended, m) == pytest.approx(expected)
        assert rt.rate(table(measured).models[0], m) != pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("measured", [(10.0, 19.0), (10.0, 19.0, 27.0, 34.0)])
def test_extend_as_printed_changes_nothing_below_two_nodes(measured):
    rates = table(measured, gpus_per_node=2)
    assert rt.extend_as_printed(rates, 12) == rates
