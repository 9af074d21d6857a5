"""Thousands of networks: what is worked out for some of them gives what is worked out for all."""

import heapq
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.base import Cluster, Delta, Member, Network, Options, Progress, RateTable
from scheduler.ensemble import flotilla, waterfill
from scheduler.ensemble.adaptive import (
    HOLDER_BONUS,
    PAYS,
    _allowed_sizes,
    _until_rungs,
    group_sizes,
)
from scheduler.ensemble.indexed import (
    IndexedSet,
    IndexedValues,
    iter_ascending,
    rows_outside,
    values_of,
)
from scheduler.ensemble.online import RENEWED, Observation, OnlineRates, Traits
from scheduler.ensemble.policies import POLICIES
from scheduler.ensemble.rates import bent_curves, curve, curves, kinds, rate
from tests.examples import examples
from tests.scheduler.strategies import ensembles

NAMES = [f"n{number}" for number in range(30)]


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "discard", "grow", "another"]), st.integers(0, 29)),
        max_size=60,
    )
)
@settings(max_examples=examples(80), deadline=None)
def test_the_rows_that_are_left_are_those_that_are_not_gone_however_the_table_grows(steps):
    gone, table = IndexedSet(NAMES[:3]), tuple(NAMES[:5])
    for do, number in steps:
        match do:
            case "add":
                gone.add(NAMES[number])
            case "discard":
                gone.discard(NAMES[number])
            case "grow":
                table = (*table, *NAMES[len(table) : number])
            case "another":
                table = (*table[number % len(table) :], *table[: number % len(table)])
        expected = [name not in gone for name in table]
        assert (
            rows_outside(table, gone).tolist()
            == rows_outside(table, frozenset(gone)).tolist()
            == expected
        )


@given(
    st.lists(
        st.tuples(st.sampled_from(["set", "grow", "another"]), st.integers(0, 29)), max_size=60
    )
)
@settings(max_examples=examples(80), deadline=None)
def test_values_by_row_are_those_by_name_however_the_table_grows(steps):
    values, table = IndexedValues(), tuple(NAMES[:5])
    for place, (do, number) in enumerate(steps):
        match do:
            case "set":
                values[NAMES[number]] = float(place)
            case "grow":
                table = (*table, *NAMES[len(table) : number])
            case "another":
                table = (*table[number % len(table) :], *table[: number % len(table)])
        expected = [values.get(name, np.nan) for name in table]
        assert np.array_equal(values_of(table, values), expected, equal_nan=True)
        assert np.array_equal(values_of(table, dict(values)), expected, equal_nan=True)


def sorted_whole(values, few, *ties):
    return np.lexsort((*ties, values)).tolist()


@given(
    st.lists(st.tuples(st.integers(0, 4).map(float), st.integers(0, 2)), max_size=60),
    st.integers(1, 20),
)
@settings(max_examples=examples(80), deadline=None)
def test_what_is_sorted_as_far_as_it_is_looked_at_is_sorted(pairs, few):
    values, tie = (
        np.array([one for one, _ in pairs], np.float64),
        np.array([other for _, other in pairs], np.int64),
    )
    assert list(iter_ascending(values, few, tie)) == sorted_whole(values, few, tie)
    assert list(iter_ascending(values, few)) == sorted_whole(values, few)


@given(
    ensembles(most_networks=30, most_gpus=6),
    st.sets(st.sampled_from(NAMES)),
    st.booleans(),
    st.sampled_from([0.0, 0.15, 1.0]),
)
@settings(max_examples=examples(80), deadline=None)
def test_a_flotilla_of_a_crowd_is_that_of_all_choices_sorted(drawn, finished, peak_limited, delta):
    (table, cluster), gone = drawn, IndexedSet(finished)
    options = Options(delta=Delta(delta, relative=True), peak_limited=peak_limited)
    found = flotilla.form_flotilla(table, rows_outside(table.names, gone), cluster.gpus, options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flotilla, "rising", sorted_whole)
        names = [name for name in table.names if name not in finished]
        expected = flotilla.form_flotilla(table, names, cluster.gpus, options)
    assert list(found.items()) == list(expected.items())


