"""Set the learning rate of each group of parameters, also by ``torch.optim.lr_scheduler``.

A scheduler of PyTorch runs on an optimizer without weights, which has the groups of the true one.
It has no state in checkpoints: a resumed network steps it as often as before.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.optim import lr_scheduler

from fleet.engines.custom import load_custom, with_default_rate
from fleet.engines.schedules import Clock, nominal_rate, rate_at
from fleet.engines.torch.several_optimizers import SeveralOptimizers
from fleet.errors import SettingError
from fleet.spec import Train
from fleet.spec.engines import find_engine
from fleet.spec.model import wrapping_errors
from fleet.spec.train import Optimizer
from fleet.vocabulary.torch_schedules import TORCH_SCHEDULES

_KEYS = ("train", "optimizer", "learning_rate")
_CHANGED = ("lr", "momentum", "betas")  # options that schedulers change


def find_scheduler(rate: Any) -> type[lr_scheduler.LRScheduler] | None:
    """Return the class of a schedule: of ``torch.optim.lr_scheduler``, or the user's.

    Args:
        rate: the learning rate of the spec, a number or a schedule.

    Returns:
        None for another schedule, and for a number.

    Raises:
        SettingError: the import path names nothing.
    """
    if not isinstance(rate, Mapping):
        return None
    name = str(rate.get("name"))
    if name in TORCH_SCHEDULES:
        kind: type[lr_scheduler.LRScheduler] = getattr(lr_scheduler, name)
        return kind
    if ":" not in name:
        return None
    schedule = load_custom(name, "schedule", "optimizer", "learning_rate")
    if isinstance(schedule, type) and issubclass(schedule, lr_scheduler.LRScheduler):
        return schedule
    return None


def with_first_rate(train: Train) -> Optimizer:
    """Return the settings of the optimizer with the learning rate at which it begins.

    The spec does not know it of an optimizer of the user, nor whether a schedule of the user is a
    class that begins with the rate of the optimizer.

    Raises:
        SettingError: a function or class of the user does not exist.
    """
    optimizer = train.optimizer
    rate = optimizer.learning_rate
    if isinstance(rate, Mapping) and ":" in rate["name"] and find_scheduler(rate) is not None:
        word = find_engine("torch").words.optimizers.get(optimizer.name)
        if train.optimizers is not None:
            first: Any = 1.0  # multiplies those of the optimizers
        elif word is not None:
            first = word.learning_rate
        else:
            first = with_default_rate(replace(optimizer, learning_rate=None)).learning_rate
        return replace(optimizer, learning_rate={"initial_learning_rate": first, **rate})
    return with_default_rate(optimizer)


class LearningRates:
    """The learning rates of an optimizer's groups.

    Args:
        rate: the learning rate of the spec, a number or a schedule.
        optimizer: the optimizer, as created with :func:`fleet.engines.schedules.nominal_rate`.

    Raises:
        SettingError: the schedule cannot be computed.
    """

    def __init__(
        self, rate: float | Mapping[str, Any], optimizer: torch.optim.Optimizer | SeveralOptimizers
    ) -> None:
        self._rate = rate
        rates = [group["lr"] / nominal_rate(rate) for group in optimizer.param_groups]
        self._factors = rates
        self._main = rates.index(1.0) if 1.0 in rates else 0  # a group without its own rate
        self._scheduler = None
        if isinstance(rate, Mapping) and find_scheduler(rate) is not None:
            self._scheduler = _Scheduler(rate, optimizer)

    def options(self, step: int, clock: Clock, scale: float) -> list[dict[str, Any]]:
        """Return the options of each group that change, for a step.

        Args:
            step: number of the step, from 0.
            clock: where training is.
            scale: factor of the learning rates.
        """
        if self._scheduler is None:
            rate = rate_at(self._rate, step, clock) * scale
            return [{"lr": rate * factor} for factor in self._factors]
        return [
            {**options, "lr": options["lr"] * scale}
            for options in self._scheduler.options(step, clock)
        ]

    def rate(self, step: int, clock: Clock, scale: float) -> float:
        """Return the learning rate of a step, for parameters without their own."""
        if self._scheduler is None:
            return rate_at(self._rate, step, clock) * scale
        return float(self.options(step, clock, scale)[self._main]["lr"])


class _Scheduler:
    """A scheduler of PyTorch."""

    def __init__(
        self, settings: Mapping[str, Any], optimizer: torch.optim.Optimizer | SeveralOptimizers
    ) -> None:
        self._settings = settings
        self._defaults = dict(optimizer.defaults)
        self._groups = [
            {key: value for key, value in group.items() if key not in ("params", "param_names")}
            for group in optimizer.param_groups
        ]
        self._steps_per_epoch = 0
        self._restart(Clock())

    def options(self, step: int, clock: Clock) -> list[dict[str, Any]]:
        count = step
        if self._settings.get("every") == "epoch":
            count = clock.epoch_of(step)
        is_stale = self._follows_epochs and self._steps_per_epoch != clock.progress.steps
        if count < self._count or is_stale:
            self._restart(clock)
        with wrapping_errors(f"the schedule {self._settings['name']}:", SettingError, *_KEYS):
            while self._count < count:
                self._optimizer.step()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    self._scheduler.step()
                self._count += 1
        return [
            {key: group[key] for key in _CHANGED if key in group}
            for group in self._optimizer.param_groups
        ]

    @property
    def _follows_epochs(self) -> bool:
        return "epochs" in self._settings and "steps_per_epoch" not in self._settings

    def _restart(self, clock: Clock) -> None:
        self._count = 0
        self._steps_per_epoch = clock.progress.steps
        self._optimizer = _Weightless(
            [{**group, "params": [torch.zeros(1)]} for group in self._groups], self._defaults
        )
        name = self._settings["name"]
        with (
            wrapping_errors(f"the schedule {name}:", SettingError, *_KEYS),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            self._scheduler = self._make(self._settings)

    def _make(self, settings: Mapping[str, Any]) -> Any:
        arguments = {
            key: value
            for key, value in settings.items()
            if key not in ("name", "every", "initial_learning_rate") and value is not None
        }
        if self._follows_epochs and settings is self._settings:
            arguments["steps_per_epoch"] = self._steps_per_epoch
        if isinstance(arguments.get("lr_lambda"), str):
            arguments["lr_lambda"] = load_custom(
                arguments["lr_lambda"], "schedule", "optimizer", "learning_rate"
            )
        if "schedulers" in arguments:
            arguments["schedulers"] = _created(arguments["schedulers"], self._make)
        kind: Any = find_scheduler(settings)
        return kind(self._optimizer, **arguments)


def _created(schedulers: Any, make: Any) -> Sequence[Any]:
    """Return the schedulers of a list of mappings."""
    for settings in schedulers:
        if find_scheduler(settings) is None:
            raise SettingError(
                f"schedulers: {settings!r} should be a mapping with the name of a class of "
                "torch.optim.lr_scheduler, or the import path of one",
                *_KEYS,
            )
    return [make(settings) for settings in schedulers]


class _Weightless(torch.optim.Optimizer):
    """An optimizer without weights to update."""

    def step(self, closure: Any = None) -> None:
        """Do nothing."""
