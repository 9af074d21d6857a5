"""Compute learning rate schedules, and describe their arguments.

A schedule is a function of the step and its arguments; their names, types and defaults come from
its signature. Most are those of Keras. Each argument in steps may be given in epochs instead
(``decay_epochs`` for ``decay_steps``), and with ``every: epoch`` a schedule counts epochs.
"""

from __future__ import annotations

import inspect
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fleet.vocabulary.torch_schedules import TORCH_PREFIX, TORCH_SCHEDULES


def _cosine(
    step: float,
    initial_learning_rate: float,
    decay_steps: float,
    alpha: float = 0.0,
    warmup_target: float | None = None,
    warmup_steps: float = 0,
) -> float:
    first = initial_learning_rate
    if warmup_target is not None:
        if step < warmup_steps:
            return first + (warmup_target - first) * step / warmup_steps
        step = step - warmup_steps
        first = warmup_target
    return first * _along_cosine(min(step, decay_steps) / decay_steps, alpha)


def _along_cosine(share: float, alpha: float, height: float = 1.0) -> float:
    return (1 - alpha) * 0.5 * height * (1 + math.cos(math.pi * share)) + alpha


def _restarts(
    step: float,
    initial_learning_rate: float,
    first_decay_steps: float,
    t_mul: float = 2.0,
    m_mul: float = 1.0,
    alpha: float = 0.0,
) -> float:
    share = step / first_decay_steps
    if t_mul == 1:
        restarts = math.floor(share)
        share -= restarts
    else:
        restarts = math.floor(math.log(1 - share * (1 - t_mul)) / math.log(t_mul))
        share = (share - (1 - t_mul**restarts) / (1 - t_mul)) / t_mul**restarts
    return initial_learning_rate * _along_cosine(share, alpha, m_mul**restarts)


def _periods(step: float, decay_steps: float, staircase: bool) -> float:
    if staircase:
        return math.floor(step / decay_steps)
    return step / decay_steps


def _exponential(
    step: float,
    initial_learning_rate: float,
    decay_steps: float,
    decay_rate: float,
    staircase: bool = False,
) -> float:
    return float(initial_learning_rate * decay_rate ** _periods(step, decay_steps, staircase))


def _inverse(
    step: float,
    initial_learning_rate: float,
    decay_steps: float,
    decay_rate: float,
    staircase: bool = False,
) -> float:
    return initial_learning_rate / (1 + decay_rate * _periods(step, decay_steps, staircase))


def _piecewise(step: float, boundaries: Sequence[float], values: Sequence[float]) -> float:
    return values[bisect_left(boundaries, step)]


def _polynomial(
    step: float,
    initial_learning_rate: float,
    decay_steps: float,
    end_learning_rate: float = 0.0001,
    power: float = 1.0,
    cycle: bool = False,
) -> float:
    if cycle:
        decay_steps *= math.ceil(step / decay_steps) or 1
    share = min(step, decay_steps) / decay_steps
    return float(
        (initial_learning_rate - end_learning_rate) * (1 - share) ** power + end_learning_rate
    )


def _one_cycle(
    step: float,
    max_learning_rate: float,
    total_steps: float,
    pct_start: float = 0.3,
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
    anneal_strategy: str = "cos",
) -> float:
    """Compute the one-cycle policy of Smith and Topin, as PyTorch's OneCycleLR does."""
    first = max_learning_rate / div_factor
    peak = pct_start * total_steps - 1
    step = min(step, total_steps - 1)
    if step <= peak:
        begin, end = first, max_learning_rate
        share = step / peak if peak else 1.0
    else:
        begin, end = max_learning_rate, first / final_div_factor
        share = (step - peak) / (total_steps - 1 - peak)
    if anneal_strategy == "linear":
        return begin + (end - begin) * share
    return end + (begin - end) / 2 * (1 + math.cos(math.pi * share))


def _plateau(
    monitored: Sequence[float],
    initial_learning_rate: float | None = None,
    factor: float = 0.1,
    patience: float = 10,
    threshold: float = 1e-4,
    threshold_mode: str = "rel",
    cooldown: float = 0,
    min_lr: float = 0.0,
    eps: float = 1e-8,
    mode: str = "min",
) -> float:
    """Reduce the rate when a monitored value has stopped improving, as PyTorch does."""
    assert initial_learning_rate is not None  # that of the optimizer has been filled in
    rate = initial_learning_rate
    sign = 1.0 if mode == "max" else -1.0
    best = -sign * math.inf
    bad = 0
    cooling = 0
    for value in monitored:
        margin = threshold
        if threshold_mode == "rel" and math.isfinite(best):
            margin = threshold * best
        if sign * value > sign * best + margin:
            best = value
            bad = 0
        else:
            bad += 1
        if cooling > 0:
            cooling -= 1
            bad = 0
        if bad > patience:
            cooling = int(cooldown)
            bad = 0
            lower = max(rate * factor, min_lr)
            if rate - lower > eps:
                rate = lower
    return rate


