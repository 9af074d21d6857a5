"""Search spaces."""

import json
import math

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import UserError
from fleet.spec.model import Architecture
from fleet.spec.space import Range, contradictions, draw, grid, member_of, override, space_of
from tests.examples import examples
from tests.places import ROOT

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


def members_of(space):
    """How many different members a space has, by listing them."""
    return len(
        grid(
            {
                name: list(range(dimension.low, dimension.high + 1))
                if isinstance(dimension, Range)
                else dimension
                for name, dimension in space.items()
            }
        )
    )


@settings(max_examples=examples(60), deadline=None)
@given(spaces, st.integers(0, 2**40))
def test_all_members_are_drawn_once_and_one_more_is_refused(space, seed):
    size = members_of(space)
    drawn = draw(space, size, seed)
    assert len({json.dumps(member, sort_keys=True) for member in drawn}) == size
    with pytest.raises(UserError, match=f"has {size} different members, fewer than {size + 1}"):
        draw(space, size + 1, seed)


@settings(max_examples=examples(40), deadline=None)
@given(spaces, st.integers(0, 2**40), st.data())
def test_asking_for_more_keeps_the_members_drawn_before(space, seed, data):
    few, many = sorted(data.draw(st.tuples(*2 * [st.integers(0, members_of(space))])))
    assert draw(space, many, seed)[:few] == draw(space, few, seed)


def test_the_order_of_the_names_does_not_change_what_is_drawn():
    space = {"width": [16, 32], "blocks": [[1], [2], [3]]}
    turned = dict(reversed(space.items()))
    assert draw(space, 5, seed=1) == draw(turned, 5, seed=1)
    assert list(draw(space, 1, seed=1)[0]) == ["width", "blocks"]


def test_another_seed_draws_others():
    space = {"rate": Range(1e-4, 1.0, log=True)}
    assert draw(space, 3, seed=1) != draw(space, 3, seed=2)


def test_draws_are_the_same_on_every_machine():
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
def test_a_range_stays_within_its_bounds(low, width, log, integer, share):
    value = Range(low, low + width, log=log, integer=integer).at(share)
    assert low <= value <= low + width
    assert isinstance(value, int) == integer


def test_ranges_are_uniform_linearly_or_by_magnitude():
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
        ([], "width: .*at least 1 item"),
        (3, "width: .*valid tuple"),
        ({"low": 1}, "width: Field required"),
        ({"low": 1, "high": 2, "step": 1}, "width: Unexpected keyword argument"),
        ({"low": 2, "high": 1}, "must be below"),
        ({"low": 1.0, "high": 1.0 + 1e-12}, "must be below"),
        ({"low": 0, "high": 1, "log": True}, "must start above 0"),
        ({"low": 0.5, "high": 2, "integer": True}, "between integers"),
        ({"low": 1, "high": float("inf")}, "width: "),
    ],
)
def test_a_malformed_space_is_refused_by_name(dimension, message):
    with pytest.raises(UserError, match=message):
        space_of({"width": dimension})


def test_numbers_written_with_an_exponent_but_no_point_are_read():
    assert (
        1e-4
        <= draw(space_of({"rate": {"low": "1e-4", "high": "1e-3"}}), 1, seed=0)[0]["rate"]
        <= 1e-3
    )


# --- grids and overrides -------------------------------------------------------------------


def test_grid_is_the_full_product_without_repetitions():
    assert grid({"blocks": [[1], [2], [1]], "norm": ["batch", "none"]}) == [
        {"blocks": [1], "norm": "batch"},
        {"blocks": [1], "norm": "none"},
        {"blocks": [2], "norm": "batch"},
        {"blocks": [2], "norm": "none"},
    ]


def test_the_empty_grid_and_the_empty_space_have_one_member():
    assert grid({}) == draw({}, 1, seed=0) == [{}]
    with pytest.raises(UserError, match="has 1 different members, fewer than 2"):
        draw({}, 2, seed=0)


def test_an_override_leaves_the_settings_as_they_were():
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
        ("blocks.2", "blocks.2: there is no '2' in a list of 2"),
        ("blocks.x", "there is no 'x' in a list of 2"),
        ("name.first", "there is no 'first' in 'sgd'"),
    ],
)
def test_an_override_of_what_is_not_there_is_refused(name, message):
    with pytest.raises(UserError, match=message):
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


def test_names_apply_in_order_of_their_depth():
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
def test_two_values_for_one_setting_are_a_contradiction(space, pairs):
    assert list(contradictions(space)) == pairs


def test_values_that_python_calls_equal_are_different_choices():
    choices = (True, 1, 1.0, "1")
    assert [member_of({"a": choices}, {"a": value})["a"] for value in choices] == list(choices)
    kinds = [type(member_of({"a": choices}, {"a": value})["a"]) for value in choices]
    assert kinds == [bool, int, float, str]
    assert len(grid({"a": choices})) == len(draw({"a": choices}, 4, seed=0)) == 4


def test_a_drawn_value_is_no_part_of_what_it_was_drawn_from():
    member = {"args": {"widths": [1]}}
    override({}, member)["args"]["widths"].append(2)
    assert member == {"args": {"widths": [1]}}
