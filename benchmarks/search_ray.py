"""Run Ray Tune's ASHA scheduler on the curves of `search_curves.py`, without processes of Ray.

python benchmarks/search_ray.py SEEDS
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from search_curves import EPOCHS, draw_networks, simulate


class RayAsha:
    """A search with `AsyncHyperBandScheduler`, which is called as in Ray's own loop."""

    def __init__(self, seed: int) -> None:
        from ray.tune.schedulers import AsyncHyperBandScheduler

        self._scheduler = AsyncHyperBandScheduler(
            time_attr="training_iteration",
            metric="accuracy",
            mode="max",
            max_t=EPOCHS,
            grace_period=1,
            reduction_factor=3,
        )
        self._networks = list(enumerate(draw_networks(seed)))
        self._trials: dict[int, Any] = {}

    def next_network(self) -> tuple[int, Mapping[str, float]] | None:
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

    def finish_network(self, number: int, accuracy: float) -> None:
        result = {"training_iteration": EPOCHS, "accuracy": accuracy}
        self._scheduler.on_trial_complete(None, self._trials[number], result)


if __name__ == "__main__":
    print(json.dumps([asdict(simulate(RayAsha(seed), seed)) for seed in range(int(sys.argv[1]))]))
