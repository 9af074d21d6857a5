"""Compute the learning rate of a step from a schedule of the spec, for any engine."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fleet.engines.base import EpochProgress
from fleet.engines.custom import load_custom
from fleet.errors import SettingError
from fleet.spec.model import one_line
from fleet.vocabulary.schedules import PLATEAU, SCHEDULES

_KEYS = ("train", "optimizer", "learning_rate")


@dataclass(frozen=True)
class Clock:
    """Counts steps and epochs.

    Attributes:
        first: number of the first step of the present epoch.
        progress: the present epoch.
        mode: ``min`` or ``max``: which values of the monitored metric are better.
    """

    first: int = 0
    progress: EpochProgress = EpochProgress()  # noqa: RUF009 - a tuple
    mode: str = "min"

    def epoch_of(self, step: int) -> int:
        """Return the number of finished epochs before a step."""
        return self.progress.epoch + (step - self.first) // self.progress.steps


def rate_at(rate: float | Mapping[str, Any], step: int, clock: Clock = Clock()) -> float:  # noqa: B008
    """Return the learning rate of a step, counted from 0.

    Args:
        rate: a number, or a schedule with its ``name`` and arguments.
        step: number of the step, from 0.
        clock: where training is.

    Raises:
        SettingError: the arguments of a schedule yield no learning rate.
    """
    if not isinstance(rate, Mapping):
        return rate
    name = rate["name"]
    arguments = {
        key: value
        for key, value in rate.items()
        if key not in ("name", "every") and value is not None
    }
    function: Callable[..., Any]
    time: Any = step
    steps = clock.progress.steps
    if any(key.endswith("_epochs") for key in arguments):
        time = clock.progress.epoch * steps + step - clock.first
        arguments = {
            key.removesuffix("_epochs") + "_steps" if key.endswith("_epochs") else key: (
                value * steps if key.endswith("_epochs") else value
            )
            for key, value in arguments.items()
        }
    if rate.get("every") == "epoch":
        time = clock.epoch_of(step)
    if ":" in name:
        function = load_custom(name, "schedule", "optimizer", "learning_rate")
        arguments |= _context(function, clock)
    else:
        function = SCHEDULES[name]
        if name == PLATEAU:
            time = clock.progress.monitored
            arguments.setdefault("mode", clock.mode)
    try:
        learning_rate = float(function(time, **arguments))
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise SettingError(f"the schedule {name}: {one_line(error)[:300]}", *_KEYS) from error
    if not (math.isfinite(learning_rate) and learning_rate >= 0):
        raise SettingError(
            f"the schedule {name} yields the learning rate {learning_rate} at step {step}; it "
            "should be finite and at least 0",
            *_KEYS,
        )
    return learning_rate


def _context(function: Callable[..., Any], clock: Clock) -> dict[str, Any]:
    """Return what a user's schedule asks for by the names of its parameters."""
    parameters = inspect.signature(function).parameters
    context = {
        "steps_per_epoch": clock.progress.steps,
        "monitored": clock.progress.monitored,
    }
    return {key: value for key, value in context.items() if key in parameters}


def nominal_rate(rate: float | Mapping[str, Any]) -> float:
    """Return the rate to which the rates of groups of parameters refer.

    This is the number, or the rate at which a schedule begins after its warm-up.
    """
    if not isinstance(rate, Mapping):
        return rate
    for key in ("warmup_target", "initial_learning_rate", "max_learning_rate"):
        if rate.get(key):
            return float(rate[key])
    return rate_at(rate, 0) or 1.0
