"""Tests of Optuna studies, which Optuna itself wrote."""

import json
import math
import sqlite3
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.__main__ import main
from fleet.api import read_known
from fleet.export.trackers import write
from fleet.spec.conditions import is_active
from fleet.spec.drawing import members
from fleet.spec.space import member_of, space_of
from fleet.storage.trials_file import read_trials_file
from fleet.sweeps import optuna_study
from tests.examples import examples
from tests.fleet.export.conftest import LATE, RATE, searched

optuna = pytest.importorskip("optuna", reason="Optuna is not installed: make test-track has it")
__all__ = ["searched"]  # a fixture
FORMS = pytest.mark.parametrize("form", ["study.log", "study.db"])

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")


def storage_of(path):
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if path.suffix == ".db":
        return f"sqlite:///{path}"
    return optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))


def study_at(path, name="study", **options):
    return optuna.create_study(
        storage=storage_of(path),
        study_name=name,
        sampler=optuna.samplers.RandomSampler(seed=3),
        **options,
    )


def objective(trial):
    rate = trial.suggest_float("lr", 1e-4, 0.1, log=True)
    optimizer = trial.suggest_categorical("optimizer", ["sgd", "adam"])
    layers = trial.suggest_int("layers", 1, 3)
    for layer in range(layers):
        trial.suggest_int(f"units_{layer}", 8, 64, step=8)
    if optimizer == "sgd":
        trial.suggest_float("momentum", 0.0, 0.9, step=0.1)
        if layers >= 2:
            trial.suggest_float("both", 0, 1)
    if trial.number == 3:
        raise ValueError
    for step in range(4):
        trial.report(rate * step + layers, step)
        if step == 1 and trial.number % 5 == 2:
            raise optuna.TrialPruned
    return rate * 3 + layers


def trials_of(spec):
    return read_trials_file(spec.with_suffix(".trials.json"))


@pytest.mark.long_but_first
@FORMS
def test_optuna_study_becomes_a_space_with_conditions(tmp_path, import_path, form):
    path = tmp_path / form
    study_at(path, direction="maximize").optimize(objective, 40, catch=ValueError)
    before = path.read_bytes()
    result = import_path(path)
    units = {"low": 8, "high": 64, "integer": True, "step": 8}
    assert result.space == {
        "train.optimizer.learning_rate": {"low": 0.0001, "high": 0.1, "log": True},
        "train.optimizer.name": ["sgd", "adam"],
        "layers": {"low": 1, "high": 3, "integer": True},
        "units_0": units,
        "units_1": {**units, "when": {"layers": {"least": 2}}},
        "units_2": {**units, "when": {"layers": {"least": 3}}},
        "train.optimizer.momentum": {
            "low": 0.0,
            "high": 0.9,
            "step": 0.1,
            "when": {"train.optimizer.name": "sgd"},
        },
        "both": {
            "low": 0.0,
            "high": 1.0,
            "when": {"train.optimizer.name": "sgd", "layers": {"least": 2}},
        },
    }
    assert result.search == {"sampler": "tpe", "max_trials": 40}
    assert result.train == {"stopping": {"monitor": "val_accuracy"}}
    assert {"sampler", "n_trials", "metric"} <= result.changed
    assert result.left_out == {"pruner"}
    assert path.read_bytes() == before


@pytest.mark.long_but_first
@FORMS
def test_optuna_trials_become_prior_trials(tmp_path, import_path, form):
    study = study_at(tmp_path / form, direction="maximize")
    study.optimize(objective, 12, catch=ValueError)
    study.ask()
    spec = tmp_path / "out" / "spec.yaml"
    result = import_path(tmp_path / form, "--to", spec)
    content = trials_of(spec)
    assert result.search["warm_start"] == ["spec.trials.json"]
    assert [vars(item) for item in content.objectives] == [
        {"value": "val_accuracy", "mode": "maximize"}
    ]
    assert [trial.name for trial in content.trials] == [f"trial-{n}" for n in range(12)]
    outcomes = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed"}
    for trial, expected in zip(content.trials, study.trials, strict=False):
        assert trial.outcome == outcomes[expected.state.name]
        assert trial.curve == tuple(expected.intermediate_values.values())
        if trial.outcome == "failed":
            assert math.isnan(trial.results[0])
            continue
        member_of(result.dimensions, trial.values)
        assert trial.results == (
            (expected.value,) if trial.outcome == "finished" else (max(trial.curve),)
        )
    assert "trials" in result.left_out  # one has not ended


