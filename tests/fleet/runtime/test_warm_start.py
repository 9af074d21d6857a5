"""Tests of prior trials from files; those of runs are in ``test_searching.py``."""

import math

import pytest

from fleet.api import read_known
from fleet.errors import UserError
from fleet.runtime.warm_start import locate, read_prior_trials
from fleet.spec.constraints import parse_constraint
from fleet.spec.space import space_of
from fleet.storage.trials_file import FileObjective, FileTrial, TrialsFile, write_trials_file
from tests.refusals import refused

SPACE = {
    "width": {"low": 8, "high": 64, "integer": True},
    "kind": ["a", "b"],
    "only_b": {"low": 0.0, "high": 1.0, "when": {"kind": "b"}},
}
ACCURACY = ("val_accuracy", "maximize")


def trial(name, outcome="finished", results=(0.5,), curve=(0.4, 0.5), violations=(), **values):
    return FileTrial(name, {"width": 8, "kind": "a", **values}, outcome, results, curve, violations)


@pytest.fixture
def path(tmp_path):
    """Write a file of trials, some of which do not fit the space."""
    content = (
        trial("good"),
        trial("conditional", kind="b", only_b=0.5),
        trial("missing", kind="b"),
        trial("unused", only_b=0.5),
        trial("wide", width=65),
        trial("wider", width=66),
        trial("foreign", depth=3),
        trial("failed", "failed", (math.nan,), ()),
        trial("pruned", "pruned", (0.3,), (0.3,)),
        trial("unknown", "pruned", (math.nan,), ()),
    )
    path = tmp_path / "trials.json"
    write_trials_file(path, TrialsFile((FileObjective(*ACCURACY),), content))
    return path


def test_trials_of_a_file_are_prior_trials(path):
    trials, left_out = read_prior_trials(path, space_of(SPACE), [ACCURACY])
    assert [(item.name, item.outcome, item.value, item.curve) for item in trials] == [
        ("good", "finished", 0.5, (0.4, 0.5)),
        ("conditional", "finished", 0.5, (0.4, 0.5)),
        ("failed", "failed", None, ()),
        ("pruned", "pruned", 0.3, (0.3,)),
    ]
    assert sum(left_out.values()) == 6
    assert left_out["width is outside of the space"] == 2
    assert left_out["without val_accuracy"] == 1


def test_trials_of_a_file_are_read_by_the_api(path):
    assert [item.name for item in read_known(path, SPACE)] == [
        "good",
        "conditional",
        "failed",
        "pruned",
    ]


def test_trials_of_another_objective_are_left_out(path):
    trials, left_out = read_prior_trials(path, space_of(SPACE), [("val_loss", "minimize")])
    assert trials == []
    assert left_out["without val_loss"] == 5


@pytest.mark.parametrize(
    ("violations", "expected"), [((-1.0,), (-1.0,)), ((), (math.nan,)), ((1.0, 2.0), (math.nan,))]
)
def test_violations_count_if_there_are_as_many(tmp_path, violations, expected):
    path = tmp_path / "trials.json"
    content = TrialsFile((FileObjective(*ACCURACY),), (trial("a", violations=violations),))
    write_trials_file(path, content)
    constraint = parse_constraint("parameters <= 1000")
    [item], _ = read_prior_trials(path, space_of(SPACE), [ACCURACY], [constraint])
    assert repr(item.violations) == repr(expected)


def test_torn_file_of_trials_is_refused(path):
    path.write_bytes(path.read_bytes()[:-30])
    with refused(UserError, path, "fleet import"):
        read_prior_trials(path, space_of(SPACE), [ACCURACY])


def test_path_is_relative_to_the_current_folder_or_the_spec(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "trials.json").touch()
    assert locate("trials.json", "specs/spec.yaml") == "specs/trials.json"
    assert locate("trials.json", "spec.yaml") == "trials.json"
    (tmp_path / "trials.json").touch()
    assert locate("trials.json", "specs/spec.yaml") == "trials.json"
    absolute = str(tmp_path / "trials.json")
    assert locate(absolute, "specs/spec.yaml") == absolute
