"""The names and options of Optuna's samplers and pruners in a spec, and mistakes in them."""

import sys

import pytest

from fleet.domain.run import RunState
from fleet.errors import SearchKeyError, SpecError, UserError
from fleet.runtime.searchers import start_searches
from fleet.search.searcher import make_searcher
from fleet.spec import load
from fleet.spec.dimensions import Range
from fleet.spec.entries import with_extreme_networks
from tests.refusals import refused

optuna = pytest.importorskip("optuna")

REAL = {"rate": Range(1e-5, 0.1, log=True), "dropout": Range(0.0, 0.5)}
FINITE = {"blocks": Range(1, 4, integer=True), "filters": ([8], [8, 16])}


class Own(optuna.samplers.RandomSampler):
    """A sampler of a user's."""

    def __init__(self, scale=1):
        super().__init__(seed=scale)
        self.scale = scale


def make(word="optuna", within=REAL, modes="maximize", **options):
    return make_searcher(word, within, 0, modes, options)


def sampler_of(*arguments, **options):
    return make(*arguments, **options).study.sampler


def pruner_of(name, **options):
    return make(pruner=name, pruner_options=options).study.pruner


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("tpe", "TPESampler"),
        ("cmaes", "CmaEsSampler"),
        ("qmc", "QMCSampler"),
        ("nsgaii", "NSGAIISampler"),
        ("optuna", "TPESampler"),
    ],
)
def test_word_names_a_sampler(word, name):
    assert type(sampler_of(word)).__name__ == name


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("TPESampler", "TPESampler"),
        ("nsgaiii", "NSGAIIISampler"),
        ("brute_force", "BruteForceSampler"),
        ("grid", "GridSampler"),
        ("CMA-ES", "CmaEsSampler"),
    ],
)
def test_sampler_is_named_in_many_ways(name, kind):
    assert type(sampler_of(within=FINITE, sampler=name)).__name__ == kind


@pytest.mark.parametrize(
    ("name", "options", "kind"),
    [
        ("median", {"n_warmup_steps": 2}, "MedianPruner"),
        ("asha", {}, "SuccessiveHalvingPruner"),
        ("none", {}, "NopPruner"),
        ("HyperbandPruner", {"reduction_factor": 4}, "HyperbandPruner"),
        ("percentile", {"percentile": 25.0}, "PercentilePruner"),
        ("threshold", {"upper": 1}, "ThresholdPruner"),
        ("patient", {"wrapped_pruner": "median", "patience": 1}, "PatientPruner"),
    ],
)
def test_pruner_is_named(name, options, kind):
    assert type(pruner_of(name, **options)).__name__ == kind


def test_own_sampler_is_loaded_without_a_seed():
    sampler = sampler_of(sampler="tests.fleet.search.test_optuna_options:Own", scale=3)
    assert sampler.scale == 3


def test_option_takes_a_sampler_with_options():
    sampler = sampler_of(
        sampler="partialfixed",
        fixed_params={"dropout": 0.25},
        base_sampler={"sampler": "tpe", "n_startup_trials": 3},
    )
    assert type(sampler._base_sampler).__name__ == "TPESampler"
    assert make(sampler="partialfixed", fixed_params={"dropout": 0.25}).ask(0)["dropout"] == 0.25


def test_option_takes_a_crossover():
    sampler = sampler_of("nsgaii", crossover={"crossover": "sbx", "eta": 2})
    assert type(sampler._child_generation_strategy._crossover).__name__ == "SBXCrossover"


