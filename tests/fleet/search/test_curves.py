"""The pruner by learning curves."""

import math
import random

import pytest

from fleet.search.curves import Curves
from fleet.search.searcher import Verdict
from fleet.spec.search import Prune

MAX_EPOCHS = 30


def curve(draw):
    """Yield the best values so far of a power law with a little noise."""
    end, fall, exponent = draw.uniform(0.3, 1), draw.uniform(0.2, 0.6), draw.uniform(0.3, 1.5)
    best = -math.inf
    for epoch in range(1, MAX_EPOCHS + 1):
        best = max(best, end - fall * epoch**-exponent + draw.gauss(0, 0.005))
        yield best


def train_all(curves, prune):
    """Return the epochs that each network trains, one after another, and its last score."""
    pruner, actual = Curves(prune, MAX_EPOCHS, 0), []
    for number, scores in enumerate(curves):
        for epoch, score in enumerate(scores, 1):
            if pruner.add(f"n{number}", epoch, score, epoch == MAX_EPOCHS) is Verdict.STOP:
                break
        actual.append((epoch, score))
    return actual


@pytest.mark.parametrize("seed", range(8))
def test_curves_prune_hopeless_networks_and_keep_the_best(seed):
    draw = random.Random(seed)
    curves = [list(curve(draw)) for _ in range(40)]
    actual = train_all(curves, Prune(rule="learning_curve", min_trials=5))
    assert sum(epochs for epochs, _ in actual) < 0.75 * 40 * MAX_EPOCHS
    assert (
        max(score for epochs, score in actual if epochs == MAX_EPOCHS)
        >= max(map(max, curves)) - 0.02
    )


def test_curves_prune_nothing_before_min_trials_and_min_epochs():
    good, bad = [1 - epoch**-1.0 for epoch in range(1, MAX_EPOCHS + 1)], [0.1] * MAX_EPOCHS
    assert [
        epochs
        for epochs, _ in train_all([good, bad, bad], Prune(rule="learning_curve", min_trials=3))
    ] == [MAX_EPOCHS] * 3
    assert [
        epochs
        for epochs, _ in train_all(
            [good, good, bad], Prune(rule="learning_curve", min_trials=2, min_epochs=7)
        )
    ] == [MAX_EPOCHS, MAX_EPOCHS, 7]
    assert train_all([good, bad], Prune(rule="learning_curve", min_trials=1))[1] == (3, 0.1)


def test_curves_prune_nan_and_ignore_it_for_others():
    good = [1 - epoch**-1.0 for epoch in range(1, MAX_EPOCHS + 1)]
    actual = train_all(
        [[-math.inf] * MAX_EPOCHS, good, [-math.inf] * MAX_EPOCHS, good],
        Prune(rule="learning_curve", min_trials=1),
    )
    assert [epochs for epochs, _ in actual] == [MAX_EPOCHS, MAX_EPOCHS, 3, MAX_EPOCHS]
