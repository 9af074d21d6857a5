"""Draw networks from search spaces.

A space maps names of parameters to their possible values: a list of choices, or a :class:`Range`.
:func:`draw` draws random members, :func:`grid` lists all of them, and :func:`override` writes a
member into the settings that it varies. Dots in a name lead into nested settings:
``train.optimizer.learning_rate``, or ``blocks.2`` for the third item of a list.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import (
    Discriminator,
    Field,
    FiniteFloat,
    Tag,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from fleet.errors import UserError
from fleet.spec.fields import NO_FLAG, Whole
from fleet.spec.old_keys import oldest_name
from fleet.spec.origin import is_below
from fleet.spec.section import section

Bound = Whole | Annotated[FiniteFloat, NO_FLAG]
Flag = Annotated[bool, Field(strict=True)]


@section
class Range:
    """A range of numbers from which a parameter is drawn uniformly."""

    low: Bound
    """Smallest value that is drawn."""
    high: Bound
    """Largest value that is drawn."""
    log: Flag = False
    """Draw the logarithm uniformly, for parameters whose order of magnitude matters."""
    integer: Flag = False
    """Draw integers only, no real numbers."""

    @model_validator(mode="after")
    def _check(self) -> Range:
        if max(abs(self.low), abs(self.high)) > 2**53:
            raise ValueError(
                "low and high must be at most 2**53, since larger integers are not exact as "
                "floating-point numbers"
            )
        if not self.low < self.high or math.isclose(self.low, self.high):
            raise ValueError(f"low ({self.low}) must be below high ({self.high})")
        if self.log and self.low <= 0:
            raise ValueError(f"a logarithmic range must start above 0, not at {self.low}")
        if self.integer and not (isinstance(self.low, int) and isinstance(self.high, int)):
            raise ValueError(
                f"an integer range needs integers as bounds, not {self.low} and {self.high}"
            )
        return self

    @property
    def size(self) -> float:
        """The number of values; infinite for real numbers."""
        if self.integer:
            return self.high - self.low + 1
        return math.inf

    def at(self, share: float) -> int | float:
        """Return the value at a share in [0, 1) of the range.

        >>> Range(1, 3, integer=True).at(0.5), round(Range(0.001, 0.1, log=True).at(0.5), 6)
        (2, 0.01)
        """
        # Each integer represents the unit interval around it, so that all are equally likely.
        low, high = (self.low - 0.5, self.high + 0.5) if self.integer else (self.low, self.high)
        if self.log:
            value = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        else:
            value = low + share * (high - low)
        value = min(max(value, self.low), self.high)  # rounding may exceed the bounds
        if self.integer:
            return math.floor(value + 0.5)
        return float(value)


Choices = Annotated[tuple[Any, ...], Field(min_length=1)]


def _form(value: Any) -> str:
    if isinstance(value, Range | Mapping):
        return "range"
    return "choices"


# Tagged by form, so that a mistake is reported for the form that the user chose.
Dimension = Annotated[
    Annotated[Range, Tag("range")] | Annotated[Choices, Tag("choices")], Discriminator(_form)
]
Space = dict[str, Dimension]
Grid = dict[str, Choices]
Member = dict[str, Any]


def space_of(content: Mapping[str, Any]) -> Space:
    """Validate a space given as lists of choices and mappings of ranges.

    Raises:
        UserError: the space is malformed.
    """
    try:
        return TypeAdapter(Space).validate_python(content)
    except ValidationError as error:
        first = error.errors()[0]
        name = next(iter(first["loc"]), "space")
        raise UserError(
            f"search space, {name}: {first['msg']}; use a list of choices, or a mapping with low "
            "and high"
        ) from None


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


def size_of(dimensions: Space) -> float:
    """Count the different members of a space; infinite for real ranges.

    Args:
        dimensions: a validated space.

    >>> size_of({"width": (16, 32, 16), "blocks": Range(1, 3, integer=True)})
    6
    """
    return math.prod(_size(dimension) for dimension in dimensions.values())


def members(dimensions: Space, seed: int) -> Iterator[Member]:
    """Yield the different members of a space in random order.

    Args:
        dimensions: a validated space.
        seed: the same seed and space yield the same order on every machine.
    """
    size = size_of(dimensions)
    stream = _stream(dimensions, random.Random(seed))
    if math.isinf(size):
        return stream
    return itertools.islice(stream, int(size))


def member_at(dimensions: Space, number: int) -> Member | None:
    """Return a member of a space by its number; None beyond the last one.

    Args:
        dimensions: a validated space, of lists and ranges of integers.
        number: counted from 0.

    >>> space = {"width": (16, 32), "blocks": Range(1, 2, integer=True)}
    >>> [member_at(space, number) for number in (0, 1, 2, 4)]
    [{'width': 16, 'blocks': 1}, {'width': 16, 'blocks': 2}, {'width': 32, 'blocks': 1}, None]
    """
    values: Member = {}
    for name in reversed(dimensions):
        dimension = dimensions[name]
        number, index = divmod(number, int(_size(dimension)))
        if isinstance(dimension, Range):
            values[name] = int(dimension.low) + index
        else:
            values[name] = _different(dimension)[index]
    if number:
        return None
    return {name: values[name] for name in dimensions}


def ends(dimensions: Space) -> list[Member]:
    """Return two members of a space: with the smallest and the largest values.

    If not all choices are numbers, these are the first and the last choice.

    >>> ends({"width": (32, 16), "norm": ("batch", "none"), "blocks": Range(1, 3, integer=True)})
    [{'width': 16, 'norm': 'batch', 'blocks': 1}, {'width': 32, 'norm': 'none', 'blocks': 3}]
    """
    return [
        {name: _ends(dimension)[end] for name, dimension in dimensions.items()} for end in (0, 1)
    ]


def member_of(dimensions: Space, values: Mapping[str, Any]) -> Member:
    """Return the member of a space with these values, as the space writes them.

    Args:
        dimensions: a validated space.
        values: name -> value.

    Raises:
        UserError: a value lies outside the space; the message names it.

    >>> space = {"width": (16, 32), "blocks": Range(1, 3, integer=True)}
    >>> member_of(space, {"blocks": 2.0, "width": 16})
    {'width': 16, 'blocks': 2}
    """
    foreign = sorted(set(values) - set(dimensions))
    missing = sorted(set(dimensions) - set(values))
    if foreign:
        raise UserError(f"the space has no {foreign[0]!r}; it has {', '.join(dimensions)}")
    if missing:
        raise UserError(f"{missing[0]} has no value")
    return {
        name: _value_in(name, dimension, values[name]) for name, dimension in dimensions.items()
    }


def grid(choices: Grid) -> list[Member]:
    """List all combinations of choices; those of the last name vary fastest.

    Args:
        choices: name -> choices.

    Returns:
        All different members, in the order of the choices.

    >>> grid({"width": (16, 32), "norm": ("batch",)})
    [{'width': 16, 'norm': 'batch'}, {'width': 32, 'norm': 'batch'}]
    """
    lists = {name: _different(values) for name, values in choices.items()}
    return [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]


def override(settings: Mapping[str, Any], member: Member) -> dict[str, Any]:
    """Write a member's values into a copy of nested settings.

    Args:
        settings: nested mappings and lists.
        member: dotted name -> value; missing mappings on the way are created.

    Returns:
        The settings with the member's values. Values of shorter names are written first, whatever
        the order of the member, then the values below them.

    Raises:
        UserError: the settings have no place for a name.

    >>> override({"blocks": [3, 4, 6, 3]}, {"blocks.2": 23, "norm": "none"})
    {'blocks': [3, 4, 23, 3], 'norm': 'none'}
    >>> override({}, {"optimizer.learning_rate": 0.1, "optimizer": {"name": "adam"}})
    {'optimizer': {'name': 'adam', 'learning_rate': 0.1}}
    """
    result = copy.deepcopy(dict(settings))
    for name in sorted(member, key=lambda name: name.count(".")):
        _set(result, name, copy.deepcopy(member[name]))
    return result


def contradictions(dimensions: Mapping[str, Range | Sequence[Any]]) -> Iterator[tuple[str, str]]:
    """Find names of a space that give one setting two values.

    Args:
        dimensions: a validated space, or the choices of a grid.

    Returns:
        Pairs of a name, and a name above it with a choice that sets the same setting.

    >>> optimizers = ({"name": "sgd"}, {"rate": 0.2})
    >>> list(contradictions({"optimizer.rate": Range(0.1, 1), "optimizer": optimizers}))
    [('optimizer.rate', 'optimizer')]
    """
    for name in dimensions:
        for above, choices in dimensions.items():
            if above == name or not is_below(name, above) or isinstance(choices, Range):
                continue
            path = name.removeprefix(f"{above}.").split(".")
            if any(holds(choice, path) for choice in choices):
                yield name, above


def holds(settings: Any, path: Sequence[Any]) -> bool:
    """Return True if nested settings have a value at a path, of keys and indices.

    >>> holds({"metrics": ["AUC"]}, ("metrics", 0)), holds({"metrics": ["AUC"]}, ("loss",))
    (True, False)
    """
    for step in path:
        if isinstance(settings, list | tuple) and _is_index(str(step), settings):
            settings = settings[int(step)]
        elif isinstance(settings, Mapping) and step in settings:
            settings = settings[step]
        else:
            return False
    return True


# --- drawing -------------------------------------------------------------------------------


def _stream(dimensions: Space, rng: random.Random) -> Iterator[Member]:
    names = sorted(dimensions, key=oldest_name)  # the order in the spec must not matter
    seen = set()
    while True:
        drawn = {name: _pick(dimensions[name], rng.random()) for name in names}
        key = key_of_value(drawn)
        if key not in seen:
            seen.add(key)
            yield {name: drawn[name] for name in dimensions}


def _pick(dimension: Range | Sequence[Any], share: float) -> Any:
    # Only random.random() is the same in every version of Python, its other methods are not.
    if isinstance(dimension, Range):
        return dimension.at(share)
    return dimension[int(share * len(dimension))]


def _ends(dimension: Range | Sequence[Any]) -> tuple[Any, Any]:
    if isinstance(dimension, Range):
        if dimension.integer:
            return (dimension.low, dimension.high)
        return (float(dimension.low), float(dimension.high))
    if all(type(choice) in (int, float) for choice in dimension):
        return min(dimension), max(dimension)
    return dimension[0], dimension[-1]


def _value_in(name: str, dimension: Range | Sequence[Any], value: Any) -> Any:
    """Return a value as its dimension writes it.

    Raises:
        UserError: the value lies outside the dimension.
    """
    if not isinstance(dimension, Range):
        for choice in dimension:
            if key_of_value(choice) == key_of_value(value):
                return choice
        for choice in dimension:
            if type(choice) in (int, float) and type(value) in (int, float) and choice == value:
                return choice
        raise UserError(f"{name}: {value!r} is not one of {', '.join(map(repr, dimension))}")
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not dimension.low <= value <= dimension.high
    ):
        raise UserError(f"{name}: {value!r} is not between {dimension.low} and {dimension.high}")
    if dimension.integer and value != int(value):
        raise UserError(f"{name}: {value!r} is not an integer")
    if dimension.integer:
        return int(value)
    return float(value)


def _size(dimension: Range | Sequence[Any]) -> float:
    if isinstance(dimension, Range):
        return dimension.size
    return len(_different(dimension))


def _different(values: Sequence[Any]) -> list[Any]:
    return list({key_of_value(value): value for value in values}.values())


def key_of_value(value: Any) -> str:
    """Return a value as text that can be hashed."""
    try:
        return json.dumps(value, sort_keys=True)
    except TypeError as error:
        raise UserError(
            f"search space: {value!r}: {error}; use numbers, text, lists and mappings"
        ) from None


def _set(settings: dict[str, Any], name: str, value: Any) -> None:
    *path, last = name.split(".")
    target: Any = settings
    for word in path:
        if isinstance(target, dict):
            target.setdefault(word, {})
        target = target[_index(target, word, name)]
    target[_index(target, last, name)] = value


def _is_index(word: str, items: Sequence[Any]) -> bool:
    """Return True if a word is the index of an item, without leading zeros."""
    return word.isdecimal() and str(int(word)) == word and int(word) < len(items)


def _index(container: Any, word: str, name: str) -> str | int:
    if isinstance(container, dict):
        return word
    if isinstance(container, list) and _is_index(word, container):
        return int(word)
    if isinstance(container, list):
        description = f"a list of {len(container)}"
    else:
        description = f"{container!r}"
    raise UserError(f"search space, {name}: there is no {word!r} in {description}")
