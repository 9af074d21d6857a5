"""The pruner by learning curves."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from fleet.search.curves import Curves, continued
from fleet.search.searcher import Verdict
from fleet.spec.search import Prune

MAX_EPOCHS = 30
EXPONENTS = (0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
scores = st.lists(st.floats(-10, 10).map(lambda score: round(score, 3)), min_size=3, max_size=20)


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


# ---- power laws ----------------------------------------------------------------------------------


def continued_by_nnls(values, last):
    """Return what a solver of least squares with a slope of at most 0 forecasts."""
    epochs = np.arange(1, len(values) + 1.0)
    fits = []
    for exponent in EXPONENTS:
        # values = level - a x with a level of any sign and a >= 0
        columns = np.stack([np.ones_like(epochs), -np.ones_like(epochs), -(epochs**-exponent)], 1)
        roots = np.sqrt(epochs)
        (up, down, a), residual = nnls(columns * roots[:, None], np.array(values) * roots)
        fits.append((residual, up - down - a * last**-exponent))
    return fits


@settings(max_examples=60, deadline=None)
@given(values=scores, more=st.integers(1, 60))
def test_power_law_is_the_best_by_another_solver(values, more):
    values = list(np.maximum.accumulate(values))
    last = len(values) + more
    forecast = continued(range(1, len(values) + 1), values, last)
    fits = continued_by_nnls(values, last)
    smallest = min(residual for residual, _ in fits)
    near = [value for residual, value in fits if residual <= smallest + 1e-6]
    assert any(forecast == pytest.approx(value, abs=1e-3) for value in near)


@given(
    exponent=st.sampled_from(EXPONENTS),
    level=st.floats(-5, 5),
    fall=st.floats(0.1, 5),
    epochs=st.integers(3, 30),
)
def test_power_law_recovers_exact_curves(exponent, level, fall, epochs):
    values = [level - fall * epoch**-exponent for epoch in range(1, epochs + 1)]
    forecast = continued(range(1, epochs + 1), values, 100)
    assert forecast == pytest.approx(level - fall * 100**-exponent, abs=1e-6)


def test_power_law_of_a_falling_curve_is_level():
    assert continued([1, 2, 3], [0.5, 0.4, 0.3], 50) == pytest.approx((0.5 + 0.8 + 0.9) / 6)


def test_power_law_forgets_a_huge_first_loss():
    usual = [-2.0 - 3 / epoch for epoch in range(2, 12)]
    forecast = continued(range(1, 12), [-8e17, *usual], 100)
    assert forecast == pytest.approx(-2.03, abs=1e-6)


# ---- networks of unequal length ------------------------------------------------------------------


def test_curves_forecast_the_epoch_at_which_networks_end():
    """A network that ends after 30 of at most 300 epochs is not forecast for epoch 300."""
    pruner = Curves(Prune(rule="learning_curve", min_trials=3), 300, 0)
    for number in range(5):
        for epoch in range(1, 31):
            pruner.add(f"good{number}", epoch, 1 - epoch**-1.0, epoch == 30)
    bad = [0.9 - epoch**-0.1 for epoch in range(1, 31)]  # 0.33 after 300 epochs, 0.19 after 30
    assert [pruner.add("bad", epoch, score) for epoch, score in enumerate(bad[:3], 1)] == [
        Verdict.GO_ON,
        Verdict.GO_ON,
        Verdict.STOP,
    ]
    slow = [1.3 - epoch**-0.1 for epoch in range(1, 31)]  # 0.73 after 300 epochs, 0.59 after 30
    for epoch, score in enumerate(slow[:2], 1):
        pruner.add("slow", epoch, score)
    assert pruner.add("slow", 3, slow[2]) is Verdict.STOP


# ---- properties of the rule ----------------------------------------------------------------------

runs = st.lists(scores, min_size=2, max_size=8)


def verdicts_on(curves, scale=1.0, shift=0.0):
    pruner = Curves(Prune(rule="learning_curve", min_trials=1), MAX_EPOCHS, 0)
    verdicts = {}
    for number, values in enumerate(curves):
        best = np.maximum.accumulate(values)
        for epoch, score in enumerate(best, 1):
            verdict = pruner.add(f"n{number}", epoch, scale * score + shift, epoch == len(best))
            verdicts[number, epoch] = verdict
            if verdict is Verdict.STOP:
                break
    return verdicts


@settings(max_examples=60, deadline=None)
@given(curves=runs)
def test_curves_repeat_their_verdicts(curves):
    assert verdicts_on(curves) == verdicts_on(curves)


@settings(max_examples=60, deadline=None)
@given(curves=runs, power=st.integers(-8, 8))
def test_curves_do_not_depend_on_the_unit_of_scores(curves, power):
    assert verdicts_on(curves, scale=2.0**power) == verdicts_on(curves)


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(curves=runs)
def test_curves_prune_no_network_that_is_the_best_so_far(curves):
    best = -math.inf
    verdicts = verdicts_on(curves)
    for number, values in enumerate(curves):
        if verdicts.get((number, len(values))) is not None:
            best = max(best, *values)
            continue
        last = max(epoch for network, epoch in verdicts if network == number)
        assert max(values[:last]) < best
