"""Probing: a plan tries group sizes with unknown rates on which it depends."""

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
    """Return a table of upper ends of rates, and the lower ends, equal up to the last seen."""
    models, lower = [], {}
    for name in "abcd"[: draw(st.integers(1, 4))]:
        seen, upper = draw(st.integers(1, 4)), draw(st.integers(4, GPUS))
        single, slope, doubt = (
            draw(st.floats(1, 50)),
            draw(st.floats(-0.2, 0)),
            draw(st.floats(0, 0.2)),
        )
        rates = [single * gpus * 2.718 ** (slope * (gpus - 1)) for gpus in range(1, upper + 1)]
        models.append(Network(name, tuple(rates), max_gpus=upper))
        lower[name] = tuple(
            rate * 2.718 ** (-doubt * max(0, gpus - seen))
            for gpus, rate in enumerate(rates, start=1)
        )
    return RateTable(100, 4, tuple(models)), lower


def shares(table):
    """Return the plan of `adaptive` at the beginning."""
    return group_sizes(table, Progress(), Cluster.of(GPUS, 4))


def keen(table):
    """Return a plan in which each GPU of a network adds at least half of the first one's rate."""
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
def test_probe_changes_size_at_the_lower_end(answer, drawn):
    rates_, lower = drawn
    sizes = answer(rates_)
    probes_ = find_probes(sizes, rates_, lower.__getitem__, answer)
    assert len(probes_) <= AT_A_TIME
    for name, gpus in probes_:
        assert sizes[name] == gpus
        assert lower[name][gpus - 1] < rates_.by_name[name].rates[gpus - 1]
        assert answer(with_rates(rates_, name, lower[name])).get(name) != gpus


@given(doubted(), st.floats(0, 1))
@settings(max_examples=examples(60), deadline=None)
def test_uncertain_rates_change_no_size_without_a_probe(drawn, weight):
    rates_, lower = drawn
    sizes = keen(rates_)
    probes_ = find_probes(sizes, rates_, lower.__getitem__, keen)
    for network in rates_.models:  # no more than are requested at a time
        between = [
            high**weight * low ** (1 - weight)
            for high, low in zip(network.rates, lower[network.name], strict=True)
        ]
        if (network.name, sizes[network.name]) not in probes_:
            assert (
                keen(with_rates(rates_, network.name, between))[network.name] == sizes[network.name]
            )


@given(doubted())
@settings(max_examples=examples(30), deadline=None)
def test_no_probes_where_measured_or_plan_is_unchanged(drawn):
    rates_, lower = drawn
    seen = {network.name: network.rates for network in rates_.models}
    assert not find_probes(shares(rates_), rates_, seen.__getitem__, shares)
    fixed = {network.name: len(network.rates) for network in rates_.models}
    assert not find_probes(fixed, rates_, lower.__getitem__, lambda table: fixed)


def test_probing_tries_the_most_uncertain_sizes():
    names = [f"n{number}" for number in range(AT_A_TIME + 3)]
    rates_ = RateTable(1, 4, tuple(Network(name, (10.0, 20.0), max_gpus=2) for name in names))
    questions = []

    def answer(table):
        questions.append(next(network.name for network in table.models if network.rates[1] < 20.0))
        return dict.fromkeys(names, 1)

    lower = {name: (10.0, 19.0 - number) for number, name in enumerate(names)}
    probes_ = find_probes(dict.fromkeys(names, 2), rates_, lower.__getitem__, answer)
    assert questions == names[:2:-1]
    assert probes_ == {(name, 2) for name in questions}


# ---- of plans
# --------------------------------------------------------------------------------------

CLUSTER = Cluster.of(2, 2)


def uncertain():
    """Finished networks that scale well or poorly; and x, seen on one GPU only."""
    rates = OnlineRates([Traits(name, name) for name in "abcdefx"], 1000, 4, 2)
    for index, name in enumerate("abcdef"):
        rates.observe(name, 1, Observation(10.0))
        rates.observe(name, 2, Observation(12.0 if index % 2 else 9.6))
    rates.observe("x", 1, Observation(10.0))
    return rates


def ask_policy(rates, policy="adaptive", target=None):
    """Plan the remaining network x; return the answer and the sizes that it probes."""
    progress = Progress(
        finished=frozenset("abcdef"), target=target or Round(), rates_changed=rates.has_news
    )
    answer = POLICIES[policy].decide(rates.table(), progress, CLUSTER, Options())
    return answer, find_probes_of_plan(
        POLICIES[policy], rates.table(), rates.lower_rates, progress, CLUSTER, Options(), answer
    )


def test_probe_result_triggers_a_plan_even_within_a_quarter():
    rates = uncertain()
    answer, probes_ = ask_policy(rates)
    assert (answer.counts, probes_) == ({"x": 2}, {("x", 2)})
    rates.record_plan(probes_)
    assert not rates.has_news
    rates.observe("x", 2, Observation(9.6))
    assert (rates.is_off, rates.has_news) == (False, True)
    again, probes_ = ask_policy(rates, target=answer)
    assert (again.counts, probes_) == ({"x": 1}, frozenset())
    rates.record_plan(probes_)
    rates.observe("x", 2, Observation(9.7))
    assert not rates.has_news


def test_irrelevant_rate_triggers_no_plan():
    rates = uncertain()
    rates.record_plan()
    rates.observe("x", 2, Observation(rates.table().by_name["x"].rates[1] * 0.9))
    assert not rates.has_news


@pytest.mark.parametrize(
    "policy", sorted(name for name, policy in POLICIES.items() if not policy.rearranges)
)
def test_probing_is_empty_if_groups_never_change(policy):
    assert ask_policy(uncertain(), policy)[1] == frozenset()


def test_probing_is_empty_for_an_unchanged_answer():
    rates = uncertain()
    answer, probes_ = ask_policy(rates)
    assert probes_
    assert ask_policy(rates, target=answer) == (answer, frozenset())


def test_lower_rates_equal_measured_ones_where_measured():
    rates = uncertain()
    assert rates.lower_rates("a") == rates.table().by_name["a"].rates
    rates_, lower = rates.table().by_name["x"].rates, rates.lower_rates("x")
    assert (lower[0], len(lower)) == (rates_[0], len(rates_))
    assert 0 < lower[1] < rates_[1]
