"""Architecture search by aging evolution (Real et al., AAAI 2019).

    models:
      - family: cnn
        space: {"filters.0": [16, 32, 64], "filters.1": [32, 64, 128], kernel: [3, 5]}
        search:
          sampler: evolution_searcher:Searcher
          max_trials: 100
          options: {population: 20, sample: 5}

The best of a few random parents is mutated, and the oldest members are removed.
"""

import random


class Searcher:
    """Mutate one value of a good network at a time."""

    def __init__(self, space, seed, mode, population=20, sample=5):
        self.space = space
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
            return {name: self.draw(name) for name in self.space}
        parent = max(self.random.sample(self.living, self.sample))[1]
        name = self.random.choice(list(self.space))
        return {**self.members[parent], name: self.draw(name)}

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
