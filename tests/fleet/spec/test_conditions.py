"""Tests of conditions, steps, priors and weights in search spaces."""

import itertools
import json
import statistics

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from fleet.errors import SpecError, UserError
from fleet.spec import load, parse
from fleet.spec.conditions import dependency_order, find_condition_problems, is_active
from fleet.spec.dimensions import Choices, Prior, Range, conditions_of, is_bounds, values_of
from fleet.spec.drawing import draw, members
from fleet.spec.enumeration import combinations, ends, grid, member_with, size_of
from fleet.spec.space import contradictions, member_of, space_of
from tests.examples import examples
from tests.refusals import refused

NAMES = "abcde"


def conditions(names):
    """Return conditions on some of the names, which have values from 0 to 4."""
    bounds = st.fixed_dictionaries(
        {}, optional={"least": st.integers(0, 3), "most": st.integers(1, 4)}
    ).filter(bool)
    values = st.integers(0, 4) | st.lists(st.integers(0, 4), min_size=1, max_size=3)
    return st.dictionaries(st.sampled_from(names), bounds | values, max_size=2)


@st.composite
def spaces(draw):
    """Return spaces with conditions, whose names are in any order."""
    space = {}
    for position, name in enumerate(draw(st.permutations(NAMES))[: draw(st.integers(1, 5))]):
        when = draw(conditions(list(space))) if position else {}
        if draw(st.booleans()):
            choices = tuple(draw(st.lists(st.integers(0, 4), min_size=1, max_size=4)))
            weights = draw(st.none() | st.just((1.0, *[1e-9] * (len(choices) - 1))))
            space[name] = Choices(choices, weights=weights, when=when)
        else:
            low = draw(st.integers(0, 2))
            high = draw(st.integers(low + 1, 4))
            prior = Prior(low, spread=0.01) if draw(st.booleans()) else None
            step = draw(st.integers(1, high - low))
            space[name] = Range(low, high, integer=True, step=step, prior=prior, when=when)
    space = {name: space[name] for name in draw(st.permutations(list(space)))}
    assume(not list(find_condition_problems(space)))
    return space


def holds(condition, value):
    """Return True if a value meets a condition."""
    if is_bounds(condition):
        return condition.get("least", value) <= value <= condition.get("most", value)
    return value in (condition if isinstance(condition, list | tuple) else [condition])


def used_values(space, values):
    """Remove what is not used until nothing changes: an oracle for conditions."""
    values = dict(values)
    while True:
        unused = [
            name
            for name in values
            if not all(
                key in values and holds(condition, values[key])
                for key, condition in conditions_of(space[name]).items()
            )
        ]
        if not unused:
            return values
        for name in unused:
            del values[name]


def text_of(member):
    """Return a member as text."""
    return json.dumps(member, sort_keys=True)


def all_members(space):
    """List all members by removing what is not used from the full product."""
    columns = [list(values_of(dimension)) for dimension in space.values()]
    rows = [dict(zip(space, row, strict=True)) for row in itertools.product(*columns)]
    return sorted({text_of(used_values(space, row)) for row in rows})


@settings(max_examples=examples(150), deadline=None)
@given(spaces())
def test_grid_lists_each_member_once(space):
    assert sorted(map(text_of, grid(space))) == all_members(space)


@settings(max_examples=examples(150), deadline=None)
@given(spaces())
def test_size_is_the_number_of_members(space):
    assert size_of(space) == len(all_members(space))


@settings(max_examples=examples(60), deadline=None)
@given(spaces(), st.integers(0, 2**40))
def test_draws_yield_each_member_once(space, seed):
    assert sorted(map(text_of, members(space, seed))) == all_members(space)


@settings(max_examples=examples(60), deadline=None)
@given(spaces(), st.integers(0, 2**40))
@example(
    {
        "a": Range(0, 3, integer=True, step=1),
        "b": Range(0, 1, integer=True, step=1, prior=Prior(0, spread=0.01)),
    },
    0,
)
def test_order_of_a_space_does_not_change_draws(space, seed):
    reordered = dict(reversed(space.items()))
    for first, second in zip(members(space, seed), members(reordered, seed), strict=True):
        assert first == second


