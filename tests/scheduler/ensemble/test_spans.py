"""Rates that belong to how GPUs lie on nodes: what is learned of them, and when it is used."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.base import Cluster, GroupShape, Network, Span
from scheduler.ensemble.online import LONG_EPOCH_S, SPANS_TRIED, OnlineRates, Traits
from scheduler.ensemble.rates import curve, rate
from scheduler.ensemble.spans import OFF, PLAIN_ERROR, SURE, Observation
from tests.examples import examples

NODE, PACKED, SPREAD = Span.NODE, Span.PACKED, Span.SPREAD


def online(*names, samples=1000, gpus=16, prior=None, family=""):
    networks = [Traits(name, name, family) for name in names]
    return OnlineRates(networks, samples, 4, gpus, prior)


def network_of(rates, name="a"):
    return rates.table().by_name[name]


# --- shapes -------------------------------------------------------------------------------------


@given(st.sets(st.integers(0, 23), min_size=1), st.sampled_from([1, 2, 4, 8]))
@settings(max_examples=examples(100), deadline=None)
def test_shape_counts_nodes(devices, gpus_per_node):
    cluster = Cluster.of(24, gpus_per_node)
    shape = GroupShape.of(devices, cluster)
    nodes = len({device // gpus_per_node for device in devices})
    needed = min(count for count in range(1, 25) if count * gpus_per_node >= len(devices))
    assert shape.gpus == len(devices)
    if len(devices) == 1 or gpus_per_node == 1:
        assert shape.span is Span.ANY
    else:
        expected = SPREAD if nodes > needed else PACKED if nodes > 1 else NODE
        assert shape.span is expected
    assert GroupShape.parse(str(shape)) == shape


def test_shape_of_slots_counts_gpus():
    cluster = Cluster.of(gpus=4, gpus_per_node=2, slots=2)  # devices 0 to 3 are on one node
    assert GroupShape.of((0, 3), cluster) == (2, NODE)
    assert GroupShape.of((0, 4), cluster) == (2, SPREAD)
    assert GroupShape.of((0, 1, 4, 5), cluster) == (4, PACKED)


@given(st.sets(st.integers(0, 7), min_size=1))
def test_groups_of_one_node_have_no_span(devices):
    assert GroupShape.of(devices, Cluster.of(8, 8)).span is Span.ANY


# --- what is learned ----------------------------------------------------------------------------

OBSERVATIONS = st.lists(
    st.tuples(st.integers(1, 12), st.sampled_from([*Span]), st.floats(90.0, 110.0)), max_size=12
)


@given(OBSERVATIONS)
@settings(max_examples=examples(60), deadline=None)
def test_spans_that_do_not_differ_share_one_estimate(seen):
    with_spans, without = online("a"), online("a")
    for number, (gpus, span, single) in enumerate(seen):
        for rates, shape in ((with_spans, GroupShape(gpus, span)), (without, GroupShape(gpus))):
            # Each observation stays, as if another network had made it.
            rates.add(Traits(str(number), "a"), {})
            rates.observe(str(number), shape, Observation(gpus * single, steps=50))
    table = with_spans.table()
    assert not table.has_spread
    for network, expected in zip(table.models, without.table().models, strict=True):
        assert network.rates == pytest.approx(expected.rates)


@given(
    st.floats(0.3, 3.0).filter(lambda factor: not 0.75 < factor < 1.35),
    st.sampled_from([(2, NODE), (4, NODE), (6, PACKED)]),
)
@settings(max_examples=examples(60), deadline=None)
def test_spans_that_differ_have_their_own_estimates(factor, shape):
    gpus, span = shape
    rates = online("a")
    rates.observe("a", 1, Observation(100.0, steps=50))
    rates.observe("a", GroupShape(gpus, span), Observation(100.0 * gpus, steps=50))
    rates.observe("a", GroupShape(gpus, SPREAD), Observation(100.0 * gpus * factor, steps=50))
    network = network_of(rates)
    for size in range(2, len(network.rates) + 1):
        on_few, spread = rate(network, size, span), rate(network, size, SPREAD)
        # Of groups that would fit on a node, or of larger ones, whichever were seen.
        is_alike = (size <= 4) == (gpus <= 4)
        # Larger groups may continue like spread ones.
        hope = max(1.0, factor) if size > 4 and not is_alike else 1.0
        assert on_few == pytest.approx(100.0 * size * hope)
        assert spread == pytest.approx(on_few * (factor if is_alike else 1.0))
        assert rate(network, size) == pytest.approx(max(on_few, spread))
        assert curve(network, size)[-1] == rate(network, size)


@pytest.mark.parametrize("factor", [0.5, 1 - OFF / 2, 1.0, 1 + OFF / 2, 2.0])
def test_spans_differ_by_more_than_noise(factor):
    """Before the noise is known a quarter counts; then three standard errors do."""
    rates = online(*"abcdefg")
    for name in "abcdef":
        for observed in (100.0, 101.0):  # from one epoch to the next
            rates.observe(name, 1, Observation(observed, steps=50))
    rates.observe("g", GroupShape(2, NODE), Observation(200.0, steps=50))
    rates.observe("g", GroupShape(2, SPREAD), Observation(200.0 * factor, steps=50))
    noise = rates._noise.deviation
    assert 0 < noise < PLAIN_ERROR
    doubt = SURE * math.sqrt(2) * math.hypot(PLAIN_ERROR, noise)
    assert bool(network_of(rates, "g").spread_rates) == (abs(math.log(factor)) > doubt)


def test_larger_groups_may_continue_like_spread_ones():
    """A network that is slow on one node is not expected to stay so on several."""
    rates = online("a")
    rates.observe("a", 1, Observation(100.0, steps=50))
    for gpus, efficiency in ((2, 0.7), (4, 0.5)):
        rates.observe("a", GroupShape(gpus, NODE), Observation(100.0 * gpus * efficiency, steps=50))
    rates.observe("a", GroupShape(4, SPREAD), Observation(390.0, steps=50))
    network = network_of(rates)
    assert all(rate(network, gpus) > 390.0 for gpus in (5, 6, 7, 8))
    rates.observe("a", GroupShape(8, PACKED), Observation(400.0, steps=50))
    assert rate(network_of(rates), 8) == 400.0


def test_noisy_spans_do_not_differ():
    rates = online("a")
    for single in (100.0, 60.0, 110.0, 55.0, 95.0, 50.0):
        rates.observe("a", 1, Observation(single, steps=50))
    rates.observe("a", GroupShape(2, NODE), Observation(200.0, steps=50))
    rates.observe("a", GroupShape(2, SPREAD), Observation(100.0, steps=50))
    assert network_of(rates).spread_rates == ()
    assert network_of(rates).rates[1] == 150.0


def test_network_has_the_spans_of_its_family():
    rates = online(*"ab", family="cnn")
    rates.observe("a", GroupShape(2, NODE), Observation(200.0, steps=50))
    rates.observe("a", GroupShape(2, SPREAD), Observation(100.0, steps=50))
    rates.observe("b", GroupShape(2, SPREAD), Observation(30.0, steps=50))
    network = network_of(rates, "b")
    assert (network.rates[1], network.spread_rates[1]) == (pytest.approx(60.0), 30.0)
    strangers = OnlineRates([Traits("c", "c", "vit"), Traits("a", "a", "cnn")], 1000, 4, 16)
    strangers.observe("a", GroupShape(2, NODE), Observation(200.0, steps=50))
    strangers.observe("a", GroupShape(2, SPREAD), Observation(100.0, steps=50))
    strangers.observe("c", GroupShape(2, SPREAD), Observation(30.0, steps=50))
    assert network_of(strangers, "c").spread_rates == ()


# --- rates of earlier runs ----------------------------------------------------------------------


def test_earlier_rate_without_a_span_belongs_to_all():
    rates = online("a", prior={"a": {2: 200.0}})
    assert rates.remembered_rate("a", GroupShape(2, SPREAD)) == 200.0
    assert network_of(rates).rates[1] == 200.0
    rates.observe("a", GroupShape(2, SPREAD), Observation(100.0, steps=50))
    assert network_of(rates).rates[1] == network_of(rates).rates_on(SPREAD)[1] == 100.0


def test_earlier_rates_with_spans_are_known_at_once():
    prior = {"a": {GroupShape(2, NODE): 200.0, GroupShape(2, SPREAD): 100.0}}
    network = network_of(online("a", prior=prior))
    assert (network.rates[1], network.spread_rates[1]) == (200.0, 100.0)
    rates = online("a", prior=prior)
    rates.observe("a", GroupShape(2, SPREAD), Observation(101.0, steps=50))
    assert network_of(rates).spread_rates[1] == 101.0
    assert network_of(rates).rates[1] == 200.0


def test_plan_is_wrong_by_the_rate_of_its_span():
    rates = online("a", prior={"a": {GroupShape(2, NODE): 200.0, GroupShape(2, SPREAD): 100.0}})
    rates.record_plan()
    rates.observe("a", GroupShape(2, SPREAD), Observation(100.0, steps=50))
    assert not rates.is_off
    rates.observe("a", GroupShape(2, NODE), Observation(100.0, steps=50))
    assert rates.is_off


def test_profile_has_the_rates_of_spread_groups():
    rates = online("a")
    rates.observe("a", 1, Observation(100.0, steps=50))
    rates.observe("a", GroupShape(2, NODE), Observation(200.0, steps=50))
    rates.observe("a", GroupShape(2, SPREAD), Observation(100.0, steps=50))
    (network,) = rates.measured_table().models
    assert (network.rates, network.spread_rates) == ((100.0, 200.0), (100.0, 100.0))


# --- what is tried ------------------------------------------------------------------------------


def test_other_span_is_tried_by_few_networks_with_long_epochs():
    single = 100.0
    rates = online(*"abcd", samples=int(2 * single * LONG_EPOCH_S))
    node, spread = GroupShape(2, NODE), GroupShape(2, SPREAD)
    assert not rates.is_span_untried("a", node)  # its rate is not known there
    for name in "abcd":
        rates.observe(name, node, Observation(2 * single, steps=50))
        assert rates.is_span_untried(name, node)
    for number, name in enumerate("abcd", start=1):
        rates.observe(name, spread, Observation(2 * single, steps=50))
        assert not rates.is_span_untried(name, node)
        assert rates.is_span_untried("d", node) == (number < SPANS_TRIED)
    short = online("a", samples=int(single * LONG_EPOCH_S))
    short.observe("a", node, Observation(2 * single, steps=50))
    assert not short.is_span_untried("a", node)


def test_network_without_spread_rates_is_as_fast_anyhow():
    network = Network("a", (10.0, 19.0, 27.0))
    assert network.best_rates is network.rates
    for span in Span:
        assert [rate(network, gpus, span) for gpus in (1, 2, 3, 5)] == [
            rate(network, gpus) for gpus in (1, 2, 3, 5)
        ]