@given(ensembles(most_networks=8), st.lists(st.integers(0, 7), min_size=1, max_size=20))
@settings(max_examples=examples(60), deadline=None)
def test_networks_of_a_kind_have_the_curves_that_each_would_have_alone(drawn, copied):
    table, cluster = drawn
    models = tuple(
        replace(table.models[place % len(table.models)], name=f"c{number}")
        for number, place in enumerate(copied)
    )
    known, gpus = curves(replace(table, models=models), cluster.gpus), cluster.gpus
    for row, network in enumerate(models):
        alone = curves(replace(table, models=(network,)), gpus)
        assert known.rate[row].tolist() == curve(network, gpus).tolist()
        assert known.useful[row].tolist() == alone.useful[0].tolist()
        assert (known.min_gpus[row], known.index[network.name]) == (network.min_gpus, row)
    hulls = waterfill.hulls(replace(table, models=models), gpus)
    for row, network in enumerate(models):
        alone = waterfill.hulls(replace(table, models=(network,)), gpus)
        assert (hulls.rate[row, 1], hulls.peak[row]) == (alone.rate[0, 1], alone.peak[0])


@given(ensembles(most_networks=20), st.sets(st.sampled_from(NAMES)), st.integers(0, 3))
@settings(max_examples=examples(60), deadline=None)
def test_a_set_that_can_be_skipped_changes_no_answer(drawn, finished, seed):
    table, cluster = drawn
    for name in POLICIES:
        answers = {
            POLICIES[name].decide(table, Progress(finished=gone), cluster, Options(seed=seed))
            for gone in (frozenset(finished), IndexedSet(finished))
        }
        assert len(answers) == 1


def those_who_share(rates, progress, cluster):
    """The rows of the networks that share the GPUs, by the definition."""
    known = bent_curves(rates, cluster.gpus)
    there = [row for row, name in enumerate(known.names) if name not in progress.finished]
    first = {
        row
        for row in there
        if known.names[row] in progress.survivors and known.min_gpus[row] <= cluster.gpus
    }
    if not first:
        return set(there)
    begun, spare = first | {known.index[member.name] for member in progress.running}, cluster.gpus
    for row in sorted(begun, key=lambda row: row in first):
        network, (least, *larger) = (
            rates.models[row],
            _allowed_sizes(known, row, rates.models[row], cluster).tolist(),
        )
        spare -= max(
            [
                least,
                *(
                    size
                    for size in larger
                    if row in first
                    and (rate(network, size) / size >= PAYS * rate(network, least) / least)
                ),
            ]
        )
    for row in there:
        if row not in begun and (spare := spare - known.min_gpus[row]) >= 0:
            begun.add(row)
    return begun


