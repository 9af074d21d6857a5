"""The moves from what runs to what should run: each by hand, and what all of them promise."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.base import Member, Round
from scheduler.ensemble import moves as m
from tests.examples import examples

INSIDE, BETWEEN, BUSY = m.Stance.INSIDE, m.Stance.BETWEEN, m.Stance.BUSY


def group(*devices, stance=BETWEEN, **rest):
    return m.GroupHolding(devices, stance, **rest)


def wanted(**groups):
    return Round(tuple(Member(name, tuple(devices)) for name, devices in groups.items()))


# ---- by hand -----------------------------------------------------------------------------------


def test_a_group_that_is_as_it_should_be_is_left_alone():
    assert m.moves({"a": group(1, 0)}, wanted(a=[0, 1]), free={2}) == ()


def test_a_group_starts_when_all_its_devices_are_free():
    assert m.moves({}, wanted(a=[0, 1]), free={0, 2}) == ()
    assert m.moves({}, wanted(a=[0, 1]), free={0, 1}) == (m.Start("a", (0, 1)),)


@pytest.mark.parametrize("stance", [INSIDE, BUSY])
def test_a_group_stops_between_two_epochs_only(stance):
    assert m.moves({"a": group(0, stance=stance)}, wanted(), free=()) == ()
    assert m.moves({"a": group(0)}, wanted(), free=()) == (m.Stop("a"),)


def test_a_group_lets_go_of_devices_between_two_epochs_only():
    assert m.moves({"a": group(0, 1, stance=INSIDE)}, wanted(a=[1]), free=()) == ()
    assert m.moves({"a": group(0, 1)}, wanted(a=[1]), free=()) == (m.Shrink("a", (1,)),)


def test_a_device_that_is_let_go_of_can_be_taken_at_once_or_when_it_is_said_to_be_free():
    held = {"a": group(0, 1)}
    assert m.moves(held, wanted(b=[1], a=[0]), free=()) == (m.Shrink("a", (0,)),)
    assert m.moves(held, wanted(b=[1], a=[0]), free=(), frees_at_once=True) == (m.Shrink("a", (0,)), m.Start("b", (1,)))


def test_the_devices_of_a_group_that_stops_are_not_free_before_it_has_saved():
    assert m.moves({"a": group(0)}, wanted(b=[0]), free=(), frees_at_once=True) == (m.Stop("a"),)


def test_a_group_takes_devices_in_at_any_step_and_keeps_its_master():
    assert m.moves({"a": group(3, stance=INSIDE)}, wanted(a=[2, 3, 4]), free={2}) == ()
    assert m.moves({"a": group(3, stance=INSIDE)}, wanted(a=[2, 3, 4]), free={2, 4}) == (m.Grow("a", (3, 2, 4)),)


def test_in_a_ring_a_group_takes_devices_in_between_two_epochs():
    inside = group(0, stance=INSIDE, grows_inside=False)
    assert m.moves({"a": inside}, wanted(a=[0, 1]), free={1}) == ()
    assert m.moves({"a": replace(inside, stance=BETWEEN)}, wanted(a=[0, 1]), free={1}) == (m.Grow("a", (0, 1)),)


@pytest.mark.parametrize("holding", [group(0, 1, least=2), group(0, 1, can_change=False)])
def test_a_group_stops_when_too_little_would_stay_or_when_it_cannot_change(holding):
    assert m.moves({"a": holding}, wanted(a=[1, 2]), free={2}) == (m.Stop("a"),)


def test_a_group_that_cannot_change_stops_before_it_gets_more():
    inside = group(0, stance=INSIDE, can_change=False)
    assert m.moves({"a": inside}, wanted(a=[0, 1]), free={1}) == ()
    assert m.moves({"a": replace(inside, stance=BETWEEN)}, wanted(a=[0, 1]), free={1}) == (m.Stop("a"),)


def test_a_group_that_moves_shrinks_before_it_grows():
    held = {"a": group(0, 1)}
    assert m.moves(held, wanted(a=[1, 2]), free={2}) == (m.Shrink("a", (1,)),)


# ---- newcomers that have to build the network first --------------------------------------------


def test_free_devices_are_recruited_one_by_one_and_taken_in_together():
    alone = group(0, stance=INSIDE, recruits={})
    assert m.moves({"a": alone}, wanted(a=[0, 1, 2]), free={1}) == (m.Recruit("a", (1,)),)
    half = replace(alone, recruits={1: True, 2: False})
    assert m.moves({"a": half}, wanted(a=[0, 1, 2]), free=()) == ()
    assert m.moves({"a": replace(half, recruits={1: True, 2: True})}, wanted(a=[0, 1, 2]), free=()) == (
        m.Grow("a", (0, 1, 2)),)


def test_recruits_that_are_wanted_no_more_are_dismissed():
    held = {"a": group(0, stance=INSIDE, recruits={1: True, 2: False})}
    assert m.moves(held, wanted(a=[0, 2]), free=()) == (m.Dismiss("a", (1,)),)
    assert m.moves(held, wanted(), free=()) == (m.Dismiss("a", (1, 2)),)


def test_a_group_changes_at_once_from_some_devices_to_others_that_have_built_the_network():
    held = {"a": group(0, 1, recruits={2: True})}
    assert m.moves(held, wanted(a=[1, 2]), free=()) == (m.Grow("a", (1, 2)),)
    waits = {"a": group(0, 1, recruits={2: False})}
    assert m.moves(waits, wanted(a=[1, 2]), free=()) == (m.Shrink("a", (1,)),)


def test_a_group_that_will_have_to_stop_recruits_nobody():
    held = {"a": group(0, stance=INSIDE, can_change=False, recruits={})}
    assert m.moves(held, wanted(a=[0, 1]), free={1}) == ()


# ---- what all moves promise --------------------------------------------------------------------

DEVICES = range(8)


@st.composite
def splits(draw, names="abcd"):
    """Disjoint sets of devices, some of them empty, and what is left."""
    owner = draw(st.lists(st.sampled_from([*names, ""]), min_size=len(DEVICES), max_size=len(DEVICES)))
    order = draw(st.permutations(DEVICES))
    return {name: tuple(device for device in order if owner[device] == name) for name in (*names, "")}


@st.composite
def situations(draw, stances=tuple(m.Stance), must_build=st.booleans()):
    """Groups that run, what should run, and the devices that are free."""
    has, should = draw(splits()), draw(splits())
    free, held = set(has.pop("")), {}
    recruiting = draw(must_build)
    for name in filter(has.get, has):
        recruits = None
        if recruiting:
            recruits = draw(st.dictionaries(st.sampled_from(sorted(free)), st.booleans())) if free else {}
            free -= recruits.keys()
        held[name] = m.GroupHolding(has[name], draw(st.sampled_from(stances)), draw(st.integers(1, len(has[name]))),
                             draw(st.booleans()), draw(st.booleans()), recruits)
    return held, wanted(**{name: should[name] for name in "abcd" if should[name]}), frozenset(free)


@given(situations(), st.booleans())
def test_each_move_takes_devices_that_nobody_else_has(situation, frees_at_once):
    held, target, free = situation
    left = set(free)
    for move in m.moves(held, target, free, frees_at_once):
        mine = held.get(getattr(move, "name", ""))
        if isinstance(move, m.Start | m.Recruit):
            assert left >= set(move.devices)
            left -= set(move.devices)
        elif isinstance(move, m.Grow):
            new = set(move.devices) - set(mine.devices)
            assert all(mine.recruits[device] for device in new) if mine.recruits is not None else left >= new
            left -= new
        elif isinstance(move, m.Shrink):
            assert set(move.devices) < set(mine.devices)
            left |= set(mine.devices) - set(move.devices) if frees_at_once else set()
        elif isinstance(move, m.Dismiss):
            assert mine.recruits.keys() >= set(move.devices)


@given(situations(), st.booleans())
def test_no_group_is_asked_for_what_it_cannot_do(situation, frees_at_once):
    held, target, free = situation
    found = m.moves(held, target, free, frees_at_once)
    changed = [move.name for move in found if not isinstance(move, m.Recruit | m.Dismiss)]
    assert len(set(changed)) == len(changed)
    for move in found:
        mine = held.get(move.name)
        if mine is None:
            assert isinstance(move, m.Start)
            continue
        assert mine.stance is not BUSY
        if mine.stance is INSIDE:
            assert isinstance(move, m.Recruit | m.Dismiss | m.Grow)
            assert not isinstance(move, m.Grow) or (set(move.devices) > set(mine.devices) and mine.grows_inside)
        if isinstance(move, m.Grow | m.Shrink):
            assert mine.can_change
            assert len(set(move.devices) & set(mine.devices)) >= mine.least
            assert move.devices[0] in mine.devices


def carried_out(held, found):
    """What runs after some moves, all recruits have built the network, and all groups have ended an epoch."""
    held = dict(held)
    for move in found:
        mine = held.pop(move.name, None)
        if isinstance(move, m.Start):
            held[move.name] = m.GroupHolding(move.devices, BETWEEN, recruits={})
        elif not isinstance(move, m.Stop):
            coming = set(mine.recruits or ())
            coming = coming | set(move.devices) if isinstance(move, m.Recruit) else coming - set(move.devices)
            held[move.name] = replace(
                mine, devices=move.devices if isinstance(move, m.Grow | m.Shrink) else mine.devices,
                recruits=None if mine.recruits is None else dict.fromkeys(coming, True))
    return {name: replace(mine, recruits=None if mine.recruits is None else dict.fromkeys(mine.recruits, True))
            for name, mine in held.items()}


@settings(max_examples=examples(300))
@given(situations(stances=(BETWEEN,)), st.booleans())
def test_moves_lead_to_what_is_wanted_and_then_there_are_none(situation, frees_at_once):
    held, target, free = situation
    for _ in range(6):
        held = carried_out(held, m.moves(held, target, free, frees_at_once))
        taken = [device for mine in held.values() for device in (*mine.devices, *(mine.recruits or ()))]
        assert len(set(taken)) == len(taken)
        free = set(DEVICES) - set(taken)
    assert {name: set(mine.devices) for name, mine in held.items()} == {
        member.name: set(member.devices) for member in target.members}
    assert m.moves(held, target, free, frees_at_once) == ()
