"""Tests of Determined experiments."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.spec.space import space_of
from fleet.sweeps import determined_experiment
from tests.examples import examples


def experiment(searcher=None, records=None, **hyperparameters):
    content = {
        "name": "mnist",
        "searcher": {
            "name": "random",
            "metric": "accuracy",
            "max_trials": 8,
            "max_length": {"epochs": 16},
            **(searcher or {}),
        },
        "hyperparameters": hyperparameters,
    }
    return content if records is None else {**content, "records_per_epoch": records}


def read(*arguments, **hyperparameters):
    return determined_experiment.read(experiment(*arguments, **hyperparameters))


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"type": "int", "minval": 1, "maxval": 4}, {"low": 1, "high": 4, "integer": True}),
        ({"type": "double", "minval": 0.2, "maxval": 1}, {"low": 0.2, "high": 1.0}),
        (
            {"type": "log", "minval": -5, "maxval": -1},
            {"low": 1e-5, "high": 0.1, "log": True},
        ),
        (
            {"type": "log", "base": 2, "minval": 0, "maxval": 4},
            {"low": 1.0, "high": 16.0, "log": True},
        ),
        ({"type": "categorical", "vals": ["a", 2, [3, 4]]}, ["a", 2, [3, 4]]),
    ],
)
def test_determined_hyperparameter_is_a_dimension(item, expected):
    assert read(x=item).space == {"x": expected}
    space_of({"x": expected})


def test_determined_constants_and_nested_mappings():
    result = read(
        a=1,
        b={"type": "const", "val": [2]},
        c={"d": {"e": {"type": "int", "minval": 0, "maxval": 1}}},
    )
    assert result.fixed == {"a": 1, "b": [2]}
    assert result.space == {"c.d.e": {"low": 0, "high": 1, "integer": True}}


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"type": "int", "minval": 0, "maxval": 10, "count": 3}, [0, 5, 10]),
        ({"type": "int", "minval": 1, "maxval": 2, "count": 9}, [1, 2]),
        ({"type": "double", "minval": 0, "maxval": 1, "count": 5}, [0, 0.25, 0.5, 0.75, 1]),
        ({"type": "log", "minval": -3, "maxval": -1, "count": 3}, [0.001, 0.01, 0.1]),
        ({"type": "categorical", "vals": ["a", "b"]}, ["a", "b"]),
    ],
)
def test_determined_grid_has_count_values(item, expected):
    result = read({"name": "grid"}, x=item)
    assert result.space == {"x": expected}
    assert result.search == {"sampler": "grid"}


@pytest.mark.parametrize(
    ("searcher", "prune"),
    [
        (
            {"name": "asha", "num_rungs": 3},
            {"rule": "asha", "min_epochs": 1, "factor": 4, "on_fail": "pause"},
        ),
        (
            {"name": "asha", "num_rungs": 2, "divisor": 2, "stop_once": True},
            {"rule": "asha", "min_epochs": 8, "factor": 2, "on_fail": "stop"},
        ),
        (
            {"name": "adaptive_asha"},  # eight trials allow two rungs
            {"rule": "hyperband", "min_epochs": 4, "factor": 4, "on_fail": "pause"},
        ),
        (
            {"name": "adaptive_asha", "mode": "aggressive", "max_rungs": 2},
            {"rule": "asha", "min_epochs": 4, "factor": 4, "on_fail": "pause"},
        ),
    ],
)
def test_determined_halving_is_a_rule(searcher, prune):
    result = read(searcher, x={"type": "double", "minval": 0, "maxval": 1})
    assert result.prune == prune
    assert result.search == {"sampler": "random", "max_trials": 8}
    assert result.stopping == {"max_epochs": 16}


@pytest.mark.parametrize(
    ("max_trials", "min_epochs"),
    [(8, 4), (99, 1)],  # two and four rungs of a trial of 160 batches, which are 16 epochs
)
def test_determined_rungs_follow_length_and_trials(max_trials, min_epochs):
    searcher = {
        "name": "adaptive_asha",
        "max_trials": max_trials,
        "max_length": {"batches": 160},
    }
    result = read(searcher, 640, global_batch_size=64)
    assert (result.prune["min_epochs"], result.stopping["max_epochs"]) == (min_epochs, 16)


@pytest.mark.parametrize(
    ("searcher", "records", "epochs"),
    [
        ({"max_length": {"epochs": 3}}, None, 3),
        ({"max_length": {"batches": 100}}, 640, 10),  # batches of 64 records
        ({"max_length": {"records": 1000}}, 640, 2),
        ({"max_length": {"batches": 100}}, None, None),
        ({"max_length": 7}, None, 7),
        ({"max_length": None, "max_time": 5, "time_metric": "epochs"}, None, 5),
    ],
)
def test_determined_length_in_epochs(searcher, records, epochs):
    result = read(searcher, records, global_batch_size=64)
    assert result.stopping.get("max_epochs") == epochs
    assert [note.key for note in result.left_out] == (
        ["searcher.max_length.batches"] if epochs is None else []
    )


def test_determined_single_trains_one_network(import_content):
    result = import_content(experiment({"name": "single"}, learning_rate=0.1, layers=3))
    assert (result.search, result.space) == (None, {})
    assert result.entry["args"] == {"layers": 3}
    assert result.train["optimizer"] == {"learning_rate": 0.1}


def test_determined_experiment_becomes_an_entry(import_content):
    content = experiment(
        {"metric": "error", "smaller_is_better": True, "max_concurrent_trials": 4},
        global_batch_size=64,
        optimizer_config={
            "optimizer": {"type": "categorical", "vals": ["sgd", "adam"]},
            "learning_rate": {"type": "log", "minval": -4, "maxval": -1},
        },
    )
    content |= {
        "entrypoint": "model_def:Trial",
        "resources": {"slots_per_trial": 2, "resource_pool": "gpus"},
        "reproducibility": {"experiment_seed": 7},
        "max_restarts": 0,
    }
    result = import_content(content)
    assert result.content == {
        "name": "mnist",
        "seed": 7,
        "models": [
            {
                "name": "mnist",
                "gpus": 2,
                "space": {
                    "train.optimizer.name": ["sgd", "adam"],
                    "train.optimizer.learning_rate": {"low": 0.0001, "high": 0.1, "log": True},
                },
                "search": {
                    "sampler": "random",
                    "max_trials": 8,
                    "max_concurrent": 4,
                    "seed": 7,
                },
            }
        ],
        "train": {
            "batch": {"size": 64},
            "stopping": {"monitor": "val_loss", "max_epochs": 16},
        },
    }
    assert result.left_out == {"entrypoint", "resources.resource_pool", "max_restarts"}
    assert "metric val_error" in result.changed


@pytest.mark.parametrize(
    ("item", "names"),
    [
        ({"type": "float", "minval": 0, "maxval": 1}, ("x.type", "'float'", "double")),
        ({"type": "int", "minval": 0}, ("x.maxval", "None")),
        ({"type": "int", "minval": 0.5, "maxval": 2}, ("x", "0.5")),
        ({"type": "double", "minval": 2, "maxval": 1}, ("x.minval", "2")),
        ({"type": "log", "minval": 0, "maxval": 5000}, ("x", "5000", "exponents")),
        ({"type": "log", "base": -1, "minval": 0, "maxval": 5}, ("x.base", "-1")),
        ({"type": "categorical", "vals": []}, ("x.vals", "[]")),
        ({"type": "const"}, ("x.val",)),
    ],
)
def test_determined_invalid_hyperparameter_is_named(refusal, item, names):
    error = refusal(experiment(x=item))
    assert "sweep.yaml:" in error
    assert "hyperparameters.x" in error
    assert [name for name in names if name not in error] == []


@pytest.mark.parametrize(
    ("searcher", "names"),
    [
        ({"name": "pbt"}, ("searcher.name", "'pbt'", "adaptive_asha")),
        ({"metric": 3}, ("searcher.metric", "3")),
        ({"smaller_is_better": "no"}, ("searcher.smaller_is_better", "'no'")),
        ({"max_trials": 0}, ("searcher.max_trials", "0")),
        ({"max_length": {"hours": 2}}, ("searcher.max_length", "hours")),
        ({"max_length": {"epochs": -2}}, ("searcher.max_length.epochs", "-2")),
        ({"name": "asha", "divisor": 1}, ("searcher.divisor", "1")),
        ({"name": "adaptive_asha", "mode": "wild"}, ("searcher.mode", "'wild'")),
    ],
)
def test_determined_invalid_searcher_is_named(refusal, searcher, names):
    error = refusal(experiment(searcher, x={"type": "double", "minval": 0, "maxval": 1}))
    assert [name for name in names if name not in error] == []


def test_determined_grid_needs_counts(refusal):
    assert "hyperparameters.x.count" in refusal(
        experiment({"name": "grid"}, x={"type": "double", "minval": 0, "maxval": 1})
    )


@given(
    base=st.sampled_from([2, math.e, 10]),
    exponents=st.tuples(st.floats(-9, 9), st.floats(-9, 9)).map(sorted),
    count=st.integers(1, 20),
)
@settings(max_examples=examples(100), deadline=None)
def test_determined_grid_of_a_log_lies_within_its_range(base, exponents, count):
    item = {"type": "log", "base": base, "minval": exponents[0], "maxval": exponents[1]}
    grid = read({"name": "grid"}, x={**item, "count": count})
    random = read(x=item)
    values = grid.space.get("x") or [grid.fixed["x"]]
    assert len(values) == count
    if "x" in random.space:
        low, high = random.space["x"]["low"], random.space["x"]["high"]
        assert all(low * (1 - 1e-9) <= value <= high * (1 + 1e-9) for value in values)
        assert values == sorted(values)


def test_determined_exponents_as_bounds_are_noted():
    [note] = read(x={"type": "log", "minval": 0.0001, "maxval": 0.1}).changed
    assert note.text.endswith("exponents of 10: values are between 1.00023 and 1.25893")


def test_determined_missing_count_is_named_as_missing(refusal):
    content = experiment({"name": "grid"}, x={"type": "double", "minval": 0, "maxval": 1})
    assert "x.count: a grid needs it" in refusal(content)
