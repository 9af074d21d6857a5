"""Tests of Keras Tuner projects.

``keras_tuner/random`` and ``keras_tuner/hyperband`` were recorded with Keras Tuner 1.4.8 and Keras
3.15.1 on TensorFlow: RandomSearch (three trials of two executions) and Hyperband (max_epochs 4,
factor 2), each of which trained small dense networks on 64 random samples. Of the folders only
oracle.json and the trial.json files were copied, of Hyperband's 15 trials five.
"""

import json
import math
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.spec.space import member_of, space_of
from fleet.storage.trials_file import read_trials_file
from fleet.sweeps import keras_tuner_project
from fleet.sweeps.sweep import Sweep, within
from tests.examples import examples

RECORDED = Path(__file__).parent / "keras_tuner"
RATE = "train.optimizer.learning_rate"


def hyperparameter(kind, **config):
    return {"class_name": kind, "config": {"name": "x", "conditions": [], **config}}


def when(name, *values):
    return {"class_name": "Parent", "config": {"name": name, "values": list(values)}}


def read_space(*items):
    sweep = Sweep(keras_tuner_project.KIND)
    keras_tuner_project._read_space(sweep, {"space": list(items)})
    return sweep


def test_keras_tuner_project_becomes_an_entry(import_path):
    result = import_path(RECORDED / "random")
    assert result.space == {
        "layers": {"low": 1, "high": 3, "integer": True},
        "units_0": {"low": 8, "high": 32, "integer": True, "step": 8},
        "activation": ["relu", "tanh"],
        "dropout": [False, True],
        "train.optimizer.name": ["sgd", "adam"],
        RATE: {"low": 0.0001, "high": 0.1, "log": True},
        "train.optimizer.momentum": {
            "low": 0.0,
            "high": 0.9,
            "when": {"train.optimizer.name": "sgd"},
        },
        "units_1": {"low": 8, "high": 32, "integer": True, "step": 8},
        "rate": {"low": 0.1, "high": 0.5, "step": 0.1, "when": {"dropout": True}},
    }
    assert result.search == {"sampler": "random", "max_trials": 3, "seed": 1}
    assert result.train == {"label_smoothing": 0.0, "stopping": {"monitor": "val_accuracy"}}
    assert {"objective", "tuner", "max_trials"} <= result.changed
    assert result.left_out == {"hypermodel"}


def test_keras_tuner_hyperband_becomes_a_rule(import_path):
    result = import_path(RECORDED / "hyperband")
    assert result.prune == {"rule": "hyperband", "min_epochs": 1, "factor": 2}
    assert result.train["stopping"] == {"monitor": "val_loss", "max_epochs": 4}


@pytest.mark.parametrize(
    ("project", "outcomes"),
    [("random", ["finished"] * 3), ("hyperband", ["pruned"] * 4 + ["finished"])],
)
def test_keras_tuner_trials_become_prior_trials(tmp_path, import_path, project, outcomes):
    spec = tmp_path / "spec.yaml"
    result = import_path(RECORDED / project, "--to", spec)
    content = read_trials_file(spec.with_suffix(".trials.json"))
    assert [trial.outcome for trial in content.trials] == outcomes
    for trial in content.trials:
        member_of(result.dimensions, trial.values)
        folder = RECORDED / project / trial.name.replace("-", "_")
        record = json.loads((folder / "trial.json").read_text())
        assert trial.results == (record["score"],)
        assert trial.values[RATE] == record["hyperparameters"]["values"]["learning_rate"]


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (
            hyperparameter("Int", min_value=6, max_value=13, step=3, sampling="linear"),
            {"low": 6, "high": 13, "integer": True, "step": 3},
        ),
        (
            hyperparameter("Int", min_value=2, max_value=32, step=2, sampling="log"),
            [2, 4, 8, 16, 32],
        ),
        (
            hyperparameter("Int", min_value=2, max_value=32, step=None, sampling="log"),
            {"low": 2, "high": 32, "log": True, "integer": True},
        ),
        (
            hyperparameter("Float", min_value=0.0, max_value=1.0, step=0.25, sampling="linear"),
            {"low": 0.0, "high": 1.0, "step": 0.25},
        ),
        (
            hyperparameter("Float", min_value=0.01, max_value=1.0, step=10, sampling="log"),
            [0.01, 0.1, 1.0],
        ),
        (
            hyperparameter("Float", min_value=1, max_value=9, step=None, sampling="reverse_log"),
            {"low": 1.0, "high": 9.0},
        ),
        (hyperparameter("Choice", values=["a", "b"]), ["a", "b"]),
        (hyperparameter("Boolean"), [False, True]),
    ],
)
def test_keras_tuner_hyperparameter_is_a_dimension(item, expected):
    sweep = read_space(item)
    assert sweep.space == {"x": expected}
    space_of(sweep.space)
    is_reversed = item["config"].get("sampling") == "reverse_log"
    assert [note.key for note in sweep.left_out] == (["x.sampling"] if is_reversed else [])


