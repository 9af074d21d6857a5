"""Successive halving, compared with its definition in the papers."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.search.rungs import Bracket
from fleet.search.searcher import Verdict

SCORES = st.lists(
    st.one_of(st.integers(0, 5).map(float), st.just(-math.inf)), min_size=1, max_size=30
)
GO_ON, PAUSE, STOP = Verdict


def arrivals(scores):
    return [(f"n{number}", score) for number, score in enumerate(scores)]


@given(SCORES, st.integers(2, 4))
def test_asha_stop_keeps_the_best_of_those_so_far(scores, factor):
    bracket = Bracket(1, factor, pauses=False, in_step=False)
    for count, (name, score) in enumerate(arrivals(scores), start=1):
        cutoff = sorted(scores[:count], reverse=True)[max(1, count // factor) - 1]
        keeps = score >= cutoff and score > -math.inf
        assert bracket.add(name, 1, score) == (GO_ON if keeps else STOP)


@given(SCORES, st.integers(2, 4))
def test_asha_pause_resumes_networks_once_among_the_best(scores, factor):
    """Algorithm 2 of the paper, if jobs are requested after every arrival until there is none."""
    bracket, promoted, arrived = Bracket(2, factor, pauses=True, in_step=False), set(), {}
    for name, score in arrivals(scores):
        arrived[name] = score
        went_on = {name} if bracket.add(name, 2, score) is GO_ON else set()
        while (actual := bracket.promotable()) is not None:
            assert actual[0] == 2
            bracket.let_go_on(actual[1])
            went_on.add(actual[1])
        best = sorted(arrived, key=lambda subject: (-arrived[subject], int(subject[1:])))[
            : len(arrived) // factor
        ]
        candidates = {
            subject for subject in best if subject not in promoted and arrived[subject] > -math.inf
        }
        assert went_on == candidates
        promoted |= candidates


def keep_best(scores, factor):
    """Return the networks that continue in successive halving."""
    best = sorted(scores, key=lambda name: (-scores[name], int(name[1:])))[
        : max(1, len(scores) // factor)
    ]
    return {name for name in best if scores[name] > -math.inf}


@given(SCORES, st.integers(2, 4), st.randoms(use_true_random=False))
def test_bracket_in_step_equals_successive_halving(scores, factor, random):
    by_name, bracket = dict(arrivals(scores)), Bracket(1, factor, pauses=True, in_step=True)
    for name in random.sample(list(by_name), len(by_name)):
        assert bracket.add(name, 1, by_name[name]) is PAUSE
    assert bracket.promotable() is None
    settled = bracket.settle()
    assert set(settled.go_on) == keep_best(by_name, factor)
    assert set(settled.stop) == by_name.keys() - set(settled.go_on)


def test_bracket_promotes_the_best_of_the_highest_rung():
    bracket = Bracket(1, 2, pauses=True, in_step=False)
    for score, name in enumerate("fedcba"):  # the best one arrives first
        bracket.add(name.upper(), 1, 10.0 - score)
    for name in "FE":
        bracket.let_go_on(name)
        assert bracket.add(name, 2, {"F": 10.0, "E": 9.0}[name]) is PAUSE
    assert bracket.promotable() == (2, "F")
    bracket.let_go_on("F")
    assert bracket.promotable() == (1, "D")


def test_bracket_judges_only_at_rungs():
    bracket = Bracket(2, 3, pauses=False, in_step=False)
    for name, epochs in itertools.product("ab", (1, 3, 4, 5)):
        assert bracket.add(name, epochs, -1.0 if name == "b" else 1.0) is GO_ON
    assert [bracket.next_rung(epochs) for epochs in (0, 2, 6, 17)] == [2, 6, 18, 18]


def test_bracket_judges_a_network_once_per_rung():
    bracket = Bracket(1, 2, pauses=True, in_step=False)
    assert bracket.add("a", 1, 1.0) is PAUSE
    assert bracket.add("a", 1, 1.0) is GO_ON


def test_bracket_counts_networks_that_finish_at_a_rung():
    bracket = Bracket(1, 2, pauses=False, in_step=False)
    assert bracket.add("a", 1, 2.0, is_done=True) is GO_ON
    assert bracket.add("b", 1, 1.0) is STOP


def test_bracket_counts_ended_networks_without_promotion():
    bracket = Bracket(1, 2, pauses=True, in_step=False)
    bracket.add("a", 1, 2.0)
    bracket.leave("a")
    assert bracket.add("b", 1, 1.0) is PAUSE
    assert bracket.promotable() is None


def test_bracket_of_few_networks_promotes_the_best():
    bracket = Bracket(1, 4, pauses=True, in_step=False)
    for name, score in [("a", 1.0), ("b", 2.0), ("c", 3.0)]:
        assert bracket.add(name, 1, score) is PAUSE
    assert bracket.settle() == (("c",), ())
    bracket.let_go_on("c")
    assert bracket.settle() == ((), ("b", "a"))


def test_bracket_stops_networks_without_a_value():
    bracket = Bracket(1, 2, pauses=True, in_step=False)
    for name in "ab":
        bracket.add(name, 1, -math.inf)
    assert bracket.settle() == ((), ("a", "b"))


@pytest.mark.parametrize("factor", [2, 3])
def test_bracket_breaks_ties_by_natural_order(factor):
    bracket = Bracket(1, factor, pauses=True, in_step=True)
    for name in ("net-10", "net-9", "net-11"):
        bracket.add(name, 1, 1.0)
    assert bracket.settle().go_on == ("net-9",)