def test_optuna_objectives_constraints_and_metric_names(tmp_path, import_path):
    study = study_at(tmp_path / "study.log", directions=["maximize", "minimize"])
    study.set_metric_names(["val_acc", "parameters"])
    space = {
        "x": optuna.distributions.FloatDistribution(0, 1),
        "filters": optuna.distributions.CategoricalDistribution(("[8]", "[8, 16]")),
    }
    study.add_trial(
        optuna.trial.create_trial(
            params={"x": 0.5, "filters": "[8, 16]"},
            distributions=space,
            values=[0.9, 1000],
            system_attrs={"constraints": (-1.0, 0.5)},
        )
    )
    spec = tmp_path / "spec.yaml"
    result = import_path(tmp_path / "study.log", "--to", spec)
    assert result.search["sampler"] == "nsgaii"
    assert result.search["objectives"] == [
        {"value": "val_accuracy", "mode": "maximize"},
        {"value": "parameters", "mode": "minimize"},
    ]
    assert result.space["filters"] == [[8], [8, 16]]
    [trial] = trials_of(spec).trials
    assert (trial.results, trial.violations) == ((0.9, 1000.0), (-1.0, 0.5))
    assert trial.values == {"x": 0.5, "filters": [8, 16]}
    assert "constraints" in result.left_out


def test_optuna_objective_that_a_run_does_not_know_is_listed(tmp_path, import_path):
    study = study_at(tmp_path / "study.log", directions=["minimize", "maximize"])
    study.set_metric_names(["val_perplexity", "fairness"])
    study.optimize(lambda trial: (trial.suggest_float("x", 0, 1), 1.0), 2)
    spec = tmp_path / "spec.yaml"
    result = import_path(tmp_path / "study.log", "--to", spec)
    assert "metric val_perplexity" in result.changed
    assert "metric fairness" in result.left_out
    assert result.train == {"stopping": {"monitor": "val_loss"}}
    assert [len(trial.results) for trial in trials_of(spec).trials] == [1, 1]


@pytest.mark.parametrize(
    ("steps", "curve"),
    [
        ((0, 1, 2), (0, 1, 2)),
        ((1, 2, 3), (1, 2, 3)),
        ((100, 200, 300), (100, 200, 300)),
        ((1, 2, 4), (1, 2, None, 4)),
        ((), ()),
        ((0, 1, 10**6), ()),  # steps of training without a distance of epochs
    ],
)
def test_optuna_steps_become_epochs(tmp_path, import_path, steps, curve):
    def objective(trial):
        for step in steps:
            trial.report(step, step)
        return trial.suggest_float("x", 0, 1)

    study_at(tmp_path / "study.log").optimize(objective, 1)
    spec = tmp_path / "spec.yaml"
    import_path(tmp_path / "study.log", "--to", spec)
    [trial] = json.loads(spec.with_suffix(".trials.json").read_text())["trials"]
    assert trial.get("curve", []) == list(curve)


def test_optuna_ranges_that_changed_are_united(tmp_path, import_path):
    study = study_at(tmp_path / "study.log")
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), 2)
    study.optimize(lambda trial: trial.suggest_float("x", 0.5, 3), 2)
    result = import_path(tmp_path / "study.log")
    assert result.space == {"x": {"low": 0.0, "high": 3.0}}
    assert "x" in result.changed


def test_optuna_constant_parameter_is_fixed(tmp_path, import_path):
    def objective(trial):
        trial.suggest_categorical("kernel", ["rbf"])
        return trial.suggest_float("x", 0, 1)

    study_at(tmp_path / "study.log").optimize(objective, 2)
    spec = tmp_path / "spec.yaml"
    result = import_path(tmp_path / "study.log", "--to", spec)
    assert result.entry["args"] == {"kernel": "rbf"}
    assert all(trial.values.keys() == {"x"} for trial in trials_of(spec).trials)


def test_optuna_presence_without_a_reason_is_listed(tmp_path, import_path):
    def objective(trial):
        if trial.number % 2:
            trial.suggest_float("odd", 0, 1)
        return trial.suggest_categorical("x", [1, 2]) + trial.suggest_float("y", 0, 1)

    study_at(tmp_path / "study.log").optimize(objective, 20)
    result = import_path(tmp_path / "study.log")
    assert result.space["odd"] == {"low": 0.0, "high": 1.0}
    assert "odd" in result.left_out


