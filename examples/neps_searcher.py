"""Algorithms of NePS (neural pipeline search) that propose whole trainings.

    models:
      - family: cnn
        space: {train.optimizer.learning_rate: {low: 1.0e-5, high: 0.1, log: true}}
        search:
          sampler: neps_searcher:Searcher
          max_trials: 50
          options: {algorithm: bayesian_optimization, initial_design_size: 10}

It needs the package neural-pipeline-search. `algorithm` is a function of `neps.algorithms`; other
options are its arguments. Spaces with conditions or steps are refused.
"""

import math

import neps
import torch
from neps.optimizers.ask_and_tell import AskAndTell

from fleet.spec.dimensions import Range, conditions_of


def parameter(name, dimension):
    """Convert a dimension of the space; choices are numbered."""
    if conditions_of(dimension) or getattr(dimension, "step", None) is not None:
        raise ValueError(f"{name}: this searcher takes neither conditions nor steps")
    if not isinstance(dimension, Range):
        return neps.HPOCategorical(list(map(str, range(len(dimension)))))
    kind = neps.HPOInteger if dimension.integer else neps.HPOFloat
    return kind(dimension.low, dimension.high, log=dimension.log)


class Searcher:
    """Propose trials of NePS, and tell it their values."""

    def __init__(self, space, seed, mode, algorithm="bayesian_optimization", **options):
        torch.manual_seed(seed)  # NePS draws from the global generators
        self.space = space
        self.sign = -1 if mode == "maximize" else 1  # NePS minimizes
        parameters = neps.SearchSpace({name: parameter(name, space[name]) for name in space})
        make = getattr(neps.algorithms, algorithm)
        self.neps = AskAndTell(make(parameters, **options))
        self.trials = {}

    def ask(self, number):
        self.trials[number] = trial = self.neps.ask()
        return {
            name: value if isinstance(self.space[name], Range) else self.space[name][int(value)]
            for name, value in trial.config.items()
        }

    def report(self, number, epoch, value):
        return "go_on"

    def tell(self, number, outcome, value):
        if value is None or math.isnan(value):
            result = RuntimeError(outcome)
        else:
            result = self.sign * value
        self.neps.tell(self.trials.pop(number), result)
