"""List and count the members of a search space."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from fleet.spec.conditions import (
    as_values,
    dependency_order,
    is_active,
    meets,
    requirements,
    suitable_ends,
)
from fleet.spec.dimensions import (
    Dimension,
    Member,
    Range,
    Space,
    conditions_of,
    different,
    ends_of,
    is_bounds,
    values_of,
)


def combinations(
    space: Space, values_of: Callable[[Dimension], Iterator[Any]] = values_of
) -> Iterator[Member]:
    """Yield all members of a space, each once; values of the last name vary fastest.

    Args:
        space: a validated space, of lists, ranges of integers and ranges with steps.
        values_of: returns the different values of a dimension.

    >>> depth = Range(1, 2, integer=True, when={"norm": "batch"})
    >>> list(combinations({"norm": ("none", "batch"), "depth": depth}))
    [{'norm': 'none'}, {'norm': 'batch', 'depth': 1}, {'norm': 'batch', 'depth': 2}]
    """
    names = dependency_order(space)

    def extend(member: Member, position: int) -> Iterator[Member]:
        while position < len(names) and not is_active(space[names[position]], member):
            position += 1
        if position == len(names):
            yield {name: member[name] for name in space if name in member}
            return
        name = names[position]
        for value in values_of(space[name]):
            yield from extend({**member, name: value}, position + 1)

    return extend({}, 0)


def grid(choices: Space) -> list[Member]:
    """List all members of a space; those of the last name vary fastest.

    Args:
        choices: a validated space, of lists, ranges of integers and ranges with steps.

    >>> grid({"width": (16, 32), "norm": ("batch",)})
    [{'width': 16, 'norm': 'batch'}, {'width': 32, 'norm': 'batch'}]
    """
    return list(combinations(choices))


def endless_name(space: Mapping[str, Dimension]) -> str | None:
    """Return the first name of a space that has infinitely many values; None without any."""
    return next(
        (
            name
            for name, dimension in space.items()
            if isinstance(dimension, Range) and not dimension.is_finite
        ),
        None,
    )


def ends(space: Space) -> list[Member]:
    """Return members of a space at its ends, which together use every parameter.

    The first two have the smallest and the largest values (the first and the last choice, if not
    all choices are numbers). Others follow if parameters with conditions do not have their smallest
    and largest values among these.

    >>> ends({"width": (32, 16), "norm": ("batch", "none"), "blocks": Range(1, 3, integer=True)})
    [{'width': 16, 'norm': 'batch', 'blocks': 1}, {'width': 32, 'norm': 'none', 'blocks': 3}]
    """
    members = [member_with(space, {}, end) for end in (0, 1)]
    for name, dimension in space.items():
        if not conditions_of(dimension):
            continue
        for end, value in enumerate(ends_of(dimension)):
            if not any(name in member and member[name] == value for member in members):
                members.append(member_with(space, {name: value}, end))
    return members


def member_with(
    space: Space, values: Mapping[str, Any], end: int = 0, preferred: Mapping[str, Any] = {}
) -> Member:
    """Return a member that has some values; others are the smallest or largest possible ones.

    Args:
        space: a validated space.
        values: the values of parameters that can be used together.
        end: 0 for the smallest other values, 1 for the largest.
        preferred: values that other parameters have instead if these can be used then.

    >>> space = {"optimizer": ("sgd", "adam"), "beta": Range(0.0, 1.0, when={"optimizer": "adam"})}
    >>> member_with(space, {}), member_with(space, {"beta": 0.5})
    ({'optimizer': 'sgd'}, {'optimizer': 'adam', 'beta': 0.5})
    """
    required = requirements(space, *values)
    member: Member = {}
    for name in dependency_order(space):
        dimension = space[name]
        if not is_active(dimension, member):
            continue
        conditions = required.get(name, ())
        if name in values:
            member[name] = values[name]
        elif name in preferred and all(meets(preferred[name], item) for item in conditions):
            member[name] = preferred[name]
        else:
            member[name] = (suitable_ends(dimension, conditions) or ends_of(dimension))[end]
    return {name: member[name] for name in space if name in member}


# --- counting ------------------------------------------------------------------------------


def size_of(space: Space) -> float:
    """Count the different members of a space; infinite with a range of real numbers.

    The names are visited in an order of dependency. The members of the names so far are counted by
    which conditions of later names they meet, so that the product is never listed.

    Args:
        space: a validated space.

    >>> size_of({"width": (16, 32, 16), "blocks": Range(1, 3, integer=True)})
    6
    >>> size_of({"norm": ("none", "batch"), "depth": Range(0, 1, step=1, when={"norm": "batch"})})
    3
    """
    names = _compact_order(space)
    below = {name: [key for key in names if name in conditions_of(space[key])] for name in names}
    last_use = {name: max(map(names.index, keys), default=-1) for name, keys in below.items()}
    # (name, which conditions on it hold), of names that later ones depend on -> number of members
    counts: dict[tuple[tuple[str, tuple[bool, ...]], ...], float] = {(): 1}
    for position, name in enumerate(names):
        conditions = [conditions_of(space[key])[name] for key in below[name]]
        if_used = _count_values(space[name], conditions)
        if_unused = {(False,) * len(conditions): 1}
        previous, counts = counts, {}
        for state, count in previous.items():
            met = dict(state)
            is_used = all(met[key][below[key].index(name)] for key in conditions_of(space[name]))
            for holding, number in (if_used if is_used else if_unused).items():
                later = tuple(
                    item for item in (*state, (name, holding)) if last_use[item[0]] > position
                )
                counts[later] = counts.get(later, 0) + _product(count, number)
    return sum(counts.values())


def _compact_order(space: Space) -> list[str]:
    """Order names so that those with conditions follow soon after the names in these."""
    ordered: dict[str, None] = {}

    def append(name: str) -> None:
        ordered[name] = None
        for key, dimension in space.items():
            above = conditions_of(dimension)
            if key not in ordered and name in above and all(item in ordered for item in above):
                append(key)

    for name in dependency_order(space):
        if name not in ordered:
            append(name)
    return list(ordered)


def _count_values(dimension: Dimension, conditions: Sequence[Any]) -> dict[tuple[bool, ...], float]:
    """Count the values of a dimension by which conditions they meet."""
    weighted: Iterable[tuple[Any, float]]
    if isinstance(dimension, Range):
        weighted = _parts(dimension, conditions)
    else:
        weighted = [(value, 1) for value in different(dimension)]
    counts: defaultdict[tuple[bool, ...], float] = defaultdict(int)
    for value, number in weighted:
        counts[tuple(meets(value, condition) for condition in conditions)] += number
    return counts


def _parts(dimension: Range, conditions: Sequence[Any]) -> Iterator[tuple[int | float, float]]:
    """Yield the parts of a range between the numbers in conditions: a value, and their number."""
    numbers = [
        number
        for condition in conditions
        for number in (condition.values() if is_bounds(condition) else as_values(condition))
    ]
    if not dimension.is_finite:
        cuts = [dimension.low, dimension.high, *numbers]
        inner = sorted({cut for cut in cuts if dimension.low <= cut <= dimension.high})
        yield from (((start + end) / 2, math.inf) for start, end in pairwise(inner))
        return
    size = int(dimension.size)
    indices = {0, size}
    for number in numbers:
        indices |= {dimension.index_from(number), dimension.index_to(number) + 1}
    inner = sorted(index for index in indices if 0 <= index <= size)
    yield from ((dimension.value_at(start), end - start) for start, end in pairwise(inner))


def _product(first: float, second: float) -> float:
    """Multiply two numbers of members; infinity times a very large integer is no overflow."""
    if math.inf in (first, second):
        return math.inf
    return first * second
