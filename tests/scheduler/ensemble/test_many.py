"""Thousands of networks: incremental results equal those computed for all networks."""

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
def test_rows_outside_follows_growing_tables(steps):
    absent, table = IndexedSet(NAMES[:3]), tuple(NAMES[:5])
    for do, number in steps:
        match do:
            case "add":
                absent.add(NAMES[number])
            case "discard":
                absent.discard(NAMES[number])
            case "grow":
                table = (*table, *NAMES[len(table) : number])
            case "another":
                table = (*table[number % len(table) :], *table[: number % len(table)])
        expected = [name not in absent for name in table]
        assert (
            rows_outside(table, absent).tolist()
            == rows_outside(table, frozenset(absent)).tolist()
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
    for index, (do, number) in enumerate(steps):
        match do:
            case "set":
                values[NAMES[number]] = float(index)
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
def test_many_networks_partial_sort_equals_the_full_one(pairs, few):
    values, tie = (
        np.array([network for network, _ in pairs], np.float64),
        np.array([copy_ for _, copy_ in pairs], np.int64),
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
def test_many_networks_flotilla_equals_that_of_all_choices(drawn, finished, peak_limited, delta):
    (table, cluster), absent = drawn, IndexedSet(finished)
    options = Options(delta=Delta(delta, relative=True), peak_limited=peak_limited)
    sizes = flotilla.form_flotilla(table, rows_outside(table.names, absent), cluster.gpus, options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flotilla, "iter_ascending", sorted_whole)
        names = [name for name in table.names if name not in finished]
        expected = flotilla.form_flotilla(table, names, cluster.gpus, options)
    assert list(sizes.items()) == list(expected.items())


@given(ensembles(most_networks=8), st.lists(st.integers(0, 7), min_size=1, max_size=20))
@settings(max_examples=examples(60), deadline=None)
def test_curves_of_a_kind_equal_single_curves(drawn, copied):
    table, cluster = drawn
    models = tuple(
        replace(table.models[index % len(table.models)], name=f"c{number}")
        for number, index in enumerate(copied)
    )
    table_curves, gpus = curves(replace(table, models=models), cluster.gpus), cluster.gpus
    for row, network in enumerate(models):
        alone = curves(replace(table, models=(network,)), gpus)
        assert table_curves.rate[row].tolist() == curve(network, gpus).tolist()
        assert table_curves.useful[row].tolist() == alone.useful[0].tolist()
        assert (table_curves.min_gpus[row], table_curves.index[network.name]) == (
            network.min_gpus,
            row,
        )
    hulls = waterfill.hulls(replace(table, models=models), gpus)
    for row, network in enumerate(models):
        alone = waterfill.hulls(replace(table, models=(network,)), gpus)
        assert (hulls.rate[row, 1], hulls.peak[row]) == (alone.rate[0, 1], alone.peak[0])


@given(ensembles(most_networks=20), st.sets(st.sampled_from(NAMES)), st.integers(0, 3))
@settings(max_examples=examples(60), deadline=None)
def test_many_networks_set_that_can_be_skipped_changes_no_answer(drawn, finished, seed):
    table, cluster = drawn
    for name in POLICIES:
        answers = {
            POLICIES[name].decide(table, Progress(finished=absent), cluster, Options(seed=seed))
            for absent in (frozenset(finished), IndexedSet(finished))
        }
        assert len(answers) == 1


def rows_that_share(rates, progress, cluster):
    """Return the rows of the networks that share the GPUs, by the definition."""
    curves = bent_curves(rates, cluster.gpus)
    unfinished = [row for row, name in enumerate(curves.names) if name not in progress.finished]
    first = {
        row
        for row in unfinished
        if curves.names[row] in progress.survivors and curves.min_gpus[row] <= cluster.gpus
    }
    if not first:
        return set(unfinished)
    started, spare = (
        first | {curves.index[member.name] for member in progress.running},
        cluster.gpus,
    )
    for row in sorted(started, key=lambda row: row in first):
        network, (min_gpus, *larger) = (
            rates.models[row],
            _allowed_sizes(curves, row, rates.models[row], cluster).tolist(),
        )
        spare -= max(
            [
                min_gpus,
                *(
                    size
                    for size in larger
                    if row in first
                    and (rate(network, size) / size >= PAYS * rate(network, min_gpus) / min_gpus)
                ),
            ]
        )
    for row in unfinished:
        if row not in started and (spare := spare - curves.min_gpus[row]) >= 0:
            started.add(row)
    return started


def sizes_of_all(rates, progress, cluster):
    """Return the sizes of groups by the definition: each step goes through all networks."""
    curves = bent_curves(rates, cluster.gpus)
    sharing = rows_that_share(rates, progress, cluster)
    rows = np.array(
        [row for row in sorted(sharing) if curves.min_gpus[row] <= cluster.gpus], dtype=np.int64
    )
    if not len(rows):
        return {}
    ahead = [
        progress.ahead[curves.names[row]]
        for row in rows.tolist()
        if curves.names[row] in progress.ahead
    ]
    mean = sum(ahead) / len(ahead) if ahead else 1.0
    work = {row: progress.ahead.get(curves.names[row], mean) for row in rows.tolist()}
    shares = waterfill.water_fill(
        waterfill.hulls(rates, cluster.gpus),
        rows,
        np.array([*work.values()], np.float64),
        cluster.gpus,
    ).gpus
    sizes = {
        row: _allowed_sizes(curves, row, rates.models[row], cluster).tolist()
        for row in rows.tolist()
    }
    current = {curves.index[member.name]: member.gpus for member in progress.running}
    if progress.ahead:
        min_gpus = curves.min_gpus[rows]
        shares = _until_rungs(
            shares, min_gpus, np.array([row in current for row in rows.tolist()]), cluster.gpus
        )
        current = current if min_gpus.sum() <= cluster.gpus else {}
    rounded, larger = {}, []
    for row, share in zip(rows.tolist(), shares.tolist(), strict=True):
        rounded[row] = max((size for size in sizes[row] if size <= share + 1e-9), default=0)
        if above := [size for size in sizes[row] if size > share + 1e-9]:
            remainder = (share - rounded[row]) / (above[0] - rounded[row])
            larger.append(
                (-remainder - HOLDER_BONUS * (current.get(row, 0) >= above[0]), row, above[0])
            )
    rows_outside = cluster.gpus - sum(rounded.values())
    for _, row, size in sorted(larger):
        if size - rounded[row] <= rows_outside:
            rows_outside -= size - rounded[row]
            rounded[row] = size
    slowest = [
        (rate(rates.models[row], size) / work[row] if size else 0.0, row)
        for row, size in rounded.items()
    ]
    heapq.heapify(slowest)
    while rows_outside and slowest:
        _, row = heapq.heappop(slowest)
        above = [size for size in sizes[row] if size > rounded[row]]
        if above and above[0] - rounded[row] <= rows_outside:
            rows_outside -= above[0] - rounded[row]
            rounded[row] = above[0]
            heapq.heappush(slowest, (rate(rates.models[row], rounded[row]) / work[row], row))
    rows_outside = cluster.gpus - sum(rounded.values())
    for row, name in enumerate(curves.names):
        if (
            row not in sharing
            and name not in progress.finished
            and curves.min_gpus[row] <= rows_outside
        ):
            rounded[row] = int(curves.min_gpus[row])
            rows_outside -= rounded[row]
    return {curves.names[row]: rounded[row] for row in sorted(rounded) if rounded[row]}


@given(ensembles(most_networks=30), st.data())
@settings(max_examples=examples(150), deadline=None)
def test_adaptive_sizes_follow_the_definition(drawn, data):
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
    sizes, expected = group_sizes(table, progress, cluster), sizes_of_all(table, progress, cluster)
    assert list(sizes.items()) == list(expected.items())


@given(ensembles(most_networks=30, most_gpus=6))
@settings(max_examples=examples(80), deadline=None)
def test_many_networks_level_equals_that_of_a_search(drawn):
    table, cluster = drawn
    hull, rows = waterfill.hulls(table, cluster.gpus), np.arange(len(table.models))
    work = np.array([network.epochs for network in table.models], dtype=np.float64)
    sizes = waterfill.water_fill(hull, rows, work, cluster.gpus)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waterfill, "_of_a_crowd", lambda *_: None)
        searched = waterfill.water_fill(hull, rows, work, cluster.gpus)
    assert sizes.time_s == pytest.approx(searched.time_s, rel=1e-9)
    assert sizes.gpus == pytest.approx(searched.gpus, rel=1e-9)


def test_many_networks_are_not_searched_one_by_one(monkeypatch):
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
    networks = tuple(
        Network(f"n{index}", (float(ord(model)),)) for index, model in enumerate(rates)
    )
    grown = RateTable(1, 1, networks[:1])
    for network in networks[1:]:
        grown = grown.with_network(network)
    assert (grown, hash(grown)) == (RateTable(1, 1, networks), hash(RateTable(1, 1, networks)))


def test_equal_tables_are_compared_network_by_network_once():
    network, same = (
        RateTable(1, 1, tuple(Network(name, (1.0,)) for name in NAMES)) for _ in range(2)
    )
    assert network.models is not same.models
    assert network == same
    assert network.models is same.models  # so that the next comparison is fast
    assert network != RateTable(1, 1, (*network.models[:-1], Network("n29", (2.0,)))) != "no table"


@given(
    st.lists(st.tuples(st.sampled_from(["come", "change", "anew"]), st.integers(0, 2)), max_size=20)
)
@settings(max_examples=examples(40), deadline=None)
def test_kinds_are_those_of_the_networks_however_the_table_grows(steps):
    table = RateTable(1, 1, (Network("first", (1.0,)),))
    for index, (do, like) in enumerate(steps):
        network = Network(f"n{index}", (float(like),), max_gpus=1 + like % 2)
        match do:
            case "come":
                table = table.with_network(network)
            case "change":
                table = replace(table, models=(network, *table.models[1:]))
            case "anew":
                table = RateTable(1, 1, (network,))
        rows, kind = kinds(table)
        assert table.rows == {model.name: row for row, model in enumerate(table.models)}
        for network, number in zip(table.models, kind, strict=True):
            first = table.models[rows[number]]
            assert (first.rates, first.max_gpus) == (network.rates, network.max_gpus)
        assert len(rows) == len({(model.rates, model.max_gpus) for model in table.models})


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


def test_online_table_of_hundreds_is_renewed_rarely():
    rates = crowd(3 * RENEWED)
    rates.record_plan()
    before = rates.table()
    for number in range(2):
        rates.observe(f"n{number}", 1, Observation(1e9))
        assert (rates.is_off, rates.has_news) == (True, False)
        assert rates.table() is before
        rates.record_plan()  # a plan made meanwhile does not settle it
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
)  # keys beyond 6 are new
@settings(max_examples=examples(30), deadline=None)
def test_online_add_equals_a_new_estimate_of_hundreds(seen, key, operations):
    rates, anew = crowd(3 * RENEWED), crowd(3 * RENEWED)
    late = Traits("late", str(key), operations=1e6 * (1 + key) if key < 7 else operations)
    for network in (rates, anew):
        for number, observation in seen[: len(seen) // 3 * 3]:  # the table has all of them
            network.observe(f"n{number}", 1, Observation(observation))
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
