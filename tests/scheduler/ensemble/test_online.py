"""Rates learned during training: estimates, observations, and reasons for another plan."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.base import Cluster, Options, Progress, Round
from scheduler.ensemble import online as learn
from scheduler.ensemble.adaptive import group_sizes
from scheduler.ensemble.policies import POLICIES, check_round
from scheduler.ensemble.rates import rate
from tests.examples import examples


def online(*networks, gpus=16, prior=None):
    return learn.OnlineRates(
        [
            network if isinstance(network, learn.Traits) else learn.Traits(network, network)
            for network in networks
        ],
        1000,
        4,
        gpus,
        prior,
    )


def rates_in(rates, name, gpus):
    """Return the estimate of a network on a number of GPUs."""
    return rate(next(network for network in rates.table().models if network.name == name), gpus)


def max_gpus(rates, name):
    """Return the largest number of GPUs that it may be planned on."""
    return next(network.max_gpus for network in rates.table().models if network.name == name)


# --- what was seen ------------------------------------------------------------------------------

OBSERVATIONS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 12), st.floats(0.1, 1e4)),
    max_size=12,
    unique_by=lambda observation: observation[:2],
)


@given(OBSERVATIONS, st.randoms())
@settings(max_examples=examples(60), deadline=None)
def test_online_rates_do_not_depend_on_the_order(seen, random):
    first, second = online(*"abc"), online(*"abc")
    for name, gpus, table in seen:
        first.observe(name, gpus, learn.Observation(table))
    random.shuffle(seen)
    for name, gpus, table in seen:
        second.observe(name, gpus, learn.Observation(table))
    assert first.table() == second.table()
    for name, gpus, table in seen:
        assert rates_in(first, name, gpus) == table
    for network in first.table().models:
        assert all(0 < model < math.inf for model in network.rates)
        assert len(network.rates) == network.max_gpus


def test_online_rates_observation_replaces_the_one_before_it():
    rates = online("a")
    rates.observe("a", 1, learn.Observation(10.0, 0.1, 20))
    rates.observe("a", 1, learn.Observation(12.0, 0.1, 500))
    assert rates_in(rates, "a", 1) == 12.0


def test_networks_of_one_speed_are_seen_together():
    rates = online(learn.Traits("a", "k"), learn.Traits("b", "k"), learn.Traits("c", "c"))
    rates.observe("a", 1, learn.Observation(10.0, steps=100))
    rates.observe("b", 1, learn.Observation(13.0, steps=200))
    assert rates_in(rates, "a", 1) == rates_in(rates, "b", 1) == 12.0
    assert rates.has_seen("b")
    assert not rates.has_seen("c")


def test_online_rates_observation_of_nothing_is_none():
    rates = online("a")
    rates.observe("a", 1, learn.Observation(0.0))
    assert not rates.has_seen("a")


# --- how far it may go --------------------------------------------------------------------------


@given(OBSERVATIONS, st.integers(1, 20), st.integers(1, 3), st.none() | st.integers(3, 20))
@settings(max_examples=examples(60), deadline=None)
def test_online_rates_plan_at_most_twice_the_largest_seen(seen, gpus, sizes, limit):
    rates = online(
        *(learn.Traits(name, name, min_gpus=sizes, max_gpus=limit) for name in "abc"), gpus=gpus
    )
    for name, size, table in seen:
        rates.observe(name, size, learn.Observation(table))
    largest = {
        name: max((size for model, size, _ in seen if model == name), default=0) for name in "abc"
    }
    of_any = max(largest.values())
    for network in rates.table().models:
        bound = min(max(1, learn.REACH * (largest[network.name] or of_any)), limit or gpus, gpus)
        assert network.max_gpus == max(sizes, bound)


def test_online_limit_is_twice_the_largest_size_of_any():
    rates = online(*"abcdefx")
    rates.observe("x", 1, learn.Observation(10.0))
    for number, name in enumerate("abcde", start=1):
        rates.observe(name, 2, learn.Observation(20.0))
        rates.observe(name, 4, learn.Observation(40.0))
        assert max_gpus(rates, "x") == (8 if number == learn.POOLED else 2)
    assert max_gpus(rates, "f") == 8


def test_online_group_may_grow_after_its_largest_size():
    rates = online("a", gpus=8)
    rates.record_plan()
    assert max_gpus(rates, "a") == 1
    rates.observe("a", 1, learn.Observation(rates_in(rates, "a", 1)))
    assert (rates.may_grow, rates.is_off, max_gpus(rates, "a")) == (True, False, 2)
    rates.record_plan()
    assert not rates.has_news
    rates.observe("a", 1, learn.Observation(rates_in(rates, "a", 1)))
    assert not rates.has_news  # nothing new


# --- what was never seen ------------------------------------------------------------------------


def test_online_unmeasured_size_has_the_common_slope():
    rates = online("a", "b")
    for gpus in (1, 2, 4, 8):
        rates.observe("a", gpus, learn.Observation(10.0 * gpus * 0.95 ** (gpus - 1)))
    rates.observe("b", 2, learn.Observation(38.0))  # 20 on one GPU, by that slope
    assert rates_in(rates, "b", 4) == pytest.approx(20.0 * 4 * 0.95**3)
    assert rates_in(rates, "b", 1) == pytest.approx(20.0)
    assert rates_in(rates, "a", 6) == pytest.approx(10.0 * 6 * 0.95**5)


@given(
    st.lists(
        st.tuples(st.sampled_from(["ResNet", "DenseNet", "CNN"]), st.floats(1e6, 1e12)),
        min_size=3,
        max_size=9,
    ),
    st.floats(1e-3, 1e3),
    st.data(),
)
@settings(max_examples=examples(60), deadline=None)
def test_offsets_of_machine_and_family_are_learned(drawn, machine, data):
    """If speed is a factor per family times operations, one network of each predicts all others."""
    factor = {"ResNet": machine, "DenseNet": 3 * machine, "CNN": 0.2 * machine}
    networks = [
        learn.Traits(f"n{i}", f"n{i}", family, operations)
        for i, (family, operations) in enumerate(drawn)
    ]
    rates = online(*networks)
    for family in {family for family, _ in drawn}:
        observation = data.draw(
            st.sampled_from([network for network in networks if network.family == family])
        )
        rates.observe(
            observation.name, 1, learn.Observation(factor[family] * 1e9 / observation.operations)
        )
    for network in networks:
        expected = factor[network.family] * 1e9 / network.operations
        assert rates_in(rates, network.name, 1) == pytest.approx(expected, rel=1e-6)


def test_online_unknown_network_is_like_the_others():
    rates = online(
        learn.Traits("a", "a", operations=1e9), learn.Traits("b", "b", operations=4e9), "c"
    )
    rates.observe("a", 1, learn.Observation(100.0))
    assert rates_in(rates, "c", 1) == pytest.approx(50.0)


def test_online_overestimated_network_does_not_wait_forever():
    """An estimate is the lower end of its range, once others have shown the size of errors."""
    networks = [
        learn.Traits(f"n{i}", f"n{i}", operations=operations)
        for i, operations in enumerate((1.0, 2.0, 4.0, 8.0))
    ]
    rates, cluster = (
        online(*networks, learn.Traits("x", "x", operations=1.5), gpus=4),
        Cluster.of(4, 4),
    )
    for network, observation in zip(networks, (10.0, 40.0, 10.0, 40.0), strict=True):
        rates.observe(network.name, 1, learn.Observation(observation))
    assert rates_in(rates, "x", 1) < 10.0
    assert "x" in group_sizes(rates.table(), Progress(), cluster)


# --- what earlier runs knew ---------------------------------------------------------------------


def test_online_prior_holds_until_training_contradicts():
    rates = online("a", prior={"a": {1: 10.0, 2: 19.0, 4: 36.0}, "gone": {1: 1.0}})
    assert [rates_in(rates, "a", gpus) for gpus in (1, 2, 4)] == [10.0, 19.0, 36.0]
    assert (max_gpus(rates, "a"), rates.is_known("a"), rates.has_seen("a")) == (8, True, False)
    rates.observe("a", 2, learn.Observation(20.0))
    assert [rates_in(rates, "a", gpus) for gpus in (1, 2, 4)] == [10.0, 20.0, 36.0]


def test_online_wrong_prior_puts_other_sizes_in_doubt():
    rates = online("a", prior={"a": {1: 10.0, 2: 19.0, 4: 36.0}})
    rates.observe("a", 2, learn.Observation(38.0))
    assert rates_in(rates, "a", 2) == 38.0
    assert rates_in(rates, "a", 1) == pytest.approx(19.0)
    assert max_gpus(rates, "a") == 4


# --- what calls for another plan ----------------------------------------------------------------


@given(st.floats(1.0, 1e3), st.floats(0.3, 3.0), st.floats(0.0, 1.0), st.integers(1, 400))
@settings(max_examples=examples(100), deadline=None)
def test_is_off_needs_more_than_a_quarter_beyond_chance(expected, factor, spread, steps):
    observed = learn.Observation(expected * factor, spread, steps)
    table = learn.is_off(observed, expected)
    assert not table or abs(factor - 1) > learn.OFF
    if spread == 0 and abs(factor - 1) > learn.OFF + 1e-9:
        assert table
    if table:  # more steps make it more certain
        assert learn.is_off(learn.Observation(observed.rate, spread, 2 * steps), expected)


def test_noise_triggers_no_plan_but_a_change_does():
    """With more ranks than cores, the rate of one epoch says little about the next."""
    rates = online(
        learn.Traits("a", "a", operations=1.0), learn.Traits("b", "b", operations=1.0), gpus=8
    )
    rates.observe("a", 1, learn.Observation(100.0))
    rates.record_plan()
    called = []
    for observation in (120.0, 95.0, 115.0, 90.0, 120.0, 100.0, 135.0, 300.0):
        rates.observe("a", 1, learn.Observation(observation))
        called.append(rates.is_off)
    assert called == [False] * 7 + [True]


@given(st.floats(0.01, 0.3), st.integers(0, 99), st.floats(1.5, 9.0))
def test_noise_is_that_of_observations_whatever_happens_once(deviation, seed, jump):
    draw = np.random.default_rng(seed)
    observation = 100 * np.exp(deviation * draw.standard_normal(learn.MAX_CHANGES + 1))
    noise = learn.Noise()
    for before, now in pairwise(np.r_[observation[:25], jump * observation[25:]]):
        noise.add(before, now)
    assert 0.5 * deviation <= noise.deviation <= 1.6 * deviation


def test_too_few_observations_say_nothing_of_noise():
    noise = learn.Noise()
    for _ in range(learn.MIN_CHANGES - 1):
        noise.add(1.0, 2.0)
    assert noise.deviation == 0
    noise.add(1.0, 2.0)
    assert noise.deviation > 0


def test_online_rates_plan_by_wrong_rates_is_made_again():
    rates = online(
        learn.Traits("a", "a", operations=1.0), learn.Traits("b", "b", operations=1.0), gpus=8
    )
    rates.record_plan()
    observation = rates_in(rates, "a", 1)
    rates.observe("a", 1, learn.Observation(observation * 1.2))
    assert not rates.is_off
    rates.observe("b", 1, learn.Observation(observation * 1.5))
    assert rates.is_off
    rates.record_plan()
    assert not rates.has_news


def test_online_rates_share_of_a_network_that_proves_slow_grows():
    """With online rates, `adaptive` plans more GPUs for it, though no network finished."""
    rates, cluster = online("a", "b", gpus=8), Cluster.of(8, 8)
    for gpus in (1, 2, 4):
        rates.observe("a", gpus, learn.Observation(40.0 * gpus))
        rates.observe("b", gpus, learn.Observation(40.0 * gpus))
    rates.record_plan()
    decide = POLICIES["adaptive"].decide
    first = decide(rates.table(), Progress(), cluster, None)
    assert first.counts == {"a": 4, "b": 4}
    for gpus in (1, 2, 4):
        rates.observe("b", gpus, learn.Observation(10.0 * gpus))
    progress = Progress(running=first.members, target=first)
    assert decide(rates.table(), progress, cluster, None) == first
    again = decide(
        rates.table(),
        Progress(running=first.members, target=first, rates_changed=rates.has_news),
        cluster,
        None,
    )
    assert again.counts["b"] > again.counts["a"]


# --- probing ------------------------------------------------------------------------------------


def uncertain():
    """Networks that scale well or poorly, each seen on 1 and 2 GPUs; and one seen only on 1 GPU."""
    rates = online(*"abcdef", "x", gpus=4)
    for index, name in enumerate("abcdef"):
        rates.observe(name, 1, learn.Observation(10.0))
        rates.observe(name, 2, learn.Observation(20.0 if index % 2 else 11.0))
    rates.observe("x", 1, learn.Observation(10.0))
    return rates


def test_online_unmeasured_size_is_at_the_upper_end():
    rates = uncertain()
    mean = 2 * 10.0 * math.sqrt(11.0 / 20.0)  # the mean of the slopes
    assert mean < rates_in(rates, "x", 2) <= 20.0 * (1 + 1e-12)  # except for its last bits


def test_online_plan_tries_a_promising_size_once():
    rates, cluster = uncertain(), Cluster.of(2, 2)
    peers = frozenset("abcdef")
    assert group_sizes(rates.table(), Progress(finished=peers), cluster) == {"x": 2}
    rates.observe("x", 2, learn.Observation(9.0))  # not worth a GPU
    assert group_sizes(rates.table(), Progress(finished=peers), cluster) == {"x": 1}


def test_online_does_not_replan_without_alternatives():
    rates = online("a", "b", gpus=2)  # a GPU each, however well they scale
    rates.observe("a", 1, learn.Observation(10.0))
    rates.observe("b", 1, learn.Observation(10.0))
    assert group_sizes(rates.table(), Progress(), Cluster.of(2, 2)) == {"a": 1, "b": 1}


# --- every policy ------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@given(seen=OBSERVATIONS, gpus=st.integers(1, 16), changed=st.booleans())
@settings(max_examples=examples(30), deadline=None)
def test_online_rates_suit_every_policy(policy, seen, gpus, changed):
    rates, cluster = online(*"abc", gpus=gpus), Cluster.of(gpus, min(4, gpus))
    first = POLICIES[policy].decide(rates.table(), Progress(), cluster, Options())
    check_round(first, rates.table(), Progress(), cluster)
    assert first.members
    for name, size, table in seen:
        rates.observe(name, min(size, gpus), learn.Observation(table))
    progress = Progress(running=first.members, target=first, rates_changed=changed)
    answer = POLICIES[policy].decide(rates.table(), progress, cluster, Options())
    if answer != Round():
        given_devices = [device for member in answer.members for device in member.devices]
        assert len(set(given_devices)) == len(given_devices)
