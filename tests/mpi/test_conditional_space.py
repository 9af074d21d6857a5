"""Searches of spaces with conditions, launched on several ranks (numpy engine)."""

import csv
import json

import pytest

from fleet.spec import parse
from fleet.spec.space import member_of
from tests.examples import long_but_first
from tests.mpi.conftest import spec

BATCH, MOMENTUM = "train.batch.size", "train.optimizer.momentum"
SPACE = {
    BATCH: {"low": 4, "high": 12, "step": 4, "integer": True},
    MOMENTUM: {"choices": [0.1, 0.9], "weights": [1, 3], "when": {BATCH: {"least": 8}}},
    "train.stopping.max_epochs": {"choices": [1, 2], "when": {MOMENTUM: 0.9}},
}


def searched(tmp_path, **search):
    """Return a spec that searches the space."""
    return spec(tmp_path, [{"family": "softmax", "name": "net", "space": SPACE, "search": search}])


@pytest.mark.long
@pytest.mark.parametrize("sampler", long_but_first("random", "grid"))
def test_search_trains_each_member_of_a_conditional_space(launch, tmp_path, sampler):
    content = searched(tmp_path, sampler=sampler, max_trials=20)
    run = launch(3, content)
    assert run.status == 0, run.output
    space = parse(content).document.models[0].space
    drawn = [result.drawn for result in run.results().values()]
    assert len(drawn) == 7
    assert all(member_of(space, values) == values for values in drawn)
    with open(run.paths.results, encoding="utf-8", newline="") as file:
        rows = [json.loads(row["drawn"]) for row in csv.DictReader(file)]
    assert sum(MOMENTUM not in values for values in rows) == 1


@pytest.mark.long
def test_search_names_answers_that_break_conditions(launch, tmp_path):
    (tmp_path / "fixed_answers.py").write_text(
        "class Searcher:\n"
        "    def __init__(self, space, seed, mode):\n"
        f"        self.answers = [{{{BATCH!r}: 4}}, {{{BATCH!r}: 4, {MOMENTUM!r}: 0.1}},\n"
        f"            {{{BATCH!r}: 8}}, {{{BATCH!r}: 8, {MOMENTUM!r}: 0.1}}]\n"
        "    def ask(self, number):\n"
        "        return self.answers[number]\n"
        "    def report(self, number, epoch, value):\n"
        "        return 'go_on'\n"
        "    def tell(self, number, outcome, value):\n"
        "        pass\n"
    )
    run = launch(2, searched(tmp_path, sampler="fixed_answers:Searcher", max_trials=4))
    reasons = {name: result.reason for name, result in run.results().items()}
    assert reasons["net-0"] == reasons["net-3"] == "3 epochs"
    assert f"its condition on {BATCH} does not hold; leave it out" in reasons["net-1"]
    assert f"{MOMENTUM} has no value, although its conditions hold" in reasons["net-2"]


@pytest.mark.long
def test_results_of_conditional_spaces_start_another_search(launch, tmp_path):
    first = launch(2, searched(tmp_path / "first", sampler="grid"))
    assert first.status == 0, first.output
    content = searched(
        tmp_path / "second",
        sampler="random",
        max_trials=20,
        warm_start=[str(first.paths.root)],
    )
    content["models"][0]["space"] = {
        **SPACE,
        BATCH: {"low": 4, "high": 16, "step": 4, "integer": True},
    }
    second = launch(2, content)
    assert second.status == 0, second.output
    drawn = [result.drawn for result in second.results().values()]
    assert sorted(map(str, drawn)) == sorted(
        str({BATCH: 16, **values})
        for values in (
            {MOMENTUM: 0.1},
            {MOMENTUM: 0.9, "train.stopping.max_epochs": 1},
            {MOMENTUM: 0.9, "train.stopping.max_epochs": 2},
        )
    )
