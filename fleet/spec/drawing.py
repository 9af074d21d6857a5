"""Draw random members of a search space."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from typing import Any

from fleet.errors import UserError
from fleet.spec.conditions import dependency_order, is_active
from fleet.spec.dimensions import (
    Choices,
    Dimension,
    Member,
    Range,
    Space,
    conditions_of,
    key_of_value,
    value_at,
    values_of,
)
from fleet.spec.enumeration import combinations, size_of
from fleet.spec.old_keys import oldest_name

# After so many repeated members in a row, the others are listed instead of drawn: unlike with
# uniform draws, one of them may be too unlikely to be drawn at all.
_MAX_REPEATS = 1000
_MAX_LISTED = 10_000  # values of a range


def draw(dimensions: Space, count: int, seed: int) -> list[Member]:
    """Draw different members of a space at random.

    Members come from one stream of random numbers, and repeated ones are skipped: a larger count
    adds members at the end.

    Args:
        dimensions: a validated space.
        count: number of members.
        seed: the same seed, space and count yield the same members on every machine.

    Returns:
        ``count`` different members, each name -> value.

    Raises:
        UserError: the space has fewer members.

    >>> members = draw({"width": (16, 32), "blocks": ([1, 1], [2, 2])}, count=4, seed=0)
    >>> sorted((member["width"], member["blocks"]) for member in members)
    [(16, [1, 1]), (16, [2, 2]), (32, [1, 1]), (32, [2, 2])]
    """
    size = size_of(dimensions)
    if count > size:
        raise UserError(
            f"the space has {size:.0f} different members, fewer than {count}; "
            "use more choices or a smaller count"
        )
    return list(itertools.islice(members(dimensions, seed), count))


def members(dimensions: Space, seed: int) -> Iterator[Member]:
    """Yield the different members of a space in random order.

    Each parameter has its own number in the stream, whether it is used or not: a new condition does
    not change the other values.

    Args:
        dimensions: a validated space.
        seed: the same seed and space yield the same order on every machine.
    """
    size = size_of(dimensions)
    stream = _stream(dimensions, random.Random(seed))
    if math.isinf(size):
        return stream
    return itertools.islice(stream, int(size))


def _stream(dimensions: Space, rng: random.Random) -> Iterator[Member]:
    names = sorted(dimensions, key=oldest_name)  # the order in the spec must not matter
    ordered = dependency_order(dimensions, names)
    is_uniform = all(map(_is_uniform, dimensions.values()))
    seen = set[str]()
    repeats = 0
    while is_uniform or repeats < _MAX_REPEATS:
        shares = {name: rng.random() for name in names}
        drawn: Member = {}
        for name in ordered:
            if is_active(dimensions[name], drawn):
                drawn[name] = value_at(dimensions[name], shares[name])
        key = key_of_value(drawn)
        repeats += 1
        if key not in seen:
            repeats = 0
            seen.add(key)
            yield {name: drawn[name] for name in dimensions if name in drawn}
    sorted_space = {name: dimensions[name] for name in ordered}
    for member in combinations(sorted_space, lambda dimension: _shuffled(dimension, rng)):
        if key_of_value(member) not in seen:
            yield {name: member[name] for name in dimensions if name in member}


def _is_uniform(dimension: Dimension) -> bool:
    """Return True if all values of a dimension are used, and drawn, equally often."""
    if conditions_of(dimension):
        return False
    if isinstance(dimension, Range):
        return dimension.prior is None
    return not isinstance(dimension, Choices) or dimension.weights is None


def _shuffled(dimension: Dimension, rng: random.Random) -> Iterator[Any]:
    """Yield the values of a dimension in random order; those of a long range without an end."""
    if isinstance(dimension, Range) and dimension.size > _MAX_LISTED:
        return (dimension.at(rng.random()) for _ in itertools.repeat(None))
    values = list(values_of(dimension))
    return iter(sorted(values, key=lambda value: rng.random()))
