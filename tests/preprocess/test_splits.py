"""Dividing a source: by classes, by strata, with groups that stay together, and into folds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.errors import InputError
from preprocess.base import SPLIT, rng_for
from preprocess.source import View, assign_folds, split, with_requested_targets
from preprocess.target import TargetWish
from tests.preprocess.samples import Memory


def source(labels, **attributes):
    result = Memory([b""] * len(labels), labels, tuple("abcdef"))
    result.__dict__.update(attributes)
    return result


@given(
    st.lists(st.integers(0, 5), min_size=2, max_size=60).filter(
        lambda labels: len(set(labels)) < len(labels)
    ),
    st.floats(0.01, 0.99),
    st.integers(0, 9),
)
def test_classes_are_divided_as_ever(labels, fraction, seed):
    """Checkpoints of existing runs depend on this choice, so it must never change."""
    rng, validation = rng_for(seed, SPLIT), np.zeros(len(labels), bool)
    for label in range(6):
        members = np.flatnonzero(np.array(labels) == label)
        count = min(max(round(fraction * len(members)), 1), len(members) - 1)
        validation[rng.permutation(members)[: max(count, 0)]] = True
    remaining, held_out = split(source(labels), fraction, seed)
    assert (held_out.indices.tolist(), remaining.indices.tolist()) == (
        np.flatnonzero(validation).tolist(),
        np.flatnonzero(~validation).tolist(),
    )


@given(
    st.lists(st.integers(0, 8), min_size=4, max_size=60).filter(
        lambda groups: len(set(groups)) > 1
    ),
    st.floats(0.05, 0.95),
    st.integers(0, 9),
)
def test_split_group_is_never_divided_and_both_sides_have_some(groups, fraction, seed):
    remaining, held_out = split(source([0] * len(groups), groups=np.array(groups)), fraction, seed)
    assert {*remaining.groups}.isdisjoint(held_out.groups)
    assert len(remaining) + len(held_out) == len(groups)
    assert min(len(remaining), len(held_out)) > 0


def test_strata_are_divided_in_place_of_classes():
    strata = np.repeat([4, 7], 50)
    remaining, held_out = split(source([0, 1] * 50, strata=strata), 0.2, 3)
    assert np.bincount(held_out.strata).tolist()[4:] == [10, 0, 0, 10]
    assert np.bincount(remaining.strata).tolist()[4:] == [40, 0, 0, 40]


def test_split_refuses_classes_of_one_sample():
    with pytest.raises(InputError, match="holds out no sample"):
        split(source([0, 1, 2]), 0.5, 0)


def test_samples_of_one_group_cannot_be_divided():
    with pytest.raises(
        InputError,
        match="validation: 0.5 of 4 samples holds out no sample, because all samples are in one "
        "group",
    ):
        split(source([0, 1, 0, 1], groups=np.zeros(4)), 0.5, 0)


@given(st.lists(st.integers(0, 5), min_size=2, max_size=80), st.integers(2, 7), st.integers(0, 9))
def test_folds_are_of_one_size_and_have_each_class_alike(labels, folds, seed):
    if len(labels) < folds:
        with pytest.raises(InputError, match=f"data.folds: {folds} folds of {len(labels)} samples"):
            assign_folds(source(labels), folds, seed)
        return
    fold = assign_folds(source(labels), folds, seed)
    sizes = np.bincount(fold, minlength=folds)
    assert sizes.max() - sizes.min() <= 1
    for label in set(labels):
        counts = np.bincount(fold[np.array(labels) == label], minlength=folds)
        assert counts.max() - counts.min() <= 1


@given(
    st.lists(st.integers(0, 20), min_size=8, max_size=80).filter(
        lambda groups: len(set(groups)) >= 4
    ),
    st.integers(0, 9),
)
def test_split_group_is_in_one_fold_and_each_fold_has_a_group(groups, seed):
    fold = assign_folds(source([0] * len(groups), groups=np.array(groups)), 4, seed)
    assert all(len(set(fold[np.array(groups) == group])) == 1 for group in set(groups))
    assert set(fold) == {0, 1, 2, 3}


def test_folds_follow_from_the_seed_and_are_others_than_a_split():
    samples = source([0, 1] * 20)
    assert np.array_equal(assign_folds(samples, 5, 1), assign_folds(samples, 5, 1))
    assert not np.array_equal(assign_folds(samples, 5, 1), assign_folds(samples, 5, 2))


def test_view_keeps_groups_and_strata():
    view = View(
        source([0, 1, 0, 1], groups=np.arange(4), strata=np.arange(4) + 4), np.array([1, 3])
    )
    assert (view.groups.tolist(), view.strata.tolist()) == ([1, 3], [5, 7])


def test_with_requested_targets_keeps_groups_and_strata():
    member = with_requested_targets(
        source([0, 1, 0, 1], groups=np.arange(4), strata=np.arange(4) + 4), TargetWish("value")
    )
    assert (member.groups.tolist(), member.strata.tolist()) == ([0, 1, 2, 3], [4, 5, 6, 7])
