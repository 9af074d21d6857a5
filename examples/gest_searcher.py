"""Any generator of the gest standard: a class with `suggest` and `ingest`, made from a VOCS.

    models:
      - family: cnn
        space: {train.optimizer.learning_rate: {low: 1.0e-5, high: 0.1, log: true}}
        search:
          sampler: gest_searcher:Searcher
          max_trials: 50
          options: {generator: "libensemble.gen_classes.sampling:UniformSample", random_seed: 3}

It needs the package gest-api and a library with generators, such as libEnsemble. Each key of the
space is a variable between 0 and 1, the share of its range. Other options are arguments of the
generator.
"""

import math

from gest_api.vocs import VOCS

from fleet.plugins import load_object
from fleet.spec.conditions import dependency_order, is_active
from fleet.spec.dimensions import value_at


class Searcher:
    """Pass suggestions of a generator on, and ingest the results."""

    def __init__(self, space, seed, mode, generator, **options):
        self.space = space
        self.modes = [mode] if isinstance(mode, str) else mode
        vocs = VOCS(
            variables={f"x{index}": [0, 1] for index in range(len(space))},
            objectives={f"y{index}": mode.upper() for index, mode in enumerate(self.modes)},
        )
        self.generator = load_object(generator, "generator")(vocs=vocs, **options)
        self.suggestions = {}

    def ask(self, number):
        [suggestion] = self.generator.suggest(1)
        self.suggestions[number] = suggestion
        shares = {name: suggestion[f"x{index}"] for index, name in enumerate(self.space)}
        values = {}
        for name in dependency_order(self.space):
            if is_active(self.space[name], values):
                share = min(float(shares[name]), math.nextafter(1, 0))
                values[name] = value_at(self.space[name], share)
        return values

    def report(self, number, epoch, value):
        return "go_on"

    def tell(self, number, outcome, value):
        suggestion = self.suggestions.pop(number)
        values = [value] if len(self.modes) == 1 else value
        if value is not None and not any(map(math.isnan, values)):
            results = {f"y{index}": float(number) for index, number in enumerate(values)}
            self.generator.ingest([{**suggestion, **results}])