@settings(max_examples=examples(100), deadline=None)
@given(spaces())
def test_dependency_order_follows_conditions(space):
    order = dependency_order(space)
    assert sorted(order) == sorted(space)
    for position, name in enumerate(order):
        assert conditions_of(space[name]).keys() <= set(order[:position])


@settings(max_examples=examples(100), deadline=None)
@given(spaces())
def test_ends_are_members_that_use_every_parameter(space):
    members_at_ends = ends(space)
    assert all(member_of(space, member) == member for member in members_at_ends)
    assert {name for member in members_at_ends for name in member} == set(space)


@settings(max_examples=examples(100), deadline=None)
@given(spaces(), st.data())
def test_member_with_has_the_value(space, data):
    name = data.draw(st.sampled_from(sorted(space)))
    value = data.draw(st.sampled_from(list(values_of(space[name]))))
    member = member_with(space, {name: value}, end=data.draw(st.integers(0, 1)))
    assert member[name] == value
    assert member_of(space, member) == member


@settings(max_examples=examples(100), deadline=None)
@given(spaces(), st.data())
def test_member_of_accepts_members_only(space, data):
    values = {
        name: data.draw(st.sampled_from(list(values_of(space[name]))))
        for name in data.draw(st.lists(st.sampled_from(sorted(space)), unique=True))
    }
    if text_of(values) in all_members(space):
        assert member_of(space, values) == values
    else:
        with pytest.raises(UserError):
            member_of(space, values)


def test_size_of_many_conditional_layers_is_fast():
    space = {"layers": Range(1, 40, integer=True)}
    for layer in range(1, 41):
        space[f"kind.{layer}"] = Choices(("conv", "dense"), when={"layers": {"least": layer}})
        space[f"width.{layer}"] = Range(
            1, 3, integer=True, when={f"kind.{layer}": "conv", "layers": {"least": layer}}
        )
    assert size_of(space) == sum(4**layers for layers in range(1, 41))


def test_size_is_infinite_with_a_real_range_in_a_branch():
    space = {"name": ("sgd", "adam"), "momentum": Range(0, 1, when={"name": "sgd"})}
    assert size_of(space) == float("inf")
    assert len(draw(space, 20, seed=0)) == 20


def test_conditions_do_not_change_other_draws():
    plain = {"name": ("sgd", "adam"), "momentum": Range(0, 1), "rate": Range(0, 1)}
    conditional = {**plain, "momentum": Range(0, 1, when={"name": "sgd"})}
    expected = [
        {key: value for key, value in member.items() if key != "momentum" or "sgd" in str(member)}
        for member in draw(plain, 20, seed=3)
    ]
    assert draw(conditional, 20, seed=3) == expected
    assert {"namemomentum" in member for member in expected} == {False}


def test_conditions_on_unused_parameters_are_false():
    space = {
        "a": (1, 2),
        "b": Choices((1, 2), when={"a": 2}),
        "c": Choices((1, 2), when={"b": [1, 2]}),
    }
    assert [member for member in combinations(space) if member["a"] == 1] == [{"a": 1}]
    assert not is_active(space["c"], {"a": 1})


def test_unlikely_members_are_drawn_in_the_end():
    space = {
        "layers": Range(1, 100, integer=True, prior=Prior(1, spread=0.01)),
        "width": Range(0, 1, when={"layers": 100}),
    }
    drawn = draw(space, 102, seed=0)
    assert len({text_of(member) for member in drawn}) == 102
    assert "width" in drawn[-1]


# --- steps ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dimension", "values"),
    [
        (Range(0, 0.5, step=0.1), [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]),
        (Range(8, 30, step=8, integer=True), [8, 16, 24]),
        (Range(-1, 1, step=1), [-1.0, 0.0, 1.0]),
    ],
)
def test_steps_end_at_high_or_below(dimension, values):
    assert list(values_of(dimension)) == values
    assert dimension.size == len(values)
    assert [dimension.at((index + 0.5) / len(values)) for index in range(len(values))] == values


