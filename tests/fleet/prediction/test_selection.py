"""Greedy selection matches a direct implementation of the paper."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.prediction.ensembles import greedy
from fleet.prediction.scores import Truth, quick_score
from preprocess.target_kinds import KINDS
from tests.examples import examples


@st.composite
def libraries(draw):
    random = np.random.default_rng(draw(st.integers(0, 10**6)))
    kind = draw(st.sampled_from(["class", "multilabel", "value"]))
    networks, rows, outputs = (
        draw(st.integers(1, 5)),
        draw(st.integers(1, 12)),
        draw(st.integers(2, 3)),
    )
    targets = {
        "class": random.integers(0, outputs, rows),
        "multilabel": random.integers(0, 2, (rows, outputs)),
        "value": random.normal(size=(rows, outputs)),
    }[kind]
    skew = random.uniform(0, 2, networks)
    expected = np.eye(outputs)[targets] if kind == "class" else targets
    return [
        KINDS[kind].predictions(skill * expected + random.normal(size=(rows, outputs)))
        for skill in skew
    ], Truth(KINDS[kind], targets)


def sort_key(predicted, truth):
    accuracy, loss = quick_score(predicted, truth)
    return (0.0 if truth.semantics.is_numeric else -round(accuracy, 9)), round(loss, 9)


def reference_greedy(predictions, truth, rounds):
    """Select networks as in the paper: average each selection from scratch."""
    chosen, path = [], []
    for _ in range(rounds):
        means = [
            np.mean([predictions[index] for index in [*chosen, entry]], axis=0, dtype=np.float64)
            for entry in range(len(predictions))
        ]
        candidates = [
            (sort_key(mean, truth), entry not in chosen, entry) for entry, mean in enumerate(means)
        ]
        order, _, best = min(candidates)
        chosen.append(best)
        path.append(order)
    length = 1 + path.index(min(path))
    return {index: chosen[:length].count(index) for index in chosen[:length]}


@given(library=libraries(), rounds=st.integers(1, 6))
@settings(max_examples=examples(60), deadline=None)
def test_greedy_matches_the_reference(library, rounds):
    assert greedy(*library, rounds) == reference_greedy(*library, rounds)


@given(library=libraries())
@settings(max_examples=examples(30), deadline=None)
def test_greedy_is_never_worse_than_the_best_network(library):
    predictions, truth = library
    chosen = greedy(predictions, truth)
    mean = np.average(
        [predictions[index] for index in chosen], axis=0, weights=list(chosen.values())
    )
    assert sort_key(mean, truth) <= min(sort_key(entry, truth) for entry in predictions)


def test_greedy_prefers_different_errors_to_copies():
    truth = Truth(KINDS["class"], np.array([0, 0, 1, 1]))
    good, reference = (
        np.array([[0.9, 0.1], [0.9, 0.1], [0.1, 0.9], [0.6, 0.4]]),
        np.array([[0.4, 0.6], [0.8, 0.2], [0.3, 0.7], [0.1, 0.9]]),
    )
    assert greedy([good, good, reference], truth).keys() == {0, 2}


def test_greedy_breaks_ties_of_accuracy_by_log_loss():
    truth = Truth(KINDS["class"], np.array([0, 1]))
    unsure, sure = np.array([[0.6, 0.4], [0.4, 0.6]]), np.array([[0.9, 0.1], [0.1, 0.9]])
    assert greedy([unsure, sure], truth) == {1: 1}
