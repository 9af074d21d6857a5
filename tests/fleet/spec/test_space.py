"""Tests of search spaces."""

import json
import math

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import UserError
from fleet.spec.dimensions import Range
from fleet.spec.drawing import draw
from fleet.spec.enumeration import grid
from fleet.spec.model import Architecture
from fleet.spec.space import contradictions, member_of, override, space_of
from tests.examples import examples
from tests.places import ROOT
from tests.refusals import refused

choices = st.lists(
    st.one_of(st.integers(0, 3), st.lists(st.integers(1, 2), max_size=2)), min_size=1, max_size=4
)
integer_ranges = st.builds(
    lambda low, width, log: Range(low, low + width, log=log, integer=True),
    st.integers(1, 5),
    st.integers(1, 4),
    st.booleans(),
)
spaces = st.dictionaries(
    st.sampled_from(["a", "b", "train.batch.size"]),
    st.one_of(choices, integer_ranges),
    min_size=1,
    max_size=3,
)


def values_of(dimension):
    """List the values of a dimension."""
    if isinstance(dimension, Range):
        return list(range(dimension.low, dimension.high + 1))
    return dimension


def members_of(space):
    """Count the different members of a space by listing them."""
    return len(grid({name: values_of(dimension) for name, dimension in space.items()}))


@settings(max_examples=examples(60), deadline=None)
@given(spaces, st.integers(0, 2**40))
def test_draw_yields_all_members_once(space, seed):
    size = members_of(space)
    drawn = draw(space, size, seed)
    assert len({json.dumps(member, sort_keys=True) for member in drawn}) == size
    with refused(UserError, f"{size} different members", size + 1):
        draw(space, size + 1, seed)


@settings(max_examples=examples(40), deadline=None)
@given(spaces, st.integers(0, 2**40), st.data())
def test_draw_of_more_keeps_the_first_members(space, seed, data):
    few, many = sorted(data.draw(st.tuples(*2 * [st.integers(0, members_of(space))])))
    assert draw(space, many, seed)[:few] == draw(space, few, seed)


def test_draw_ignores_the_order_of_names():
    space = {"width": [16, 32], "blocks": [[1], [2], [3]]}
    reordered = dict(reversed(space.items()))
    assert draw(space, 5, seed=1) == draw(reordered, 5, seed=1)
    assert list(draw(space, 1, seed=1)[0]) == ["width", "blocks"]


def test_draw_depends_on_the_seed():
    space = {"rate": Range(1e-4, 1.0, log=True)}
    assert draw(space, 3, seed=1) != draw(space, 3, seed=2)


def test_draw_is_the_same_on_every_machine():
    assert draw({"width": [16, 32, 64], "depth": Range(1, 9, integer=True)}, 4, seed=7) == [
        {"width": 16, "depth": 3},
        {"width": 16, "depth": 6},
        {"width": 32, "depth": 5},
        {"width": 32, "depth": 1},
    ]


@settings(max_examples=examples(100), deadline=None)
@given(
    st.integers(1, 50),
    st.integers(1, 50),
    st.booleans(),
    st.booleans(),
    st.floats(0, 1, exclude_max=True),
)
def test_range_at_stays_within_bounds(low, width, log, integer, share):
    value = Range(low, low + width, log=log, integer=integer).at(share)
    assert low <= value <= low + width
    assert isinstance(value, int) == integer


def test_range_at_is_uniform():
    linear, log = Range(0.0, 1.0), Range(0.001, 10.0, log=True)
    assert [linear.at(share) for share in (0.0, 0.25, 0.5)] == [0.0, 0.25, 0.5]
    assert [round(math.log10(log.at(share)), 9) for share in (0.0, 0.25, 0.5, 0.75)] == [
        -3,
        -2,
        -1,
        0,
    ]
    counts = [0] * 4
    for step in range(400):
        counts[Range(0, 3, integer=True).at(step / 400)] += 1
    assert counts == [100] * 4


