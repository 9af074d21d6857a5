"""The rule `auto`, compared with its definition and by its properties."""

import math
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.search.evidence import (
    Evidence,
    assumed_correlation,
    make_rungs,
    normal_quantiles,
    passing_share,
    unselected_correlation,
)
from fleet.search.searcher import Verdict
from fleet.spec.search import Prune

GO_ON, PAUSE, STOP = Verdict
SCORE = st.one_of(st.integers(-3, 3).map(float), st.just(-math.inf))
CALLS = st.lists(st.tuples(st.integers(0, 8), SCORE, st.booleans()), max_size=80)


def train(pruner, curves, order=None):
    """Train networks by their scores after each epoch; return the epochs of each."""
    order = order or random.Random(0)
    epochs = Counter()
    best = {}
    alive = [f"net-{number}" for number in range(len(curves))]
    paused = set()
    while alive:
        name = order.choice(alive)
        curve = curves[int(name[4:])]
        epochs[name] += 1
        score = curve[epochs[name] - 1]
        best[name] = max(score, best.get(name, score))
        is_done = epochs[name] == len(curve)
        verdict = pruner.add(name, epochs[name], best[name], is_done)
        if verdict is not GO_ON or is_done:
            alive.remove(name)
        if verdict is PAUSE:
            paused.add(name)
        while (name := pruner.promotable()) is not None:
            pruner.let_go_on(name)
            paused.remove(name)
            alive.append(name)
        if not alive:
            go_on, stop = pruner.settle(())
            for name in go_on:
                pruner.let_go_on(name)
            for name in stop:
                pruner.leave(name)
            paused -= {*go_on, *stop}
            alive += go_on
    assert not paused
    return epochs


# ---- rungs and shares --------------------------------------------------------------------------


@given(st.integers(1, 50), st.integers(1, 2000))
def test_rungs_grow_and_end_with_training(min_epochs, most_epochs):
    rungs = make_rungs(min_epochs, most_epochs)
    assert rungs == sorted(set(rungs))
    assert rungs[-1] == most_epochs
    assert all(rung >= min(min_epochs, most_epochs) for rung in rungs)
    assert len(rungs) <= 10 or most_epochs > 60


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6, 0.9, 0.98])
@pytest.mark.parametrize("networks", [20, 200])
def test_share_holds_the_best_except_with_the_probability(correlation, networks):
    draw = np.random.default_rng(0)
    early, noise = draw.normal(size=(2, 4000, networks))
    late = correlation * early + math.sqrt(1 - correlation**2) * noise
    ranks = (early > np.take_along_axis(early, late.argmax(1)[:, None], 1)).sum(1)
    count = math.ceil(passing_share(correlation, networks) * networks)
    assert np.mean(ranks >= count) < 0.08  # the best of few is not exactly at its quantile


@given(st.floats(0, 1), st.floats(0, 1), st.integers(2, 500), st.floats(1, 20), st.floats(1, 20))
def test_share_falls_with_correlation_and_with_the_near(low, high, networks, few, many):
    low, high = sorted([low, high])
    few, many = sorted([few, many])
    share = passing_share(low, networks, few)
    assert 0 <= share <= 1
    if networks > 50:
        assert passing_share(high, networks, few) <= share + 1e-9
        assert passing_share(0.0, networks, many) <= passing_share(0.0, networks, few) + 1e-9


# ---- correlations ------------------------------------------------------------------------------


@pytest.mark.parametrize("true", [0.0, 0.5, 0.8, 0.95])
def test_correlation_of_all_is_measured_on_the_selected(true):
    draw = np.random.default_rng(1)
    early, noise = draw.normal(size=(2, 20000))
    late = true * early + math.sqrt(1 - true**2) * noise
    selected = early > np.quantile(early, 0.8)
    measured = unselected_correlation(early[selected], late[selected], 0.6)
    assert measured == pytest.approx(true, abs=0.05)
    if 0.4 < true < 0.9:
        assert np.corrcoef(early[selected], late[selected])[0, 1] < true - 0.15


