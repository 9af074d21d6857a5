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

from fleet.engines.custom import make_custom_optimizer
from fleet.errors import SettingError
from fleet.spec import Optimizer
from fleet.spec.model import wrapping_errors
from fleet.vocabulary.optimizers import OPTIMIZERS

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
    settings: Optimizer, scale: Any, accumulate: int = 1
) -> keras.optimizers.Optimizer:
    """Return the Keras optimizer of a spec.

    Args:
        settings: settings of the optimizer.
        scale: multiplies the learning rate; a number, or for a schedule also a variable.
        accumulate: number of steps whose gradients are averaged before each update.

    Raises:
        SettingError: Keras refuses its arguments or those of a schedule, or the learning rate is
            invalid.
    """
    rate = settings.learning_rate
    assert rate is not None  # defaults have been filled in
    if isinstance(rate, dict):
        schedule = _schedule(rate)
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


def _schedule(settings: Mapping[str, Any]) -> keras.optimizers.schedules.LearningRateSchedule:
    arguments = dict(settings)
    name = arguments.pop("name")
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
