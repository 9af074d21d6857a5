"""Networks that share a GPU: their combined rate, and how many should share it."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.base import Network, RateTable
from scheduler.ensemble.online import Observation, OnlineRates, Traits
from scheduler.ensemble.sharing import (
    REACH,
    Sharing,
    best_networks_per_gpu,
    share,
    speedup,
    useful_networks_per_gpu,
)
from tests.examples import examples

SURE = 0.0, 1000  # no deviation over many steps
CURVES = st.lists(st.floats(0.5, 4.0), min_size=1, max_size=5).map(
    lambda gains: (1.0, *(min(count, gain) for count, gain in enumerate(gains, start=2)))
)


@given(
    CURVES,
    st.dictionaries(
        st.tuples(st.sampled_from("abc"), st.integers(1, 3)),
        st.floats(1.0, 1e4),
        min_size=1,
        max_size=5,
    ),
)
@settings(max_examples=examples(60), deadline=None)
def test_sharing_curve_is_fitted_across_speeds(curve, alone):
    sharing = Sharing()
    for number, (unit, rate) in enumerate(alone.items()):
        sharing.observe(unit, 1, rate, *SURE)
        for count in range(2, len(curve) + 1):
            # Not every network is measured beside every number of others.
            if count == 2 or number == 0:
                sharing.observe(unit, count, rate * share(curve, count), *SURE)
    assert sharing.curve == pytest.approx(curve)


def test_sharing_is_unknown_without_a_network_alone():
    sharing = Sharing()
    sharing.observe(("a", 1), 2, 10.0, *SURE)
    sharing.observe(("a", 1), 4, 6.0, *SURE)
    assert (sharing.curve, sharing.fitted, sharing.is_known(2)) == ((), {}, False)
    sharing.observe(("b", 1), 4, 6.0, *SURE)
    sharing.observe(("b", 1), 1, 12.0, *SURE)  # b and four link a and two to one
    assert sharing.fitted == {2: pytest.approx(2 * 10 / 12), 4: pytest.approx(2.0)}


def test_noise_makes_no_network_faster_beside_others_than_alone():
    sharing = Sharing()
    sharing.observe(("a", 1), 1, 10.0, *SURE)
    sharing.observe(("a", 1), 2, 11.0, *SURE)
    assert sharing.curve == (1.0, 2.0)


def test_sharing_prior_holds_until_measured():
    sharing = Sharing({2: 1.6, 4: 2.2}, {"a": {1: 10.0}})
    assert sharing.curve == (1.0, 1.6, 2.0, 2.2)
    sharing.observe(("a", 1), 2, 5.0, *SURE)  # alone it had 10 in the earlier run
    assert sharing.curve[1] == 1.0


def test_sharing_few_uneven_steps_change_nothing_and_many_do():
    sharing = Sharing()
    sharing.observe(("a", 1), 1, 1000.0, 0.5, 500)
    sharing.observe(("a", 1), 2, 90.0, 3.0, 10)  # one of ten took a hundred times as long
    assert sharing.curve == (1.0,)
    sharing.observe(("a", 1), 2, 800.0, 0.5, 500)
    assert sharing.curve == (1.0, 1.6)
    sharing.observe(("a", 1), 2, 400.0, 0.1, 10)  # too few to forget so many for
    assert sharing.curve == (1.0, 1.6)
    sharing.observe(("a", 1), 2, 600.0, 0.5, 200)
    assert sharing.curve == (1.0, 1.2)


def test_sharing_weights_observations_by_steps():
    sharing = Sharing()
    for name, rate, steps in (("a", 8.0, 400), ("b", 5.0, 10)):
        sharing.observe((name, 1), 1, 10.0, 0.0, 400)
        sharing.observe((name, 1), 2, rate, 0.3, steps)
    assert 1.5 < sharing.curve[1] < 1.6  # with equal weights it would be 1.26


def test_sharing_assumes_idle_slots_until_measured():
    sharing = Sharing(idle_slots=3)
    sharing.observe(("a", 1), 1, 10.0, 0.0, 400)
    assert (sharing.curve, sharing.is_known(2)) == ((1.0, 1.0, 1.0), False)
    tables = [
        RateTable(
            1,
            1,
            (Network("a", (10.0,)), Network("b", (10.0,))),
            sharing=sharing.curve,
            supply=supply,
        )
        for supply in (math.inf, 2.0)
    ]
    assert [best_networks_per_gpu(table, "ab", 3) for table in tables] == [1, 3]
    sharing.observe(("a", 1), 2, 8.0, 0.0, 400)
    assert sharing.curve == (1.0, 1.6, 1.6)


@given(CURVES, st.integers(1, 12))
@settings(max_examples=examples(60), deadline=None)
def test_sharing_tries_at_most_twice_the_known_count(curve, limit):
    table = RateTable(1, 1, (Network("a", (10.0,)),), sharing=curve)
    counts = best_networks_per_gpu(table, "a", limit)
    assert 1 <= counts <= min(limit, REACH * len(curve))
    assert counts >= min(limit, useful_networks_per_gpu(curve))
    assert all(speedup(curve, count + 1) > speedup(curve, count) for count in range(1, counts))


def test_unmeasured_sharing_begins_between_published_pairs():
    assert 1.37 < speedup((1.0,), 2) < 1.87
    assert speedup((1.0,), 2) == speedup((), 2) == pytest.approx((1.37 * 1.87) ** 0.5, abs=0.005)


@given(CURVES, st.integers(1, 64))
@settings(max_examples=examples(60), deadline=None)
def test_guessed_speedups_saturate_from_the_last_measured_one(curve, count):
    counts = len(curve)
    assert [speedup(curve, measured) for measured in range(1, counts + 1)] == [*curve]
    guesses = [speedup(curve, counts + more) for more in range(count)]
    gains = [after - before for before, after in itertools.pairwise(guesses)]
    # Never more than in proportion, and each further network adds less than the one before.
    assert all(
        0 < guess <= curve[-1] * (1 + more / counts) + 1e-9 for more, guess in enumerate(guesses)
    )
    assert all(second <= first + 1e-9 for first, second in itertools.pairwise(map(abs, gains)))
    if counts > 1 and curve[-1] <= 1:
        assert all(gain <= 1e-9 for gain in gains)


def test_slow_input_makes_sharing_pay():
    def together(supply):
        return best_networks_per_gpu(
            RateTable(1, 1, (Network("a", (6936.0,)),), sharing=(1.0,) * 3, supply=supply), "a", 3
        )

    assert [together(supply) for supply in (1190.0, 3000.0, 7000.0)] == [3, 3, 1]


# --- rates that are learned beside others -------------------------------------------------------


def test_shared_rates_are_converted_to_unshared_ones():
    rates = OnlineRates([Traits("a", "a"), Traits("b", "b")], 100, 1, 1, slots=4)
    assert rates.table().sharing == ()
    rates.observe("a", 1, Observation(10.0, steps=1000))
    rates.record_plan()
    rates.observe("a", 1, Observation(7.5, steps=1000, networks_per_gpu=2))
    assert rates.has_news  # more is known about sharing than when it was planned
    rates.observe("b", 1, Observation(30.0, steps=1000, networks_per_gpu=2))
    assert rates.table().sharing == (1.0, 1.5)
    assert [network.rates for network in rates.table().models] == [
        (pytest.approx(10.0),),
        (pytest.approx(40.0),),
    ]


def test_sharing_learns_nothing_without_shared_gpus():
    rates = OnlineRates([Traits("a", "a")], 100, 1, 1)
    rates.observe("a", 1, Observation(10.0, steps=1000))
    rates.record_plan()
    rates.observe("a", 1, Observation(10.1))
    assert (rates.sharing, rates.table().sharing, rates.has_news) == (None, (1.0,), False)
