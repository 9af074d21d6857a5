"""The moves from the running groups to the planned ones: by hand, and their promises."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.base import Member, Round
from scheduler.ensemble import moves as m
from tests.examples import examples

INSIDE, BETWEEN, BUSY = m.Stance.INSIDE, m.Stance.BETWEEN, m.Stance.BUSY


def group(*devices, stance=BETWEEN, **fields):
    return m.GroupHolding(devices, stance, **fields)


def round_of(**groups):
    return Round(tuple(Member(name, tuple(devices)) for name, devices in groups.items()))


# ---- by hand -----------------------------------------------------------------------------------

# Running groups, planned groups, free devices; and the moves.
BY_HAND = {
    "a group that is as it should be is left alone": (
        {"a": group(1, 0)},
        round_of(a=[0, 1]),
        {2},
        (),
    ),
    "a group does not start before all its devices are free": ({}, round_of(a=[0, 1]), {0, 2}, ()),
    "and starts then": ({}, round_of(a=[0, 1]), {0, 1}, (m.Start("a", (0, 1)),)),
    "a group stops between two epochs": ({"a": group(0)}, round_of(), (), (m.Stop("a"),)),
    "and not inside of one": ({"a": group(0, stance=INSIDE)}, round_of(), (), ()),
    "nor while it is busy": ({"a": group(0, stance=BUSY)}, round_of(), (), ()),
    "a group lets go of devices between two epochs": (
        {"a": group(0, 1)},
        round_of(a=[1]),
        (),
        (m.Shrink("a", (1,)),),
    ),
    "and not inside of one, either": ({"a": group(0, 1, stance=INSIDE)}, round_of(a=[1]), (), ()),
    "a device that is let go of is taken when it is said to be free": (
        {"a": group(0, 1)},
        round_of(b=[1], a=[0]),
        (),
        (m.Shrink("a", (0,)),),
    ),
    "a group waits for all devices that it takes in": (
        {"a": group(3, stance=INSIDE)},
        round_of(a=[2, 3, 4]),
        {2},
        (),
    ),
    "and takes them in at any step, and keeps its master": (
        {"a": group(3, stance=INSIDE)},
        round_of(a=[2, 3, 4]),
        {2, 4},
        (m.Grow("a", (3, 2, 4)),),
    ),
    "in a ring it does so not inside of an epoch": (
        {"a": group(0, stance=INSIDE, grows_inside=False)},
        round_of(a=[0, 1]),
        {1},
        (),
    ),
    "but between two": (
        {"a": group(0, grows_inside=False)},
        round_of(a=[0, 1]),
        {1},
        (m.Grow("a", (0, 1)),),
    ),
    "a group stops when too little would stay": (
        {"a": group(0, 1, min_devices=2)},
        round_of(a=[1, 2]),
        {2},
        (m.Stop("a"),),
    ),
    "or when it cannot change": (
        {"a": group(0, 1, can_change=False)},
        round_of(a=[1, 2]),
        {2},
        (m.Stop("a"),),
    ),
    "one that cannot change stops before it gets more": (
        {"a": group(0, can_change=False)},
        round_of(a=[0, 1]),
        {1},
        (m.Stop("a"),),
    ),
    "at the end of its epoch": (
        {"a": group(0, stance=INSIDE, can_change=False)},
        round_of(a=[0, 1]),
        {1},
        (),
    ),
    "a group that moves shrinks before it grows": (
        {"a": group(0, 1)},
        round_of(a=[1, 2]),
        {2},
        (m.Shrink("a", (1,)),),
    ),
    # New members that must build the network first.
    "free devices are recruited one by one": (
        {"a": group(0, stance=INSIDE, recruits={})},
        round_of(a=[0, 1, 2]),
        {1},
        (m.Recruit("a", (1,)),),
    ),
    "recruits wait for each other": (
        {"a": group(0, stance=INSIDE, recruits={1: True, 2: False})},
        round_of(a=[0, 1, 2]),
        (),
        (),
    ),
    "and are taken in together": (
        {"a": group(0, stance=INSIDE, recruits={1: True, 2: True})},
        round_of(a=[0, 1, 2]),
        (),
        (m.Grow("a", (0, 1, 2)),),
    ),
    "a recruit that is wanted no more is dismissed": (
        {"a": group(0, stance=INSIDE, recruits={1: True, 2: False})},
        round_of(a=[0, 2]),
        (),
        (m.Dismiss("a", (1,)),),
    ),
    "so are all": (
        {"a": group(0, stance=INSIDE, recruits={1: True, 2: False})},
        round_of(),
        (),
        (m.Dismiss("a", (1, 2)),),
    ),
    "a group changes at once from some devices to others that have built the network": (
        {"a": group(0, 1, recruits={2: True})},
        round_of(a=[1, 2]),
        (),
        (m.Grow("a", (1, 2)),),
    ),
    "and lets go of some before others have": (
        {"a": group(0, 1, recruits={2: False})},
        round_of(a=[1, 2]),
        (),
        (m.Shrink("a", (1,)),),
    ),
    "a group that must stop does not recruit": (
        {"a": group(0, stance=INSIDE, can_change=False, recruits={})},
        round_of(a=[0, 1]),
        {1},
        (),
    ),
}


@pytest.mark.parametrize(("groups", "target", "free", "expected"), BY_HAND.values(), ids=BY_HAND)
def test_moves_are_made_when_possible(groups, target, free, expected):
    assert m.plan_moves(groups, target, free=free) == expected


def test_moves_use_freed_devices_at_once_except_after_a_stop():
    """The group saves first."""
    assert m.plan_moves(
        {"a": group(0, 1)}, round_of(b=[1], a=[0]), free=(), frees_at_once=True
    ) == (
        m.Shrink("a", (0,)),
        m.Start("b", (1,)),
    )
    assert m.plan_moves({"a": group(0)}, round_of(b=[0]), free=(), frees_at_once=True) == (
        m.Stop("a"),
    )


# ---- what all moves promise --------------------------------------------------------------------

DEVICES = range(8)


@st.composite
def splits(draw, names="abcd"):
    """Draw disjoint sets of devices, some of them empty, and the remaining ones."""
    owner = draw(
        st.lists(st.sampled_from([*names, ""]), min_size=len(DEVICES), max_size=len(DEVICES))
    )
    order = draw(st.permutations(DEVICES))
    return {
        name: tuple(device for device in order if owner[device] == name) for name in (*names, "")
    }


@st.composite
def situations(draw, stances=tuple(m.Stance), must_build=st.booleans()):
    """Draw running groups, planned groups and free devices."""
    has, should = draw(splits()), draw(splits())
    free, groups = set(has.pop("")), {}
    recruiting = draw(must_build)
    for name in filter(has.get, has):
        recruits = None
        if recruiting:
            recruits = (
                draw(st.dictionaries(st.sampled_from(sorted(free)), st.booleans())) if free else {}
            )
            free -= recruits.keys()
        groups[name] = m.GroupHolding(
            has[name],
            draw(st.sampled_from(stances)),
            draw(st.integers(1, len(has[name]))),
            draw(st.booleans()),
            draw(st.booleans()),
            recruits,
        )
    return (
        groups,
        round_of(**{name: should[name] for name in "abcd" if should[name]}),
        frozenset(free),
    )


@given(situations(), st.booleans())
def test_moves_take_free_devices_only(situation, frees_at_once):
    groups, target, free = situation
    available = set(free)
    for move in m.plan_moves(groups, target, free, frees_at_once):
        group_ = groups.get(getattr(move, "name", ""))
        if isinstance(move, m.Start | m.Recruit):
            assert available >= set(move.devices)
            available -= set(move.devices)
        elif isinstance(move, m.Grow):
            new = set(move.devices) - set(group_.devices)
            if group_.recruits is None:
                assert available >= new
            else:
                assert all(group_.recruits[device] for device in new)
            available -= new
        elif isinstance(move, m.Shrink):
            assert set(move.devices) < set(group_.devices)
            available |= set(group_.devices) - set(move.devices) if frees_at_once else set()
        elif isinstance(move, m.Dismiss):
            assert group_.recruits.keys() >= set(move.devices)


@given(situations(), st.booleans())
def test_no_group_is_asked_for_what_it_cannot_do(situation, frees_at_once):
    groups, target, free = situation
    moves_ = m.plan_moves(groups, target, free, frees_at_once)
    changed = [move.name for move in moves_ if not isinstance(move, m.Recruit | m.Dismiss)]
    assert len(set(changed)) == len(changed)
    for move in moves_:
        group_ = groups.get(move.name)
        if group_ is None:
            assert isinstance(move, m.Start)
            continue
        assert group_.stance is not BUSY
        if group_.stance is INSIDE:
            assert isinstance(move, m.Recruit | m.Dismiss | m.Grow)
            assert not isinstance(move, m.Grow) or (
                set(move.devices) > set(group_.devices) and group_.grows_inside
            )
        if isinstance(move, m.Grow | m.Shrink):
            assert group_.can_change
            assert len(set(move.devices) & set(group_.devices)) >= group_.min_devices
            assert move.devices[0] in group_.devices


def carried_out(groups, moves_):
    """Return the groups after the moves: all recruits have built, and all groups ended an epoch."""
    groups = dict(groups)
    for move in moves_:
        group_ = groups.pop(move.name, None)
        if isinstance(move, m.Start):
            groups[move.name] = m.GroupHolding(move.devices, BETWEEN, recruits={})
        elif not isinstance(move, m.Stop):
            recruits = set(group_.recruits or ())
            if isinstance(move, m.Recruit):
                recruits |= set(move.devices)
            else:
                recruits -= set(move.devices)
            groups[move.name] = replace(
                group_,
                devices=move.devices if isinstance(move, m.Grow | m.Shrink) else group_.devices,
                recruits=None if group_.recruits is None else dict.fromkeys(recruits, True),
            )
    return {
        name: replace(
            group_,
            recruits=None if group_.recruits is None else dict.fromkeys(group_.recruits, True),
        )
        for name, group_ in groups.items()
    }


@settings(max_examples=examples(300))
@given(situations(stances=(BETWEEN,)), st.booleans())
def test_moves_lead_to_the_target_and_then_end(situation, frees_at_once):
    groups, target, free = situation
    for _ in range(6):
        groups = carried_out(groups, m.plan_moves(groups, target, free, frees_at_once))
        used = [
            device
            for group_ in groups.values()
            for device in (*group_.devices, *(group_.recruits or ()))
        ]
        assert len(set(used)) == len(used)
        free = set(DEVICES) - set(used)
    assert {name: set(group_.devices) for name, group_ in groups.items()} == {
        member.name: set(member.devices) for member in target.members
    }
    assert m.plan_moves(groups, target, free, frees_at_once) == ()
