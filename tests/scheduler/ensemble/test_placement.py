"""Algorithm 3 and the exact placement, against brute force."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.errors import InputError
from scheduler.base import Member
from scheduler.ensemble.placement import place_greedily, place_groups, rearrange, score
from tests.examples import examples


@st.composite
def problems(draw, most_devices=9):
    """Draw groups that fit on the free devices of nodes that may be partly occupied."""
    per_node = draw(st.integers(1, 4))
    devices = sorted(draw(st.sets(st.integers(0, 11), min_size=1, max_size=most_devices)))
    sizes, remaining = [], len(devices)
    while remaining and draw(st.booleans()):
        sizes.append(draw(st.integers(1, remaining)))
        remaining -= sizes[-1]
    return {f"g{i}": size for i, size in enumerate(sizes)}, devices, per_node


def least_score(sizes, devices, per_node):
    """Try every choice of devices."""
    if not sizes:
        return 0.0
    return min(
        len({d // per_node for d in devices_}) / sizes[0]
        + least_score(sizes[1:], [d for d in devices if d not in devices_], per_node)
        for devices_ in combinations(devices, sizes[0])
    )


def assert_valid(members, groups, devices):
    used = [device for member in members for device in member.devices]
    assert len(set(used)) == len(used)
    assert set(used) <= set(devices)
    assert {member.name: member.gpus for member in members} == groups
    assert [member.name for member in members] == list(groups)


@given(problems())
@settings(max_examples=examples(120), deadline=None)
def test_place_groups_is_optimal_on_small_problems(problem):
    groups, devices, per_node = problem
    members = place_groups(groups, devices, per_node)
    assert_valid(members, groups, devices)
    placed = score(members, per_node)
    assert placed <= score(place_greedily(groups, devices, per_node), per_node) + 1e-9
    assert placed == pytest.approx(least_score(list(groups.values()), devices, per_node))


@given(st.lists(st.integers(1, 12), min_size=1, max_size=30), st.integers(1, 8), st.integers(0, 9))
@settings(max_examples=examples(60), deadline=None)
def test_place_groups_is_never_worse_than_algorithm_3(sizes, per_node, spare):
    groups = {f"g{i}": size for i, size in enumerate(sizes)}
    devices = range(sum(sizes) + spare)
    for place_them in (place_greedily, place_groups):
        assert_valid(place_them(groups, devices, per_node), groups, devices)
    assert score(place_groups(groups, devices, per_node), per_node) <= score(
        place_greedily(groups, devices, per_node), per_node
    )


def test_exact_search_beats_permutations_of_algorithm_3():
    groups = {f"g{i}": size for i, size in enumerate((3, 3, 3, 3, 11, 11, 11, 11))}
    paper, best = (score(f(groups, range(56), 4), 4) for f in (place_greedily, place_groups))
    assert (paper, best) == (pytest.approx(100 / 33), pytest.approx(92 / 33))


def test_groups_of_a_thousand_nodes_are_placed():
    groups = {f"g{i}": 4001 + i for i in range(5)}
    assert_valid(place_groups(groups, range(20_100), 4), groups, range(20_100))


def test_algorithm_3_fills_nodes_then_pairs_then_searches():
    members = {
        m.name: m.devices
        for m in place_greedily({"one": 1, "eight": 8, "three": 3, "two": 2}, range(16), 4)
    }
    assert members["eight"] == tuple(range(8))
    assert set(members["one"] + members["three"]) == set(range(8, 12))
    assert members["two"] == (12, 13)


def test_more_groups_than_devices_is_an_error():
    with pytest.raises(InputError, match="groups need 5 GPUs, but 4 are free"):
        place_groups({"a": 2, "b": 3}, range(4), 4)


@given(problems(), st.data())
@settings(max_examples=examples(120), deadline=None)
def test_rearranging_keeps_what_a_group_has(problem, data):
    groups, devices, per_node = problem
    running = list(place_groups(groups, devices, per_node))
    remaining, sizes = len(devices), {}
    for name in [*groups, "new"]:
        size = data.draw(st.integers(0, remaining))
        if size:
            sizes[name] = size
            remaining -= size
    members = rearrange(sizes, running, devices, per_node)
    assert_valid(members, sizes, devices)
    before = {member.name: member.devices for member in running}
    for member in members:
        devices_ = before.get(member.name, ())
        assert len(set(devices_) & set(member.devices)) == min(len(devices_), member.gpus)
        assert not devices_ or member.devices[0] == devices_[0]


def test_rearrange_grows_on_own_node_and_shrinks_elsewhere():
    (grown,) = rearrange({"a": 4}, [Member("a", (4, 5))], [0, 4, 5, 6, 7, 8], 4)
    assert set(grown.devices) == {4, 5, 6, 7}
    (shrunk,) = rearrange({"a": 3}, [Member("a", (4, 5, 6, 8))], range(12), 4)
    assert shrunk.devices == (4, 5, 6)