@pytest.mark.parametrize(
    ("dimension", "message"),
    [
        ([], "at least 1 item"),
        (3, "valid tuple"),
        ({"low": 1}, "width: Field required"),
        ({"low": 1, "high": 2, "steps": 1}, "width: Unexpected keyword argument"),
        ({"low": 2, "high": 1}, "must be below"),
        ({"low": 1.0, "high": 1.0 + 1e-12}, "must be below"),
        ({"low": 0, "high": 1, "log": True}, "must start above 0"),
        ({"low": 0.5, "high": 2, "integer": True}, "not 0.5 and 2"),
        ({"low": 1, "high": float("inf")}, "width: "),
    ],
)
def test_space_of_names_malformed_dimensions(dimension, message):
    with refused(UserError, "width", message):
        space_of({"width": dimension})


def test_space_of_reads_numbers_like_1e_4():
    [member] = draw(space_of({"rate": {"low": "1e-4", "high": "1e-3"}}), 1, seed=0)
    assert 1e-4 <= member["rate"] <= 1e-3


# --- grids and overrides -------------------------------------------------------------------


def test_grid_is_the_full_product_without_repetitions():
    assert grid({"blocks": [[1], [2], [1]], "norm": ["batch", "none"]}) == [
        {"blocks": [1], "norm": "batch"},
        {"blocks": [1], "norm": "none"},
        {"blocks": [2], "norm": "batch"},
        {"blocks": [2], "norm": "none"},
    ]


def test_empty_grid_and_space_have_one_member():
    assert grid({}) == draw({}, 1, seed=0) == [{}]
    with refused(UserError, "1 different members", "2"):
        draw({}, 2, seed=0)


def test_override_does_not_change_its_input():
    before = {"train": {"optimizer": {"name": "sgd"}}, "blocks": [3, 4]}
    after = override(
        before, {"train.optimizer.learning_rate": 0.1, "train.batch.size": 8, "blocks.1": 9}
    )
    assert after == {
        "train": {"optimizer": {"name": "sgd", "learning_rate": 0.1}, "batch": {"size": 8}},
        "blocks": [3, 9],
    }
    assert before == {"train": {"optimizer": {"name": "sgd"}}, "blocks": [3, 4]}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("blocks.2", "'2' in a list of 2"),
        ("blocks.x", "'x' in a list of 2"),
        ("name.first", "'first' in 'sgd'"),
    ],
)
def test_override_refuses_missing_settings(name, message):
    with refused(UserError, name, message):
        override({"blocks": [3, 4], "name": "sgd"}, {name: 1})


@pytest.mark.parametrize("seed", range(5))
def test_paper_example_has_a_hundred_different_networks(seed):
    entries = yaml.safe_load((ROOT / "examples/paper.yaml").read_text())["models"]
    networks = [
        Architecture(entry["family"], override(entry["args"], member))
        for entry in entries
        for member in draw(space_of(entry["space"]), entry["count"], seed)
    ]
    families = [network.target for network in set(networks)]
    assert (families.count("resnet"), families.count("densenet")) == (50, 50)


def test_override_applies_shorter_names_first():
    deep, shallow = {"train.optimizer.learning_rate": 0.1}, {"train.optimizer": {"name": "adam"}}
    expected = {"train": {"optimizer": {"name": "adam", "learning_rate": 0.1}}}
    assert override({}, {**deep, **shallow}) == override({}, {**shallow, **deep}) == expected


@pytest.mark.parametrize(
    ("space", "pairs"),
    [
        ({"a.b": [1], "a": [{"c": 2}]}, []),
        ({"a.b": [1], "a": [{"c": 2}, {"b": 2}]}, [("a.b", "a")]),
        ({"a": [{"b": {"c": 1}}], "a.b.c": Range(0, 1)}, [("a.b.c", "a")]),
        ({"blocks": [[1, 2], [1]], "blocks.1": [3]}, [("blocks.1", "blocks")]),
        ({"a": Range(0, 1), "ab": [1]}, []),
    ],
)
def test_contradictions(space, pairs):
    assert list(contradictions(space)) == pairs


def test_choices_distinguish_types():
    choices = (True, 1, 1.0, "1")
    assert [member_of({"a": choices}, {"a": value})["a"] for value in choices] == list(choices)
    kinds = [type(member_of({"a": choices}, {"a": value})["a"]) for value in choices]
    assert kinds == [bool, int, float, str]
    assert len(grid({"a": choices})) == len(draw({"a": choices}, 4, seed=0)) == 4


def test_override_copies_values():
    member = {"args": {"widths": [1]}}
    override({}, member)["args"]["widths"].append(2)
    assert member == {"args": {"widths": [1]}}
