"""Samplers on spaces with conditions."""

import random

import pytest

from fleet.search.calls import AddPriorTrial
from fleet.search.entries import Entry
from fleet.search.searcher import make_searcher
from fleet.search.session import SearcherSession, match_space
from fleet.spec.dimensions import Choices, Prior, Range
from fleet.spec.enumeration import grid, size_of
from fleet.spec.search import Search
from fleet.spec.space import member_of
from tests.fleet.search.launches import run_killed, search_of

SPACE = {
    "rate": Range(1e-4, 1, log=True, prior=Prior(0.01), when={"name": "sgd"}),
    "name": Choices(("sgd", "adam"), weights=(9, 1)),
    "depth": Range(1, 9, integer=True, step=2, when={"name": "adam"}),
}


@pytest.mark.parametrize("seed", range(3))
def test_killed_searches_of_conditional_spaces_resume(seed):
    draw = random.Random(seed)
    kills = [draw.randrange(40) for _ in range(12)]
    search = search_of(max_trials=20, seed=seed)
    reference, _, _ = run_killed([], search, SPACE)
    killed, _, differences = run_killed(kills, search, SPACE)
    assert killed.decisions == reference.decisions
    assert not differences
    for proposal in killed.added.values():
        assert member_of(SPACE, proposal.values) == proposal.values


def test_grid_sampler_skips_prior_trials_of_a_branch():
    space = {name: SPACE[name] for name in ("name", "depth")}
    searcher = make_searcher("grid", space, 0, "maximize", {})
    searcher.add_prior_trial(-1, {"name": "sgd"})
    answers = [searcher.ask(number) for number in range(6)]
    assert answers == [*grid(space)[1:], None]
    assert size_of(space) == 6


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        ({"name": "adam", "depth": 3}, ""),
        ({"depth": 3.0, "name": "adam"}, ""),
        ({"name": "adam", "depth": 4}, "depth: 4 is not 1 plus a multiple of 2"),
        ({"name": "adam"}, "depth has no value, although its conditions hold"),
        ({"name": "sgd", "rate": 0.1, "depth": 3}, "depth has a value, although its condition"),
        ({"rate": 0.1}, "name has no value"),
    ],
)
def test_answers_have_values_for_used_keys_only(answer, wrong):
    session = SearcherSession(Entry("net", Search(max_trials=3), SPACE), resumes=False)
    proposal = session.handle_answer(session.next_call(wants_network=True), answer)
    assert wrong in proposal.wrong
    assert bool(proposal.wrong) == bool(wrong)


def test_trials_fit_a_changed_condition_or_are_left_out():
    changed = {**SPACE, "depth": Range(1, 9, integer=True, when={"name": ["sgd", "adam"]})}
    assert match_space(changed, {"name": "adam", "depth": 3}) == {"name": "adam", "depth": 3}
    assert match_space(changed, {"name": "sgd", "rate": 0.1}) is None
    session = SearcherSession(Entry("net", Search(max_trials=9), SPACE), resumes=False)
    session.add_prior_trials(
        [
            AddPriorTrial(0, {"name": "adam", "depth": 3}, (0.5,), "finished", 0.5, "a", "runs/a"),
            AddPriorTrial(0, {"name": "sgd", "rate": 0.1}, (0.5,), "finished", 0.5, "b", "runs/a"),
        ]
    )
    session.replace_searcher(changed, True, {}, judges_alike=True)
    assert session.next_call(wants_network=True).name == "a"
