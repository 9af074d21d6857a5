"""The searcher in examples/ that uses Optuna, with the real library."""

import math
import random

import pytest

from fleet.search.calls import AddPriorTrial
from fleet.search.searcher import TrialOutcome
from fleet.spec.dimensions import Range
from fleet.spec.search import Prune
from tests.fleet.search.launches import LEARNING_RATE, Launch, run_killed, search_of

pytest.importorskip("optuna")

SPACE = {LEARNING_RATE: Range(1e-5, 0.1, log=True), "blocks.0": Range(2, 20, integer=True)}
KINDS = {
    "tpe, median": ({"sampler": "tpe", "pruner": "median"}, Prune()),
    "tpe, asha of Optuna": ({"sampler": "tpe", "pruner": "asha"}, Prune()),
    "tpe and median with options": (
        {
            "sampler": "tpe",
            "n_startup_trials": 4,
            "pruner": "median",
            "pruner_options": {"n_startup_trials": 2, "n_warmup_steps": 1},
        },
        Prune(),
    ),
    "cmaes, hyperband of Optuna": ({"sampler": "cmaes", "pruner": "hyperband"}, Prune()),
    "tpe, asha of FLEET": ({"sampler": "tpe"}, Prune(rule="asha")),
    "random, median of FLEET": ({"sampler": "random"}, Prune(rule="median", min_trials=3)),
}


def law(name, epoch, values):
    """Return a value that is best at a learning rate of 0.003 and with many blocks."""
    distance = abs(math.log10(values[LEARNING_RATE] / 0.003))
    noise = random.Random(f"{name}/{epoch}").random()
    return (1 - 0.8**epoch) / (1 + distance) + 0.01 * values["blocks.0"] + 0.01 * noise


class Learning(Launch):
    """A launch in which learning curves follow from the proposed values."""

    def train(self, name):
        self.value = lambda name, epoch: law(name, epoch, self.added[name].values)
        super().train(name)


@pytest.mark.parametrize("kind", KINDS)
def test_optuna_search_after_a_kill_decides_the_same(kind):
    options, prune = KINDS[kind]
    search = search_of("optuna_searcher:Searcher", max_trials=20, options=options, seed=3)
    reference, _, _ = run_killed([], search, SPACE, prune=prune, kind=Learning)
    draw = random.Random(kind)
    kills = [draw.randrange(40) for _ in range(10)]
    killed, _, differences = run_killed(kills, search, SPACE, prune=prune, kind=Learning)
    assert killed.decisions == reference.decisions
    assert not differences
    assert len(reference.outcomes) == 20
    assert any(end is TrialOutcome.PRUNED for _, end in reference.outcomes.values())


def test_optuna_tpe_improves_proposals():
    search = search_of("optuna_searcher:Searcher", max_trials=40, seed=0)
    launch, _, _ = run_killed([], search, SPACE, kind=Learning, epochs=2)
    rates = [
        abs(math.log10(launch.added[f"net-{number}"].values[LEARNING_RATE] / 0.003))
        for number in range(40)
    ]
    assert sum(rates[20:]) < sum(rates[:20])


def test_optuna_ends_with_an_exhausted_space():
    search = search_of("optuna_searcher:Searcher", max_trials=20)
    launch, _, _ = run_killed(
        [], search, {"blocks.0": Range(1, 3, integer=True), "kernel": (3, 5)}, epochs=1
    )
    assert len({str(add.values) for add in launch.added.values()}) == len(launch.added) == 6
    assert not any(add.wrong for add in launch.added.values())


def test_optuna_prunes_nothing_after_nan():
    def value(name, epoch):
        return math.nan if epoch == 1 else 0.5

    options = {"pruner": "median", "pruner_options": {"n_startup_trials": 1}}
    search = search_of("optuna_searcher:Searcher", max_trials=3, options=options)
    launch, _, _ = run_killed([], search, SPACE, value=value)
    assert set(launch.outcomes.values()) == {(9, TrialOutcome.FINISHED)}
    assert not launch.controller.sampling.has_failed


def test_optuna_accepts_trials_of_nan():
    search = search_of("optuna_searcher:Searcher", max_trials=3)
    launch, _, _ = run_killed([], search, SPACE, value=lambda name, epoch: math.nan)
    assert set(launch.outcomes.values()) == {(9, TrialOutcome.FINISHED)}
    assert not launch.controller.sampling.has_failed


def test_optuna_pruner_receives_its_options():
    def pruned(**options):
        search = search_of(
            "optuna_searcher:Searcher",
            max_trials=12,
            seed=3,
            options={"sampler": "random", "pruner": "median", **options},
        )
        launch, _, _ = run_killed([], search, SPACE, kind=Learning)
        return sum(end is TrialOutcome.PRUNED for _, end in launch.outcomes.values())

    assert (
        pruned(pruner_options={"n_startup_trials": 100})
        == 0
        < pruned(pruner_options={"n_startup_trials": 2})
    )


@pytest.mark.parametrize(
    "sampler", [{"sampler": "nsgaii", "population_size": 4}, {"sampler": "tpe"}]
)
def test_optuna_front_after_a_kill_decides_the_same(sampler):
    search = search_of(
        "optuna_searcher:Searcher",
        max_trials=12,
        options=sampler,
        objectives=[{"value": "val_accuracy"}, {"value": "epochs"}],
    )
    earlier = [
        AddPriorTrial(
            0,
            {LEARNING_RATE: 0.003, "blocks.0": 3},
            (0.5,),
            "finished",
            (0.5, 1.0),
            "a-0",
            "runs/a",
        )
    ]
    settings = {"prune": Prune(rule="asha"), "kind": Learning, "earlier": earlier}
    reference, _, _ = run_killed([], search, SPACE, **settings)
    killed, _, differences = run_killed([20, 30, 10, 40], search, SPACE, **settings)
    assert killed.decisions == reference.decisions
    assert not differences
    assert not reference.controller.sampling.has_failed
    assert reference.searcher.study.trials[0].values == [0.5, 1.0]
    assert reference.searcher.study.best_trials
