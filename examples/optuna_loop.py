"""An Optuna study over a running launch: each trial adds a network, which it may stop.

    python examples/optuna_loop.py SPEC RANKS TRIALS

The spec has no networks of its own, and `keep_open: 1min`, so that the run waits for the next. Here
Optuna is in charge; in examples/optuna_searcher.py the run is.
"""

import sys

import optuna

from fleet.api import launch

AT_ONCE = 4


def main(spec, ranks, trials):
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=0),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=3),
    )
    training = {}  # network -> its trial

    with launch(spec, ranks) as running:

        def begin():
            trial = study.ask()
            rate = trial.suggest_float("learning_rate", 1e-4, 0.5, log=True)
            entry = {"family": "softmax", "train": {"optimizer": {"learning_rate": rate}}}
            training[running.add(entry)] = trial

        for _ in range(min(AT_ONCE, trials)):
            begin()
        for report in running.reports():
            trial = training.get(report.network)
            if trial is None:  # it was stopped and has finished one more epoch
                continue
            trial.report(report.value, report.epoch)
            if report.is_last:
                study.tell(training.pop(report.network), report.value)
            elif trial.should_prune():
                running.stop(report.network)
                study.tell(training.pop(report.network), state=optuna.trial.TrialState.PRUNED)
            else:
                continue
            if len(study.trials) < trials:
                begin()
            elif not training:
                break
    best = study.best_trial
    rate = best.params["learning_rate"]
    print(
        f"{len(study.trials)} trials; the best: {best.value:.4f} with a learning rate of {rate:.2g}"
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
