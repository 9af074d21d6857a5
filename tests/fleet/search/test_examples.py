"""The searchers in examples/ that need no library."""

import ast
import random

import pytest
import yaml

from fleet.domain.events import NetworkVerdict
from fleet.errors import UserError
from fleet.search.calls import AddPriorTrial
from fleet.search.searcher import TrialOutcome, make_searcher
from fleet.spec import parse
from fleet.spec.dimensions import Choices, Range
from fleet.spec.entries import proposed_network
from fleet.spec.enumeration import ends, size_of
from tests.examples import long_but_first
from tests.fleet.search.launches import LEARNING_RATE, Launch, run_killed, search_of
from tests.places import ROOT
from tests.refusals import refused

RATES = {LEARNING_RATE: Range(1e-4, 0.1, log=True)}
SHAPES = {"filters.0": tuple(range(1, 20)), "filters.1": tuple(range(1, 20)), "kernel": (1, 3, 5)}


class Shaped(Launch):
    """A launch in which more filters are better."""

    def train(self, name):
        values = self.added[name].values
        self.value = lambda name, epoch: (values["filters.0"] + values["filters.1"]) / 40
        super().train(name)


@pytest.mark.parametrize(
    "name", ["evolution_searcher", "optuna_searcher", "pbt_searcher", "skopt_searcher"]
)
def test_example_searchers_show_valid_specs(name):
    observed = ast.get_docstring(ast.parse((ROOT / f"examples/{name}.py").read_text())).split(
        "\n\n"
    )[1]
    spec = parse(yaml.safe_load(observed))
    [(index, entry)] = spec.searches.items()
    assert entry.search.sampler == f"{name}:Searcher"
    assert all(
        proposed_network(spec, index, number, member)
        for number, member in enumerate(ends(entry.space))
    )


def test_evolution_finds_better_networks_than_it_began_with():
    search = search_of(
        "evolution_searcher:Searcher",
        max_trials=120,
        max_concurrent=4,
        options={"population": 20, "sample": 5},
    )
    launch, _, _ = run_killed([], search, SHAPES, epochs=1, kind=Shaped)
    sums = [add.values["filters.0"] + add.values["filters.1"] for add in launch.added.values()]
    assert len(sums) == 120
    assert sum(sums[20:]) / 100 > 1.2 * sum(sums[:20]) / 20


def test_evolution_mutates_prior_trials():
    rates = [
        AddPriorTrial(
            0,
            {"filters.0": 1 + number, "filters.1": 19, "kernel": 3},
            (),
            "finished",
            number / 20,
            f"a-{number}",
            "runs/a",
        )
        for number in range(10)
    ]
    search = search_of(
        "evolution_searcher:Searcher",
        max_trials=5,
        max_concurrent=1,
        options={"population": 10, "sample": 10},
    )
    launch, _, _ = run_killed([], search, SHAPES, epochs=1, kind=Shaped, earlier=rates)
    first = launch.added["net-0"].values
    assert sum(first[name] != value for name, value in rates[-1].values.items()) == 1


def test_evolution_ends_with_an_exhausted_space():
    search = search_of("evolution_searcher:Searcher", max_trials=120)
    launch, _, _ = run_killed([], search, {"kernel": (1, 3, 5)}, epochs=1)
    assert len(launch.added) == 3
    assert not launch.controller.sampling.has_failed


BRANCHES = {
    "kernel": Range(1, 3, integer=True, when={"norm": ["batch", "layer"]}),
    "norm": ("none", "batch", "layer"),
    "pool": Choices(("max", "mean"), weights=(1, 3), when={"kernel": {"least": 2}}),
}


def test_evolution_proposes_members_of_a_conditional_space():
    search = search_of(
        "evolution_searcher:Searcher", max_trials=120, options={"population": 4, "sample": 2}
    )
    launch, _, _ = run_killed([], search, BRANCHES, epochs=1)
    assert len(launch.added) == size_of(BRANCHES) == 11
    assert not launch.controller.sampling.has_failed


@pytest.mark.parametrize("sampler", ["pbt_searcher", "skopt_searcher"])
def test_examples_refuse_conditions_that_they_ignore(sampler):
    pytest.importorskip("skopt" if sampler == "skopt_searcher" else "random")
    with refused(UserError, "kernel has a condition or a step"):
        make_searcher(f"{sampler}:Searcher", BRANCHES, 0, "maximize", {})


PBT = search_of("pbt_searcher:Searcher", max_trials=30, max_concurrent=8, options={"every": 2})


def test_pbt_replaces_each_stopped_network_by_a_child():
    launch, disk, _ = run_killed([], PBT, RATES)
    children = [add for add in launch.added.values() if add.parent is not None]
    stopped = [event for event in disk.of(NetworkVerdict) if event.verdict == "stop"]
    assert len(children) == len(stopped) >= 3
    assert len(launch.added) == 8 + len(children)
    for child in children:
        ratio = child.values[LEARNING_RATE] / launch.added[child.parent].values[LEARNING_RATE]
        assert (
            ratio == pytest.approx(0.8)
            or ratio == pytest.approx(1.25)
            or child.values[LEARNING_RATE] in (1e-4, 0.1)
        )
    assert {end for _, end in launch.outcomes.values()} == {
        TrialOutcome.FINISHED,
        TrialOutcome.PRUNED,
    }


@pytest.mark.parametrize("seed", long_but_first(*range(3)))
def test_pbt_and_evolution_resume_after_kills(seed):
    draw = random.Random(seed)
    kills = [draw.randrange(40) for _ in range(12)]
    evolution = search_of("evolution_searcher:Searcher", max_trials=20)
    for search, space, kind in [(PBT, RATES, Launch), (evolution, SHAPES, Shaped)]:
        reference, _, _ = run_killed([], search, space, kind=kind)
        killed, _, differences = run_killed(kills, search, space, kind=kind)
        assert killed.decisions == reference.decisions
        assert not differences
