import numpy as np
import pytest

from preprocess.target import TargetSpec, TargetWish, requested_semantics
from preprocess.target_kinds import KINDS, UNDECIDED


def spec_of(kind):
    return TargetSpec(kind, 3, size=(2, 4) if KINDS[kind].is_of_pixels else None)


def test_predictions_of_large_logits_are_finite():
    assert KINDS["class"].predictions(np.array([[1000.0, -1000.0]])).tolist() == [[1.0, 0.0]]
    assert KINDS["multilabel"].predictions(np.array([[1000.0, -1000.0, 0.0]])).tolist() == [
        [1.0, 0.0, 0.5]
    ]
    assert KINDS["value"].predictions(np.array([[5.0]])).tolist() == [[5.0]]


@pytest.mark.parametrize("kind", KINDS)
def test_draw_gives_targets_that_are_not_wrong(kind):
    target = spec_of(kind)
    drawn = KINDS[kind].draw(np.random.default_rng(0), (50, *target.shape), 3)
    assert drawn.shape == (50, *target.shape)
    assert not KINDS[kind].is_wrong(drawn, 3).any()
    assert (drawn.astype(target.dtype) == drawn).all()


@pytest.mark.parametrize(
    ("kind", "wrong"), [("class", 3), ("multilabel", 2), ("value", np.inf), ("mask", -1)]
)
def test_is_wrong_finds_numbers_of_no_target(kind, wrong):
    assert KINDS[kind].is_wrong(np.array([0.0, wrong]), 3).tolist() == [False, True]


@pytest.mark.parametrize("kind", ["class", "multilabel"])
def test_counts_of_all_classes_and_labels(kind):
    targets = np.array([0, 2, 2])
    if kind == "multilabel":
        targets = np.eye(4, dtype=np.uint8)[targets]
    counts = KINDS[kind].counts(targets, 4)
    assert counts.tolist() == [1, 0, 2, 0]


@pytest.mark.parametrize("kind", ["value", "mask"])
def test_counts_are_undefined_without_labels(kind):
    assert KINDS[kind].counts(np.zeros((2, 3)), 3) is None


def test_choose_names_what_is_predicted():
    names = ("cat", "dog")
    row = np.array([0.25, 0.75])
    assert KINDS["class"].choose(names, row) == {"class": "dog", "probability": 0.75}
    assert KINDS["multilabel"].choose(names, row) == {"labels": ["dog"]}
    assert KINDS["value"].choose(names, row) == {}


@pytest.mark.parametrize("kind", KINDS)
def test_headers_are_columns_of_what_is_chosen(kind):
    chosen = KINDS[kind].choose(("a", "b"), np.array([0.0, 1.0]))
    assert set(KINDS[kind].headers) <= set(chosen)


def test_is_correct_of_values_is_undefined():
    assert np.isnan(KINDS["value"].is_correct(np.zeros((2, 1)), np.zeros((2, 1)))).all()


def test_requested_semantics_without_request_are_undecided():
    assert requested_semantics(None) is UNDECIDED
    assert requested_semantics(TargetWish("mask")) is KINDS["mask"]
