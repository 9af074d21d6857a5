"""The rule of learning curves."""

import math
import random

import pytest

from fleet.search.curves import Curves
from fleet.search.searcher import Verdict
from fleet.spec.search import Prune

MOST = 30


def curve(draw):
    """A power law with a little noise, of which the best so far is heard."""
    end, fall, exponent = draw.uniform(0.3, 1), draw.uniform(0.2, 0.6), draw.uniform(0.3, 1.5)
    best = -math.inf
    for epoch in range(1, MOST + 1):
        best = max(best, end - fall * epoch**-exponent + draw.gauss(0, 0.005))
        yield best


def trained(curves, prune):
    """How many epochs each network trains, one after another, and its score then."""
    judge, actual = Curves(prune, MOST, 0), []
    for number, scores in enumerate(curves):
        for epoch, score in enumerate(scores, 1):
            if judge.add(f"n{number}", epoch, score, epoch == MOST) is Verdict.STOP:
                break
        actual.append((epoch, score))
    return actual


@pytest.mark.parametrize("seed", range(8))
def test_hopeless_networks_are_dropped_and_the_best_is_kept(seed):
    draw = random.Random(seed)
    curves = [list(curve(draw)) for _ in range(40)]
    actual = trained(curves, Prune(rule="learning_curve", min_trials=5))
    assert sum(epochs for epochs, _ in actual) < 0.75 * 40 * MOST
    assert max(score for epochs, score in actual if epochs == MOST) >= max(map(max, curves)) - 0.02


def test_curves_prune_nothing_before_min_trials_and_min_epochs():
    good, bad = [1 - epoch**-1.0 for epoch in range(1, MOST + 1)], [0.1] * MOST
    assert [
        epochs
        for epochs, _ in trained([good, bad, bad], Prune(rule="learning_curve", min_trials=3))
    ] == [MOST] * 3
    assert [
        epochs
        for epochs, _ in trained(
            [good, good, bad], Prune(rule="learning_curve", min_trials=2, min_epochs=7)
        )
    ] == [MOST, MOST, 7]
    assert trained([good, bad], Prune(rule="learning_curve", min_trials=1))[1] == (3, 0.1)


def test_a_value_that_is_no_number_is_dropped_and_judges_nobody():
    good = [1 - epoch**-1.0 for epoch in range(1, MOST + 1)]
    actual = trained(
        [[-math.inf] * MOST, good, [-math.inf] * MOST, good],
        Prune(rule="learning_curve", min_trials=1),
    )
    assert [epochs for epochs, _ in actual] == [MOST, MOST, 3, MOST]
