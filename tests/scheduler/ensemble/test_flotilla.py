"""Algorithm 2."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.errors import InputError
from scheduler.base import Delta, Network, Options, RateTable
from scheduler.ensemble import flotilla as algorithm_2
from scheduler.ensemble.flotilla import form_flotilla
from scheduler.ensemble.rates import curve, extend_as_printed, rate
from tests.examples import examples
from tests.scheduler.strategies import ensembles


def names(table):
    return [network.name for network in table.models]


def written_out(table, gpus):
    """Return the same rates as if all were measured on one large node."""
    return replace(
        table,
        gpus_per_node=gpus,
        models=tuple(
            replace(network, rates=tuple(curve(network, gpus).tolist())) for network in table.models
        ),
    )


def by_the_book(table, candidates, gpus, delta, peak_limited):
    """Run Algorithm 2 line by line, slowly; None if a tie makes it ambiguous."""
    table = table if peak_limited else extend_as_printed(table, gpus)

    def sizes(network):
        limit = min(network.max_gpus or gpus, gpus)
        allowed = [(m, rate(network, m)) for m in range(network.min_gpus, limit + 1)]
        return [
            m
            for i, (m, r) in enumerate(allowed)
            if not peak_limited or all(r > before for _, before in allowed[:i])
        ]

    curves = {
        network.name: network
        for network in table.models
        if network.name in candidates and network.min_gpus <= gpus
    }
    if not curves:
        return {}
    single = {name: rate(network, network.min_gpus) for name, network in curves.items()}
    fastest = max(curves, key=lambda name: single[name])
    reference, counts = single[fastest], {fastest: curves[fastest].min_gpus}
    while True:
        free = gpus - sum(counts.values())
        choices = [
            (abs(rate(curves[name], m) - reference), m, name)
            for name in curves
            if name not in counts
            for m in sizes(curves[name])
            if m <= free and abs(rate(curves[name], m) - reference) <= delta
        ]
        if not choices:
            break
        choices.sort(key=lambda choice: choice[0])
        if len(choices) > 1 and choices[0][0] == choices[1][0]:
            return None
        counts[choices[0][2]] = choices[0][1]
    while sum(counts.values()) < gpus:
        free = gpus - sum(counts.values())
        raisable = {
            name: min((m for m in sizes(curves[name]) if m > size), default=None)
            for name, size in counts.items()
        }
        raisable = {
            name: m for name, m in raisable.items() if m is not None and m - counts[name] <= free
        }
        if not raisable:
            break
        paces = sorted((rate(curves[name], counts[name]), name) for name in raisable)
        if len(paces) > 1 and paces[0][0] == paces[1][0]:
            return None
        counts[paces[0][1]] = raisable[paces[0][1]]
    return counts


@given(ensembles(), st.floats(0, 100), st.booleans())
@settings(max_examples=examples(120), deadline=None)
def test_flotilla_is_what_algorithm_2_says_line_by_line(drawn, delta, peak_limited):
    table, cluster = drawn
    options = Options(delta=Delta(delta, relative=False), peak_limited=peak_limited)
    members = form_flotilla(table, names(table), cluster.gpus, options)
    expected = by_the_book(table, set(names(table)), cluster.gpus, delta, peak_limited)
    if expected is not None:
        assert members == expected


@given(ensembles(), st.floats(0, 100), st.booleans())
@settings(max_examples=examples(100), deadline=None)
def test_flotilla_joins_within_delta_before_spare_gpus(drawn, delta, peak_limited):
    table, cluster = drawn
    options = Options(delta=Delta(delta / 100, relative=True), peak_limited=peak_limited)
    members = form_flotilla(table, names(table), cluster.gpus, options)
    curves = {network.name: network for network in table.models}
    reference = max(rate(network, network.min_gpus) for network in table.models)
    assert sum(members.values()) <= cluster.gpus
    for name, size in members.items():  # some count up to the final one was close enough
        paces = [rate(curves[name], m) for m in range(curves[name].min_gpus, size + 1)]
        assert min(abs(pace - reference) for pace in paces) <= options.delta.of(reference) + 1e-9


def test_ties_go_to_fewer_gpus_then_to_the_order_of_the_table():
    table = RateTable(
        100,
        4,
        (Network("slow", (5.0, 10.0)), Network("b", (10.0, 11.0)), Network("c", (10.0, 11.0))),
    )
    assert list(
        form_flotilla(table, ["c", "b", "slow"], 2, Options(delta=Delta(0.0, relative=False)))
    ) == ["b", "c"]


def test_bounds_of_a_group_are_kept():
    table = RateTable(
        100,
        4,
        (
            Network("a", (10.0, 20.0, 30.0, 40.0), min_gpus=2, max_gpus=3),
            Network("b", (10.0, 20.0), min_gpus=5),
        ),
    )
    assert form_flotilla(table, ["a", "b"], 4, Options()) == {"a": 3}
    assert form_flotilla(table, ["b"], 4, Options()) == {}
    assert form_flotilla(table, [], 4, Options()) == {}


@pytest.mark.parametrize("value", [-3.0, float("nan"), float("inf")])
@pytest.mark.parametrize("relative", [False, True])
def test_flotilla_delta_that_is_no_distance_is_refused(value, relative):
    with pytest.raises(InputError, match="delta is"):
        Delta(value, relative=relative)


@pytest.mark.parametrize("alpha", [0.0, -1.0, 1.5, float("nan")])
def test_flotilla_alpha_that_is_no_share_is_refused(alpha):
    with pytest.raises(InputError, match="alpha is"):
        Options(alpha=alpha)


@settings(max_examples=200)
@given(ensembles(most_gpus=40), st.integers(0, 30))
def test_many_spare_gpus_go_where_they_would_go_one_by_one(case, width):
    table, cluster = case
    options = Options(delta=Delta(float(width), relative=False))
    one_by_one = form_flotilla(table, names(table), cluster.gpus, options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(algorithm_2, "MANY_SPARE", 0)
        assert form_flotilla(table, names(table), cluster.gpus, options) == one_by_one


@given(ensembles(most_gpus=80), st.integers(1, 90), st.integers(0, 1))
@settings(max_examples=examples(100), deadline=None)
def test_columns_that_are_worked_out_later_change_nothing(drawn, delta, removed):
    table, cluster = drawn
    options = Options(delta=Delta(float(delta), relative=False))
    candidates = names(table)[removed:]
    expected = form_flotilla(table, candidates, cluster.gpus, options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(algorithm_2, "FIRST_COLUMNS", 1)
        assert form_flotilla(table, candidates, cluster.gpus, options) == expected


def test_flotilla_gives_a_million_gpus_to_straight_curves():
    table = RateTable(100, 4, tuple(Network(f"n{i}", (10.0, 20.0 + i)) for i in range(8)))
    members = form_flotilla(table, names(table), 10**6, Options())
    assert sum(members.values()) == 10**6
    paces = [rate(network, members[network.name]) for network in table.models]
    assert max(paces) < min(paces) + 14  # one GPU more


def test_flotilla_literal_extends_rates_from_two_nodes():
    # Beyond two nodes of one GPU each, where the efficiency drops by 0.6.
    measured = (
        10.0,
        12.0,
        30.0,
    )
    table = RateTable(100, 1, (Network("falls", measured), Network("b", (10.0, 19.0, 28.0))))
    options = Options(delta=Delta(1.0, relative=True), peak_limited=False)
    assert form_flotilla(table, names(table), 12, options) == form_flotilla(
        extend_as_printed(table, 12), names(table), 12, options
    )
    assert form_flotilla(table, names(table), 12, options) != form_flotilla(
        written_out(table, 12), names(table), 12, options
    )
