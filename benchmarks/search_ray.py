"""Run Ray Tune's ASHA scheduler on learning curves, without processes of Ray.

    python benchmarks/search_ray.py SEEDS
    python benchmarks/search_ray.py --curves FILE --tasks N --networks N --gpus N --seed N

The first trains networks by the law of `search_curves.py`, the second along recorded curves
(`search_files.py`). It prints the results as JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from search_curves import EPOCHS, draw_networks, simulate
from search_files import read_tasks, simulate_task


class RayAsha:
    """A search with `AsyncHyperBandScheduler`, which is called as in Ray's own loop.

    Args:
        networks: values of each network.
        max_epochs: maximum epochs of a network.
        options: options of the scheduler.
    """

    def __init__(
        self, networks: Sequence[Mapping[str, Any]], max_epochs: int, **options: Any
    ) -> None:
        from ray.tune.schedulers import AsyncHyperBandScheduler

        self._scheduler = AsyncHyperBandScheduler(
            time_attr="training_iteration",
            metric="accuracy",
            mode="max",
            max_t=max_epochs,
            **options,
        )
        self._networks = list(enumerate(networks))
        self._trials: dict[int, Any] = {}

    def next_network(self) -> tuple[int, Mapping[str, Any]] | None:
        if not self._networks:
            return None
        number, values = self._networks.pop(0)
        self._trials[number] = SimpleNamespace(trial_id=str(number))
        self._scheduler.on_trial_add(None, self._trials[number])
        return number, values

    def end_epoch(self, number: int, epoch: int, accuracy: float) -> bool:
        result = {"training_iteration": epoch, "accuracy": accuracy}
        return (
            self._scheduler.on_trial_result(None, self._trials[number], result)
            == self._scheduler.CONTINUE
        )

    def finish_network(self, number: int, epoch: int, accuracy: float) -> None:
        result = {"training_iteration": epoch, "accuracy": accuracy}
        self._scheduler.on_trial_complete(None, self._trials[number], result)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("seeds", type=int, nargs="?", default=0)
    parser.add_argument("--curves", type=Path)
    parser.add_argument("--tasks", type=int)
    parser.add_argument("--networks", type=int, default=200)
    parser.add_argument("--gpus", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.curves is None:
        options = {"grace_period": 1, "reduction_factor": 3}
        costs = [
            simulate(RayAsha(draw_networks(seed), EPOCHS, **options), seed)
            for seed in range(arguments.seeds)
        ]
        print(json.dumps([asdict(cost) for cost in costs]))
        return
    results = []
    for task in read_tasks(arguments.curves)[: arguments.tasks]:
        drawn = task.draw(arguments.networks, arguments.seed)
        search = RayAsha([{}] * len(drawn.curves), drawn.max_epochs)
        results.append(simulate_task(search, drawn, arguments.gpus))
    print(json.dumps([asdict(result) for result in results]))


if __name__ == "__main__":
    main()
