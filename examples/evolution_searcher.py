"""Architecture search by aging evolution (Real et al., AAAI 2019): the best of a few parents is mutated, the oldest go.

    models:
      - family: cnn
        space: {"filters.0": [16, 32, 64], "filters.1": [32, 64, 128], kernel: [3, 5]}
        search: {ask: evolution_searcher:Searcher, most: 100, options: {population: 20, sample: 5}}
"""

import random


class Searcher:
    """Mutates one value of a good network at a time."""

    def __init__(self, space, seed, mode, population=20, sample=5):
        self.space, self.random, self.sample = space, random.Random(seed), sample
        self.population, self.sign = population, 1 if mode == "maximize" else -1
        self.members, self.living, self.asked = {}, [], set()

    def draw(self, name):
        values = self.space[name]
        return self.random.choice(values) if isinstance(values, tuple) else values.at(self.random.random())

    def propose(self):
        if len(self.living) < min(self.sample, self.population) or len(self.asked) < self.population:
            return {name: self.draw(name) for name in self.space}
        _, parent = max(self.random.sample(self.living, self.sample))
        changed = self.random.choice(list(self.space))
        return {**self.members[parent], changed: self.draw(changed)}

    def ask(self, number):
        for _ in range(1000):  # a small space is used up at some time
            member = self.propose()
            if (key := str(member)) not in self.asked:
                self.asked.add(key)
                self.members[number] = member
                return member
        return None

    def report(self, number, epoch, value):
        return "go_on"

    def tell(self, number, outcome, value):
        if value is not None:
            self.living = [*self.living, (self.sign * value, number)][-self.population:]
