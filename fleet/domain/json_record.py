"""Frozen dataclasses as JSON objects, one a line (pure).

The key ``event`` of an object names its type: ``{"event": "lost", "rank": 3, "device": 2}`` is the
frozen dataclass whose ``word`` is ``lost``. The fields of the class are the other keys, in their
order. The annotation of a field may say how it is written: ``Annotated[float, Decimals(3)]``.
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
class JsonRecord:
    """Base class of records that are written as lines; each subclass is a frozen dataclass."""

    word: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __init_subclass__(cls, word: str) -> None:
        cls.word = word
        dataclasses.dataclass(frozen=True)(cls)


@dataclasses.dataclass(frozen=True)
class Decimals:
    """Annotation: the number is written with so many decimal places."""

    count: int


Tenths: TypeAlias = Annotated[float, Decimals(1)]
Milli: TypeAlias = Annotated[float, Decimals(3)]
Micro: TypeAlias = Annotated[float, Decimals(6)]


class Flat:
    """Annotation: the fields of this nested dataclass are written as keys of the outer object."""


class OmitDefault:
    """Annotation: the key is omitted if the field has its default."""


class NanAsNull:
    """Annotation: NaN and infinity are written as null, and null is read as NaN.

    Without it, a null is damage.
    """


def to_json(event: JsonRecord) -> dict[str, Any]:
    """Return the object that is written as a line.

    >>> class Lost(JsonRecord, word="lost"):
    ...     rank: int
    ...     after_s: Annotated[float, Decimals(1)]
    >>> to_json(Lost(3, 0.25))
    {'event': 'lost', 'rank': 3, 'after_s': 0.2}
    """
    return {"event": event.word, **_written(event)}


def from_json(record: Any, kinds: Mapping[str, type]) -> Any:
    """Return the record that :func:`to_json` wrote, up to rounding of numbers.

    A missing key gives the field its default. Unknown keys are ignored.

    Args:
        record: the object of a line.
        kinds: word -> dataclass.

    Returns:
        None if the type is unknown, a key without a default is missing, or a value has a wrong
        type.
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
def _annotations(kind: type) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Return the type and the annotations of each field."""
    hints = get_type_hints(kind, include_extras=True)
    annotations = {}
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        if get_origin(hint) is Annotated:
            annotations[field.name] = (get_args(hint)[0], hint.__metadata__)
        else:
            annotations[field.name] = (hint, ())
    return annotations


@cache
def _decimal_places(kind: type) -> dict[str, int | None]:
    """Return the decimal places of each field; None where it is not rounded."""
    return {
        name: next((mark.count for mark in marks if isinstance(mark, Decimals)), None)
        for name, (_, marks) in _annotations(kind).items()
    }


@cache
def _defaults(kind: type) -> dict[str, Any]:
    """Return the defaults of the fields that are omitted when they have them."""
    defaults: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if OmitDefault not in _annotations(kind)[field.name][1]:
            continue
        if field.default_factory is dataclasses.MISSING:
            defaults[field.name] = field.default
        else:
            defaults[field.name] = field.default_factory()
    return defaults


@cache
def _flat(kind: type) -> frozenset[str]:
    """Return the fields whose keys are keys of the outer object."""
    return frozenset(name for name, (_, marks) in _annotations(kind).items() if Flat in marks)


def _written(value: Any) -> dict[str, Any]:
    kind: type = type(value)
    defaults = _defaults(kind)
    flat = _flat(kind)
    content: dict[str, Any] = {}
    for name, places in _decimal_places(kind).items():
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
    for name, (hint, marks) in _annotations(kind).items():
        if name in flat:
            values[name] = _read_fields(hint, record)
        elif name in record:
            value = record[name]
            if type(value) is hint and (hint is not float or math.isfinite(value)):
                values[name] = value
            else:
                values[name] = (
                    math.nan if value is None and NanAsNull in marks else _read(hint, value)
                )
    return kind(**values)  # TypeError where one is missing that has no default


@cache
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the origin and arguments of a type, cached: a log may have 100,000 lines."""
    return get_origin(hint), get_args(hint)


def _read(hint: Any, value: Any) -> Any:
    """Convert a JSON value to the type of a field.

    Raises:
        ValueError: the value has another type.
    """
    if hint is Any:
        return value
    origin, arguments = _parts(hint)
    if origin is Annotated:
        if value is None and NanAsNull in hint.__metadata__:
            return math.nan
        return _read(arguments[0], value)
    if origin in (Union, UnionType):
        if value is None and NoneType in arguments:
            return None
        lists = [option for option in arguments if _parts(option)[0] is tuple]
        return _read(lists[0] if lists and isinstance(value, list) else arguments[0], value)
    if origin is tuple and isinstance(value, list):
        types = arguments[:1] * len(value) if arguments[1:] == (...,) else arguments
        return tuple(_read(option, item) for option, item in zip(types, value, strict=True))
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
    """Return True if a JSON value is a finite number; Python's parser accepts NaN and Infinity."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


@cache
def _field_names(kind: type) -> tuple[str, ...] | None:
    """Return the field names of a dataclass; None for any other type."""
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    return None


_PLAIN = frozenset({int, str, bool, NoneType})


def as_json(value: Any) -> Any:
    """Convert a value to the types of JSON; NaN and infinity become None.

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
        # quick for the rates of thousands of networks
        if kinds <= _PLAIN or (kinds == {float} and math.isfinite(sum(value))):
            return list(value)
        return [as_json(item) for item in value]
    kind: type = type(value)
    names = _field_names(kind)
    if names is not None:
        content = {name: getattr(value, name) for name in names}
        return {
            name: item if type(item) in _PLAIN else as_json(item) for name, item in content.items()
        }
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if hasattr(value, "tolist"):  # numpy
        return as_json(value.tolist())
    return value