def test_optuna_conditions_may_depend_on_each_other(tmp_path, import_path):
    def objective(trial):
        kind = trial.suggest_categorical("kind", ["tree", "network"])
        if kind == "network" and trial.suggest_categorical("norm", ["batch", "none"]) == "batch":
            trial.suggest_float("decay", 0, 1)
        return trial.suggest_float("x", 0, 1)

    study_at(tmp_path / "study.log").optimize(objective, 30)
    spec = tmp_path / "spec.yaml"
    result = import_path(tmp_path / "study.log", "--to", spec)
    assert result.space["norm"]["when"] == {"kind": "network"}
    assert result.space["decay"]["when"] == {"norm": "batch"}
    for trial in trials_of(spec).trials:
        member_of(result.dimensions, trial.values)


def test_optuna_study_without_a_name_has_that_of_its_file(tmp_path, import_path):
    study = optuna.create_study(storage=storage_of(tmp_path / "my study.log"))
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), 1)
    assert import_path(tmp_path / "my study.log").content["name"] == "my-study"


@FORMS
def test_optuna_study_is_chosen_by_name(tmp_path, import_path, refusal, form):
    for name in ("first", "second"):
        study_at(tmp_path / form, name).optimize(
            lambda trial, name=name: trial.suggest_float(name, 0, 1), 1
        )
    assert import_path(tmp_path / form, "--study", "second").space.keys() == {"second"}
    assert "--study: first, second" in refusal(tmp_path / form)
    assert "'third'; it has first, second" in refusal(tmp_path / form, "--study", "third")


@FORMS
def test_optuna_storage_without_a_study_is_refused(tmp_path, refusal, form):
    study_at(tmp_path / form)
    assert "no trial that has ended" in refusal(tmp_path / form)
    optuna.delete_study(study_name="study", storage=storage_of(tmp_path / form))
    assert "has no study" in refusal(tmp_path / form)


def test_optuna_url_of_a_database_is_a_source(tmp_path, import_path):
    study_at(tmp_path / "study.db").optimize(lambda trial: trial.suggest_float("x", 0, 1), 1)
    assert import_path(f"sqlite:///{tmp_path}/study.db").space.keys() == {"x"}


def test_optuna_torn_last_line_of_a_journal_is_ignored(tmp_path, import_path):
    path = tmp_path / "study.log"
    study_at(path).optimize(lambda trial: trial.suggest_float("x", 0, 1), 3)
    path.write_bytes(path.read_bytes()[:-20])
    assert import_path(path).search["max_trials"] == 3


def test_optuna_damaged_journal_is_refused(tmp_path, refusal):
    path = tmp_path / "study.log"
    study_at(path).optimize(lambda trial: trial.suggest_float("x", 0, 1), 3)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b"{torn\n", *lines[2:]]))
    assert f"{path} cannot be read as a study of Optuna" in refusal(path)


def test_optuna_damaged_database_is_refused(tmp_path, refusal):
    path = tmp_path / "study.db"
    study_at(path).optimize(lambda trial: trial.suggest_float("x", 0, 1), 3)
    content = bytearray(path.read_bytes())
    content[8192:] = b"\xff" * (len(content) - 8192)
    path.write_bytes(content)
    assert str(path) in refusal(path)


def test_optuna_old_or_foreign_database_is_refused(tmp_path, refusal):
    path = tmp_path / "study.db"
    connection = sqlite3.connect(path)
    connection.executescript("CREATE TABLE studies (x); CREATE TABLE trials (x);")
    connection.close()
    assert f"{path} cannot be read as a study of Optuna" in refusal(path)


def test_optuna_is_named_if_it_is_not_installed(tmp_path, refusal, monkeypatch):
    study_at(tmp_path / "study.log")
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert "pip install 'fleet-ensemble[track]'" in refusal(tmp_path / "study.log")


# ---- round trips ---------------------------------------------------------------------------------


@FORMS
def test_optuna_study_that_a_run_exported_comes_back(tmp_path, import_path, form):
    write("optuna", LATE, tmp_path / form)
    spec = tmp_path / "spec.yaml"
    result = import_path(tmp_path / form, "--study", "digits-net", "--to", spec)
    assert result.space == {
        RATE: {"low": 0.001, "high": 0.1, "log": True},
        "filters": [[8], [8, 16]],
    }
    content = trials_of(spec)
    assert [(item.value, item.mode) for item in content.objectives] == [
        ("val_accuracy", "maximize")
    ]
    assert [(trial.name, trial.outcome, trial.curve) for trial in content.trials] == [
        ("net-0", "finished", (0.1, 0.2, 0.3, 0.4)),
        ("net-1", "pruned", (0.1, 0.2)),
        ("net-2", "failed", ()),
        ("net-3", "finished", (0.1, 0.2, 0.3)),
    ]
    assert content.trials[0].values == {RATE: 0.01, "filters": [8, 16]}


