"""How much the keys of a space decide."""

import sys
from dataclasses import replace

import pytest

from fleet.monitor.importance import LEAST, importance_of
from fleet.monitor.search_summary import SearchReport, SearchTrial
from fleet.spec.space import Range
from fleet.storage.results import Status

SPACE = {
    "rate": Range(1e-4, 0.1, log=True),
    "filters": ([8], [16]),
    "depth": Range(1, 9, integer=True),
    "same": (1,),
}


def search(number, value, larger=True):
    """A search whose networks have spread values; what they come to follows from their place and values."""
    tried = []
    for place in range(number):
        values = {
            "rate": 10 ** -(1 + 3 * (place * 37 % number) / number),
            "filters": [8 * (1 + place % 2)],
            "depth": 1 + place * 13 % 9,
            "same": 1,
        }
        tried.append(
            SearchTrial(f"net-{place}", place, values, Status.FINISHED, 1, value(place, values))
        )
    return SearchReport("net", "score", larger, SPACE, tuple(tried), ())


@pytest.mark.parametrize("larger", [True, False])
@pytest.mark.parametrize("library", ["sklearn", "optuna"])
def test_the_key_that_decides_comes_first(library, larger, monkeypatch):
    pytest.importorskip(library)
    if library == "optuna":
        monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    found = importance_of(
        search(80, lambda place, values: values["rate"] ** 2 + values["depth"] / 1e6, larger)
    )
    assert next(iter(found.shares)) == "rate"
    assert set(found.shares) == {"rate", "filters", "depth"}
    assert sum(found.shares.values()) == pytest.approx(1)
    assert found.shares["rate"] > 0.5
    assert ("permutation" if library == "sklearn" else "Optuna") in found.summary


@pytest.mark.parametrize("library", ["sklearn", "optuna"])
@pytest.mark.parametrize("other", [{}, {"rate": 1.0}, {"filters": [32]}])
def test_a_network_may_lack_a_value_or_have_one_of_an_earlier_space(library, other, monkeypatch):
    pytest.importorskip(library)
    if library == "optuna":
        monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    found = search(80, lambda place, values: values["depth"])

    def importance(lack):
        return importance_of(
            replace(
                found,
                trials=tuple(
                    replace(
                        one,
                        values={key: value for key, value in one.values.items() if key != "filters"}
                        | other,
                    )
                    if one.number in lack
                    else one
                    for one in found.trials
                ),
            )
        )

    assert next(iter(importance(range(1, 80, 4)).shares)) == "depth"
    assert importance(range(75)).summary


def test_in_haste_no_library_is_loaded(monkeypatch):
    monkeypatch.setattr("fleet.monitor.importance._WAYS", None)
    found = importance_of(search(80, lambda place, values: values["rate"]), skip_slow=True)
    assert (found.shares, "fleet report" in found.summary) == ({}, True)


def test_of_chance_nothing_is_said():
    pytest.importorskip("sklearn")
    found = importance_of(search(80, lambda place, values: (place * 7919 % 101) * (place * 31 % 7)))
    assert not found.shares
    assert "do not foretell" in found.summary


def test_of_few_networks_or_one_key_nothing_is_said_and_without_a_library_why(monkeypatch):
    def value(place, values):
        return values["rate"]

    assert importance_of(search(LEAST - 1, value)) is None
    assert (
        importance_of(replace(search(80, value), space={"rate": SPACE["rate"], "same": (1,)}))
        is None
    )
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    monkeypatch.setitem(sys.modules, "optuna", None)
    found = importance_of(search(80, value))
    assert (found.shares, "is shown where" in found.summary) == ({}, True)
