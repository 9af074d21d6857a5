"""Conditions of search spaces: which parameters are used, given the values of others (pure)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from fleet.errors import UserError
from fleet.spec.dimensions import (
    LEAST,
    MOST,
    Dimension,
    Range,
    conditions_of,
    different,
    ends_of,
    is_bounds,
    is_equal,
    is_number,
    normal_form,
)
from launch.errors import did_you_mean

Problem: TypeAlias = tuple[
    tuple[str, ...], str, str
]  # key path, what is wrong, what would be right

_MAX_LISTED = 12  # values in a message


def is_active(dimension: Dimension, values: Mapping[str, Any]) -> bool:
    """Return True if a parameter is used: all its conditions hold.

    Args:
        dimension: the parameter's values and conditions.
        values: the values of the parameters that are used, by name; if it depends
            on another one that is used, that value is among them.

    >>> momentum = Range(0, 1, when={"optimizer": "sgd", "layers": {"least": 2}})
    >>> is_active(momentum, {"optimizer": "sgd", "layers": 2})
    True
    >>> is_active(momentum, {"optimizer": "adam", "layers": 2}), is_active(momentum, {"layers": 2})
    (False, False)
    """
    return unmet_condition(dimension, values) is None


def unmet_condition(dimension: Dimension, values: Mapping[str, Any]) -> str | None:
    """Return the first parameter whose condition does not hold; None if all conditions hold.

    Args:
        dimension: as for :func:`is_active`.
        values: as for :func:`is_active`.
    """
    return next(
        (
            name
            for name, condition in conditions_of(dimension).items()
            if name not in values or not meets(values[name], condition)
        ),
        None,
    )


def meets(value: Any, condition: Any) -> bool:
    """Return True if a value meets a condition: a value, several values, or bounds.

    >>> [meets(3, condition) for condition in (3, [1, 3], {"least": 2}, {"most": 2}, [1, 2])]
    [True, True, True, False, False]
    """
    if is_bounds(condition):
        return is_number(value) and _lower(condition) <= value <= _upper(condition)
    if isinstance(condition, list | tuple):
        return any(is_equal(value, choice) for choice in condition)
    return is_equal(value, condition)


def as_values(condition: Any) -> Sequence[Any]:
    """Return the values of a condition that is no bounds, one or several."""
    if isinstance(condition, list | tuple):
        return condition
    return [condition]


def dependency_order(space: Mapping[str, Dimension], names: Iterable[str] = ()) -> list[str]:
    """Order the names of a space so that each one comes after the names in its conditions.

    Args:
        space: the space.
        names: its names in the order that is kept where possible; by default that of the space.

    Raises:
        UserError: conditions form a circle; the message names it.

    >>> dependency_order({"beta": Range(0, 1, when={"name": "adam"}), "name": ("adam", "sgd")})
    ['name', 'beta']
    """
    ordered: dict[str, None] = {}
    for name in names or space:
        _append(space, name, ordered, ())
    return list(ordered)


def _append(
    space: Mapping[str, Dimension], name: str, ordered: dict[str, None], waiting: tuple[str, ...]
) -> None:
    """Append a name after the names in its conditions."""
    if name in waiting:
        circle = [*waiting[waiting.index(name) :], name]
        raise UserError(f"the conditions form a circle: {' -> '.join(circle)}")
    if name in ordered:
        return
    for above in conditions_of(space[name]):
        if above in space:
            _append(space, above, ordered, (*waiting, name))
    ordered[name] = None


def requirements(space: Mapping[str, Dimension], *names: str) -> dict[str, list[Any]]:
    """Return what must hold for parameters to be used.

    Args:
        space: a space; its conditions may be wrong.
        names: the parameters.

    Returns:
        Each other parameter that must be used -> the conditions that its value must meet.

    >>> space = {"a": (1, 2), "b": Range(0, 1, when={"a": 2}), "c": (1,)}
    >>> space["d"] = Range(0, 1, when={"b": {"least": 0.5}})
    >>> requirements(space, "d")
    {'b': [{'least': 0.5}], 'a': [2]}
    """
    required: dict[str, list[Any]] = {}
    visited = set[str]()
    waiting = [*names]
    while waiting:
        name = waiting.pop(0)
        if name in visited or name not in space:
            continue
        visited.add(name)
        for above, condition in conditions_of(space[name]).items():
            required.setdefault(above, []).append(condition)
            waiting.append(above)
    return required


def suitable_ends(
    dimension: Range | Sequence[Any], conditions: Sequence[Any]
) -> tuple[Any, Any] | None:
    """Return the smallest and the largest value that meet all conditions; None without any.

    Args:
        dimension: the values; of lists that are not all numbers, the first and the last one count.
        conditions: values and bounds.

    >>> suitable_ends((1, 2, 4, 8), [{"least": 2}, [1, 2, 4]])
    (2, 4)
    >>> suitable_ends(Range(0.0, 1.0), [{"least": 0.25}])
    (0.25, 1.0)
    """
    listed = [condition for condition in conditions if not is_bounds(condition)]
    if isinstance(dimension, Range) and not listed:
        low = max([dimension.low, *map(_lower, conditions)])
        high = min([dimension.high, *map(_upper, conditions)])
        return dimension.ends_between(low, high)
    if isinstance(dimension, Range):
        candidates = [value for value in as_values(listed[0]) if is_value_of(dimension, value)]
    else:
        candidates = different(dimension)
    suitable = [
        value for value in candidates if all(meets(value, condition) for condition in conditions)
    ]
    if suitable:
        return ends_of(suitable)
    return None


def is_value_of(dimension: Range | Sequence[Any], value: Any) -> bool:
    """Return True if a dimension has a value."""
    try:
        normal_form("", dimension, value)
    except UserError:
        return False
    return True


# --- mistakes ------------------------------------------------------------------------------


def find_condition_problems(space: Mapping[str, Dimension]) -> Iterator[Problem]:
    """Yield the conditions that cannot hold: key path below the space, what is wrong and right."""
    circles = [circle for name in space if (circle := _circle_of(space, name))]
    reported = set[str]()
    for circle in circles:
        if reported.isdisjoint(circle):
            yield (
                (circle[0], "when", circle[1]),
                f"the conditions form a circle: {' -> '.join(circle)}",
                "remove one of these conditions",
            )
        reported.update(circle)
    is_sound = not circles
    for name, dimension in space.items():
        for above, condition in conditions_of(dimension).items():
            if above in space:
                problem = _unmet(above, space[above], condition)
            else:
                problem = _unknown_key(space, name, above)
            if problem is not None:
                is_sound = False
                yield (name, "when", above), *problem
    if is_sound:
        yield from _joint_problems(space)


def check_conditions(space: Mapping[str, Dimension]) -> None:
    """Check that each parameter of a space can be used.

    Raises:
        UserError: a condition cannot hold.
    """
    for (name, *_), wrong, right in find_condition_problems(space):
        raise UserError(f"search space, {name}: when: {wrong}; {right}")


def _circle_of(space: Mapping[str, Dimension], name: str) -> list[str]:
    """Return the shortest circle of conditions through a name; empty if there is none."""
    paths = [[name]]
    visited = set[str]()
    for path in paths:
        for above in conditions_of(space[path[-1]]):
            if above == name:
                return [*path, above]
            if above in space and above not in visited:
                visited.add(above)
                paths.append([*path, above])
    return []


def _unknown_key(space: Mapping[str, Dimension], name: str, above: str) -> tuple[str, str]:
    keys = [key for key in space if key != name]
    return (
        f"the space has no key {above!r}{did_you_mean(above, keys)}",
        f"a condition names another key of the space: {listed_values(keys) or 'there is none'}",
    )


def _unmet(name: str, dimension: Range | Sequence[Any], condition: Any) -> tuple[str, str] | None:
    """Return why a condition on a key can never hold, and what would be right."""
    right = describe_values(name, dimension)
    if is_bounds(condition):
        if _lower(condition) > _upper(condition):
            return (
                f"least ({_lower(condition)}) is above most ({_upper(condition)})",
                "exchange them",
            )
        if not isinstance(dimension, Range) and not any(map(is_number, dimension)):
            return f"{name} has no numbers, but the condition has bounds", right
        if suitable_ends(dimension, [condition]) is None:
            return f"no value of {name} is {_described(condition)}", right
        return None
    for value in as_values(condition):
        if not is_value_of(dimension, value):
            return f"{value!r} is not a value of {name}", right
    if isinstance(dimension, Range) and not dimension.is_finite:
        value = next(iter(as_values(condition)))
        return (
            f"{name} is a range of real numbers, which hardly ever equals {value!r}",
            f"use bounds, such as {{least: {value}}}",
        )
    return None


def _joint_problems(space: Mapping[str, Dimension]) -> Iterator[Problem]:
    """Yield the conditions of a key that can hold, but not together."""
    never_used = set[str]()
    for name in dependency_order(space):
        if not never_used.isdisjoint(conditions_of(space[name])):
            never_used.add(name)
            continue
        for above, conditions in requirements(space, name).items():
            if suitable_ends(space[above], conditions) is None:
                never_used.add(name)
                yield (
                    (name, "when"),
                    f"its conditions never hold together: {above} would have to be "
                    + " and ".join(map(_described, conditions)),
                    "change or remove one of them",
                )
                break


def describe_values(name: str, dimension: Range | Sequence[Any]) -> str:
    """Describe which values a key has, as advice."""
    if not isinstance(dimension, Range):
        return f"the values of {name} are {listed_values(map(repr, dimension))}"
    if dimension.step is not None:
        return f"{name} is from {dimension.low} to {dimension.last} in steps of {dimension.step}"
    kind = "an integer" if dimension.integer else "a number"
    return f"{name} is {kind} from {dimension.low} to {dimension.high}"


def listed_values(values: Iterable[str]) -> str:
    """Join at most twelve values with commas."""
    texts = list(values)
    if len(texts) > _MAX_LISTED:
        texts[_MAX_LISTED:] = ["..."]
    return ", ".join(texts)


def _described(condition: Any) -> str:
    if is_bounds(condition):
        return " and ".join(
            f"at {word} {condition[word]}" for word in (LEAST, MOST) if word in condition
        )
    return " or ".join(map(repr, as_values(condition)))


def _lower(bounds: Mapping[str, Any]) -> float:
    return bounds.get(LEAST, -math.inf)


def _upper(bounds: Mapping[str, Any]) -> float:
    return bounds.get(MOST, math.inf)