@pytest.mark.parametrize(
    "item",
    [
        hyperparameter("Fixed", value=5),
        hyperparameter("Choice", values=[5]),
        hyperparameter("Int", min_value=5, max_value=5, step=1),
        hyperparameter("Int", min_value=5, max_value=7, step=9),
    ],
)
def test_keras_tuner_single_value_is_fixed(item):
    assert read_space(item).fixed == {"x": 5}


def test_keras_tuner_conditions_are_conditions():
    parent = {"class_name": "Choice", "config": {"name": "p", "values": ["a", "b", "c"]}}
    assert read_space(parent, hyperparameter("Boolean", conditions=[when("p", "a")])).space[
        "x"
    ] == {"choices": [False, True], "when": {"p": "a"}}
    assert read_space(
        parent,
        hyperparameter("Boolean", conditions=[when("p", "a")]),
        hyperparameter("Boolean", conditions=[when("p", "b")]),
    ).space["x"]["when"] == {"p": ["a", "b"]}


def test_keras_tuner_condition_on_a_fixed_value_is_decided(tmp_path, import_path):
    space = [
        {"class_name": "Fixed", "config": {"name": "p", "value": "a"}},
        {
            "class_name": "Boolean",
            "config": {"name": "used", "conditions": [when("p", "a")]},
        },
        {
            "class_name": "Boolean",
            "config": {"name": "unused", "conditions": [when("p", "b")]},
        },
    ]
    (tmp_path / "oracle.json").write_text(json.dumps({"hyperparameters": {"space": space}}))
    result = import_path(tmp_path)
    assert result.space == {"used": [False, True]}
    assert "unused" in result.changed


@pytest.mark.parametrize(
    ("item", "names"),
    [
        (hyperparameter("Complex"), ("x.class_name", "'Complex'", "Float")),
        (hyperparameter("Int", min_value=3, max_value=1), ("x.min_value", "3")),
        (hyperparameter("Int", min_value="a", max_value=1), ("x.min_value", "'a'")),
        (hyperparameter("Int", min_value=1, max_value=3, step=0), ("x.step", "0")),
        (hyperparameter("Float", min_value=0, max_value=1, sampling="cube"), ("x.sampling",)),
        (hyperparameter("Float", min_value=0, max_value=1, sampling="log"), ("x", "above 0")),
        (hyperparameter("Choice", values=[]), ("x.values", "[]")),
        ({"class_name": "Int", "config": {}}, ("space.0.config.name",)),
        ({"class_name": "Int"}, ("space.0.config",)),
        (hyperparameter("Boolean", conditions=[{"class_name": "Or"}]), ("x.conditions", "'Or'")),
    ],
)
def test_keras_tuner_invalid_hyperparameter_is_named(tmp_path, refusal, item, names):
    (tmp_path / "oracle.json").write_text(json.dumps({"hyperparameters": {"space": [item]}}))
    error = refusal(tmp_path)
    assert str(tmp_path) in error
    assert [name for name in names if name not in error] == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"hyperparameters": 3}'])
def test_keras_tuner_damaged_oracle_is_refused(tmp_path, refusal, content):
    (tmp_path / "oracle.json").write_bytes(content)
    assert "oracle.json" in refusal(tmp_path)


def test_keras_tuner_torn_trial_is_named(tmp_path, refusal):
    project = shutil.copytree(RECORDED / "random", tmp_path / "project")
    torn = project / "trial_1" / "trial.json"
    torn.write_bytes(torn.read_bytes()[:100])
    assert str(torn) in refusal(project)


