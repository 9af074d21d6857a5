"""Compare the sampler `tpe` with Optuna's own loop on recorded curves, with 16 workers.

A task of LCBench has 300 configurations. So that a sampler can propose any configuration, a random
forest (of extremely randomized trees) predicts its last value and its seconds per epoch. Workers
train networks to the end, and ask for the next one as soon as they are free. The regret is the
distance of the best network's value from the best of 20,000 random configurations.
"""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from sklearn.ensemble import ExtraTreesRegressor

from fleet.search.searcher import make_searcher
from fleet.spec.dimensions import Range, Space

WORKERS, NETWORKS, SEEDS = 16, 100, 3
# Key -> whether its scale is logarithmic, and whether it is an integer.
SCALES = {
    "batch_size": (True, True),
    "learning_rate": (True, False),
    "momentum": (False, False),
    "weight_decay": (False, False),
    "num_layers": (False, True),
    "max_units": (True, True),
    "max_dropout": (False, False),
}

Ask = Callable[[int], Mapping[str, Any]]
Tell = Callable[[int, float], object]


class Task:
    """A task whose networks follow a model of its recorded ones.

    Args:
        configurations: (networks, keys).
        values: the last value of each.
        seconds: the seconds of an epoch of each.
    """

    def __init__(self, configurations: np.ndarray, values: np.ndarray, seconds: np.ndarray) -> None:
        inputs = self._scaled(configurations)
        self._model = ExtraTreesRegressor(40, random_state=0)
        self._model.fit(inputs, np.stack([values, np.log(seconds)], axis=1))
        self.ranges = {
            name: _range(configurations[:, index], *SCALES[name])
            for index, name in enumerate(SCALES)
        }
        self.space: Space = dict(self.ranges)
        draws = np.random.default_rng(0).random((20_000, len(SCALES)))
        members = [
            [self.ranges[name].at(share) for name, share in zip(SCALES, row, strict=True)]
            for row in draws
        ]
        self.best = float(self._model.predict(self._scaled(np.array(members)))[:, 0].max())

    def train(self, values: Mapping[str, Any]) -> tuple[float, float]:
        """Return the last value of a network, and its seconds per epoch."""
        row = np.array([[values[name] for name in SCALES]], float)
        [[value, log_seconds]] = self._model.predict(self._scaled(row))
        return float(value), float(np.exp(log_seconds))

    def regret(self, ask: Ask, tell: Tell) -> float:
        """Train networks on all workers; return the regret of the best one."""
        best = -np.inf
        busy = list[tuple[float, int, float]]()
        for number in range(NETWORKS):
            now = 0.0
            if len(busy) == WORKERS:
                now, ended, result = heapq.heappop(busy)
                tell(ended, result)
            value, seconds = self.train(ask(number))
            best = max(best, value)
            heapq.heappush(busy, (now + seconds, number, value))
        return self.best - float(best)

    @staticmethod
    def _scaled(configurations: np.ndarray) -> np.ndarray:
        scaled = configurations.astype(float)
        for index, (is_log, _) in enumerate(SCALES.values()):
            if is_log:
                scaled[:, index] = np.log(scaled[:, index])
        return scaled


def _range(column: np.ndarray, is_log: bool, is_integer: bool) -> Range:
    low, high = float(column.min()), float(column.max())
    if is_integer:
        return Range(int(low), int(high), log=is_log, integer=True)
    return Range(low, high, log=is_log)


def tpe_of_fleet(task: Task, seed: int) -> float:
    """Return the regret of the sampler `tpe`."""
    searcher = make_searcher("tpe", task.space, seed, "maximize", {})
    return task.regret(
        lambda number: searcher.ask(number) or {},
        lambda number, value: searcher.tell(number, "finished", value),
    )


def tpe_of_optuna(task: Task, seed: int) -> float:
    """Return the regret of Optuna's own loop."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    trials = {}

    def ask(number: int) -> Mapping[str, Any]:
        trials[number] = trial = study.ask()
        return {
            name: trial.suggest_int(name, int(limits.low), int(limits.high), log=limits.log)
            if limits.integer
            else trial.suggest_float(name, limits.low, limits.high, log=limits.log)
            for name, limits in task.ranges.items()
        }

    return task.regret(ask, lambda number, value: study.tell(trials.pop(number), value))


def random_of_fleet(task: Task, seed: int) -> float:
    """Return the regret of the sampler `random`."""
    searcher = make_searcher("random", task.space, seed, "maximize", {})
    return task.regret(lambda number: searcher.ask(number) or {}, lambda number, value: None)


SAMPLERS = {
    "tpe": tpe_of_fleet,
    "Optuna's own loop, TPESampler": tpe_of_optuna,
    "random": random_of_fleet,
}


def compare_samplers(file: Path, tasks: int | None = None) -> list[dict[str, Any]]:
    """Return a row for each sampler: its regret on the tasks of a file.

    Args:
        file: `lcbench.npz`, or another file with its arrays.
        tasks: only the first ones.
    """
    with np.load(file, allow_pickle=False) as arrays:
        recorded = [arrays[name] for name in ("config", "value", "epoch_s")]
    regrets: dict[str, list[float]] = {name: [] for name in SAMPLERS}
    for configurations, values, seconds in list(zip(*recorded, strict=True))[:tasks]:
        task = Task(configurations, values[:, -1], seconds)
        for name, measure in SAMPLERS.items():
            of_seeds = [measure(task, seed) for seed in range(SEEDS)]
            regrets[name].append(statistics.median(of_seeds))
    return [
        {
            "curves": file.stem,
            "sampler": name,
            "tasks": len(of_tasks),
            "networks": NETWORKS,
            "workers": WORKERS,
            "seeds": SEEDS,
            "regret_median": statistics.median(of_tasks),
            "regret_worst": max(of_tasks),
        }
        for name, of_tasks in regrets.items()
    ]