def test_correlation_of_none_is_the_assumed_one():
    assert unselected_correlation([0.3], [0.7], 0.6) == pytest.approx(0.6)
    assert unselected_correlation([-1.0, 1.0] * 500, [1.0, -1.0] * 500, 0.6) == 0.0


@given(st.lists(st.tuples(st.floats(-3, 3), st.floats(-3, 3)), min_size=1), st.floats(0, 1))
def test_correlation_is_between_0_and_1(pairs, assumed):
    early, late = zip(*pairs, strict=True)
    assert 0 <= unselected_correlation(early, late, assumed) <= 1


@given(st.integers(1, 300))
def test_quantiles_fall_and_add_up_to_0(networks):
    quantiles = normal_quantiles(networks)
    assert list(quantiles) == sorted(quantiles, reverse=True)
    assert sum(quantiles) == pytest.approx(0, abs=1e-6)


def test_assumed_correlation_grows_towards_the_end():
    correlations = [assumed_correlation(epochs, 51) for epochs in range(1, 52)]
    assert correlations == sorted(correlations)
    assert correlations[-1] == 1


# ---- the rule ----------------------------------------------------------------------------------


def replay(calls, on_fail, most_epochs):
    """Make calls; return all answers."""
    pruner = Evidence(Prune(rule="auto", on_fail=on_fail), most_epochs, 0)
    epochs, paused, answers = Counter(), set(), []
    for number, score, is_done in calls:
        name = f"net-{number}"
        if name in paused:
            continue
        epochs[name] += 1
        answers.append(pruner.add(name, epochs[name], score, is_done))
        if answers[-1] is PAUSE:
            paused.add(name)
        answers.append(pruner.promotable())
        if answers[-1] is not None:
            assert answers[-1] in paused
            paused.remove(answers[-1])
            pruner.let_go_on(answers[-1])
    settled = pruner.settle(())
    assert sorted([*settled.go_on, *settled.stop]) == sorted(paused) or len(settled.go_on) == 1
    return [*answers, settled, pruner.expected(most_epochs)]


@given(CALLS, st.sampled_from(["pause", "stop"]), st.integers(1, 40))
def test_equal_calls_have_equal_answers(calls, on_fail, most_epochs):
    assert replay(calls, on_fail, most_epochs) == replay(calls, on_fail, most_epochs)


@given(CALLS, st.integers(2, 40))
def test_a_question_in_between_changes_no_answer(calls, most_epochs):
    """A resumed run does not ask which networks to promote while it replays epochs."""
    subject, silent = (Evidence(Prune(rule="auto"), most_epochs, 0) for _ in range(2))
    epochs = Counter()
    for number, score, is_done in calls:
        epochs[number] += 1
        call = f"net-{number}", epochs[number], score, is_done
        assert subject.add(*call) is silent.add(*call)
        subject.promotable()
        subject.expected(most_epochs)
    assert subject.promotable() == silent.promotable()


@given(st.lists(SCORE, min_size=1, max_size=30), st.sampled_from(["pause", "stop"]))
def test_diverged_networks_never_pass_a_rung(scores, on_fail):
    pruner = Evidence(Prune(rule="auto", on_fail=on_fail), 9, 0)
    failing = {f"net-{number}" for number, score in enumerate(scores) if score == -math.inf}
    for number, score in enumerate(scores):
        verdict = pruner.add(f"net-{number}", 1, score)
        if f"net-{number}" in failing:
            assert verdict is (PAUSE if on_fail == "pause" else STOP)
        elif score > max(scores[:number], default=-math.inf):
            assert verdict is GO_ON
        assert pruner.promotable() not in failing
    assert not failing.intersection(pruner.settle(()).go_on)


