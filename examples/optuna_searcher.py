"""The sampler `optuna` with a variation of your own: it proposes your favorite networks first.

    models:
      - family: cnn
        space: {train.optimizer.learning_rate: {low: 1.0e-5, high: 0.1, log: true}}
        search:
          sampler: optuna_searcher:Searcher
          max_trials: 50
          options:
            sampler: tpe
            pruner: median
            first: [{train.optimizer.learning_rate: 0.001}]

Without a variation you need no class: write `sampler: optuna`, or a word such as `sampler: tpe`.
"""

from fleet.search.optuna_samplers import OptunaSearcher


class Searcher(OptunaSearcher):
    """Begin with the values in the option `first`; the sampler completes them."""

    def __init__(self, space, seed, mode, first=(), **options):
        super().__init__("optuna", space, seed, mode, options)
        for values in first:
            self.study.enqueue_trial(values)
