"""Read recorded learning curves from files, and simulate GPUs that train networks along them.

`search.py`, `search_ray.py` and others share it. It imports nothing of FLEET, which Ray's
environment lacks. Three kinds of files are read, with any number of tasks, networks and epochs:

- `.npz` with `value` (tasks, networks, epochs), more is better, and `epoch_s` (tasks, networks);
- `.npz` with `loss` (tasks, networks, points), less is better; the first point is the untrained
  network, and an epoch takes one second;
- `.json` or `.json.gz`: task -> `mode` (`max` or `min`) and `trials`, each with `steps`, `seconds`
  and `value` per evaluation; an evaluation ends an epoch, except one of the untrained network.
"""

from __future__ import annotations

import gzip
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from search_curves import GPUS, NEAR, Search, train


class WrongFile(ValueError):
    """A file of curves is in none of the known forms."""


@dataclass(frozen=True)
class RecordedCurve:
    """The learning curve of a network.

    Attributes:
        number: number of the network in its file.
        values: what was measured after each epoch; NaN once training has diverged.
        measured: the same, negated if less is better.
        epoch_s: seconds of each epoch on one GPU.
        config: the settings of the network by name.
    """

    number: int
    values: tuple[float, ...]
    measured: tuple[float, ...]
    epoch_s: tuple[float, ...]
    config: Mapping[str, Any]

    @property
    def accuracies(self) -> tuple[float, ...]:
        """What counts when a search is judged: nothing is known but what was measured."""
        return self.measured

    def seconds(self, epoch: int) -> float:
        """Return the seconds of an epoch, counted from 1."""
        return self.epoch_s[epoch - 1]

    @property
    def total_s(self) -> float:
        """The seconds of all epochs."""
        return sum(self.epoch_s)


@dataclass(frozen=True)
class Task:
    """Networks that were trained on the same data.

    Attributes:
        name: name of the task in its file.
        mode: `max` or `min`.
        curves: the networks.
    """

    name: str
    mode: str
    curves: tuple[RecordedCurve, ...]

    @cached_property
    def best(self) -> float:
        """The best value of all networks, negated if less is better."""
        return max(
            value for curve in self.curves for value in curve.measured if not math.isnan(value)
        )

    @cached_property
    def max_epochs(self) -> int:
        """Epochs of the longest curve."""
        return max(len(curve.values) for curve in self.curves)

    @cached_property
    def total_s(self) -> float:
        """GPU seconds that training all networks to their ends takes."""
        return sum(curve.total_s for curve in self.curves)

    def share_of_best(self, value: float) -> float:
        """Return a value, negated if less is better, as a share of the best one.

        A loss that is 1 % above the lowest one is about 99 % of the best.
        """
        if value == self.best:
            return 1.0
        if not math.isfinite(value):
            return 0.0
        return value / self.best if self.mode == "max" else self.best / value

    def draw(self, networks: int, seed: int) -> Task:
        """Return the task with at most so many networks, drawn without replacement and in order."""
        drawn = random.Random(f"{self.name} {seed}").sample(
            self.curves, min(networks, len(self.curves))
        )
        return Task(self.name, self.mode, tuple(drawn))


@dataclass(frozen=True)
class TaskResult:
    """What a search has come to on a task.

    Attributes:
        best: the best value of a trained epoch, as a share of the best one of all networks.
        share: GPU seconds, as a share of the cost of training all networks to their ends.
        until_near: the same until a network came within 1 % of the best; None if none did.
    """

    best: float
    share: float
    until_near: float | None

    @property
    def is_near(self) -> bool:
        """Whether the search came near the best network."""
        return self.until_near is not None


def simulate_task(search: Search, task: Task, gpus: int = GPUS) -> TaskResult:
    """Train the networks of a task on GPUs, one on each, as a search decides.

    Args:
        search: what decides; its networks are numbered as in `task.curves`.
        task: the networks.
        gpus: number of GPUs.
    """
    best, near, gpu_s = -math.inf, None, 0.0
    for epoch in train(search, lambda number, values: task.curves[number], gpus):
        gpu_s = epoch.gpu_s
        best = max(best, -math.inf if math.isnan(epoch.accuracy) else epoch.accuracy)
        if near is None and task.share_of_best(best) >= NEAR:
            near = gpu_s / task.total_s
    return TaskResult(task.share_of_best(best), gpu_s / task.total_s, near)


# ---- files --------------------------------------------------------------------------------------


def read_tasks(path: Path) -> list[Task]:
    """Read the tasks of a file.

    Raises:
        WrongFile: the file is in none of the known forms.
        OSError: it cannot be read.
    """
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                return list(_from_arrays(path, arrays))
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return [_from_trials(name, task) for name, task in json.load(file).items()]
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, BadZipFile) as error:
        raise WrongFile(
            f"{path}: {error}; expected an .npz file with `value` and `epoch_s`, or with `loss`, "
            "or a .json file with `mode` and `trials` for each task"
        ) from error


def _from_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> Iterator[Task]:
    if "value" in arrays:
        all_values, mode = arrays["value"].astype(float), "max"
        all_seconds = arrays["epoch_s"].astype(float)
    elif "loss" in arrays:
        all_values, mode = arrays["loss"].astype(float)[:, :, 1:], "min"
        all_seconds = np.ones(all_values.shape[:2])
    else:
        raise KeyError("neither `value` nor `loss`")
    tasks = arrays["tasks"] if "tasks" in arrays else range(len(all_values))
    for index, (name, values, seconds) in enumerate(
        zip(tasks, all_values, all_seconds, strict=True)
    ):
        configs = _configs(arrays, index, len(values))
        yield Task(
            str(name),
            mode,
            tuple(
                _curve(number, mode, curve.tolist(), [epoch_s] * len(curve), config)
                for number, (curve, epoch_s, config) in enumerate(
                    zip(values, seconds.tolist(), configs, strict=True)
                )
            ),
        )


def _configs(
    arrays: Mapping[str, np.ndarray], task: int, networks: int
) -> Sequence[Mapping[str, Any]]:
    if "config" not in arrays:
        return [{}] * networks
    if "config_names" in arrays:
        names = arrays["config_names"].tolist()
        return [dict(zip(names, values, strict=True)) for values in arrays["config"][task].tolist()]
    configs = json.loads(str(arrays["config"]))
    if isinstance(configs, Mapping):
        configs = list(configs.values())
    return [
        config if isinstance(config, Mapping) else {"config": config} for config in configs[task]
    ]


def _from_trials(name: str, task: Mapping[str, Any]) -> Task:
    mode = task["mode"]
    if mode not in ("max", "min"):
        raise ValueError(f"{name}: `mode` is {mode!r}, neither max nor min")
    curves = []
    for number, trial in enumerate(task["trials"]):
        values = [math.nan if value is None else float(value) for value in trial["value"]]
        seconds = trial["seconds"]
        first = 1 if trial["steps"][0] <= 1 and len(values) > 1 else 0
        epoch_s = [
            after - before for before, after in zip([0.0, *seconds[:-1]], seconds, strict=True)
        ]
        if first:
            epoch_s[1] += epoch_s[0]
        curves.append(
            _curve(number, mode, values[first:], epoch_s[first:], trial.get("hparams", {}))
        )
    return Task(name, mode, tuple(curves))


def _curve(
    number: int,
    mode: str,
    values: Sequence[float],
    epoch_s: Sequence[float],
    config: Mapping[str, Any],
) -> RecordedCurve:
    sign = 1 if mode == "max" else -1
    return RecordedCurve(
        number, tuple(values), tuple(sign * value for value in values), tuple(epoch_s), config
    )
