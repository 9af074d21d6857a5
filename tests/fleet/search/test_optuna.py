"""Samplers and pruners of Optuna, with the real library."""

import math
import random

import pytest

from fleet.search.calls import AddPriorTrial
from fleet.search.searcher import TrialOutcome, make_searcher
from fleet.spec.conditions import is_active
from fleet.spec.dimensions import Choices, Prior, Range
from fleet.spec.search import Prune
from fleet.spec.space import member_of
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
    "cmaes, median of FLEET": ({"sampler": "cmaes"}, Prune(rule="median", min_trials=3)),
    "qmc, median of FLEET": ({"sampler": "qmc"}, Prune(rule="median", min_trials=3)),
    "nsgaii, asha of FLEET": ({"sampler": "nsgaii", "population_size": 4}, Prune(rule="asha")),
    "nsgaiii, asha of FLEET": ({"sampler": "nsgaiii", "population_size": 4}, Prune(rule="asha")),
    "gp, median of FLEET": (
        {"sampler": "gp", "n_startup_trials": 5},
        Prune(rule="median", min_trials=3),
    ),
    "tpe with groups, wilcoxon": (
        {"sampler": "tpe", "group": True, "n_startup_trials": 4, "pruner": "wilcoxon"},
        Prune(rule="median", min_trials=3),
    ),
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


class Sized(Learning):
    """A launch in which networks have 100 parameters a block."""

    def train(self, name):
        self.run_state.set_parameters(name, 100 * self.added[name].values["blocks.0"])
        super().train(name)


@pytest.mark.long_but_first
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.torch] if options["sampler"] == "gp" else [])
        for kind, (options, _) in KINDS.items()
    ],
)
def test_optuna_search_after_a_kill_decides_the_same(kind):
    options, prune = KINDS[kind]
    if options["sampler"] == "gp":
        pytest.importorskip("torch")
    search = search_of("optuna", max_trials=20, options=options, seed=3)
    reference, _, _ = run_killed([], search, SPACE, prune=prune, kind=Learning)
    draw = random.Random(kind)
    kills = [draw.randrange(40) for _ in range(10)]
    killed, _, differences = run_killed(kills, search, SPACE, prune=prune, kind=Learning)
    assert killed.decisions == reference.decisions
    assert not differences
    assert len(reference.outcomes) == 20
    assert any(end is TrialOutcome.PRUNED for _, end in reference.outcomes.values())


def test_optuna_tpe_improves_proposals():
    search = search_of("optuna", max_trials=40, seed=0)
    launch, _, _ = run_killed([], search, SPACE, kind=Learning, epochs=2)
    rates = [
        abs(math.log10(launch.added[f"net-{number}"].values[LEARNING_RATE] / 0.003))
        for number in range(40)
    ]
    assert sum(rates[20:]) < sum(rates[:20])


def test_optuna_ends_with_an_exhausted_space():
    search = search_of("optuna", max_trials=20)
    launch, _, _ = run_killed(
        [], search, {"blocks.0": Range(1, 3, integer=True), "kernel": (3, 5)}, epochs=1
    )
    assert len({str(add.values) for add in launch.added.values()}) == len(launch.added) == 6
    assert not any(add.wrong for add in launch.added.values())


def test_optuna_prunes_nothing_after_nan():
    def value(name, epoch):
        return math.nan if epoch == 1 else 0.5

    options = {"pruner": "median", "pruner_options": {"n_startup_trials": 1}}
    search = search_of("optuna", max_trials=3, options=options)
    launch, _, _ = run_killed([], search, SPACE, value=value)
    assert set(launch.outcomes.values()) == {(9, TrialOutcome.FINISHED)}
    assert not launch.controller.sampling.has_failed


def test_optuna_accepts_trials_of_nan():
    search = search_of("optuna", max_trials=3)
    launch, _, _ = run_killed([], search, SPACE, value=lambda name, epoch: math.nan)
    assert set(launch.outcomes.values()) == {(9, TrialOutcome.FINISHED)}
    assert not launch.controller.sampling.has_failed


