"""Learning rate schedules: numbers that follow from the step alone, by the names and meanings of Keras."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fleet.errors import SettingError
from fleet.spec.model import one_line


def rate_at(rate: float | Mapping[str, Any], step: int) -> float:
    """The learning rate of a step, the first of which is 0.

    Raises:
        SettingError: the arguments of a schedule make no learning rate.

    >>> halves = {"name": "ExponentialDecay", "initial_learning_rate": 1.0, "decay_steps": 10, "decay_rate": 0.5}
    >>> rate_at(halves, 20), rate_at(0.1, 20)
    (0.25, 0.1)
    """
    if not isinstance(rate, Mapping):
        return rate
    name = rate["name"]
    given = {key: value for key, value in rate.items() if key != "name" and value is not None}
    try:
        found = float(_SCHEDULES[name](step, **given))
    except (TypeError, ValueError, ArithmeticError) as error:
        raise SettingError(f"the schedule {name}: {one_line(error)[:300]}", "train", "optimizer", "learning_rate"
                           ) from error
    if not (math.isfinite(found) and found >= 0):
        raise SettingError(f"the schedule {name} gives the learning rate {found} for step {step}; it should be a "
                           "number from 0", "train", "optimizer", "learning_rate")
    return found


def _cosine(step: float, initial_learning_rate: float, decay_steps: float, alpha: float = 0.0,
            warmup_target: float | None = None, warmup_steps: float = 0) -> float:
    first = initial_learning_rate
    if warmup_target is not None:
        if step < warmup_steps:
            return first + (warmup_target - first) * step / warmup_steps
        step, first = step - warmup_steps, warmup_target
    return first * _along_cosine(min(step, decay_steps) / decay_steps, alpha)


def _along_cosine(share: float, alpha: float, height: float = 1.0) -> float:
    return (1 - alpha) * 0.5 * height * (1 + math.cos(math.pi * share)) + alpha


def _restarts(step: float, initial_learning_rate: float, first_decay_steps: float, t_mul: float = 2.0,
              m_mul: float = 1.0, alpha: float = 0.0) -> float:
    share = step / first_decay_steps
    if t_mul == 1:
        restarts = math.floor(share)
        share -= restarts
    else:
        restarts = math.floor(math.log(1 - share * (1 - t_mul)) / math.log(t_mul))
        share = (share - (1 - t_mul**restarts) / (1 - t_mul)) / t_mul**restarts
    return initial_learning_rate * _along_cosine(share, alpha, m_mul**restarts)


def _periods(step: float, decay_steps: float, staircase: bool) -> float:
    return math.floor(step / decay_steps) if staircase else step / decay_steps


def _exponential(step: float, initial_learning_rate: float, decay_steps: float, decay_rate: float,
                 staircase: bool = False) -> float:
    return float(initial_learning_rate * decay_rate**_periods(step, decay_steps, staircase))


def _inverse(step: float, initial_learning_rate: float, decay_steps: float, decay_rate: float,
             staircase: bool = False) -> float:
    return initial_learning_rate / (1 + decay_rate * _periods(step, decay_steps, staircase))


def _piecewise(step: float, boundaries: Sequence[float], values: Sequence[float]) -> float:
    return values[bisect_left(boundaries, step)]


def _polynomial(step: float, initial_learning_rate: float, decay_steps: float, end_learning_rate: float = 0.0001,
                power: float = 1.0, cycle: bool = False) -> float:
    if cycle:
        decay_steps *= math.ceil(step / decay_steps) or 1
    share = min(step, decay_steps) / decay_steps
    return float((initial_learning_rate - end_learning_rate) * (1 - share)**power + end_learning_rate)


_SCHEDULES: dict[str, Callable[..., float]] = {
    "CosineDecay": _cosine, "CosineDecayRestarts": _restarts, "ExponentialDecay": _exponential,
    "InverseTimeDecay": _inverse, "PiecewiseConstantDecay": _piecewise, "PolynomialDecay": _polynomial}
