"""Tests of ``with_entry``: entries that are added to a run."""

import pytest

from fleet.errors import SpecError
from fleet.spec import parse
from fleet.spec.resolve import with_entry
from tests.refusals import refused

SPEC = parse(
    {
        "models": [
            {"family": "cnn", "name": "a"},
            {
                "family": "cnn",
                "name": "s",
                "space": {"kernel": [3, 5]},
                "search": {"max_trials": 4},
            },
        ],
        "seed": 3,
    }
)


def names(content, taken_names=("a",)):
    return [network.name for network in with_entry(SPEC, content, taken_names)[1]]


def test_with_entry_appends_the_entry_with_its_networks():
    content = {
        "family": "cnn",
        "args": {"filters": [4]},
        "train": {"optimizer": {"learning_rate": 0.5}},
        "gpus": 2,
    }
    extended, [network] = with_entry(SPEC, content, ["a"])
    models = [{"family": "cnn", "name": "a"}, {"family": "softmax"}, content]
    assert network == parse({"models": models, "seed": 3}).networks[2]
    assert len(extended.document.models) == 3


def test_with_entry_numbers_an_unnamed_entry():
    assert names({"family": "cnn"}) == ["cnn"]
    assert names({"family": "cnn"}, ["cnn"]) == ["cnn.2"]
    assert names({"family": "cnn"}, ["cnn-0", "cnn.2"]) == ["cnn.3"]
    assert names({"family": "cnn", "grid": {"kernel": [3, 5]}}) == ["cnn-0", "cnn-1"]


def test_with_entry_draws_again_at_the_same_position():
    content = {
        "family": "cnn",
        "count": 3,
        "space": {"train.optimizer.learning_rate": {"low": 0.1, "high": 0.2}},
    }
    shorter = parse({"models": [{"family": "cnn", "name": "a"}], "seed": 3})
    first, again = with_entry(SPEC, content, ())[1], with_entry(shorter, content, (), position=2)[1]
    assert [network.parameters for network in first] == [network.parameters for network in again]
    assert [network.entry for network in again] == [1, 1, 1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"family": "cnnn"}, "did you mean cnn"),
        ({"famly": "cnn"}, "unknown key 'famly'"),
        ([1], "entry"),
        (None, "entry"),
        ({"family": "cnn", "name": "a"}, "a network of the run is named 'a'"),
        ({"family": "cnn", "name": "s-7"}, "is a name for trials of a search"),
        ({"family": "cnn", "args": {"filters": "x"}}, "filters"),
        ({"family": "cnn", "gpus": [3, 1]}, "min, max"),
        ({"family": "cnn", "name": "../x"}, "cannot name a network"),
        ({"family": "cnn", "train": {"batch": {"size": 0}}}, "batch.size"),
        (
            {"family": "cnn", "space": {"kernel": [3]}, "search": {"max_trials": 2}},
            "cannot be added",
        ),
    ],
)
def test_with_entry_refuses_invalid_entries(content, message):
    with refused(SpecError, message):
        with_entry(SPEC, content, ["a"])


def test_with_entry_refuses_a_batch_that_no_policy_chooses():
    with pytest.raises(SpecError, match=r"entry: train\.batch\.size: the policy adaptive cannot"):
        with_entry(SPEC, {"family": "cnn", "train": {"batch": {"size": [8, 16]}}}, [])
