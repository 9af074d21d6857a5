"""Water-filling and the lower bound, against linear programs."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from launch.errors import InputError
from scheduler.base import Cluster, Network, Progress, RateTable
from scheduler.ensemble.adaptive import group_sizes
from scheduler.ensemble.rates import curve, curves
from scheduler.ensemble.waterfill import hulls, lower_bound, water_fill
from tests.examples import examples
from tests.scheduler.strategies import ensembles


def least_time(table, gpus):
    """Solve the linear program: the least T with y[i, m] seconds on m GPUs per network."""
    hull_ = curves(table, gpus)
    pairs = list(zip(*np.nonzero(hull_.allowed), strict=True))
    work = [network.epochs * table.samples_per_epoch for network in table.models]
    rows, limits = [], []
    for i in range(len(work)):
        rows.append([float(row == i) for row, _ in pairs] + [-1.0])  # one group at a time
        limits.append(0.0)
        rows.append([-hull_.rate[row, m] * (row == i) for row, m in pairs] + [0.0])
        limits.append(-work[i])
    rows.append([float(m + 1) for _, m in pairs] + [-float(gpus)])
    limits.append(0.0)
    return linprog([0.0] * len(pairs) + [1.0], A_ub=rows, b_ub=limits).fun


@given(ensembles())
@settings(max_examples=examples(80), deadline=None)
def test_waterfill_lower_bound_is_that_of_the_linear_program(drawn):
    table, cluster = drawn
    assert lower_bound(table, cluster.gpus) == pytest.approx(
        least_time(table, cluster.gpus), rel=1e-6
    )


@given(ensembles(), st.integers(0, 5))
@settings(max_examples=examples(80), deadline=None)
def test_water_filling_uses_all_gpus_or_brings_all_to_their_peak(drawn, seed):
    table, cluster = drawn
    rows = np.arange(len(table.models))
    work = np.random.default_rng(seed).uniform(1, 100, len(rows))
    hull = hulls(table, cluster.gpus)
    level = water_fill(hull, rows, work, cluster.gpus)
    assert level.gpus.sum() <= cluster.gpus * (1 + 1e-9)
    assert (level.rate <= hull.peak * (1 + 1e-9)).all()
    at_peak = level.rate >= hull.peak * (1 - 1e-9)
    assert at_peak.all() or level.gpus.sum() == pytest.approx(cluster.gpus)
    assert level.rate[~at_peak] == pytest.approx(work[~at_peak] / level.time_s)


@given(ensembles(bounded=False))
@settings(max_examples=examples(80), deadline=None)
def test_waterfill_hull_is_concave_lies_on_curve_and_above_it(drawn):
    table, cluster = drawn
    hull, hull_ = hulls(table, cluster.gpus), curves(table, cluster.gpus)
    for row in range(len(table.models)):
        last = int(np.argmax(hull.rate[row])) + 1
        gpus, rate = hull.gpus[row, :last], hull.rate[row, :last]
        assert (np.diff(np.diff(rate) / np.diff(gpus)) <= 1e-9).all()
        assert rate[1:].tolist() == hull_.rate[row][gpus[1:].astype(int) - 1].tolist()
        counts = np.arange(1, cluster.gpus + 1)
        assert (np.interp(counts, gpus, rate) >= hull_.rate[row] - 1e-9).all()


@given(ensembles(most_gpus=80))
@settings(max_examples=examples(100), deadline=None)
def test_waterfill_straight_end_of_curve_need_not_be_written_out(drawn):
    table, cluster = drawn
    written_out = replace(
        table,
        models=tuple(
            replace(
                network,
                rates=(*curve(network, cluster.gpus).tolist(), *network.rates[cluster.gpus :]),
            )
            for network in table.models
        ),
    )
    counts = np.arange(cluster.gpus + 1)
    for short, long in zip(
        *(
            zip(hull.gpus, hull.rate, strict=True)
            for hull in (hulls(table, cluster.gpus), hulls(written_out, cluster.gpus))
        ),
        strict=True,
    ):
        np.testing.assert_allclose(np.interp(counts, *short), np.interp(counts, *long), rtol=1e-9)
    assert group_sizes(table, Progress(), cluster) == group_sizes(written_out, Progress(), cluster)


def test_water_fill_shares_a_million_gpus():
    table = RateTable(100, 4, tuple(Network(f"n{i}", (10.0, 20.0 + i)) for i in range(8)))
    level = group_sizes(table, Progress(), Cluster.of(10**6, 4))
    assert sum(level.values()) == 10**6
    assert all(size % 4 == 0 for size in level.values())


def test_sharing_between_two_sizes_costs_the_average_of_both():
    table = RateTable(100, 4, (Network("a", (10.0, 16.0), max_gpus=2),))
    gpus, slope = hulls(table, 2).demand(np.array([13.0]), np.array([0]))
    assert (gpus[0], slope[0]) == (pytest.approx(1.5), pytest.approx(1 / 6))


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (Network("a", (1.0,)), "a has no epochs"),
        (Network("a", (1.0,), epochs=1, min_gpus=3), "a needs at least 3 GPUs, not 2"),
    ],
)
def test_waterfill_has_no_bound_for_untrainable_networks(network, message):
    with pytest.raises(InputError, match=message):
        lower_bound(RateTable(100, 1, (network,)), 2)
