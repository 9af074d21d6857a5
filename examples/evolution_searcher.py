"""Architecture search by aging evolution (Real et al., AAAI 2019).

    models:
      - family: cnn
        space: {"filters.0": [16, 32, 64], "filters.1": [32, 64, 128], kernel: [3, 5]}
        search:
          sampler: evolution_searcher:Searcher
          max_trials: 100
          options: {population: 20, sample: 5}

The best of a few random parents is mutated, and the oldest members are removed. Keys of the space
may have conditions: a mutation draws a value where a key comes into use.
"""

import random

from fleet.api import dependency_order, is_active


class Searcher:
    """Mutate one value of a good network at a time."""

    def __init__(self, space, seed, mode, population=20, sample=5):
        self.space = space
        self.names = dependency_order(space)
        self.random = random.Random(seed)
        self.sign = 1 if mode == "maximize" else -1
        self.population = population
        self.sample = min(sample, population)
        self.members = {}  # number -> values
        self.living = []  # (score, number) of possible parents

    def draw(self, name):
        values = self.space[name]
        if isinstance(values, tuple):
            return self.random.choice(values)
        return values.at(self.random.random())

    def propose(self):
        if len(self.members) < self.population or len(self.living) < self.sample:
            return self.complete({})
        parent = max(self.random.sample(self.living, self.sample))[1]
        values = dict(self.members[parent])
        values.pop(self.random.choice(list(values)))
        return self.complete(values)

    def complete(self, values):
        """Draw the missing values, and leave out unused ones."""
        member = {}
        for name in self.names:
            if is_active(self.space[name], member):
                member[name] = values[name] if name in values else self.draw(name)
        return member

    def ask(self, number):
        fresh = (
            values
            for values in (self.propose() for _ in range(1000))
            if values not in self.members.values()
        )
        if member := next(fresh, None):  # None: a small space is used up
            self.members[number] = member
        return member

    def add_prior_trial(self, number, values):
        """Add a network of an earlier run, or of another searcher of this run."""
        self.members[number] = values

    def report(self, number, epoch, value):
        return "go_on"

    def tell(self, number, outcome, value):
        if value is not None:
            self.living = [*self.living, (self.sign * value, number)][-self.population :]
