"""The samplers random and grid, and user-defined searchers."""

import itertools
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import UserError
from fleet.search.calls import Ask, make_call
from fleet.search.searcher import ResumesTrials, Verdict, make_searcher
from fleet.spec.dimensions import Range
from fleet.spec.drawing import draw
from fleet.spec.enumeration import grid
from fleet.spec.space import member_of
from tests.refusals import refused

SPACE = {
    "train.optimizer.learning_rate": Range(1e-5, 0.1, log=True),
    "width": (16, 32),
    "blocks": ([1, 1], [2, 2]),
}
LISTS = {"width": (16, 32), "depth": Range(1, 3, integer=True)}


def ask_all(searcher, maximum=100):
    return list(
        itertools.takewhile(lambda answer: answer is not None, map(searcher.ask, range(maximum)))
    )


def make(ask, space=SPACE, seed=0, **options):
    return make_searcher(ask, space, seed, "maximize", options)


def test_random_equals_draws_by_count():
    assert ask_all(make("random", seed=7), 20) == draw(SPACE, 20, seed=7)


def test_random_exhausts_a_finite_space():
    answers = ask_all(make("random", LISTS))
    assert sorted(map(str, answers)) == sorted(
        map(str, grid({"width": (16, 32), "depth": (1, 2, 3)}))
    )


def test_grid_sampler_has_the_order_of_grid():
    assert ask_all(make("grid", LISTS)) == grid({"width": (16, 32), "depth": (1, 2, 3)})


def test_random_continues_and_resumes_nothing():
    searcher = make("random")
    assert searcher.report(0, 1, 0.5) == Verdict.GO_ON
    assert not isinstance(searcher, ResumesTrials)


def test_grid_refuses_infinite_spaces():
    with refused(UserError, "grid", "train.optimizer.learning_rate"):
        make("grid")


class NotOne:
    def __init__(self, space, seed, mode):
        self.ask = None


class Raising:
    def __init__(self, space, seed, mode, depth):
        raise ValueError(f"depth\n{depth}")


@pytest.mark.parametrize(
    ("ask", "options", "says"),
    [
        (
            "hyperopt",
            {},
            r"no sampler is named 'hyperopt' \(did you mean tpe\?\); use random, grid, optuna, "
            "tpe, gp, cmaes, qmc, nsgaii, or an import path module:Class",
        ),
        ("math:nothing", {}, "nothing"),
        ("random", {"depth": 1}, "random cannot be constructed: TypeError: .*depth"),
        (f"{__name__}:Raising", {"depth": 3}, "Raising cannot be constructed: ValueError: depth 3"),
        (f"{__name__}:NotOne", {}, "has no method ask, report, tell; a searcher has"),
    ],
)
def test_make_searcher_refuses_invalid_searchers(ask, options, says):
    with pytest.raises(UserError, match=says):
        make(ask, **options)


# ---- members of a space ------------------------------------------------------------------------


@given(st.integers(0, 1000))
def test_member_of_returns_drawn_values(seed):
    for drawn in draw(SPACE, 5, seed):
        assert member_of(SPACE, drawn) == drawn


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"width": 16}, "depth has no value"),
        ({"width": 16, "depth": 1, "height": 2}, "the space has no 'height'; it has width, depth"),
        ({"width": 17, "depth": 1}, "width: 17 is not one of 16, 32"),
        ({"width": True, "depth": 1}, "width: True is not one of"),
        ({"width": 16, "depth": 4}, "depth: 4 is not between 1 and 3"),
        ({"width": 16, "depth": 1.5}, "depth: 1.5 is not an integer"),
        ({"width": 16, "depth": True}, "depth: True is not between"),
        ({"width": 16, "depth": "2"}, "depth: '2' is not between"),
        ({"width": 16, "depth": float("nan")}, "depth: nan is not between"),
    ],
)
def test_member_of_refuses_values_outside_the_space(values, says):
    with pytest.raises(UserError, match=says):
        member_of(LISTS, values)


def test_member_of_returns_the_types_of_the_space():
    assert member_of(LISTS, {"width": 16.0, "depth": 2.0}) == {"width": 16, "depth": 2}
    assert type(member_of(LISTS, {"width": 16, "depth": 2.0})["depth"]) is int


class Emptying:
    """A searcher that removes keys from its space and options."""

    def __init__(self, space, seed, mode, choices):
        space["width"][1].append(7)
        space.clear()
        choices.clear()

    def ask(self, number):
        return None

    report = tell = ask


def test_make_searcher_passes_copies_of_its_arguments():
    space, options = {"width": ([16], [32])}, {"choices": [1]}
    make_searcher("tests.fleet.search.test_searcher:Emptying", space, 0, "maximize", options)
    assert space == {"width": ([16], [32])}
    assert options == {"choices": [1]}


def test_grid_distinguishes_equal_values_of_other_types():
    searcher = make_searcher("grid", {"a": (True, 1, 1.0)}, 0, "maximize", {})
    searcher.add_prior_trial(-1, {"a": 1})
    assert [repr(searcher.ask(number)) for number in range(3)] == [
        "{'a': True}",
        "{'a': 1.0}",
        "None",
    ]


ROAMING = """
import os, random

class Roaming:
    def __init__(self, space, seed, mode):
        random.seed(7)
    def ask(self, number):
        os.chdir("/")
        return {"x": random.random()}
    def report(self, number, epoch, value):
        return "go_on"
    def tell(self, number, outcome, value):
        pass
"""


def test_searcher_is_isolated_from_the_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "roaming_searcher.py").write_text(ROAMING)
    searcher = make_searcher("roaming_searcher:Roaming", {}, 0, "minimize", {})
    proposals = []
    for number in range(2):
        random.seed(number)
        proposals.append(make_call(searcher, Ask(number))["x"])
        assert Path.cwd() == tmp_path
        assert random.random() == random.Random(number).random()
    random.seed(7)
    assert proposals == [random.random(), random.random()]