@pytest.mark.parametrize(
    ("word", "options", "path", "names"),
    [
        ("tpe", {"n_startup_trails": 3}, ("n_startup_trails",), ["did you mean n_startup_trials"]),
        ("tpe", {"n_startup_trials": "3"}, ("n_startup_trials",), ["integer"]),
        ("tpe", {"multivariate": 1}, ("multivariate",), ["true or false"]),
        ("tpe", {"seed": 3}, ("seed",), ["search: {seed"]),
        ("tpe", {"constraints_func": "a:b"}, ("constraints_func",), ["constraints"]),
        ("tpe", {"sampler": "gp"}, ("sampler",), ["sampler: optuna"]),
        ("optuna", {"sampler": "tpee"}, ("sampler",), ["did you mean tpe"]),
        ("optuna", {"sampler": "nomodule:Class"}, ("sampler",), ["nomodule"]),
        ("optuna", {"sampler": ["tpe"]}, ("sampler",), ["tpe"]),
        ("tpe", {"pruner": "medain"}, ("pruner",), ["did you mean median"]),
        (
            "tpe",
            {"pruner": "median", "pruner_options": {"warmup_steps": 3}},
            ("pruner_options", "warmup_steps"),
            ["n_warmup_steps"],
        ),
        ("tpe", {"pruner": "percentile"}, ("pruner_options",), ["percentile"]),
        ("tpe", {"pruner_options": {"n_warmup_steps": 3}}, ("pruner_options",), ["pruner: NAME"]),
        ("nsgaii", {"crossover": "sbxx"}, ("crossover",), ["did you mean sbx"]),
        (
            "optuna",
            {"sampler": "partialfixed", "fixed_params": {"dropout": 2}},
            ("fixed_params", "dropout"),
            ["not between"],
        ),
        (
            "optuna",
            {"sampler": "grid", "search_space": {"drop": [0.1]}},
            ("search_space", "drop"),
            ["rate, dropout"],
        ),
    ],
)
def test_wrong_option_is_located(word, options, path, names):
    with refused(SearchKeyError, *names) as refusal:
        make(word, **options)
    assert refusal.value.path == ("options", *path)


@pytest.mark.parametrize("sampler", ["grid", "bruteforce"])
def test_finite_sampler_refuses_real_numbers(sampler):
    with refused(SearchKeyError, "another sampler"):
        make(sampler=sampler)


def test_sampler_of_one_objective_refuses_several():
    with refused(SearchKeyError, "CmaEsSampler", "multi-objective"):
        make("cmaes", modes=("maximize", "minimize"))


def test_pruner_refuses_several_objectives():
    with refused(SearchKeyError, "prune:"):
        make("tpe", modes=("maximize", "minimize"), pruner="median")


def test_unknown_sampler_has_a_near_name():
    with refused(UserError, "'tpee'", "did you mean tpe"):
        make("tpee")


def test_missing_optuna_is_reported_with_its_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with refused(UserError, "tpe needs Optuna", "pip install optuna"):
        make("tpe")


def test_missing_package_is_reported_with_its_remedy(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with refused(UserError, "GPSampler needs scipy torch", "pip install scipy torch"):
        make("gp")


def test_search_mistake_has_its_line(tmp_path):
    file = tmp_path / "spec.yaml"
    file.write_text(
        """\
data: {source: "builtin:digits"}
models:
  - family: softmax
    space: {train.optimizer.learning_rate: {low: 0.001, high: 0.1}}
    search:
      sampler: tpe
      max_trials: 3
      options:
        n_startup_trials: 4
        n_candidates: 3
resources: {engine: numpy}
"""
    )
    spec = with_extreme_networks(load(file))
    with pytest.raises(SpecError) as refusal:
        start_searches(spec, RunState())
    [mistake] = refusal.value.mistakes
    assert (mistake.line, mistake.key) == (10, "models[0].search.options.n_candidates")
    assert "n_ei_candidates" in mistake.right


@pytest.mark.parametrize(("sampler", "is_noted"), [("qmc", True), ("tpe", False), ("random", True)])
def test_sampler_without_constraints_is_noted(tmp_path, sampler, is_noted):
    file = tmp_path / "spec.yaml"
    file.write_text(
        f"""\
data: {{source: "builtin:digits"}}
models:
  - family: softmax
    space: {{train.optimizer.learning_rate: {{low: 0.001, high: 0.1}}}}
    search: {{sampler: {sampler}, max_trials: 3, constraints: [parameters <= 1e6]}}
resources: {{engine: numpy}}
"""
    )
    [search] = start_searches(with_extreme_networks(load(file)), RunState()).values()
    assert ("does not use the constraints" in search.note) == is_noted
