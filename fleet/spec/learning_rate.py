"""The learning rate schedules of Keras: their names, and their arguments with what these mean.

Keras is not imported for them; a test compares them with what it has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def _argument(kind: str, description: str) -> dict[str, Any]:
    return {"type": kind, "description": description}


_INITIAL = _argument("number", "Learning rate of the first step.")
_STEPS = _argument("number", "Number of steps over which the learning rate decays.")
_ALPHA = _argument("number", "Learning rate at the end, as a share of the initial one.")
_RATE = _argument("number", "Factor by which the learning rate falls every decay_steps steps.")
_STAIRCASE = _argument("boolean", "Whether the learning rate falls only once every decay_steps steps.")

# name -> argument -> its JSON Schema
SCHEDULES: dict[str, dict[str, dict[str, Any]]] = {
    "CosineDecay": {
        "initial_learning_rate": _INITIAL, "decay_steps": _STEPS, "alpha": _ALPHA,
        "warmup_target": _argument("number", "Learning rate after the warm-up, from which it then decays."),
        "warmup_steps": _argument("number", "Number of steps in which the learning rate rises to warmup_target.")},
    "CosineDecayRestarts": {
        "initial_learning_rate": _INITIAL,
        "first_decay_steps": _argument("number", "Number of steps up to the first restart."),
        "t_mul": _argument("number", "How many times longer each period is than the one before."),
        "m_mul": _argument("number", "What the learning rate is multiplied by at each restart."),
        "alpha": _ALPHA},
    "ExponentialDecay": {
        "initial_learning_rate": _INITIAL, "decay_steps": _STEPS, "decay_rate": _RATE, "staircase": _STAIRCASE},
    "InverseTimeDecay": {
        "initial_learning_rate": _INITIAL, "decay_steps": _STEPS,
        "decay_rate": _argument("number", "The learning rate is divided by 1 + decay_rate * step / decay_steps."),
        "staircase": _STAIRCASE},
    "PiecewiseConstantDecay": {
        "boundaries": _argument("array", "The steps at which the learning rate changes."),
        "values": _argument("array", "The learning rates between the boundaries, one more than there are boundaries.")},
    "PolynomialDecay": {
        "initial_learning_rate": _INITIAL, "decay_steps": _STEPS,
        "end_learning_rate": _argument("number", "Learning rate after the last of the decay_steps steps."),
        "power": _argument("number", "Power of the polynomial; 1 makes a straight line."),
        "cycle": _argument("boolean", "Whether the decay starts again, over more steps, whenever it has ended.")},
}


# The arguments without a default, whichever schedule has them.
_NEEDED = {"initial_learning_rate", "decay_steps", "first_decay_steps", "decay_rate", "boundaries", "values"}
_PERIODS = {"decay_steps", "first_decay_steps"}  # by which Keras divides
_KINDS = {"number": "a number", "boolean": "true or false", "array": "a list of numbers"}


def check_schedule(settings: Mapping[str, Any]) -> None:
    """See that a mapping names a schedule and arguments that it has, with values of their kinds.

    It need not be whole: an entry of ``models`` may give what is left.

    Raises:
        ValueError: it does not; the message says what there is, or what would be right.
    """
    name = settings.get("name")
    known = SCHEDULES.get(name) if isinstance(name, str) else None
    if known is None:
        raise ValueError(f"a learning-rate schedule is a mapping with `name:` (one of {', '.join(SCHEDULES)}) and the "
                         "arguments that Keras documents for it")
    problems = []
    if unknown := sorted(map(str, settings.keys() - {"name", *known})):
        problems.append(f"the schedule {name} takes no {', '.join(unknown)}; its arguments are {', '.join(known)}")
    for argument, schema in known.items():
        if argument not in settings or (settings[argument] is None and argument not in _NEEDED):
            continue  # None is Keras' default of those that can be None
        value = settings[argument]
        if not _is_of_kind(value, schema["type"]):
            problems.append(f"the schedule {name} wants {_KINDS[schema['type']]} for {argument}, not {value!r}")
        elif argument in _PERIODS and value <= 0:
            problems.append(f"the schedule {name} wants a number above 0 for {argument}, not {value!r}")
    if problems:
        raise ValueError("; ".join(problems))


def required(name: str) -> list[str]:
    """The arguments of a schedule without a default.

    >>> required("CosineDecay")
    ['initial_learning_rate', 'decay_steps']
    """
    return [argument for argument in SCHEDULES[name] if argument in _NEEDED]


def problem_of_whole(settings: Mapping[str, Any]) -> str:
    """What a schedule still lacks that :func:`check_schedule` has let pass; nothing where it is whole."""
    name = settings["name"]
    if missing := [argument for argument in required(name) if argument not in settings]:
        return f"the schedule {name} lacks {', '.join(missing)}; its arguments are {', '.join(SCHEDULES[name])}"
    if name == "PiecewiseConstantDecay":
        boundaries, values = settings["boundaries"], settings["values"]
        if len(values) != len(boundaries) + 1 or list(boundaries) != sorted(set(boundaries)):
            return (f"the schedule {name} wants rising boundaries, and one value more than there are boundaries, not "
                    f"{len(boundaries)} boundaries and {len(values)} values")
    return ""


def _is_of_kind(value: Any, kind: str) -> bool:
    if kind == "array":
        return isinstance(value, list | tuple) and all(_is_of_kind(item, "number") for item in value)
    if kind == "boolean":
        return isinstance(value, bool)
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def schedule_schema() -> dict[str, Any]:
    """The JSON Schema of a learning rate: a number, or a schedule with its arguments.

    An entry of ``models`` may change some arguments of a schedule, so none is required.
    """
    return {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, *(
        {"type": "object", "title": name, "additionalProperties": False, "properties": {
            "name": {"const": name, "description": "Name of the schedule, as Keras calls it."}, **arguments}}
        for name, arguments in SCHEDULES.items())]}
