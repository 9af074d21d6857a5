"""Bayesian optimization with random forests: SMAC (Lindauer et al., JMLR 23, 2022).

    models:
      - family: cnn
        space: {train.optimizer.learning_rate: {low: 1.0e-5, high: 0.1, log: true}}
        search: {sampler: "smac_searcher:Searcher", max_trials: 50, options: {n_trials: 50}}

It needs the package smac. `n_trials` decides how many networks are drawn before the model is used.
Spaces with conditions or steps are refused.
"""

import math
import tempfile

from ConfigSpace import Categorical, ConfigurationSpace, Float, Integer
from smac import HyperparameterOptimizationFacade, Scenario
from smac.runhistory import StatusType, TrialValue

from fleet.spec.dimensions import Range, conditions_of


def hyperparameter(name, dimension):
    """Convert a dimension of the space; choices are numbered."""
    if conditions_of(dimension) or getattr(dimension, "step", None) is not None:
        raise ValueError(f"{name}: this searcher takes neither conditions nor steps")
    if not isinstance(dimension, Range):
        return Categorical(name, list(range(len(dimension))))
    kind = Integer if dimension.integer else Float
    return kind(name, (dimension.low, dimension.high), log=dimension.log)


class Searcher:
    """Propose trials of SMAC, and tell it their values."""

    def __init__(self, space, seed, mode, n_trials=100):
        self.space = space
        self.sign = -1 if mode == "maximize" else 1  # SMAC minimizes
        configurations = ConfigurationSpace(seed=seed)
        configurations.add(*(hyperparameter(name, space[name]) for name in space))
        self.folder = tempfile.TemporaryDirectory()  # the run's log is the storage
        scenario = Scenario(
            configurations,
            output_directory=self.folder.name,
            deterministic=True,
            n_trials=n_trials,
            seed=seed,
        )
        self.smac = HyperparameterOptimizationFacade(
            scenario, lambda config, seed: 0.0, overwrite=True, logging_level=30
        )
        self.trials = {}

    def ask(self, number):
        self.trials[number] = trial = self.smac.ask()
        return {
            name: value if isinstance(self.space[name], Range) else self.space[name][int(value)]
            for name, value in dict(trial.config).items()
        }

    def report(self, number, epoch, value):
        return "go_on"

    def tell(self, number, outcome, value):
        if value is None or math.isnan(value):
            result = TrialValue(cost=math.inf, status=StatusType.CRASHED)
        else:
            result = TrialValue(cost=self.sign * value)
        self.smac.tell(self.trials.pop(number), result)
