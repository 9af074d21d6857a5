"""Create the Keras optimizer of a spec."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from fleet.engines.base import EpochProgress
from fleet.engines.custom import make_custom_optimizer
from fleet.engines.schedules import Clock, rate_at
from fleet.errors import SettingError
from fleet.spec import Optimizer
from fleet.spec.model import wrapping_errors
from fleet.vocabulary.optimizers import OPTIMIZERS
from fleet.vocabulary.schedules import KERAS_SCHEDULES

_RATE = ("train", "optimizer", "learning_rate")
_CLASSES: Mapping[str, Any] = {
    name.lower(): optimizer for name, optimizer in vars(keras.optimizers).items()
}


class ScalableRate:
    """The learning rate of a network whose batch changes, scaled without a new graph.

    Attributes:
        scale: factor to pass to :func:`make_optimizer`.
    """

    def __init__(self, settings: Optimizer) -> None:
        self._rate: Any = settings.learning_rate
        self.scale: Any = (
            keras.Variable(1.0, trainable=False) if isinstance(self._rate, dict) else 1.0
        )

    def set(self, optimizer: keras.optimizers.Optimizer, factor: float) -> None:
        """Set the learning rate to a multiple of the spec's from now on.

        Args:
            optimizer: optimizer to change.
            factor: multiplies the learning rate.
        """
        if isinstance(self._rate, dict):
            self.scale.assign(factor)
        else:
            optimizer.learning_rate = self._rate * factor

    def reset_as(self, new: ScalableRate) -> None:
        """Copy the rate of another network with the same graphs; a schedule keeps its factor."""
        self._rate = new._rate


def make_optimizer(
    settings: Optimizer, scale: Any, accumulate: int = 1, mode: str = "min"
) -> keras.optimizers.Optimizer:
    """Return the Keras optimizer of a spec.

    Args:
        settings: settings of the optimizer.
        scale: multiplies the learning rate; a number, or for a schedule also a variable.
        accumulate: number of steps whose gradients are averaged before each update.
        mode: ``min`` or ``max``: which values of the monitored metric are better.

    Raises:
        SettingError: Keras refuses its arguments or those of a schedule, or the learning rate is
            invalid.
    """
    rate = settings.learning_rate
    assert rate is not None  # defaults have been filled in
    if isinstance(rate, dict):
        schedule = _schedule(rate, mode)
        if isinstance(scale, keras.Variable) or scale != 1:
            rate = _Scaled(schedule, scale)
        else:
            rate = schedule
    else:
        rate = rate * scale
    if ":" in settings.name:
        return _make_custom(settings, rate, accumulate)
    values = {name: getattr(settings, name) for name in OPTIMIZERS[settings.name].takes}
    arguments = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if value is not None
    }
    if accumulate > 1:
        arguments["gradient_accumulation_steps"] = accumulate
    # Keras refuses some values.
    with wrapping_errors(f"{settings.name}:", SettingError, "train", "optimizer"):
        return _CLASSES[settings.name](learning_rate=rate, **arguments)


def extract_hyperparameters(optimizer: keras.optimizers.Optimizer) -> dict[str, tf.Variable]:
    """Move an optimizer's momentum and weight decay out of its graphs.

    Args:
        optimizer: built, with the kernels of :mod:`fleet.engines.keras.kernels`.

    Returns:
        Variables to assign between steps, by name. A zero stays a number, because it has another
        graph.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    has_kernel = type(inner) is keras.optimizers.SGD and "update_step" in vars(inner)
    names = []
    if has_kernel and inner.momentum:  # Keras' own step compares the momentum with 0 in the graph
        names.append("momentum")
    if inner.weight_decay:
        names.append("weight_decay")
    free = {
        name: tf.Variable(getattr(inner, name), dtype=tf.float32, trainable=False) for name in names
    }
    for name, variable in free.items():
        setattr(inner, name, variable)
    return free


def drop_unconnected(
    optimizer: keras.optimizers.Optimizer,
    gradients: Sequence[Any],
    variables: Sequence[Any],
    connected: Sequence[bool],
) -> tuple[list[Any], list[Any]]:
    """Drop variables that the loss does not depend on, because Keras would decay them.

    Args:
        optimizer: a built optimizer. If it keeps running means, it needs all variables; they are
            then only excluded from weight decay.
        gradients: gradients of all variables.
        variables: variables to train.
        connected: True for variables that the loss depends on.

    Returns:
        The gradients and variables to apply.
    """
    if optimizer.use_ema:
        idle = {
            optimizer._var_key(variable)
            for variable, is_connected in zip(variables, connected, strict=True)
            if not is_connected
        }
        excluded: set[Any] = getattr(optimizer, "_exclude_from_weight_decay", set())
        optimizer._exclude_from_weight_decay = excluded | idle
        return list(gradients), list(variables)
    return (
        list(itertools.compress(gradients, connected)),
        list(itertools.compress(variables, connected)),
    )