def sizes_of_all(rates, progress, cluster):
    """The sizes of groups as the definition has them: each step goes through all networks."""
    known = bent_curves(rates, cluster.gpus)
    those = those_who_share(rates, progress, cluster)
    rows = np.array(
        [row for row in sorted(those) if known.min_gpus[row] <= cluster.gpus], dtype=np.int64
    )
    if not len(rows):
        return {}
    ahead = [
        progress.ahead[known.names[row]]
        for row in rows.tolist()
        if known.names[row] in progress.ahead
    ]
    mean = sum(ahead) / len(ahead) if ahead else 1.0
    work = {row: progress.ahead.get(known.names[row], mean) for row in rows.tolist()}
    shares = waterfill.water_fill(
        waterfill.hulls(rates, cluster.gpus),
        rows,
        np.array([*work.values()], np.float64),
        cluster.gpus,
    ).gpus
    sizes = {
        row: _allowed_sizes(known, row, rates.models[row], cluster).tolist()
        for row in rows.tolist()
    }
    held = {known.index[member.name]: member.gpus for member in progress.running}
    if progress.ahead:
        least = known.min_gpus[rows]
        shares = _until_rungs(
            shares, least, np.array([row in held for row in rows.tolist()]), cluster.gpus
        )
        held = held if least.sum() <= cluster.gpus else {}
    given_, larger = {}, []
    for row, share in zip(rows.tolist(), shares.tolist(), strict=True):
        given_[row] = max((size for size in sizes[row] if size <= share + 1e-9), default=0)
        if above := [size for size in sizes[row] if size > share + 1e-9]:
            remainder = (share - given_[row]) / (above[0] - given_[row])
            larger.append(
                (-remainder - HOLDER_BONUS * (held.get(row, 0) >= above[0]), row, above[0])
            )
    rows_outside = cluster.gpus - sum(given_.values())
    for _, row, size in sorted(larger):
        if size - given_[row] <= rows_outside:
            rows_outside -= size - given_[row]
            given_[row] = size
    slowest = [
        (rate(rates.models[row], size) / work[row] if size else 0.0, row)
        for row, size in given_.items()
    ]
    heapq.heapify(slowest)
    while rows_outside and slowest:
        _, row = heapq.heappop(slowest)
        above = [size for size in sizes[row] if size > given_[row]]
        if above and above[0] - given_[row] <= rows_outside:
            rows_outside -= above[0] - given_[row]
            given_[row] = above[0]
            heapq.heappush(slowest, (rate(rates.models[row], given_[row]) / work[row], row))
    rows_outside = cluster.gpus - sum(given_.values())
    for row, name in enumerate(known.names):
        if (
            row not in those
            and name not in progress.finished
            and known.min_gpus[row] <= rows_outside
        ):
            given_[row] = int(known.min_gpus[row])
            rows_outside -= given_[row]
    return {known.names[row]: given_[row] for row in sorted(given_) if given_[row]}


@given(ensembles(most_networks=30), st.data())
@settings(max_examples=examples(150), deadline=None)
def test_adaptive_gives_each_group_the_size_that_it_has_by_the_definition(drawn, data):
    table, cluster = drawn
    finished = data.draw(st.sets(st.sampled_from(table.names)))
    free, running = list(cluster.devices), []
    for name in data.draw(st.lists(st.sampled_from(table.names), unique=True, max_size=4)):
        count = data.draw(st.integers(1, 3))
        if name not in finished and len(free) >= count:
            running.append(Member(name, tuple(free[:count])))
            del free[:count]
    ahead = data.draw(st.dictionaries(st.sampled_from(table.names), st.integers(1, 9)))
    by_row = IndexedValues()
    for name, epochs in ahead.items():
        by_row[name] = epochs
    survivors = data.draw(st.sets(st.sampled_from(table.names), max_size=3)) if ahead else set()
    progress = Progress(
        tuple(running), finished=IndexedSet(finished), ahead=by_row, survivors=survivors
    )
    found, expected = group_sizes(table, progress, cluster), sizes_of_all(table, progress, cluster)
    assert list(found.items()) == list(expected.items())


@given(ensembles(most_networks=30, most_gpus=6))
@settings(max_examples=examples(80), deadline=None)
def test_the_level_of_a_crowd_is_the_one_that_a_search_finds(drawn):
    table, cluster = drawn
    hull, rows = waterfill.hulls(table, cluster.gpus), np.arange(len(table.models))
    work = np.array([network.epochs for network in table.models], dtype=np.float64)
    found = waterfill.water_fill(hull, rows, work, cluster.gpus)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waterfill, "_of_a_crowd", lambda *_: None)
        searched = waterfill.water_fill(hull, rows, work, cluster.gpus)
    assert found.time_s == pytest.approx(searched.time_s, rel=1e-9)
    assert found.gpus == pytest.approx(searched.gpus, rel=1e-9)


def test_a_crowd_is_not_searched_for(monkeypatch):
    table = RateTable(
        100, 4, tuple(Network(f"n{number}", (10.0 + number,)) for number in range(50))
    )
    monkeypatch.setattr(
        waterfill, "_newton", lambda *_: pytest.fail("there is nothing to search for")
    )
    assert sum(group_sizes(table, Progress(), Cluster.of(4, 4)).values()) == 4


