"""Any sampler and pruner of Optuna as a searcher, in memory: the log of the run is its storage.

    models:
      - family: cnn
        space: {train.optimizer.learning_rate: {low: 1.0e-5, high: 0.1, log: true}}
        search:
          sampler: optuna_searcher:Searcher
          max_trials: 50
          options:
            sampler: tpe
            n_startup_trials: 5
            pruner: median
            pruner_options: {n_warmup_steps: 2}

`pruner_options` go to the pruner, all other options to the sampler; their names are Optuna's. With
several `objectives` the samplers nsgaii and tpe search for the Pareto front. Optuna's pruners then
do nothing; the pruning rules of FLEET use the first objective.
"""

import math

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

optuna.logging.set_verbosity(optuna.logging.WARNING)

SAMPLERS = {
    "tpe": optuna.samplers.TPESampler,
    "random": optuna.samplers.RandomSampler,
    "cmaes": optuna.samplers.CmaEsSampler,
    "nsgaii": optuna.samplers.NSGAIISampler,
}
PRUNERS = {
    "none": optuna.pruners.NopPruner,
    "median": optuna.pruners.MedianPruner,
    "asha": optuna.pruners.SuccessiveHalvingPruner,
    "hyperband": optuna.pruners.HyperbandPruner,
}


def distribution(values):
    """Convert a range of FLEET, or a list of choices, to an Optuna distribution."""
    if isinstance(values, tuple):
        return CategoricalDistribution(values)
    return (IntDistribution if values.integer else FloatDistribution)(
        values.low, values.high, log=values.log
    )


class Searcher:
    """Propose trials from an Optuna study and report their results to it."""

    def __init__(
        self, space, seed, mode, sampler="tpe", pruner="none", pruner_options=None, **options
    ):
        self.space = {name: distribution(values) for name, values in space.items()}
        self.has_several = isinstance(mode, tuple)
        self.study = optuna.create_study(
            study_name="fleet",
            directions=mode if self.has_several else [mode],
            pruner=PRUNERS[pruner](**pruner_options or {}),
            sampler=SAMPLERS[sampler](seed=seed, **options),
        )
        self.trials = {}
        self.proposed = []

    def ask(self, number):
        for _ in range(20):  # a small space is used up at some time
            trial = self.study.ask(self.space)
            if repr(trial.params) not in self.proposed:  # 1, 1.0 and True are three choices
                self.trials[number] = trial
                self.proposed.append(repr(trial.params))
                return trial.params
            self.study.tell(trial, state=TrialState.FAIL)
        return None

    def add_prior_trial(self, number, values):
        """Add a network of an earlier run, or of another searcher of this run."""
        self.study.enqueue_trial(values)
        self.trials[number] = self.study.ask(self.space)
        self.proposed.append(repr(self.trials[number].params))

    def report(self, number, epoch, value):
        if self.has_several or math.isnan(value):  # a later epoch may have a value
            return "go_on"
        self.trials[number].report(value, epoch)
        return "stop" if self.trials[number].should_prune() else "go_on"

    def tell(self, number, outcome, value):
        done = (
            outcome == "finished"
            and value is not None
            and (not self.has_several or not any(map(math.isnan, value)))
        )
        if done:
            state = TrialState.COMPLETE
        elif outcome == "pruned":
            state = TrialState.PRUNED
        else:
            state = TrialState.FAIL
        self.study.tell(self.trials.pop(number), value if done else None, state=state)
