"""The Keras optimizer of a spec."""

from __future__ import annotations

from typing import Any

import keras

from fleet.spec import Optimizer


def make_optimizer(settings: Optimizer, scale: float) -> keras.optimizers.Optimizer:
    """The Keras optimizer of a spec; ``scale`` multiplies its learning rate."""
    rate = settings.learning_rate
    if isinstance(rate, dict):
        arguments = dict(rate)
        schedule = getattr(keras.optimizers.schedules, arguments.pop("name"))(**arguments)
        rate = schedule if scale == 1 else _Scaled(schedule, scale)
    else:
        rate = rate * scale
    names = ("momentum", "nesterov", "beta_1", "beta_2", "epsilon", "weight_decay", "global_clipnorm")
    given = {name: getattr(settings, name) for name in names if getattr(settings, name) is not None}
    kinds = {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam, "adamw": keras.optimizers.AdamW}
    return kinds[settings.name](learning_rate=rate, **given)


class _Scaled(keras.optimizers.schedules.LearningRateSchedule):
    """Another schedule, multiplied."""

    def __init__(self, schedule: Any, scale: float) -> None:
        self._schedule, self._scale = schedule, scale

    def __call__(self, step: Any) -> Any:
        return self._schedule(step) * self._scale

    def get_config(self) -> dict[str, Any]:
        return {"schedule": keras.optimizers.schedules.serialize(self._schedule), "scale": self._scale}
