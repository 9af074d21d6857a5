"""Tests of the importance of keys."""

import sys
from dataclasses import replace

import pytest

from fleet.monitor.importance import MIN_NETWORKS, importance_of
from fleet.monitor.search_summary import SearchReport, SearchTrial
from fleet.spec.dimensions import Range
from fleet.storage.results import Status

SPACE = {
    "rate": Range(1e-4, 0.1, log=True),
    "filters": ([8], [16]),
    "depth": Range(1, 9, integer=True),
    "same": (1,),
}


def search(number, value, larger=True):
    """Return a search with spread values; results follow from the position and the values."""
    trials = []
    for position in range(number):
        values = {
            "rate": 10 ** -(1 + 3 * (position * 37 % number) / number),
            "filters": [8 * (1 + position % 2)],
            "depth": 1 + position * 13 % 9,
            "same": 1,
        }
        trials.append(
            SearchTrial(
                f"net-{position}", position, values, Status.FINISHED, 1, value(position, values)
            )
        )
    return SearchReport("net", "score", larger, SPACE, tuple(trials), ())


@pytest.mark.parametrize("larger", [True, False])
@pytest.mark.parametrize("library", ["sklearn", "optuna"])
def test_importance_puts_the_decisive_key_first(library, larger, monkeypatch):
    pytest.importorskip(library)
    if library == "optuna":
        monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    importance = importance_of(
        search(80, lambda position, values: values["rate"] ** 2 + values["depth"] / 1e6, larger)
    )
    assert next(iter(importance.shares)) == "rate"
    assert set(importance.shares) == {"rate", "filters", "depth"}
    assert sum(importance.shares.values()) == pytest.approx(1)
    assert importance.shares["rate"] > 0.5
    assert ("Permutation" if library == "sklearn" else "Optuna") in importance.summary


@pytest.mark.long_but_first
@pytest.mark.parametrize("library", ["sklearn", "optuna"])
@pytest.mark.parametrize("outside", [{}, {"rate": 1.0}, {"filters": [32]}])
def test_importance_accepts_missing_and_outside_values(library, outside, monkeypatch):
    pytest.importorskip(library)
    if library == "optuna":
        monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    report = search(80, lambda position, values: values["depth"])

    def without_filters(trial):
        values = {key: value for key, value in trial.values.items() if key != "filters"}
        return replace(trial, values=values | outside)

    def importance(lack):
        trials = [
            without_filters(trial) if trial.number in lack else trial for trial in report.trials
        ]
        return importance_of(replace(report, trials=tuple(trials)))

    assert next(iter(importance(range(1, 80, 4)).shares)) == "depth"
    assert importance(range(75)).summary


def test_skip_slow_loads_no_library(monkeypatch):
    monkeypatch.setattr("fleet.monitor.importance._METHODS", None)
    importance = importance_of(search(80, lambda position, values: values["rate"]), skip_slow=True)
    assert (importance.shares, "fleet report" in importance.summary) == ({}, True)


def test_importance_of_noise_is_empty():
    pytest.importorskip("sklearn")
    importance = importance_of(
        search(80, lambda position, values: (position * 7919 % 101) * (position * 31 % 7))
    )
    assert not importance.shares
    assert "do not predict" in importance.summary


def test_importance_needs_networks_keys_and_a_library(monkeypatch):
    def value(position, values):
        return values["rate"]

    assert importance_of(search(MIN_NETWORKS - 1, value)) is None
    assert (
        importance_of(replace(search(80, value), space={"rate": SPACE["rate"], "same": (1,)}))
        is None
    )
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    monkeypatch.setitem(sys.modules, "optuna", None)
    importance = importance_of(search(80, value))
    assert (importance.shares, "Install scikit-learn" in importance.summary) == ({}, True)


@pytest.mark.parametrize("library", ["sklearn", "optuna"])
def test_importance_of_a_key_with_a_condition(library, monkeypatch):
    pytest.importorskip(library)
    if library == "optuna":
        monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    report = search(
        80, lambda position, values: values["depth"] if values["filters"] == [8] else 5.5
    )
    trials = tuple(
        trial
        if trial.values["filters"] == [8]
        else replace(
            trial, values={key: value for key, value in trial.values.items() if key != "depth"}
        )
        for trial in report.trials
    )
    depth = Range(1, 9, integer=True, when={"filters": [[8]]})
    report = replace(report, trials=trials, space={**SPACE, "depth": depth})
    assert next(iter(importance_of(report).shares)) == "depth"
