"""The Keras optimizer of a spec."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import keras

from fleet.errors import SettingError, UserError
from fleet.plugins import load_object
from fleet.spec import Optimizer
from fleet.spec.model import one_line
from fleet.spec.optimizers import OPTIMIZERS, takes

_RATE = ("train", "optimizer", "learning_rate")


def make_optimizer(settings: Optimizer, scale: float, accumulate: int = 1) -> keras.optimizers.Optimizer:
    """The Keras optimizer of a spec.

    Args:
        scale: multiplies its learning rate.
        accumulate: steps whose gradients it averages before it changes anything.

    Raises:
        SettingError: Keras refuses its arguments, or those of a schedule, or makes no learning rate of them.
    """
    rate = settings.learning_rate
    if isinstance(rate, dict):
        schedule = _schedule(rate)
        rate = schedule if scale == 1 else _Scaled(schedule, scale)
    else:
        rate = rate * scale
    if ":" in settings.name:
        return _own(settings, rate, accumulate)
    given = {name: getattr(settings, name) for name in takes(settings.name) if getattr(settings, name) is not None}
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
    if accumulate > 1:
        given["gradient_accumulation_steps"] = accumulate
    try:
        return getattr(keras.optimizers, OPTIMIZERS[settings.name])(learning_rate=rate, **given)
    except Exception as error:  # what Keras raises for a value that it refuses
        raise SettingError(f"{settings.name}: {one_line(error)[:300]}", "train", "optimizer") from error


def _own(settings: Optimizer, rate: Any, accumulate: int) -> keras.optimizers.Optimizer:
    """What a function of the user's own makes."""
    if accumulate > 1:
        raise SettingError(f"accumulate: {settings.name} has to do it itself (gradient_accumulation_steps of Keras)",
                           "train", "batch", "accumulate")
    try:
        made = load_object(settings.name, "optimizer")(learning_rate=rate, **(settings.args or {}))
    except UserError as error:
        raise SettingError(str(error), "train", "optimizer", "name") from error
    except Exception as error:  # the user's function may raise anything
        raise SettingError(f"{settings.name} raised {one_line(error)[:300]}", "train", "optimizer") from error
    if not isinstance(made, keras.optimizers.Optimizer):
        raise SettingError(f"{settings.name} returned a {type(made).__name__}, not a keras.optimizers.Optimizer",
                           "train", "optimizer", "name")
    return made


def _schedule(settings: Mapping[str, Any]) -> keras.optimizers.schedules.LearningRateSchedule:
    arguments = dict(settings)
    name = arguments.pop("name")
    try:
        schedule = getattr(keras.optimizers.schedules, name)(**arguments)
        rates = [float(keras.ops.convert_to_numpy(schedule(step))) for step in (0, 1)]
    except Exception as error:  # what Keras, or TensorFlow, raises for a value that it refuses
        raise SettingError(f"the schedule {name}: {one_line(error)[:300]}", *_RATE) from error
    if not all(math.isfinite(rate) and rate >= 0 for rate in rates):
        raise SettingError(f"the schedule {name} begins with the learning rates {rates}; they should be numbers from 0",
                           *_RATE)
    return schedule


class _Scaled(keras.optimizers.schedules.LearningRateSchedule):
    """Another schedule, multiplied."""

    def __init__(self, schedule: Any, scale: float) -> None:
        self._schedule, self._scale = schedule, scale

    def __call__(self, step: Any) -> Any:
        return self._schedule(step) * self._scale

    def get_config(self) -> dict[str, Any]:
        return {"schedule": keras.optimizers.schedules.serialize(self._schedule), "scale": self._scale}
