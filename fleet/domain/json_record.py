"""Frozen dataclasses as the objects of JSON lines (pure).

An object's ``event`` names a kind, such as ``{"event": "lost", "rank": 3, "device": 2}``. A kind is a frozen dataclass
with that name as its ``word``; its fields are the other keys, in their order. A field's annotation may say how it is
written: ``Annotated[float, Places(3)]``.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    TypeAlias,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
class Kind:
    """What is written as a line; each class of it is a frozen dataclass."""

    word: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __init_subclass__(cls, word: str) -> None:
        cls.word = word
        dataclasses.dataclass(frozen=True)(cls)


@dataclasses.dataclass(frozen=True)
class Places:
    """So many decimal places of a number are written."""

    count: int


Tenths: TypeAlias = Annotated[float, Places(1)]
Milli: TypeAlias = Annotated[float, Places(3)]
Micro: TypeAlias = Annotated[float, Places(6)]


class Flat:
    """The fields of this nested dataclass are written as keys of the outer object."""


class OmitDefault:
    """The key is left out if the field has its default."""


class MayBeNan:
    """The number may be NaN or infinite: it is written as null, and read as NaN. Elsewhere null is damage."""


def to_json(event: Kind) -> dict[str, Any]:
    """The object that a line holds.

    >>> class Lost(Kind, word="lost"):
    ...     rank: int
    ...     after_s: Annotated[float, Places(1)]
    >>> to_json(Lost(3, 0.25))
    {'event': 'lost', 'rank': 3, 'after_s': 0.2}
    """
    return {"event": event.word, **_written(event)}


def from_json(record: Any, kinds: Mapping[str, type]) -> Any:
    """The event that :func:`to_json` was given, except that numbers have been rounded.

    If a key is missing, the field gets its default. Keys that no field knows are passed over.

    Args:
        record: what a line holds.
        kinds: word -> dataclass.

    Returns:
        None if the record is of no known kind, lacks a key without a default, or holds a value of a wrong type.
    """
    word = record.get("event") if isinstance(record, dict) else None
    if not isinstance(word, str) or word not in kinds:
        return None
    try:
        return _read_fields(kinds[word], record)
    except (TypeError, ValueError, LookupError):
        return None


# ---- fields ------------------------------------------------------------------------------------


@cache
def _marks(kind: type) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Of each field: its type, and the marks in its annotation."""
    hints = get_type_hints(kind, include_extras=True)
    return {
        field.name: (get_args(hints[field.name])[0], hints[field.name].__metadata__)
        if get_origin(hints[field.name]) is Annotated
        else (hints[field.name], ())
        for field in dataclasses.fields(kind)
    }


@cache
def _places(kind: type) -> dict[str, int | None]:
    """Of each field: to how many decimal places it is written."""
    return {
        name: next((mark.count for mark in marks if isinstance(mark, Places)), None)
        for name, (_, marks) in _marks(kind).items()
    }


@cache
def _defaults(kind: type) -> dict[str, Any]:
    """Of the fields that are left out where they have their default: that default."""
    return {
        field.name: field.default
        if field.default_factory is dataclasses.MISSING
        else field.default_factory()
        for field in dataclasses.fields(kind)
        if OmitDefault in _marks(kind)[field.name][1]
    }


@cache
def _flat(kind: type) -> frozenset[str]:
    """The fields whose keys are those of the outer object."""
    return frozenset(name for name, (_, marks) in _marks(kind).items() if Flat in marks)


def _written(value: Any) -> dict[str, Any]:
    kind: type = type(value)
    defaults = _defaults(kind)
    flat = _flat(kind)
    content: dict[str, Any] = {}
    for name, places in _places(kind).items():
        item = getattr(value, name)
        item = item if places is None else round(item, places)
        if name in defaults and item == defaults[name]:
            continue
        if name in flat:
            content |= _written(item)
        else:
            content[name] = as_json(item)
    return content


def _read_fields(kind: type, record: Mapping[str, Any]) -> Any:
    values = {}
    flat = _flat(kind)
    for name, (hint, marks) in _marks(kind).items():
        if name in flat:
            values[name] = _read_fields(hint, record)
        elif name in record:
            value = record[name]
            if type(value) is hint and (hint is not float or math.isfinite(value)):
                values[name] = value
            else:
                values[name] = (
                    math.nan if value is None and MayBeNan in marks else _read(hint, value)
                )
    return kind(**values)  # TypeError where one is missing that has no default


@cache
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """What a type is made of: a log may have hundreds of thousands of lines."""
    return get_origin(hint), get_args(hint)


def _read(hint: Any, value: Any) -> Any:
    """A value of JSON as a field of that type wants it.

    Raises:
        ValueError: it is something else.
    """
    if hint is Any:
        return value
    origin, arguments = _parts(hint)
    if origin is Annotated:
        if value is None and MayBeNan in hint.__metadata__:
            return math.nan
        return _read(arguments[0], value)
    if origin in (Union, UnionType):
        if value is None and NoneType in arguments:
            return None
        lists = [one for one in arguments if _parts(one)[0] is tuple]
        return _read(lists[0] if lists and isinstance(value, list) else arguments[0], value)
    if origin is tuple and isinstance(value, list):
        each = arguments[:1] * len(value) if arguments[1:] == (...,) else arguments
        return tuple(_read(one, item) for one, item in zip(each, value, strict=True))
    if origin is not None and isinstance(value, dict):
        return {key: _read(arguments[1], item) for key, item in value.items()}
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return _read_fields(hint, value)  # type: ignore[arg-type]
    if hint is float and is_finite(value):
        return float(value)
    if hint in (int, str, bool) and type(value) is hint:
        return value
    raise ValueError(f"{value!r} is no {hint}")


def is_finite(value: Any) -> bool:
    """Whether a value of JSON is a number that a float can hold; Python's parser lets NaN and Infinity through."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


@cache
def _field_names(kind: type) -> tuple[str, ...] | None:
    """Of a dataclass; None of any other type."""
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    return None


_PLAIN = frozenset({int, str, bool, NoneType})


def as_json(value: Any) -> Any:
    """A value in the types that JSON has; NaN and infinity, which it lacks, become None.

    >>> as_json({1: (float("nan"), 2.0)})
    {'1': [None, 2.0]}
    """
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return None
    if isinstance(value, list | tuple):
        kinds = set(map(type, value))
        if kinds <= _PLAIN or (
            kinds == {float} and math.isfinite(sum(value))
        ):  # rates of thousands of networks
            return list(value)
        return [as_json(item) for item in value]
    kind: type = type(value)
    names = _field_names(kind)
    if names is not None:
        found = {name: getattr(value, name) for name in names}
        return {
            name: item if type(item) in _PLAIN else as_json(item) for name, item in found.items()
        }
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if hasattr(value, "tolist"):  # numpy
        return as_json(value.tolist())
    return value