def test_answers_between_steps_are_refused():
    space = {"rate": Range(0, 0.5, step=0.1)}
    assert member_of(space, {"rate": 0.1 + 0.2}) == {"rate": 0.3}
    with refused(UserError, "rate: 0.25 is not 0 plus a multiple of 0.1"):
        member_of(space, {"rate": 0.25})


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"step": 0}, "step (0) must be above 0"),
        ({"step": -1}, "step (-1) must be above 0"),
        ({"step": 1, "log": True}, "a logarithmic range has no step"),
        ({"step": 0.5, "integer": True}, "needs an integer as step, not 0.5"),
        ({"step": 9}, "at most high - low (8)"),
        ({"prior": {"around": 10}}, "around (10) must be between low (1) and high (9)"),
        ({"prior": {"around": 2, "spread": 0}}, "greater than 0"),
        ({"prior": {}}, "Field required"),
    ],
)
def test_wrong_steps_and_priors_are_refused(more, message):
    with refused(UserError, "width", message):
        space_of({"width": {"low": 1, "high": 9, **more}})


# --- priors and weights ----------------------------------------------------------------------


def test_draws_concentrate_around_a_prior():
    space = {"rate": Range(1e-4, 1, log=True, prior=Prior(0.01))}
    rates = sorted(member["rate"] for member in draw(space, 1000, seed=0))
    assert 0.009 < statistics.median(rates) < 0.011
    # one standard deviation: 15 % of four decades
    assert 0.66 < statistics.fmean(0.01 / 10**0.6 < rate < 0.01 * 10**0.6 for rate in rates) < 0.71
    assert rates[0] >= 1e-4
    assert rates[-1] <= 1


def test_draws_around_a_bound_stay_inside():
    space = {"momentum": Range(0, 0.99, prior=Prior(0.99, spread=0.1))}
    values = [member["momentum"] for member in draw(space, 1000, seed=0)]
    assert max(values) <= 0.99
    # half of a normal distribution, whose median is 0.6745 standard deviations from its center
    assert 0.91 < statistics.median(values) < 0.935


def test_draws_with_a_prior_are_the_same_on_every_machine():
    space = {"rate": Range(1e-4, 1, log=True, prior=Prior(0.01)), "n": Range(1, 9, integer=True)}
    first, second = draw(space, 2, seed=7)
    assert (first["n"], second["n"]) == (3, 6)
    assert [first["rate"], second["rate"]] == pytest.approx(
        [0.0024048538719394015, 0.001339256262777695], rel=1e-9
    )


@settings(max_examples=examples(100), deadline=None)
@given(
    st.integers(1, 20),
    st.integers(1, 20),
    st.booleans(),
    st.booleans(),
    st.floats(0, 1),
    st.floats(1e-9, 1),
    st.floats(0, 1, exclude_max=True),
)
def test_priors_yield_values_of_the_range(low, width, log, integer, center, spread, share):
    high = low + width
    around = min(max(low, low + center * width), high)
    dimension = Range(low, high, log=log, integer=integer, prior=Prior(around, spread=spread))
    assert low <= dimension.at(share) <= high
    assert dimension.normal_form(dimension.at(share)) == dimension.at(share)


def test_weights_are_shares_of_draws():
    dimension = Choices(("a", "b", "c"), weights=(2, 1, 1))
    drawn = [dimension.at(share / 100) for share in range(100)]
    assert [drawn.count(choice) for choice in dimension] == [50, 25, 25]


# --- mistakes --------------------------------------------------------------------------------

SPACE = {"name": ["sgd", "adam"], "layers": {"low": 1, "high": 8, "integer": True}}