PLATEAU = "ReduceLROnPlateau"  # its first argument is the monitored values of finished epochs
SCHEDULES: dict[str, Callable[..., float]] = {
    "CosineDecay": _cosine,
    "CosineDecayRestarts": _restarts,
    "ExponentialDecay": _exponential,
    "InverseTimeDecay": _inverse,
    "PiecewiseConstantDecay": _piecewise,
    "PolynomialDecay": _polynomial,
    "OneCycle": _one_cycle,
    PLATEAU: _plateau,
}
# The schedules that Keras has itself.
KERAS_SCHEDULES = frozenset(SCHEDULES) - {"OneCycle", PLATEAU}

# Descriptions of arguments, by schedule where an argument has a special meaning.
_DESCRIPTIONS = {
    "initial_learning_rate": "Learning rate of the first step.",
    "decay_steps": "Number of steps over which the learning rate decays.",
    "alpha": "Learning rate at the end, as a share of the initial one.",
    "warmup_target": "Learning rate after the warm-up, from which it then decays.",
    "warmup_steps": "Number of steps in which the learning rate rises to warmup_target.",
    "first_decay_steps": "Number of steps up to the first restart.",
    "t_mul": "Factor by which each period is longer than the previous period.",
    "m_mul": "Factor of the learning rate at each restart.",
    "decay_rate": "Factor by which the learning rate falls every decay_steps steps.",
    "InverseTimeDecay.decay_rate": (
        "The learning rate is divided by 1 + decay_rate * step / decay_steps."
    ),
    "staircase": "True to change the learning rate only every decay_steps steps.",
    "boundaries": "Steps at which the learning rate changes.",
    "values": "Learning rates before, between and after the boundaries, one more than boundaries.",
    "end_learning_rate": "Learning rate after the last of the decay_steps steps.",
    "power": "Power of the polynomial; 1 is a linear decay.",
    "cycle": "True to restart the decay, over more steps, whenever it has ended.",
    "max_learning_rate": "Largest learning rate of the cycle.",
    "total_steps": "Number of steps of the cycle.",
    "pct_start": "Share of the cycle in which the learning rate rises.",
    "div_factor": "The first learning rate is the largest one divided by this number.",
    "final_div_factor": "The last learning rate is the first one divided by this number.",
    "anneal_strategy": "How the learning rate changes: cos or linear.",
    "factor": "Factor of the learning rate at each reduction.",
    "patience": "Number of epochs without an improvement that are tolerated.",
    "threshold": "Smallest change of the monitored value that counts as an improvement.",
    "threshold_mode": "Whether the threshold is a share of the best value (rel) or not (abs).",
    "cooldown": "Number of epochs after a reduction in which none are counted.",
    "min_lr": "Smallest learning rate that is reached.",
    "eps": "Smallest reduction; smaller ones are left out.",
    "mode": "Whether low (min) or high (max) values are better. Default: as `stopping.monitor`.",
}
_EVERY = "What the schedule counts: step (default) or epoch. Its numbers are then in epochs."

# positive, because schedules divide by them
_PERIODS = {
    f"{period}_{unit}"
    for period in ("decay", "first_decay", "total")
    for unit in ("steps", "epochs")
}
# annotation -> type in a JSON Schema, and words for messages
_KINDS = {
    "float": ("number", "a number"),
    "float | None": ("number", "a number"),
    "str": ("string", "text"),
    "bool": ("boolean", "true or false"),
    "Sequence[float]": ("array", "a list of numbers"),
}


def arguments_of(schedule: Callable[..., float]) -> dict[str, inspect.Parameter]:
    """Return the arguments of a schedule besides the step."""
    return dict(list(inspect.signature(schedule).parameters.items())[1:])


def accepted_arguments(schedule: Callable[..., float]) -> dict[str, inspect.Parameter]:
    """Return the arguments of a schedule, also those in epochs instead of steps."""
    accepted = {}
    for name, parameter in arguments_of(schedule).items():
        accepted[name] = parameter
        if name.endswith("_steps"):
            accepted[in_epochs(name)] = parameter
    return accepted


def in_epochs(name: str) -> str:
    """Return the name of an argument in epochs.

    >>> in_epochs("decay_steps")
    'decay_epochs'
    """
    return name.removesuffix("_steps") + "_epochs"


def is_schedule(candidate: Any) -> bool:
    """Return True if an object is a function with named arguments only."""
    try:
        return not {parameter.kind for parameter in arguments_of(candidate).values()} & {
            inspect.Parameter.VAR_POSITIONAL,
            inspect.Parameter.VAR_KEYWORD,
        }
    except (TypeError, ValueError):  # not a function, or a function without a signature
        return False


def required(schedule: Callable[..., float]) -> list[str]:
    """Return the arguments of a schedule without a default.

    >>> required(SCHEDULES["CosineDecay"])
    ['initial_learning_rate', 'decay_steps']
    """
    return [
        argument
        for argument, parameter in arguments_of(schedule).items()
        if parameter.default is inspect.Parameter.empty
    ]


