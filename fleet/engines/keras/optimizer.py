"""The Keras optimizer of a spec."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import keras

from fleet.errors import SettingError
from fleet.spec import Optimizer
from fleet.spec.model import one_line

_RATE = ("train", "optimizer", "learning_rate")


def make_optimizer(settings: Optimizer, scale: float) -> keras.optimizers.Optimizer:
    """The Keras optimizer of a spec; ``scale`` multiplies its learning rate.

    Raises:
        SettingError: Keras refuses the arguments of a schedule, or makes no learning rate of them.
    """
    rate = settings.learning_rate
    if isinstance(rate, dict):
        schedule = _schedule(rate)
        rate = schedule if scale == 1 else _Scaled(schedule, scale)
    else:
        rate = rate * scale
    names = ("momentum", "nesterov", "beta_1", "beta_2", "epsilon", "weight_decay", "global_clipnorm")
    given = {name: getattr(settings, name) for name in names if getattr(settings, name) is not None}
    kinds = {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam, "adamw": keras.optimizers.AdamW}
    return kinds[settings.name](learning_rate=rate, **given)


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