def graph_key_settings(settings: Optimizer) -> Optimizer:
    """Return settings that are equal if the optimizers can share graphs."""
    if isinstance(settings.learning_rate, dict):
        rate: float | dict[str, Any] = settings.learning_rate
    else:
        rate = 1.0
    if settings.name == "sgd" and settings.momentum:
        momentum: float | None = 0.5
    else:
        momentum = settings.momentum
    return replace(
        settings, learning_rate=rate, momentum=momentum, weight_decay=settings.weight_decay and 0.5
    )


def _make_custom(settings: Optimizer, rate: Any, accumulate: int) -> keras.optimizers.Optimizer:
    """Return the optimizer of a user function."""
    if accumulate > 1:
        raise SettingError(
            f"accumulate does not apply to the custom optimizer {settings.name}; let it set "
            "gradient_accumulation_steps of Keras instead",
            "train",
            "batch",
            "accumulate",
        )
    return make_custom_optimizer(
        settings,
        keras.optimizers.Optimizer,
        "keras.optimizers.Optimizer",
        lambda function: function(learning_rate=rate, **copy.deepcopy(settings.args or {})),
    )


def epoch_schedule_of(optimizer: keras.optimizers.Optimizer) -> EpochSchedule | None:
    """Return the schedule that an optimizer follows, if it depends on epochs."""
    rate = getattr(optimizer, "inner_optimizer", optimizer)._learning_rate
    if isinstance(rate, _Scaled):
        rate = rate._schedule
    if isinstance(rate, EpochSchedule):
        return rate
    return None


def _schedule(
    settings: Mapping[str, Any], mode: str
) -> keras.optimizers.schedules.LearningRateSchedule:
    arguments = dict(settings)
    name = arguments.pop("name")
    if (
        name not in KERAS_SCHEDULES
        or "every" in settings
        or any(key.endswith("_epochs") for key in settings)
    ):
        return EpochSchedule(settings, mode)
    # Keras or TensorFlow refuse some values.
    with wrapping_errors(f"the schedule {name}:", SettingError, *_RATE):
        schedule = getattr(keras.optimizers.schedules, name)(**arguments)
        rates = [float(keras.ops.convert_to_numpy(schedule(step))) for step in (0, 1)]
    if not all(math.isfinite(rate) and rate >= 0 for rate in rates):
        raise SettingError(
            f"the schedule {name} begins with the learning rates {rates}; they should be finite "
            "and at least 0",
            *_RATE,
        )
    return schedule


class EpochSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule that Keras does not have: the learning rates of the steps of an epoch.

    Args:
        settings: name and arguments of the schedule.
        mode: ``min`` or ``max``: which values of the monitored metric are better.
    """

    def __init__(self, settings: Mapping[str, Any], mode: str) -> None:
        self._settings = dict(settings)
        self._mode = mode
        self._first = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._rates = tf.Variable(
            [rate_at(self._settings, 0, Clock(mode=mode))],
            dtype=tf.float32,
            shape=(None,),
            trainable=False,
        )

    def begin_epoch(self, progress: EpochProgress, step: int) -> None:
        """Compute the learning rates of an epoch.

        Args:
            progress: the epoch.
            step: number of steps taken.
        """
        clock = Clock(step - progress.done, progress, self._mode)
        steps = range(clock.first, clock.first + progress.steps + 1)
        self._first.assign(clock.first)
        self._rates.assign([rate_at(self._settings, number, clock) for number in steps])

    def __call__(self, step: Any) -> Any:  # noqa: D102
        index = tf.cast(step, tf.int64) - self._first
        last = tf.size(self._rates, tf.int64) - 1
        return tf.gather(self._rates, tf.clip_by_value(index, tf.zeros_like(last), last))

    def get_config(self) -> dict[str, Any]:  # noqa: D102
        return {"settings": self._settings, "mode": self._mode}


class _Scaled(keras.optimizers.schedules.LearningRateSchedule):
    """Another schedule, multiplied."""

    def __init__(self, schedule: Any, scale: Any) -> None:
        self._schedule = schedule
        self._scale = scale

    def __call__(self, step: Any) -> Any:
        return self._schedule(step) * self._scale

    def get_config(self) -> dict[str, Any]:
        return {
            "schedule": keras.optimizers.schedules.serialize(self._schedule),
            "scale": float(self._scale),
        }
