"""Ray Tune's ASHA on the curves of `search_curves.py`: its scheduler decides, no process of Ray's is started.

python benchmarks/search_ray.py SEEDS
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from search_curves import EPOCHS, drawn, simulate


class RayAsha:
    """Asks `AsyncHyperBandScheduler` what is to become of each trial, as Ray's own loop does."""

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
        self._left = list(enumerate(drawn(seed)))
        self._trials: dict[int, Any] = {}

    def next(self) -> tuple[int, Mapping[str, float]] | None:
        if not self._left:
            return None
        number, values = self._left.pop(0)
        self._trials[number] = SimpleNamespace(trial_id=str(number))
        self._scheduler.on_trial_add(None, self._trials[number])
        return number, values

    def ended(self, number: int, epoch: int, accuracy: float) -> bool:
        results = {"training_iteration": epoch, "accuracy": accuracy}
        return (
            self._scheduler.on_trial_result(None, self._trials[number], results)
            == self._scheduler.CONTINUE
        )

    def finished(self, number: int, accuracy: float) -> None:
        results = {"training_iteration": EPOCHS, "accuracy": accuracy}
        self._scheduler.on_trial_complete(None, self._trials[number], results)


if __name__ == "__main__":
    print(json.dumps([asdict(simulate(RayAsha(seed), seed)) for seed in range(int(sys.argv[1]))]))
