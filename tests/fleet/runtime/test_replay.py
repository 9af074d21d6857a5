"""Comparison of two trainings of one network."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.runtime.replay import compare, largest_difference
from tests.fleet.histories import history, record

NAN, INF = math.nan, math.inf


def test_largest_difference_of_equal_histories_is_0():
    assert largest_difference(history(0.5, 0.75), history(0.5, 0.75)) == 0


@pytest.mark.parametrize("name", ["loss", "accuracy", "val_loss", "val_accuracy"])
def test_largest_difference_covers_every_value_and_epoch(name):
    recorded = [record(1), record(2)]
    replayed = [
        replace(old, **{name: getattr(old, name) * factor})
        for old, factor in zip(recorded, (0.99, 0.75), strict=True)
    ]
    assert largest_difference(recorded, replayed) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("a", "b", "difference"),
    [
        (NAN, NAN, 0),
        (INF, INF, 0),
        (NAN, 1.0, INF),
        (1.0, NAN, INF),
        (INF, 1.0, INF),
        (-INF, INF, INF),
        (0.0, 0.0, 0),
        (0.0, 1.0, 1),
    ],
)
def test_largest_difference_of_nan_and_numbers_is_infinite(a, b, difference):
    assert largest_difference([record(1, val_loss=a)], [record(1, val_loss=b)]) == difference


@given(st.floats(allow_nan=True), st.floats(allow_nan=True))
def test_difference_is_symmetric_and_0_only_if_equal(a, b):
    recorded, replayed = [record(1, loss=a)], [record(1, loss=b)]
    difference = largest_difference(recorded, replayed)
    assert difference == largest_difference(replayed, recorded) >= 0
    if max(abs(a), abs(b)) > 1e-12:
        assert (difference == 0) == (a == b or (math.isnan(a) and math.isnan(b)))


@pytest.mark.parametrize("replayed", [[record(1)], [record(1), record(2, stream_epoch=7)]])
def test_largest_difference_needs_equal_stream_epochs(replayed):
    with pytest.raises(ValueError, match="differ in their stream epochs"):
        largest_difference([record(1), record(2)], replayed)


def test_compare_prints_both_histories():
    head, *rows = compare(history(0.5, 0.6), history(0.5, 0.6)).split("\n")
    assert rows[1].split()[:2] == ["2", "1"]
    assert "stream epoch" in head
    assert rows[-1] == "largest relative difference: 0.00e+00"


def test_compare_describes_each_quantity():
    recorded = [record(1, val_loss=NAN), record(2, loss=2.0, val_loss=NAN)]
    replayed = [recorded[0], replace(recorded[1], loss=1.5)]
    text = compare(recorded, replayed)
    assert (
        "\nloss: bitwise equal in 1 of 2 epochs; largest difference in epoch 2: 2 and 1.5 "
        "(absolute 5.0e-01, relative 2.5e-01)\n" in text
    )
    assert "\naccuracy: bitwise equal in all of 2 epochs\n" in text
    assert "\nval_loss: not evaluated in either training\n" in text


@pytest.mark.parametrize(
    ("gpus", "deterministic", "words"),
    [
        (
            2,
            True,
            "trained on groups of 1, replayed on 2: groups of another size sum in another order",
        ),
        (
            1,
            False,
            "on 1, without train.deterministic: the engine may sum in another order each time",
        ),
        (
            1,
            True,
            "on 1, with train.deterministic: bitwise equal on the same machine and version",
        ),
    ],
)
def test_compare_names_reasons_for_differences(gpus, deterministic, words):
    assert words in compare([record(1)], [record(1, gpus=gpus)], deterministic)
