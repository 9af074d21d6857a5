"""Tests of W&B sweeps, compared with W&B's own engine where it is installed."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fleet.spec.drawing import members
from fleet.spec.space import space_of
from fleet.sweeps import wandb_sweep
from fleet.sweeps.sweep import rounded
from tests.examples import examples

LOG = {"low": 0.001, "high": 0.1, "log": True}


def sweep(method="random", **parameters):
    return {"method": method, "run_cap": 5, "parameters": parameters}


def read(**parameter):
    return wandb_sweep.read(sweep(x=parameter))


def dimension(**parameter):
    return read(**parameter).space["x"]


@pytest.mark.parametrize(
    ("parameter", "expected"),
    [
        ({"values": [1, "two", None]}, [1, "two", None]),
        ({"min": 1, "max": 4}, {"low": 1, "high": 4, "integer": True}),
        ({"min": 1, "max": 4.0}, {"low": 1.0, "high": 4.0}),
        ({"min": 1, "max": 4, "distribution": "uniform"}, {"low": 1.0, "high": 4.0}),
        ({"min": 0.001, "max": 0.1, "distribution": "log_uniform_values"}, LOG),
        ({"min": math.log(1e-3), "max": math.log(0.1), "distribution": "log_uniform"}, LOG),
        ({"min": 0.001, "max": 0.1, "distribution": "inv_log_uniform_values"}, LOG),
        ({"min": -math.log(0.1), "max": -math.log(1e-3), "distribution": "inv_log_uniform"}, LOG),
        (
            {"min": 8, "max": 64, "q": 8, "distribution": "q_uniform"},
            {"low": 8, "high": 64, "integer": True, "step": 8},
        ),
        (
            {"min": 0.1, "max": 0.52, "q": 0.1, "distribution": "q_uniform"},
            {"low": 0.1, "high": 0.5, "step": 0.1},
        ),
        (
            {"min": 1, "max": 256, "distribution": "q_log_uniform_values"},
            {"low": 1, "high": 256, "log": True, "integer": True},
        ),
        (
            {"min": 0, "max": math.log(256), "distribution": "q_log_uniform"},
            {"low": 1, "high": 256, "log": True, "integer": True},
        ),
        ({"distribution": "beta"}, {"low": 0.0, "high": 1.0}),
        ({"distribution": "q_beta", "q": 0.25}, {"low": 0.0, "high": 1.0, "step": 0.25}),
        (
            {"distribution": "normal", "mu": 1, "sigma": 0.5},
            {"low": -1.0, "high": 3.0, "prior": {"around": 1.0, "spread": 0.125}},
        ),
        (
            {"values": ["a", "b"], "probabilities": [0.25, 0.75]},
            {"choices": ["a", "b"], "weights": [0.25, 0.75]},
        ),
    ],
)
def test_wandb_distribution_is_a_dimension(parameter, expected):
    assert dimension(**parameter) == expected
    space_of({"x": expected})


@pytest.mark.parametrize(
    "parameter",
    [
        {"value": 3},
        {"value": 3, "distribution": "constant"},
        {"values": [3]},
        {"min": 3, "max": 3},
        {"distribution": "normal", "mu": 3, "sigma": 0},
        {"distribution": "q_uniform", "min": 2.9, "max": 3.1},
    ],
)
def test_wandb_single_value_is_fixed(parameter):
    assert read(**parameter).fixed == {"x": 3}


def test_wandb_improbable_value_is_no_choice():
    result = read(values=["a", "b", "c"], probabilities=[0, 0.5, 0.5])
    assert result.space == {"x": ["b", "c"]}
    assert [note.key for note in result.changed] == ["parameters.x.probabilities"]


@pytest.mark.parametrize(
    ("parameter", "key"),
    [
        ({"distribution": "beta", "a": 2, "b": 2}, "parameters.x.distribution"),
        ({"min": 1, "max": 99, "q": 2, "distribution": "q_log_uniform_values"}, "parameters.x.q"),
        ({"values": [1, 2], "q": 2}, "parameters.x.q"),
    ],
)
def test_wandb_unsaid_part_of_parameter_is_listed(parameter, key):
    assert [note.key for note in read(**parameter).left_out] == [key]


@pytest.mark.parametrize(
    ("parameter", "names"),
    [
        ({"distribution": "cauchy"}, ("x.distribution", "'cauchy'", "log_uniform_values")),
        ({}, ("parameters.x", "values")),
        ({"mu": 3, "sigma": 1}, ("parameters.x", "distribution")),
        ({"min": 3}, ("parameters.x",)),
        ({"min": 4, "max": 3}, ("parameters.x.min", "4")),
        ({"min": "low", "max": 3, "distribution": "uniform"}, ("parameters.x.min", "'low'")),
        ({"min": True, "max": 3}, ("parameters.x.min", "True")),
        ({"min": 0, "max": 3, "distribution": "log_uniform_values"}, ("parameters.x", "above 0")),
        ({"min": 0, "max": 3000, "distribution": "log_uniform"}, ("x", "3000", "exponents")),
        ({"min": 0, "max": 99, "distribution": "log_uniform"}, ("parameters.x", "2**53")),
        ({"min": 0.5, "max": 3, "distribution": "int_uniform"}, ("parameters.x", "0.5")),
        ({"min": 1, "max": 3, "q": 0, "distribution": "q_uniform"}, ("parameters.x.q", "0")),
        ({"values": []}, ("parameters.x.values", "[]")),
        ({"values": 3}, ("parameters.x.values", "3")),
        ({"values": [1, 2], "probabilities": [1]}, ("parameters.x.probabilities",)),
        ({"distribution": "normal", "sigma": -1}, ("parameters.x.sigma", "-1")),
        ({"distribution": "beta", "a": 0}, ("parameters.x", "a and b")),
        ({"parameters": {}}, ("parameters.x.parameters",)),
    ],
)
def test_wandb_invalid_parameter_is_named(refusal, parameter, names):
    error = refusal(sweep(y={"value": 1}, x=parameter))
    assert "sweep.yaml:" in error
    assert [name for name in names if name not in error] == []


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"method": "anneal"}, ("method", "'anneal'", "bayes")),
        ({"parameters": []}, ("parameters", "[]")),
        ({"parameters": {}}, ("parameters",)),
        ({"run_cap": 0}, ("run_cap", "0")),
        ({"run_cap": "many"}, ("run_cap", "'many'")),
        ({"metric": "val_loss"}, ("metric", "'val_loss'")),
        ({"metric": {"goal": "minimize"}}, ("metric.name",)),
        ({"metric": {"name": "a", "goal": "up"}}, ("metric.goal", "'up'", "maximize")),
        ({"early_terminate": {"type": "envelope"}}, ("early_terminate.type", "'envelope'")),
        ({"early_terminate": {"type": "hyperband"}}, ("early_terminate", "min_iter")),
        ({"early_terminate": {"type": "hyperband", "min_iter": 1, "eta": 1}}, ("eta", "1")),
        ({"early_terminate": {"type": "hyperband", "max_iter": 9}}, ("early_terminate.s",)),
        ({"early_terminate": {"type": "hyperband", "max_iter": 2, "s": 3}}, ("s", "3")),
    ],
)
def test_wandb_invalid_key_is_named(refusal, change, names):
    error = refusal({**sweep(x={"values": [1, 2]}), **change})
    assert [name for name in names if name not in error] == []


def test_wandb_sweep_becomes_an_entry(import_content):
    result = import_content(
        {
            "program": "train.py",
            "command": ["python", "${program}"],
            "method": "random",
            "name": "my sweep!",
            "description": "two\nlines",
            "run_cap": 40,
            "metric": {"name": "validation/acc", "goal": "maximize", "target": 0.99},
            "parameters": {
                "lr": {"min": 1e-4, "max": 0.1, "distribution": "log_uniform_values"},
                "batch_size": {"values": [32, 64]},
                "epochs": {"value": 9},
                "model": {"parameters": {"depth": {"min": 1, "max": 3}, "act": {"value": "relu"}}},
                "optimizer": {"parameters": {"weight_decay": {"min": 0.0, "max": 0.1}}},
            },
        }
    )
    assert result.content == {
        "name": "my-sweep",
        "models": [
            {
                "name": "my-sweep",
                "args": {"model": {"act": "relu"}},
                "space": {
                    "train.optimizer.learning_rate": {"low": 0.0001, "high": 0.1, "log": True},
                    "train.batch.size": [32, 64],
                    "model.depth": {"low": 1, "high": 3, "integer": True},
                    "train.optimizer.weight_decay": {"low": 0.0, "high": 0.1},
                },
                "search": {"sampler": "random", "max_trials": 40},
            }
        ],
        "train": {"stopping": {"monitor": "val_accuracy", "max_epochs": 9}},
    }
    assert result.left_out == {"program", "command", "metric.target"}


@pytest.mark.parametrize(
    ("content", "prune", "epochs"),
    [
        ({"min_iter": 3}, {"min_epochs": 3, "factor": 3}, None),
        ({"min_iter": 2, "eta": 2}, {"min_epochs": 2, "factor": 2}, None),
        ({"max_iter": 27, "s": 2}, {"min_epochs": 3, "factor": 3}, 27),
        ({"max_iter": 27, "s": 9}, {"min_epochs": 1, "factor": 3}, 27),
        ({"max_iter": 20, "s": 2, "eta": 4}, {"min_epochs": 1, "factor": 4}, 20),
    ],
)
def test_wandb_hyperband_stops_at_the_same_epochs(content, prune, epochs):
    result = wandb_sweep.read(
        {**sweep(x={"values": [1, 2]}), "early_terminate": {"type": "hyperband", **content}}
    )
    assert result.prune == {"rule": "asha", "on_fail": "stop", **prune}
    assert result.stopping.get("max_epochs") == epochs


def test_wandb_grid_has_all_combinations(import_content):
    result = import_content(
        {
            "method": "grid",
            "parameters": {
                "a": {"values": [1, 2]},
                "b": {"min": 1, "max": 3},
                "c": {"min": 0, "max": 1, "q": 0.25, "distribution": "q_uniform"},
            },
        }
    )
    assert result.search == {"sampler": "grid"}
    assert result.space["c"] == [0.0, 0.25, 0.5, 0.75]  # as in W&B, max is no value of a grid


def test_wandb_grid_over_real_numbers_is_refused(refusal):
    assert "parameters.x.distribution" in refusal(sweep("grid", x={"min": 0.0, "max": 1.0}))


def test_wandb_search_without_a_limit_gets_one(import_content):
    content = sweep("bayes", x={"values": [1, 2]})
    del content["run_cap"]
    result = import_content(content)
    assert result.search == {"sampler": "tpe", "max_trials": 100}
    assert {"method", "run_cap"} <= result.changed


# ---- W&B's own engine ----------------------------------------------------------------------------

NUMBERS = [
    {"min": 1, "max": 9},
    {"min": 0.5, "max": 2.5},
    {"min": -7.0, "max": -1.0, "distribution": "log_uniform"},
    {"min": 0.001, "max": 1.0, "distribution": "log_uniform_values"},
    {"min": 1.0, "max": 7.0, "distribution": "inv_log_uniform"},
    {"min": 0.001, "max": 1.0, "distribution": "inv_log_uniform_values"},
    {"min": 1, "max": 200, "distribution": "q_log_uniform_values", "q": 1},
    {"min": 0.0, "max": 5.0, "distribution": "q_log_uniform", "q": 1},
    {"mu": 3, "sigma": 0.5, "distribution": "normal"},
    {"mu": 3, "sigma": 2, "distribution": "q_normal", "q": 0.5},
    {"mu": 30, "sigma": 9, "distribution": "q_normal", "q": 1},
    {"mu": -4, "sigma": 1, "distribution": "log_normal"},
    {"mu": 4, "sigma": 0.4, "distribution": "q_log_normal", "q": 1},
    {"distribution": "beta"},
]


@pytest.mark.parametrize("parameter", NUMBERS, ids=lambda item: item.get("distribution", "plain"))
def test_wandb_draws_have_the_same_distribution(parameter):
    engine = pytest.importorskip("sweeps.params", reason="make test-track has it")
    random.seed(1)
    expected = [float(engine.HyperParameter("x", parameter).sample()) for _ in range(4000)]
    dimensions = space_of({"x": dimension(**parameter)})
    shares = random.Random(2)
    drawn = [float(dimensions["x"].at(shares.random())) for _ in range(4000)]
    if "q" in parameter and "min" in parameter:  # W&B draws half of the intervals at the ends
        ends = dimensions["x"].low, dimensions["x"].high
        drawn, expected = ([x for x in draws if x not in ends] for draws in (drawn, expected))
    assert stats.ks_2samp(drawn, expected).statistic < 0.05


@pytest.mark.parametrize("q", [1, 8, 0.25])
def test_wandb_quantized_values_are_the_same(q):
    engine = pytest.importorskip("sweeps.params", reason="make test-track has it")
    parameter = {"min": 8, "max": 64, "q": q, "distribution": "q_uniform"}
    hyperparameter = engine.HyperParameter("x", parameter)
    expected = np.unique(hyperparameter.ppf(np.linspace(0, 1, 5001)))
    range_ = space_of({"x": dimension(**parameter)})["x"]
    assert [range_.value_at(index) for index in range(int(range_.size))] == list(expected)


@pytest.mark.parametrize("method", ["grid", "random"])
def test_wandb_engine_and_sampler_draw_from_one_space(import_content, method):
    engine = pytest.importorskip("sweeps", reason="make test-track has it")
    content = {
        "method": method,
        "parameters": {
            "a": {"values": [1, 2, 3]},
            "n": {"parameters": {"b": {"values": ["x", "y"]}, "c": {"value": 5}}},
        },
    }
    result = import_content(content)
    runs = []
    for _ in range(60 if method == "random" else 6):
        [run] = engine.next_runs(content, runs)
        runs.append(run)
    expected = {(run.config["a"]["value"], run.config["n"]["value"]["b"]) for run in runs}
    drawn = {(member["a"], member["n.b"]) for member in members(result.dimensions, 0)}
    assert drawn == expected
    assert result.entry["args"] == {"n": {"c": 5}}
    assert all(run.config["n"]["value"]["c"] == 5 for run in runs)


@given(
    low=st.floats(-1e6, 1e6),
    width=st.floats(1e-3, 1e6),
    q=st.sampled_from([0.1, 0.5, 1, 2, 10]),
)
@settings(max_examples=examples(100), deadline=None)
def test_wandb_quantized_range_has_only_multiples(low, width, q):
    result = read(min=low, max=low + width, q=q, distribution="q_uniform")
    if "x" in result.fixed:
        return
    range_ = space_of(result.space)["x"]
    for index in {0, int(range_.size) // 2, int(range_.size) - 1}:
        value = range_.value_at(index)
        assert low - q <= value <= low + width + q
        assert value / q == pytest.approx(round(value / q), abs=1e-6)


@given(exponents=st.tuples(st.floats(-20, 20), st.floats(-20, 20)).map(sorted))
@settings(max_examples=examples(100), deadline=None)
def test_wandb_exponents_and_values_agree(exponents):
    low, high = exponents
    by_exponent = read(min=low, max=high, distribution="log_uniform")
    low, high = (rounded(math.exp(exponent)) for exponent in exponents)
    by_value = read(min=low, max=high, distribution="log_uniform_values")
    assert by_exponent.space == by_value.space
    assert by_exponent.fixed == by_value.fixed


@pytest.mark.parametrize("distribution", ["log_uniform", "inv_log_uniform", "q_log_uniform"])
def test_wandb_exponents_as_bounds_are_noted(distribution):
    [note, *_] = read(min=-2, max=3, distribution=distribution).changed
    assert str(note).startswith("parameters.x.distribution: the bounds are exponents of e: values")


def test_wandb_number_as_a_parameter_is_refused(refusal):
    assert "parameters.x: 0.1 should be a mapping, such as {value: NUMBER}" in refusal(sweep(x=0.1))


def test_wandb_unknown_early_end_is_refused(refusal):
    content = {**sweep(x={"value": 1}), "early_terminate": {"type": "envelope"}}
    assert "'envelope' should be hyperband" in refusal(content)