def test_keras_tuner_metric_without_a_direction_is_no_objective(tmp_path, import_path):
    project = shutil.copytree(RECORDED / "random", tmp_path / "project")
    for path in project.glob("*/trial.json"):
        record = json.loads(path.read_text())
        for metric in record["metrics"]["metrics"].values():
            metric["direction"] = ["max"]
        path.write_text(json.dumps(record))
    result = import_path(project)
    assert {"objective", "trials"} <= result.left_out
    assert result.record["trials"] == 0


def test_keras_tuner_trials_that_have_not_ended_are_listed(tmp_path, import_path):
    project = shutil.copytree(RECORDED / "random", tmp_path / "project")
    for number, status in enumerate(["RUNNING", "FAILED"]):
        path = project / f"trial_{number}" / "trial.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "status": status}))
    result = import_path(project, "--to", tmp_path / "spec.yaml")
    trials = read_trials_file(tmp_path / "spec.trials.json").trials
    assert [trial.outcome for trial in trials] == ["failed", "finished"]
    assert math.isnan(trials[0].results[0])
    assert "trials" in result.left_out


# ---- the library itself --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def keras_tuner():
    return pytest.importorskip("keras_tuner", reason="make test-track has it")


@given(
    low=st.integers(1, 50),
    width=st.integers(1, 200),
    step=st.one_of(st.none(), st.integers(2, 9)),
    sampling=st.sampled_from(["linear", "log", "reverse_log"]),
    is_integer=st.booleans(),
)
@settings(max_examples=examples(100), deadline=None)
def test_keras_tuner_values_are_those_of_the_library(
    keras_tuner, low, width, step, sampling, is_integer
):
    parameters = keras_tuner.HyperParameters()
    scale = 1 if is_integer else 0.5
    declare = parameters.Int if is_integer else parameters.Float
    step = step if step is None or sampling != "linear" else step * scale
    declare("x", low * scale, (low + width) * scale, step=step, sampling=sampling)
    sweep = read_space(*parameters.get_config()["space"])
    values = [sweep.fixed["x"]] if "x" in sweep.fixed else space_of(sweep.space)["x"]
    [expected] = parameters.space
    for share in (0.0, 0.2, 0.5, 0.8, 0.999999):
        value = expected.prob_to_value(share)
        if not isinstance(values, list | tuple):
            assert values.normal_form(within(sweep.space["x"], value)) == pytest.approx(value)
        else:
            assert any(math.isclose(value, item) for item in values)
    if isinstance(values, list | tuple):
        assert len(values) == len(list(expected.values))
    elif step is not None:
        assert values.size == len(list(expected.values))


def test_keras_tuner_oracle_writes_a_project_that_is_read(tmp_path, keras_tuner, import_path):
    parameters = keras_tuner.HyperParameters()
    parameters.Float("learning_rate", 1e-4, 0.1, sampling="log")
    parameters.Choice("kind", ["a", "b"])
    with parameters.conditional_scope("kind", ["b"]):
        parameters.Int("width", 8, 64, step=8)
    oracle = keras_tuner.oracles.RandomSearchOracle(
        objective=keras_tuner.Objective("val_loss", "min"),
        max_trials=12,
        seed=5,
        hyperparameters=parameters,
    )
    oracle._set_project_dir(str(tmp_path), "project")
    scores = []
    for _ in range(12):
        trial = oracle.create_trial("tuner0")
        scores.append(trial.hyperparameters.get("learning_rate"))
        oracle.update_trial(trial.trial_id, {"val_loss": scores[-1], "loss": 2.0})
        trial.status = "COMPLETED"
        oracle.end_trial(trial)
    oracle.save()
    spec = tmp_path / "spec.yaml"
    result = import_path(tmp_path / "project", "--to", spec)
    assert result.space == {
        RATE: {"low": 0.0001, "high": 0.1, "log": True},
        "kind": ["a", "b"],
        "width": {"low": 8, "high": 64, "integer": True, "step": 8, "when": {"kind": "b"}},
    }
    assert result.train == {"stopping": {"monitor": "val_loss"}}
    trials = read_trials_file(spec.with_suffix(".trials.json")).trials
    assert sorted(trial.results[0] for trial in trials) == pytest.approx(sorted(scores))
    for trial in trials:
        member_of(result.dimensions, trial.values)
