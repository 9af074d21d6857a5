"""Search spaces: validate them, and write their members into settings.

A space maps names of parameters to their possible values (:mod:`fleet.spec.dimensions`), some of
which are used under conditions only (:mod:`fleet.spec.conditions`). A member has a value for each
parameter that is used. :func:`fleet.spec.drawing.draw` draws random members,
:func:`fleet.spec.enumeration.grid` lists all of them, and :func:`override` writes a member into the
settings that it varies. Dots in a name lead into nested settings:
``train.optimizer.learning_rate``, or ``blocks.2`` for the third item of a list.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fleet.errors import UserError
from fleet.spec.conditions import (
    check_conditions,
    dependency_order,
    meets,
    requirements,
    suitable_ends,
    unmet_condition,
)
from fleet.spec.dimensions import Dimension, Member, Range, Space, conditions_of, normal_form
from fleet.spec.origin import is_below


def space_of(content: Mapping[str, Any]) -> Space:
    """Validate a space given as lists of choices and mappings of ranges.

    Raises:
        UserError: the space is malformed, or a condition can never hold.
    """
    try:
        space = TypeAdapter(Space).validate_python(content)
    except ValidationError as error:
        first = error.errors()[0]
        name = next(iter(first["loc"]), "space")
        raise UserError(
            f"search space, {name}: {first['msg']}; use a list of choices, or a mapping with low "
            "and high"
        ) from None
    check_conditions(space)
    return space


def member_of(dimensions: Space, values: Mapping[str, Any]) -> Member:
    """Return the member of a space with these values, as the space writes them.

    Args:
        dimensions: a validated space.
        values: name -> value, of the parameters that are used.

    Raises:
        UserError: a value lies outside the space, is missing, or belongs to a parameter that is not
            used; the message names it.

    >>> space = {"width": (16, 32), "blocks": Range(1, 3, integer=True)}
    >>> member_of(space, {"blocks": 2.0, "width": 16})
    {'width': 16, 'blocks': 2}
    """
    foreign = sorted(set(values) - set(dimensions))
    if foreign:
        raise UserError(f"the space has no {foreign[0]!r}; it has {', '.join(dimensions)}")
    member: Member = {}
    for name in dependency_order(dimensions):
        dimension = dimensions[name]
        above = unmet_condition(dimension, member)
        if above is None and name not in values:
            used = ", although its conditions hold" if conditions_of(dimension) else ""
            raise UserError(f"{name} has no value{used}")
        if above is not None and name in values:
            raise UserError(
                f"{name} has a value, although its condition on {above} does not hold; leave it out"
            )
        if above is None:
            member[name] = normal_form(name, dimension, values[name])
    return {name: member[name] for name in dimensions if name in member}


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


def contradictions(dimensions: Mapping[str, Dimension]) -> Iterator[tuple[str, str]]:
    """Find names of a space that give one setting two values.

    Args:
        dimensions: a validated space.

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
            if any(
                holds(choice, path) and _may_meet(dimensions, name, above, choice)
                for choice in choices
            ):
                yield name, above


def _may_meet(dimensions: Mapping[str, Dimension], name: str, above: str, choice: Any) -> bool:
    """Return True if a member may have a name and, of another one, this choice."""
    return all(
        all(meets(choice, condition) for condition in conditions)
        if key == above
        else key in dimensions and suitable_ends(dimensions[key], conditions) is not None
        for key, conditions in requirements(dimensions, name, above).items()
    )


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