def test_optuna_pruner_receives_its_options():
    def pruned(**options):
        search = search_of(
            "optuna",
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
        "optuna",
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


@pytest.mark.long_but_first
@pytest.mark.parametrize(
    "sampler", ["tpe", "cmaes", "qmc", "nsgaii", "random", "grid", "bruteforce"]
)
def test_optuna_sampler_proposes_each_member_once(sampler):
    space = {"blocks": Range(1, 4, integer=True), "filters": ([8], [8, 16]), "norm": (1, True, 1.0)}
    search = search_of("optuna", max_trials=40, options={"sampler": sampler})
    launch, _, _ = run_killed([], search, space, epochs=1)
    assert len({repr(add.values) for add in launch.added.values()}) == len(launch.added) == 24
    assert not any(add.wrong for add in launch.added.values())


@pytest.mark.parametrize("sampler", ["tpe", "cmaes", "qmc", "nsgaii", "random"])
def test_optuna_seed_changes_proposals(sampler):
    def proposals(seed):
        searcher = make_searcher("optuna", SPACE, seed, "maximize", {"sampler": sampler})
        for number in range(4):
            yield searcher.ask(number)
            searcher.tell(number, "finished", 0.5)

    first = list(proposals(1))
    assert first == list(proposals(1))
    assert not any(values in first for values in proposals(2))


@pytest.mark.long_but_first
@pytest.mark.parametrize("sampler", ["tpe", "nsgaii"])
def test_optuna_avoids_networks_that_violate_constraints(sampler):
    def violating(constraints):
        options = {"sampler": sampler}
        if sampler == "nsgaii":
            options["population_size"] = 8
        search = search_of("optuna", max_trials=80, options=options, constraints=constraints)
        launch, _, _ = run_killed([], search, SPACE, kind=Sized, epochs=1)
        blocks = [launch.added[f"net-{number}"].values["blocks.0"] for number in range(40, 80)]
        return sum(number > 6 for number in blocks)

    assert violating(["parameters <= 600"]) < 0.6 * violating([])


def test_optuna_receives_violations_of_prior_trials():
    earlier = [
        AddPriorTrial(
            0,
            {LEARNING_RATE: 0.003, "blocks.0": 3},
            (0.5,),
            "finished",
            0.5,
            "a-0",
            "runs/a",
            (-2.0,),
        )
    ]
    search = search_of("tpe", max_trials=1, constraints=["parameters <= 5"])
    launch, _, _ = run_killed([], search, SPACE, kind=Sized, epochs=1, earlier=earlier)
    trials = launch.searcher.study.trials
    assert trials[0].constraints == {"0": -2.0}
    assert trials[1].constraints["0"] > 0


def test_optuna_example_begins_with_favorites():
    options = {"sampler": "random", "first": [{"blocks.0": 7}]}
    search = search_of("optuna_searcher:Searcher", max_trials=2, options=options)
    launch, _, _ = run_killed([], search, SPACE, epochs=1)
    assert launch.added["net-0"].values["blocks.0"] == 7


CONDITIONAL = {
    "momentum": Range(0.0, 0.99, when={"name": "sgd"}),
    "name": ("sgd", "adam"),
    "depth": Range(1, 9, integer=True, step=2),
    "width": Choices(([8], [8, 16]), when={"depth": {"least": 5}}),
    "decay": Range(0.0, 0.3, step=0.1, prior=Prior(0.1)),
}


@pytest.mark.long_but_first
@pytest.mark.parametrize("sampler", ["tpe", "cmaes", "qmc", "nsgaii", "random", "groups"])
def test_optuna_proposes_active_keys_only(sampler):
    options = {"sampler": sampler}
    if sampler == "groups":
        options = {"sampler": "tpe", "group": True}
    search = search_of("optuna", max_trials=40, options=options, seed=1)
    kills = [20, 30, 40]
    reference, _, _ = run_killed([], search, CONDITIONAL, epochs=2)
    killed, _, differences = run_killed(kills, search, CONDITIONAL, epochs=2)
    assert killed.decisions == reference.decisions
    assert not differences
    for add in reference.added.values():
        assert not add.wrong
        assert member_of(CONDITIONAL, add.values) == add.values
        assert all(
            (name in add.values) == is_active(CONDITIONAL[name], add.values) for name in CONDITIONAL
        )
    assert {len(add.values) for add in reference.added.values()} >= {3, 4}


@pytest.mark.long_but_first
@pytest.mark.parametrize("sampler", ["grid", "bruteforce"])
def test_optuna_grid_of_conditional_space_is_complete(sampler):
    space = {**CONDITIONAL, "momentum": Range(0.0, 0.9, step=0.3, when={"name": "sgd"})}
    search = search_of("optuna", max_trials=999, options={"sampler": sampler})
    launch, _, _ = run_killed([], search, space, epochs=1)
    # momentums and adam; depths 1 and 3, and three depths with two widths; decays
    assert len(launch.added) == (4 + 1) * (2 + 3 * 2) * 4
    assert not any(add.wrong for add in launch.added.values())


def test_optuna_accepts_prior_trials_of_a_conditional_space():
    searcher = make_searcher("tpe", CONDITIONAL, 0, "maximize", {})
    values = {"name": "adam", "depth": 5, "width": [8, 16], "decay": 0.3}
    searcher.add_prior_trial(-1, values)
    searcher.tell(-1, "finished", 0.5)
    [trial] = searcher.study.trials
    assert trial.params["width"] == "[8, 16]"
    assert set(trial.params) == set(values)