def test_optuna_trials_of_a_run_are_those_of_its_folder(import_path, searched):
    assert searched.launch() == 0
    run, journal = searched.folder / "run", searched.folder / "study.log"
    assert main(["export", str(run), "--optuna", str(journal)]) == 0
    [study] = [name for name in optuna.get_all_study_names(storage_of(journal)) if "net" in name]
    spec = searched.folder / "imported.yaml"
    result = import_path(journal, "--study", study, "--to", spec)
    by_source = [
        [replace(trial, source="") for trial in read_known(path, result.space)]
        for path in (run, spec.with_suffix(".trials.json"))
    ]
    assert len(by_source[0]) == 5
    assert by_source[0] == by_source[1]


def test_optuna_pruned_trial_of_several_objectives_has_the_first(tmp_path, import_path):
    study = study_at(tmp_path / "study.log", directions=["minimize", "minimize"])
    study.add_trial(
        optuna.trial.create_trial(
            state=optuna.trial.TrialState.PRUNED,
            params={"x": 0.5},
            distributions={"x": optuna.distributions.FloatDistribution(0, 1)},
            intermediate_values={1: 0.5, 2: 0.25, 3: 0.75},
            user_attrs={"network": "net-7"},
        )
    )
    study.set_user_attr("objectives", ["val_loss", "seconds"])
    spec = tmp_path / "spec.yaml"
    import_path(tmp_path / "study.log", "--to", spec)
    [trial] = trials_of(spec).trials
    assert (trial.name, trial.curve) == ("net-7", (0.5, 0.25, 0.75))
    assert repr(trial.results) == "(0.25, nan)"


def distribution_of(dimension):
    """Return Optuna's distribution of a dimension."""
    if isinstance(dimension, list):
        return optuna.distributions.CategoricalDistribution(dimension)
    content = {key: value for key, value in dimension.items() if key != "when"}
    if "choices" in content:
        return optuna.distributions.CategoricalDistribution(content["choices"])
    if content.pop("integer", False):
        return optuna.distributions.IntDistribution(**content)
    return optuna.distributions.FloatDistribution(**content)


@st.composite
def spaces(draw):
    """Return a space of a choice, on which others may depend, and of further dimensions."""
    space = {"kind": draw(st.lists(st.sampled_from("abcd"), min_size=2, max_size=4, unique=True))}
    for number in range(draw(st.integers(1, 4))):
        low = draw(st.integers(1, 100))
        high = low + draw(st.integers(1, 100))
        form = draw(st.sampled_from(["int", "float", "log", "step", "choices"]))
        dimension = {
            "int": {"low": low, "high": high, "integer": True},
            "float": {"low": low / 7, "high": high / 7},
            "log": {"low": low / 1000, "high": float(high), "log": True},
            "step": {"low": low, "high": low + 4 * high, "integer": True, "step": high},
            "choices": {"choices": [low, "x", None]},
        }[form]
        if draw(st.booleans()):
            dimension["when"] = {"kind": draw(st.sampled_from(space["kind"]))}
        elif form == "choices":
            dimension = dimension["choices"]
        space[f"p{number}"] = dimension
    return space


@given(content=spaces())
@settings(max_examples=examples(25), deadline=None)
def test_optuna_space_comes_back_from_trials(content):
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space = space_of(content)
    study = optuna.create_study()
    for _, member in zip(range(60), members(space, 0), strict=False):
        study.add_trial(
            optuna.trial.create_trial(
                params=member,
                distributions={name: distribution_of(content[name]) for name in member},
                value=0.0,
            )
        )
    trials = study.get_trials()
    result = optuna_study.Sweep(optuna_study.KIND)
    optuna_study._read_space(result, trials)
    read = space_of(result.space)
    for trial in trials:
        assert member_of(read, {key: trial.params[key] for key in trial.params if key in read})
    if all(len({trial.params.get(name) for trial in trials}) > 1 for name in content):
        for name, dimension in read.items():
            for kind in content["kind"]:
                values = {"kind": kind}
                if any(trial.params["kind"] == kind for trial in trials):
                    assert is_active(dimension, values) == is_active(space[name], values)


@pytest.mark.parametrize(("count", "text"), [(1, "1 trial has"), (2, "2 trials have")])
def test_optuna_unfinished_trials_are_counted(tmp_path, count, text):
    study = study_at(tmp_path / "study.log")
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
    for _ in range(count):
        study.ask()
    notes = optuna_study.read(tmp_path / "study.log").left_out
    assert f"trials: {text} not ended" in map(str, notes)