def find_problems(
    settings: Mapping[str, Any], schedule: Callable[..., float], is_complete: bool
) -> list[str]:
    """Return what is wrong with the settings of a schedule.

    Args:
        settings: name and arguments.
        schedule: the function.
        is_complete: whether arguments may not be missing; otherwise an entry of ``models`` may
            provide them.
    """
    problems = []
    accepted = accepted_arguments(schedule)
    name = settings["name"]
    unknown = sorted(map(str, settings.keys() - {"name", "every", *accepted}))
    if unknown:
        problems.append(
            f"the schedule {name} has no argument {', '.join(unknown)}; its arguments are "
            f"{', '.join(accepted)}, every"
        )
    problems += find_problem_of_every(settings)
    twice = [key for key in arguments_of(schedule) if {key, in_epochs(key)} <= settings.keys()]
    if twice and twice[0].endswith("_steps"):
        problems.append(
            f"the schedule {name} has {twice[0]} and {in_epochs(twice[0])}; use one of them"
        )
    for argument, parameter in accepted.items():
        if argument not in settings:
            continue
        value = settings[argument]
        kind, words = _KINDS.get(parameter.annotation, ("", ""))
        if value is None and parameter.default is not inspect.Parameter.empty:
            continue  # None is the default of Keras where it is allowed
        if kind and not _is_of_kind(value, kind):
            problems.append(
                f"the argument {argument} of the schedule {name} is {value!r}; it should be {words}"
            )
        elif argument in _PERIODS and not (_is_of_kind(value, "number") and value > 0):
            problems.append(
                f"the argument {argument} of the schedule {name} is {value!r}; it should be a "
                "number above 0"
            )
    if problems or not is_complete:
        return problems
    missing = [
        argument
        for argument in required(schedule)
        if not {argument, in_epochs(argument)} & settings.keys()
    ]
    if missing:
        problems.append(
            f"the schedule {name} needs the argument {', '.join(missing)}; its arguments are "
            f"{', '.join(accepted)}"
        )
    elif schedule is _piecewise:
        boundaries = settings["boundaries"]
        values = settings["values"]
        if len(values) != len(boundaries) + 1 or list(boundaries) != sorted(set(boundaries)):
            problems.append(
                f"the schedule {name} has {len(boundaries)} boundaries and {len(values)} values; "
                "boundaries should increase, and there should be one value more than boundaries"
            )
    return problems


def find_problem_of_every(settings: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with ``every``."""
    every = settings.get("every", "step")
    if every in ("step", "epoch"):
        return []
    return [f"every is {every!r}; it should be step or epoch"]


def _is_of_kind(value: Any, kind: str) -> bool:
    if kind == "array":
        return isinstance(value, list | tuple) and all(
            _is_of_kind(element, "number") for element in value
        )
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "string":
        return isinstance(value, str)
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _describe(name: str, argument: str) -> str:
    """Describe an argument of a schedule."""
    text = _DESCRIPTIONS.get(f"{name}.{argument}") or _DESCRIPTIONS.get(argument)
    if text is not None:
        return text
    in_steps = argument.removesuffix("_epochs") + "_steps"
    return f"The same as {in_steps}, in epochs instead."


def schedule_schema() -> dict[str, Any]:
    """Return the JSON Schema of a learning rate: a number, or a schedule with arguments.

    An entry of ``models`` may change some arguments of a schedule, so none is required.
    """
    return {
        "anyOf": [
            {"type": "number", "exclusiveMinimum": 0},
            *(
                {
                    "type": "object",
                    "title": name,
                    "additionalProperties": False,
                    "properties": {
                        "name": {"const": name, "description": "Name of the schedule to use."},
                        **{
                            argument: {
                                "type": _KINDS[parameter.annotation][0],
                                "description": _describe(name, argument),
                            }
                            for argument, parameter in accepted_arguments(schedule).items()
                        },
                        "every": {"enum": ["step", "epoch"], "description": _EVERY},
                    },
                }
                for name, schedule in SCHEDULES.items()
            ),
            {
                "type": "object",
                "title": "torch.optim.lr_scheduler",
                "description": (
                    "Only for torch: a class of torch.optim.lr_scheduler with its arguments."
                ),
                "required": ["name"],
                "properties": {
                    "name": {
                        "anyOf": [
                            {"title": "a class", "enum": list(TORCH_SCHEDULES)},
                            {
                                "title": "its import path",
                                "type": "string",
                                "pattern": TORCH_PREFIX,
                            },
                        ],
                        "description": "Name of the class of PyTorch.",
                    },
                    "initial_learning_rate": {
                        "type": "number",
                        "description": "Learning rate of the optimizer, also written lr.",
                    },
                    "every": {"enum": ["step", "epoch"], "description": _EVERY},
                },
            },
            {
                "type": "object",
                "title": "a function of yours",
                "description": (
                    "It is called with the step, or the epoch, and its arguments. For torch, it "
                    "may be a class of yours that derives from LRScheduler."
                ),
                "required": ["name"],
                "properties": {
                    "name": {
                        "type": "string",
                        "pattern": "^[^:]+:[^:]+$",
                        "description": "Import path of the function or class, module:function.",
                    },
                    "every": {"enum": ["step", "epoch"], "description": _EVERY},
                },
            },
        ]
    }