@pytest.mark.parametrize(
    ("when", "messages"),
    [
        ({"nam": "sgd"}, ["no key 'nam' (did you mean name?)"]),
        ({"name": "sgdd"}, ["'sgdd' is not a value of name", "'sgd', 'adam'"]),
        ({"name": ["sgd", 3]}, ["3 is not a value of name"]),
        ({"name": {"least": 1}}, ["name has no numbers"]),
        ({"name": {"min": 1}}, ["{'min': 1} is not a value of name"]),
        ({"layers": 9}, ["9 is not a value of layers", "an integer from 1 to 8"]),
        ({"layers": 2.5}, ["2.5 is not a value of layers"]),
        ({"layers": True}, ["True is not a value of layers"]),
        ({"layers": {"least": 9}}, ["no value of layers is at least 9"]),
        ({"layers": {"least": 3, "most": 2}}, ["least (3) is above most (2)"]),
        ({"layers": {"least": 2.1, "most": 2.9}}, ["at least 2.1 and at most 2.9"]),
        ({"rate": 0.5}, ["rate is a range of real numbers", "{least: 0.5}"]),
        ({"rate": {"least": 1}}, ["no value of rate is at least 1"]),
        ({"width": 1}, ["circle: width -> width"]),
        ({"depth": 1}, ["circle: depth -> width -> depth"]),
        ({"layers": 2, "head": "mlp"}, ["never hold together: layers", "2 and 3"]),
        ({"layers": {"most": 2}, "head": "mlp"}, ["layers would have to be at most 2 and 3"]),
        ({"layers": {}}, ["{} is not a value of layers"]),
        ({"layers": {"least": 1, "mots": 2}}, ["'least' or 'most'"]),
        ({"layers": []}, ["at least 1 item"]),
    ],
)
def test_impossible_conditions_are_mistakes(when, messages):
    space = {
        **SPACE,
        "rate": {"low": 0, "high": 1},
        "depth": {"choices": [1, 2], "when": {"width": 1}},
        "head": {"choices": ["mlp"], "when": {"layers": 3}},
        "width": {"choices": [1, 2], "when": when},
    }
    if "depth" not in when:
        del space["depth"]
    with refused(UserError, "search space, ", *messages):
        space_of(space)


CONDITIONAL = """\
models:
- family: softmax
  space:
    train.optimizer.name: [sgd, adam]
    train.optimizer.momentum:
      low: 0
      high: 0.99
      when: {train.optimizer.name: CONDITION}
  count: 4
"""


def test_conditions_are_checked_with_file_and_line(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(CONDITIONAL.replace("CONDITION", "sgdd"))
    with pytest.raises(SpecError) as refusal:
        load(path)
    [mistake] = refusal.value.mistakes
    key = "models[0].space.train.optimizer.momentum.when.train.optimizer.name"
    assert (mistake.line, mistake.key) == (8, key)
    assert "'sgd', 'adam'" in mistake.right


def test_unused_settings_are_not_set(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(CONDITIONAL.replace("CONDITION", "sgd"))
    networks = load(path).networks
    for network in networks:
        optimizer = network.train.optimizer
        assert (optimizer.momentum is not None) == (optimizer.name == "sgd")
    assert {network.train.optimizer.name for network in networks} == {"sgd", "adam"}


def test_old_keys_are_read_in_conditions():
    spec = parse(
        {
            "models": [
                {
                    "family": "softmax",
                    "space": {
                        "train.converge.patience": {
                            "choices": [2, 3],
                            "when": {"train.optimizer.lr": {"least": 0.1}},
                        },
                        "train.optimizer.lr": {"low": 0.01, "high": 1},
                    },
                    "search": {"ask": "random", "most": 3},
                }
            ]
        }
    )
    space = spec.document.models[0].space
    assert list(space) == ["train.stopping.patience", "train.optimizer.learning_rate"]
    assert space["train.stopping.patience"].when == {
        "train.optimizer.learning_rate": {"least": 0.1}
    }


def test_grid_of_an_entry_may_have_conditions():
    name, momentum = "train.optimizer.name", "train.optimizer.momentum"
    entry = {
        "family": "softmax",
        "grid": {
            name: ["sgd", "adam"],
            momentum: {"low": 0, "high": 0.8, "step": 0.4, "when": {name: "sgd"}},
        },
    }
    drawn = [network.parameters for network in parse({"models": [entry]}).networks]
    assert drawn == [*({name: "sgd", momentum: value} for value in (0, 0.4, 0.8)), {name: "adam"}]


def test_settings_contradict_only_where_both_are_used():
    space = {
        "optimizer": ({"name": "sgd", "momentum": 0.5}, {"name": "adam"}),
        "optimizer.momentum": Range(0, 1, when={"optimizer": [{"name": "adam"}]}),
    }
    assert list(contradictions(space)) == []
    space["optimizer.momentum"] = Range(0, 1)
    assert list(contradictions(space)) == [("optimizer.momentum", "optimizer")]