@given(
    st.lists(st.lists(SCORE, min_size=1, max_size=12), min_size=1, max_size=15),
    st.integers(0, 5),
    st.sampled_from(["pause", "stop"]),
)
def test_some_network_ends_unless_all_diverge(curves, seed, on_fail):
    """Also with networks of unequal length."""
    pruner = Evidence(Prune(rule="auto", on_fail=on_fail), max(map(len, curves)), 0)
    epochs = train(pruner, curves, random.Random(seed))
    ended = [number for number, curve in enumerate(curves) if epochs[f"net-{number}"] == len(curve)]
    assert ended or any(curve[0] == -math.inf for curve in curves)


@given(st.integers(1, 12), st.integers(1, 12))
def test_no_network_is_judged_before_min_epochs(min_epochs, most_epochs):
    pruner = Evidence(Prune(rule="auto", min_epochs=min_epochs), most_epochs, 0)
    for number in range(5):
        for epochs in range(1, min(min_epochs, most_epochs)):
            assert pruner.add(f"net-{number}", epochs, -float(number)) is GO_ON


def test_a_rung_is_judged_once():
    pruner = Evidence(Prune(rule="auto"), 9, 0)
    for number in range(9):
        pruner.add(f"net-{number}", 1, -float(number))
    assert pruner.add("net-9", 1, -9.0) is PAUSE
    assert pruner.add("net-9", 1, -9.0) is GO_ON
    pruner.leave("net-9")
    assert "net-9" not in pruner.settle(()).stop


def curves_of(kind, networks=120, epochs=30):
    draw = np.random.default_rng(3)
    ends = draw.normal(size=networks)
    share = np.arange(1, epochs + 1) / epochs
    start = ends if kind == "ranked" else draw.normal(size=networks)
    level = (1 - share**4)[None] * start[:, None] + (share**4)[None] * ends[:, None]
    return (level + 4 * share[None] + 5).tolist()


def test_more_networks_pass_where_early_epochs_do_not_rank():
    costs = {}
    for kind in ("ranked", "unranked"):
        curves = curves_of(kind)
        epochs = train(Evidence(Prune(rule="auto"), 30, 0), curves)
        costs[kind] = sum(epochs.values()) / sum(map(len, curves))
        ended = [curves[number][-1] for number in range(120) if epochs[f"net-{number}"] == 30]
        ends = sorted((curve[-1] for curve in curves), reverse=True)
        assert max(ended) >= ends[0 if kind == "ranked" else 5]
    assert 1.5 * costs["ranked"] < costs["unranked"], costs


def test_paused_networks_pass_later_if_the_evidence_asks_for_it():
    pruner = Evidence(Prune(rule="auto"), 30, 0)
    draw = random.Random(0)
    names = [f"net-{number}" for number in range(100)]
    scores = {name: draw.random() for name in names}
    verdicts = {name: pruner.add(name, 2, scores[name]) for name in names}
    passing = sum(verdict is GO_ON for verdict in verdicts.values())
    while (name := pruner.promotable()) is not None:
        pruner.let_go_on(name)
        verdicts[name] = GO_ON
    before = [name for name in names if verdicts[name] is GO_ON]
    assert passing <= len(before) < 70
    for name in before:  # at their ends the order is a random one
        pruner.add(name, 30, draw.random(), is_done=True)
    assert pruner.promotable() is not None


def test_fewer_pass_where_many_end_near_the_best():
    promoted = []
    for spread in (1.0, 0.0001):
        pruner = Evidence(Prune(rule="auto"), 30, 0)
        draw = random.Random(0)
        names = [f"net-{number}" for number in range(100)]
        going = [name for name in names if pruner.add(name, 2, draw.random()) is GO_ON]
        for name in going[:30]:
            pruner.add(name, 30, 5 + spread * draw.random(), is_done=True)
        promoted.append(0)
        while (name := pruner.promotable()) is not None:
            pruner.let_go_on(name)
            promoted[-1] += 1
    assert promoted[1] < promoted[0]
