"""Train the networks of `versus.py` as trials of Ray Tune: one CPU and one pipeline per trial.

python benchmarks/versus_ray.py FOLDER EPOCHS CPUS [crop]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any


def trial(config: dict[str, Any]) -> None:
    """Train one network in a process of Ray."""
    import tensorflow as tf
    from ray import tune

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    from versus_fit import datasets, fit

    data = datasets(config["folder"], config["transforms"])
    tune.report({"val_accuracy": fit(config["network"], data, config["epochs"])})


def main() -> None:
    import ray
    from ray import tune
    from versus_fit import NETWORKS

    folder, epochs, cpus = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    script_folder = Path(__file__).parent
    path = os.pathsep.join([str(script_folder), str(script_folder.parent)])
    ray.init(
        num_cpus=cpus,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
        runtime_env={"env_vars": {"PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"}},
    )
    best_results = tune.Tuner(
        tune.with_resources(trial, {"cpu": 1}),
        param_space={
            "network": tune.grid_search(list(NETWORKS)),
            "folder": folder,
            "epochs": epochs,
            "transforms": (sys.argv[4:] or ["resize"])[0],
        },
        run_config=tune.RunConfig(verbose=0, storage_path=os.environ["VERSUS_STORAGE"]),
    ).fit()
    if best_results.num_errors:
        raise SystemExit(str(best_results.errors[0]))
    for ray_trial in best_results:
        print(ray_trial.config["network"], ray_trial.metrics["val_accuracy"])


if __name__ == "__main__":
    main()
