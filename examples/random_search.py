"""Random search over a small space, and the name of the best network.

    python examples/random_search.py [--ranks 5] [--networks 6] [--engine keras]

Writes a spec with random draws, trains them all in one launch, and reads the results.
"""

import argparse
import sys

from fleet.api import ExitStatus, read_results, run, write_spec


def make_spec(networks: int, engine: str, output: str) -> dict:
    """Return a spec as Python data: the same keys as in YAML."""
    space = {"train.optimizer.learning_rate": {"low": 0.01, "high": 0.1, "log": True}}
    if engine == "keras":
        space |= {"filters": [[8], [8, 16], [16, 32]], "dense": [[32], [64]]}
    return {
        "name": "random-search",
        "seed": 11,
        "data": {
            "source": "builtin:digits",
            "transforms": [
                {"decode": {"mode": "L"}},
                {"resize": {"size": [16, 16]}},
                {"scale": {"mean": 0.5, "std": 0.5}},
            ],
        },
        "models": [
            {
                "family": "cnn" if engine == "keras" else "softmax",
                "name": "draw",
                "count": networks,
                "space": space,
            }
        ],
        "train": {
            "batch": {"size": 64},
            "optimizer": {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9},
            "stopping": {"max_epochs": 6, "patience": 3},
        },
        "resources": {"engine": engine},
        "output": output,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=5)
    parser.add_argument("--networks", type=int, default=6)
    parser.add_argument("--engine", choices=("keras", "numpy"), default="keras")
    parser.add_argument("--output", default="runs/random-search")
    arguments = parser.parse_args()

    spec = write_spec(
        make_spec(arguments.networks, arguments.engine, arguments.output), "random_search.yaml"
    )
    for network in spec.networks:
        print(f"{network.name}: {network.parameters}", flush=True)
    status = run("random_search.yaml", arguments.ranks, "--fresh")
    best = read_results(arguments.output)[0]
    print(f"the best is {best.name} with {best.val_accuracy:.1%}, drawn as {best.drawn}")
    return 0 if status == ExitStatus.OK else int(status)


if __name__ == "__main__":
    sys.exit(main())
