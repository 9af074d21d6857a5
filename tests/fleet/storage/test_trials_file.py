"""Tests of files of trials."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import UserError
from fleet.storage.trials_file import (
    FORMAT,
    FileObjective,
    FileTrial,
    TrialsFile,
    read_trials_file,
    results_for,
    values_of,
    write_trials_file,
)
from tests.examples import examples
from tests.refusals import refused

NUMBERS = st.one_of(st.floats(allow_infinity=False, width=32), st.integers(-9, 9).map(float))
TRIALS = st.builds(
    FileTrial,
    st.text("abc", min_size=1),
    st.dictionaries(st.sampled_from(["width", "train.batch.size"]), st.integers() | st.text("x")),
    st.sampled_from(["finished", "pruned", "failed"]),
    st.tuples(NUMBERS, NUMBERS),
    st.lists(NUMBERS, max_size=4).map(tuple),
    st.lists(NUMBERS, max_size=2).map(tuple),
)
TWO = (FileObjective("val_accuracy", "maximize"), FileObjective("rate", "maximize"))
TRIAL = FileTrial("a", {"width": 1}, "finished", (0.5, 9.0))


@given(trials=st.lists(TRIALS, max_size=3))
@settings(max_examples=examples(50), deadline=None)
def test_trials_file_comes_back(tmp_path_factory, trials):
    path = tmp_path_factory.mktemp("trials") / "trials.json"
    content = TrialsFile(TWO, tuple(trials), "a source")
    write_trials_file(path, content)
    assert repr(read_trials_file(path)) == repr(content)  # NaN differs from itself


def test_trials_file_has_a_trial_per_line(tmp_path):
    path = tmp_path / "trials.json"
    write_trials_file(path, TrialsFile(TWO, (TRIAL, TRIAL)))
    lines = path.read_text().splitlines()
    assert len([line for line in lines if '"width"' in line]) == 2
    assert json.loads(path.read_text())["format"] == FORMAT


def test_trials_file_reads_old_names_of_keys():
    trial = FileTrial("a", {"train.converge.patience": 3}, "finished")
    assert values_of(trial) == {"train.stopping.patience": 3}


def valid(**changes):
    content = {
        "format": FORMAT,
        "objectives": [{"value": "val_loss", "mode": "minimize"}],
        "trials": [{"name": "a", "values": {}, "outcome": "finished", "results": [1]}],
    }
    return content | changes


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("", ("JSON",)),
        ('{"format": ', ("JSON",)),
        ("[" * 100_000, ("JSON",)),
        (b"\xff", ("JSON",)),
        ([], ("content",)),
        (valid(format="fleet trials 2"), ("format", "fleet trials 1")),
        (valid(objectives=[]), ("objectives",)),
        (valid(objectives=[{"value": "a", "mode": "up"}]), ("objectives.0.mode", "maximize")),
        (valid(trials=[{"name": "a", "values": {}, "outcome": "won"}]), ("trials.0.outcome",)),
        (valid(trials=[{"name": "a", "values": 3, "outcome": "failed"}]), ("trials.0.values",)),
        (
            valid(trials=[{"name": "a", "values": {}, "outcome": "failed", "results": [1, 2]}]),
            ("trials.0.results", "1 objective"),
        ),
        (
            valid(trials=[{"name": "a", "values": {}, "outcome": "failed", "curve": ["x"]}]),
            ("trials.0.curve.0",),
        ),
    ],
)
def test_trials_file_that_is_wrong_is_refused(tmp_path, content, names):
    path = tmp_path / "trials.json"
    text = content if isinstance(content, str | bytes) else json.dumps(content)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with refused(UserError, path, *names):
        read_trials_file(path)


def test_missing_trials_file_is_refused(tmp_path):
    with refused(UserError, tmp_path / "none.json", "No such file"):
        read_trials_file(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("objectives", "results"),
    [
        ([("val_accuracy", "maximize")], (0.5,)),
        ([("val_accuracy", "maximize"), ("rate", "maximize")], (0.5, 9.0)),
        ([("val_accuracy", "maximize"), ("parameters", "minimize")], (0.5, math.nan)),
    ],
)
def test_results_are_those_of_the_objectives(objectives, results):
    answer = results_for(TrialsFile(TWO, (TRIAL,)), TRIAL, objectives)
    assert repr(answer) == repr(results)


@pytest.mark.parametrize(
    ("objectives", "reason"),
    [
        ([("rate", "maximize")], "without rate"),
        ([("val_loss", "minimize")], "without val_loss"),
        ([("val_accuracy", "minimize")], "val_accuracy is maximized there"),
    ],
)
def test_results_for_other_objectives_are_refused(objectives, reason):
    with refused(UserError, reason):
        results_for(TrialsFile(TWO, (TRIAL,)), TRIAL, objectives)
