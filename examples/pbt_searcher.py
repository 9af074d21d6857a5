"""Population based training (Jaderberg et al., arXiv:1711.09846).

    models:
      - family: cnn
        space: {train.optimizer.learning_rate: {low: 1.0e-4, high: 0.1, log: true}}
        search:
          sampler: pbt_searcher:Searcher
          max_trials: 100
          max_concurrent: 8
          options: {every: 3}

Every few epochs a network is compared with the others at the same age. Networks in the worst
quarter stop; the next proposed network starts from the weights and optimizer of one in the best
quarter, with slightly changed values. Keys of the space have no conditions and no steps, since a
child with other keys could not continue its parent's training.
"""

import random


class Searcher:
    """Give each child the age that its parent had when the child was proposed."""

    def __init__(self, space, seed, mode, population=8, every=3, quarter=0.25, factors=(0.8, 1.25)):
        for name, values in space.items():
            if getattr(values, "when", None) or getattr(values, "step", None):
                raise ValueError(
                    f"{name} has a condition or a step; population based training has none"
                )
        self.space = space
        self.random = random.Random(seed)
        self.sign = 1 if mode == "maximize" else -1
        self.population = population
        self.every = every
        self.quarter = quarter
        self.factors = factors
        self.members = {}  # number -> values
        self.ages = {}  # number -> epochs, with those of its ancestors
        self.peers = {}  # age -> sorted scores
        self.waiting = []  # parents of the next children

    def ask(self, number):
        if self.waiting:
            parent = self.waiting.pop(0)
            self.members[number] = {
                name: self.near(name, value) for name, value in self.members[parent].items()
            }
            self.ages[number] = self.ages[parent]
            return {**self.members[number], "parent": parent}
        if number >= self.population:
            return None
        self.members[number] = {name: self.draw(values) for name, values in self.space.items()}
        self.ages[number] = 0
        return self.members[number]

    def report(self, number, epoch, value):
        self.ages[number] += 1
        if self.ages[number] % self.every:
            return "go_on"
        if value != value:  # NaN is the worst
            value = -self.sign * float("inf")
        score = (self.sign * value, number)
        age = self.ages[number]
        self.peers[age] = peers = sorted([*self.peers.get(age, ()), score])
        few = int(self.quarter * len(peers))
        if score not in peers[:few]:
            return "go_on"
        self.waiting.append(self.random.choice(peers[-few:])[1])
        return "stop"

    def tell(self, number, outcome, value):
        """Do nothing: the outcome of a network is not used."""

    def draw(self, values):
        if isinstance(values, tuple):
            return self.random.choice(values)
        return values.at(self.random.random())  # choices with weights have it, too

    def near(self, name, value):
        values = self.space[name]
        if not hasattr(values, "low"):
            return self.random.choice(values) if self.random.random() < 0.25 else value
        moved = min(max(value * self.random.choice(self.factors), values.low), values.high)
        return round(moved) if values.integer else moved
