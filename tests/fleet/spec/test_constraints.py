"""Constraints of a search: their text, and mistakes in them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import SpecError, UserError
from fleet.spec import parse
from fleet.spec.constraints import parse_constraint, violated
from fleet.spec.search import Search
from tests.refusals import refused

NUMBERS = st.floats(-1e9, 1e9)
HOLDS = {
    "<=": lambda value, limit: value <= limit,
    ">=": lambda value, limit: value >= limit,
    "<": lambda value, limit: value < limit,
    ">": lambda value, limit: value > limit,
}


@given(NUMBERS, NUMBERS, st.sampled_from(sorted(HOLDS)))
def test_violation_is_positive_where_it_does_not_hold(value, limit, relation):
    violation = parse_constraint(f"val_loss {relation} {limit!r}").violation(value)
    assert (violation <= 0) == HOLDS[relation](value, limit)


@pytest.mark.parametrize("text", ["parameters<=1e6", " parameters  <=  1_000_000 "])
def test_constraint_may_be_written_with_other_spaces(text):
    constraint = parse_constraint(text)
    assert (constraint.value, constraint.limit) == ("parameters", 1e6)


@pytest.mark.parametrize(
    "text",
    [
        "parameters",
        "parameters <= big",
        "1e6 >= parameters",
        "parameters == 3",
        "epochs <= 1 <= 2",
        "parameters <= nan",
        "parameters <= inf",
        "<= 3",
        "parameters <=",
        "",
        "a =< 3",
    ],
)
def test_malformed_constraint_is_refused(text):
    with refused(UserError, repr(text), "NAME <= NUMBER"):
        parse_constraint(text)


def test_unknown_value_is_no_known_violation():
    assert violated(["rate >= 10"], [parse_constraint("rate >= 10").violation(math.nan)]) == ()


def test_infinite_value_has_a_finite_violation():
    assert 1e300 < parse_constraint("loss <= 3").violation(math.inf) < math.inf


def spec_of(**search):
    return parse(
        {
            "data": {"source": "builtin:digits"},
            "models": [
                {
                    "family": "softmax",
                    "space": {"train.optimizer.learning_rate": [0.1, 0.2]},
                    "search": {"max_trials": 2, **search},
                }
            ],
            "train": {"stopping": {"max_epochs": 2}},
            "resources": {"engine": "numpy"},
        }
    )


def search_in(spec):
    return spec.document.models[0].search


@pytest.mark.parametrize("key", ["sampler", "ask"])
def test_constraints_among_options_of_optuna_are_moved(key):
    options = {"sampler": "nsgaii", "constraints": ["parameters <= 1e6"]}
    search = search_in(spec_of(**{key: "optuna"}, options=options))
    assert search.constraints == ("parameters <= 1e6",)
    assert search.options == {"sampler": "nsgaii"}


def test_constraints_among_options_of_a_class_stay():
    search = Search(sampler="mine:Class", max_trials=2, options={"constraints": [1]})
    assert (search.constraints, search.options) == ((), {"constraints": [1]})


def test_constraints_under_both_keys_are_refused():
    options = {"constraints": ["parameters <= 1e6"]}
    with refused(SpecError, "models[0].search", "not both"):
        spec_of(sampler="tpe", options=options, constraints=["epochs <= 3"])


@pytest.mark.parametrize(
    ("constraints", "names"),
    [
        (["parameter <= 10"], ["search.constraints[0]", "did you mean parameters"]),
        (["epochs <= 3", "val_mae <= 1"], ["search.constraints[1]", "val_mae"]),
        (["epochs <= 3", "epochs >= 4"], ["search.constraints[1]", "epochs <= 3"]),
        (["epochs <= 3", "epochs <= 4"], ["search.constraints[1]", "already bounded"]),
        (["epochs"], ["search.constraints[0]", "NAME <= NUMBER"]),
    ],
)
def test_wrong_constraint_is_located(constraints, names):
    with refused(SpecError, *names):
        spec_of(constraints=constraints)


def test_wrong_constraint_is_located_among_options():
    options = {"sampler": "tpe", "constraints": ["parameter <= 10"]}
    with refused(SpecError, "search.options.constraints[0]", "parameters"):
        spec_of(sampler="optuna", options=options)