@given(st.lists(st.sampled_from(["a", "b", "c"]), min_size=2, max_size=12))
@settings(max_examples=examples(30), deadline=None)
def test_equal_tables_hash_alike_however_they_came_about(rates):
    networks = tuple(Network(f"n{place}", (float(ord(one)),)) for place, one in enumerate(rates))
    grown = RateTable(1, 1, networks[:1])
    for network in networks[1:]:
        grown = grown.with_network(network)
    assert (grown, hash(grown)) == (RateTable(1, 1, networks), hash(RateTable(1, 1, networks)))


def test_equal_tables_are_compared_network_by_network_once():
    one, same = (RateTable(1, 1, tuple(Network(name, (1.0,)) for name in NAMES)) for _ in range(2))
    assert one.models is not same.models
    assert one == same
    assert one.models is same.models  # so that the next comparison takes no time
    assert one != RateTable(1, 1, (*one.models[:-1], Network("n29", (2.0,)))) != "no table"


@given(
    st.lists(st.tuples(st.sampled_from(["come", "change", "anew"]), st.integers(0, 2)), max_size=20)
)
@settings(max_examples=examples(40), deadline=None)
def test_kinds_are_those_of_the_networks_however_the_table_grows(steps):
    table = RateTable(1, 1, (Network("first", (1.0,)),))
    for place, (do, like) in enumerate(steps):
        network = Network(f"n{place}", (float(like),), max_gpus=1 + like % 2)
        match do:
            case "come":
                table = table.with_network(network)
            case "change":
                table = replace(table, models=(network, *table.models[1:]))
            case "anew":
                table = RateTable(1, 1, (network,))
        rows, kind = kinds(table)
        assert table.rows == {one.name: row for row, one in enumerate(table.models)}
        for network, number in zip(table.models, kind, strict=True):
            first = table.models[rows[number]]
            assert (first.rates, first.max_gpus) == (network.rates, network.max_gpus)
        assert len(rows) == len({(one.rates, one.max_gpus) for one in table.models})


# ---- learned -----------------------------------------------------------------------------------


def crowd(count):
    return OnlineRates(
        [
            Traits(f"n{number}", f"{number % 7}", operations=1e6 * (1 + number % 7))
            for number in range(count)
        ],
        100,
        4,
        4,
    )


def test_the_table_of_hundreds_is_made_anew_after_some_observations_and_calls_for_a_plan_only_then():
    rates = crowd(3 * RENEWED)
    rates.record_plan()
    before = rates.table()
    for number in range(2):
        rates.observe(f"n{number}", 1, Observation(1e9))
        assert (rates.is_off, rates.has_news) == (True, False)
        assert rates.table() is before
        rates.record_plan()  # a plan that was made meanwhile does not settle it
    rates.observe("n2", 1, Observation(1e9))
    assert rates.has_news
    assert rates.table().by_name["n0"].rates[0] == 1e9
    assert rates.has_news
    rates.record_plan()
    assert not rates.has_news


@given(
    st.lists(st.tuples(st.integers(0, 149), st.floats(1.0, 1e4)), max_size=9),
    st.integers(0, 9),
    st.sampled_from([None, 3e6]),
)  # those of keys beyond 6 are new
@settings(max_examples=examples(30), deadline=None)
def test_a_network_that_comes_to_hundreds_is_told_as_if_all_were_estimated_anew(
    seen, key, operations
):
    rates, anew = crowd(3 * RENEWED), crowd(3 * RENEWED)
    late = Traits("late", str(key), operations=1e6 * (1 + key) if key < 7 else operations)
    for one in (rates, anew):
        for number, shown in seen[: len(seen) // 3 * 3]:  # all of which the table has
            one.observe(f"n{number}", 1, Observation(shown))
    rates.table()
    rates.add(late, {})
    anew.add(late, {})
    assert rates.table().models[:-1] == anew.table().models[:-1]
    assert rates.table().by_name["late"].rates == pytest.approx(anew.table().by_name["late"].rates)
    assert (
        rates.guessed
        == anew.guessed
        == {
            name
            for name in (*(f"n{number}" for number in range(150)), "late")
            if not rates.is_known(name)
        }
    )
