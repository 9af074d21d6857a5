"""Bayesian optimization by scikit-optimize as a searcher: a Gaussian process by default.

models:
  - family: cnn
    space: {train.optimizer.learning_rate: {low: 1.0e-5, high: 0.1, log: true}}
    search:
      sampler: skopt_searcher:Searcher
      max_trials: 50
      options: {base_estimator: ET, n_initial_points: 8}
"""

from skopt import Optimizer
from skopt.space import Categorical, Integer, Real


def is_list(values):
    """Return True for choices, with or without weights."""
    return not hasattr(values, "low")


def dimension(name, values):
    """Convert a range of FLEET to scikit-optimize; choices become their indices."""
    if getattr(values, "when", None) or getattr(values, "step", None):
        raise ValueError(f"{name} has a condition or a step, which scikit-optimize does not know")
    if is_list(values):
        return Categorical(range(len(values)))
    return (Integer if values.integer else Real)(
        values.low, values.high, "log-uniform" if values.log else "uniform"
    )


class Searcher:
    """Propose points from an optimizer; networks still training count as the worst so far."""

    def __init__(self, space, seed, mode, **options):
        self.space = space
        self.dimensions = [dimension(name, values) for name, values in space.items()]
        self.seed = seed
        self.options = options
        self.sign = -1 if mode == "maximize" else 1  # scikit-optimize minimizes
        self.proposed = {}
        self.losses = {}

    def ask(self, number):
        optimizer = Optimizer(
            self.dimensions,
            random_state=self.seed + number,
            **self.options,
        )
        worst = max(self.losses.values(), default=0.0)
        if self.proposed:
            optimizer.tell(
                list(self.proposed.values()),
                [self.losses.get(trial, worst) for trial in self.proposed],
            )
        point = optimizer.ask()
        if point in self.proposed.values():  # a small space, or its best point is known
            fresh = (
                draw
                for draw in optimizer.space.rvs(100, random_state=self.seed + number)
                if draw not in self.proposed.values()
            )
            point = next(fresh, None)
        if point is None:
            return None
        self.proposed[number] = point
        return {
            name: values[coordinate] if is_list(values) else coordinate
            for (name, values), coordinate in zip(self.space.items(), point, strict=True)
        }

    def add_prior_trial(self, number, values):
        """Add a network of an earlier run, or of another searcher of this run."""
        point = []
        for name, choices in self.space.items():
            if is_list(choices):  # 1, 1.0 and True are three choices
                point.append(list(map(repr, choices)).index(repr(values[name])))
            else:
                point.append(values[name])
        self.proposed[number] = point

    def report(self, number, epoch, value):
        return "go_on"

    def tell(self, number, outcome, value):
        if outcome != "failed" and value is not None:
            self.losses[number] = self.sign * value
