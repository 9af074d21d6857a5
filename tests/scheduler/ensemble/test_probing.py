"""Which group sizes a plan only tries: those on whose rates it depends, of those that nobody has seen."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.base import Cluster, Network, Options, Progress, RateTable, Round
from scheduler.ensemble.adaptive import group_sizes
from scheduler.ensemble.online import Observation, OnlineRates, Traits
from scheduler.ensemble.policies import POLICIES
from scheduler.ensemble.probing import AT_A_TIME, find_probes, find_probes_of_plan
from tests.examples import examples

GPUS = 8


@st.composite
def doubted(draw):
    """A table, each rate at its upper end; and the lower ends, which are the same up to the last size that was seen."""
    models, least = [], {}
    for name in "abcd"[: draw(st.integers(1, 4))]:
        seen, most = draw(st.integers(1, 4)), draw(st.integers(4, GPUS))
        single, slope, doubt = (
            draw(st.floats(1, 50)),
            draw(st.floats(-0.2, 0)),
            draw(st.floats(0, 0.2)),
        )
        rates = [single * gpus * 2.718 ** (slope * (gpus - 1)) for gpus in range(1, most + 1)]
        models.append(Network(name, tuple(rates), max_gpus=most))
        least[name] = tuple(
            rate * 2.718 ** (-doubt * max(0, gpus - seen))
            for gpus, rate in enumerate(rates, start=1)
        )
    return RateTable(100, 4, tuple(models)), least


def shares(table):
    """What adaptive gives at the beginning."""
    return group_sizes(table, Progress(), Cluster.of(GPUS, 4))


def keen(table):
    """A plan in which each network has the most GPUs of which each adds at least half of the first one's rate."""
    sizes = {}
    for network in table.models:
        gains = [
            network.rates[0],
            *(
                after - before
                for before, after in zip(network.rates, network.rates[1:], strict=False)
            ),
        ]
        sizes[network.name] = next(
            (gpus for gpus, gain in enumerate(gains) if gain < gains[0] / 2), len(gains)
        )
    return sizes


def with_rates(table, name, rates):
    return replace(
        table,
        models=tuple(
            replace(network, rates=tuple(rates)) if network.name == name else network
            for network in table.models
        ),
    )


@pytest.mark.parametrize("answer", [shares, keen])
@given(doubted())
@settings(max_examples=examples(60), deadline=None)
def test_a_probe_is_a_size_of_the_plan_that_is_in_doubt_and_would_be_another_at_the_lower_end(
    answer, drawn
):
    told, least = drawn
    sizes = answer(told)
    found = find_probes(sizes, told, least.__getitem__, answer)
    assert len(found) <= AT_A_TIME
    for name, gpus in found:
        assert sizes[name] == gpus
        assert least[name][gpus - 1] < told.by_name[name].rates[gpus - 1]
        assert answer(with_rates(told, name, least[name])).get(name) != gpus


@given(doubted(), st.floats(0, 1))
@settings(max_examples=examples(60), deadline=None)
def test_no_value_of_a_rate_in_doubt_changes_the_size_of_a_network_that_is_no_probe(drawn, weight):
    told, least = drawn
    sizes = keen(told)
    found = find_probes(sizes, told, least.__getitem__, keen)
    for network in told.models:  # no more than are asked about at a time
        between = [
            high**weight * low ** (1 - weight)
            for high, low in zip(network.rates, least[network.name], strict=True)
        ]
        if (network.name, sizes[network.name]) not in found:
            assert (
                keen(with_rates(told, network.name, between))[network.name] == sizes[network.name]
            )


@given(doubted())
@settings(max_examples=examples(30), deadline=None)
def test_nothing_is_a_probe_where_all_has_been_seen_or_the_plan_is_the_same_whatever_is_seen(drawn):
    told, least = drawn
    seen = {network.name: network.rates for network in told.models}
    assert not find_probes(shares(told), told, seen.__getitem__, shares)
    fixed = {network.name: len(network.rates) for network in told.models}
    assert not find_probes(fixed, told, least.__getitem__, lambda table: fixed)


def test_of_many_doubts_the_greatest_are_asked_about():
    names = [f"n{number}" for number in range(AT_A_TIME + 3)]
    told = RateTable(1, 4, tuple(Network(name, (10.0, 20.0), max_gpus=2) for name in names))
    asked = []

    def answer(table):
        asked.append(next(network.name for network in table.models if network.rates[1] < 20.0))
        return dict.fromkeys(names, 1)

    least = {name: (10.0, 19.0 - number) for number, name in enumerate(names)}
    found = find_probes(dict.fromkeys(names, 2), told, least.__getitem__, answer)
    assert asked == names[:2:-1]
    assert found == {(name, 2) for name in asked}


# ---- of plans --------------------------------------------------------------------------------------

CLUSTER = Cluster.of(2, 2)


def uncertain():
    """Some networks that scale well and some that do not, all of which are over; and x, seen on one GPU alone."""
    rates = OnlineRates([Traits(name, name) for name in "abcdefx"], 1000, 4, 2)
    for index, name in enumerate("abcdef"):
        rates.observe(name, 1, Observation(10.0))
        rates.observe(name, 2, Observation(12.0 if index % 2 else 9.6))
    rates.observe("x", 1, Observation(10.0))
    return rates


def asked(rates, policy="adaptive", target=None):
    """What is left to plan is x; returns the answer, and what it only tries."""
    progress = Progress(
        finished=frozenset("abcdef"), target=target or Round(), rates_changed=rates.has_news
    )
    answer = POLICIES[policy].decide(rates.table(), progress, CLUSTER, Options())
    return answer, find_probes_of_plan(
        POLICIES[policy], rates.table(), rates.lower_rates, progress, CLUSTER, Options(), answer
    )


def test_the_answer_of_a_probe_calls_for_another_plan_though_it_is_off_by_less_than_a_quarter():
    rates = uncertain()
    answer, tried = asked(rates)
    assert (answer.counts, tried) == ({"x": 2}, {("x", 2)})
    rates.record_plan(tried)
    assert not rates.has_news
    rates.observe("x", 2, Observation(9.6))
    assert (rates.is_off, rates.has_news) == (False, True)
    again, tried = asked(rates, target=answer)
    assert (again.counts, tried) == ({"x": 1}, frozenset())
    rates.record_plan(tried)
    rates.observe("x", 2, Observation(9.7))
    assert not rates.has_news


def test_a_size_whose_rate_could_not_change_the_plan_calls_for_no_other_one():
    rates = uncertain()
    rates.record_plan()
    rates.observe("x", 2, Observation(rates.table().by_name["x"].rates[1] * 0.9))
    assert not rates.has_news


@pytest.mark.parametrize(
    "policy", sorted(name for name, policy in POLICIES.items() if not policy.rearranges)
)
def test_a_policy_that_leaves_groups_as_they_are_tries_nothing(policy):
    assert asked(uncertain(), policy)[1] == frozenset()


def test_an_answer_that_stands_tries_nothing_new():
    rates = uncertain()
    answer, tried = asked(rates)
    assert tried
    assert asked(rates, target=answer) == (answer, frozenset())


def test_the_lower_end_is_what_was_seen_where_it_was_seen_and_less_elsewhere():
    rates = uncertain()
    assert rates.lower_rates("a") == rates.table().by_name["a"].rates
    told, least = rates.table().by_name["x"].rates, rates.lower_rates("x")
    assert (least[0], len(least)) == (told[0], len(told))
    assert 0 < least[1] < told[1]
