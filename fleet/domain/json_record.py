"""Frozen dataclasses as JSON objects (pure).

pydantic reads and writes them by their annotations, in its strict mode: text is no number, 3.0 and
true are no integers. Reading ignores unknown keys; a missing key gives the field its default. An
annotation may say how a field is written: ``Annotated[float, decimals(3)]``.

In files with one object a line, the key ``event`` names the type: ``{"event": "lost", "rank": 3,
"device": 2}`` is the dataclass whose ``word`` is ``lost``.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar, dataclass_transform, get_type_hints

from pydantic import BeforeValidator, PlainSerializer, TypeAdapter
from pydantic_core import PydanticSerializationError
from pydantic_core import to_json as json_bytes

from fleet.domain.plain_json import as_json, plain_items

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
class JsonRecord:
    """Base class of records that are written as lines; each subclass is a frozen dataclass."""

    word: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __init_subclass__(cls, word: str) -> None:
        cls.word = word
        dataclasses.dataclass(frozen=True)(cls)


def decimals(count: int) -> PlainSerializer:
    """Return an annotation: the number is written with so many decimal places."""
    return PlainSerializer(lambda value: round(value, count))


Tenths: TypeAlias = Annotated[float, decimals(1)]
Milli: TypeAlias = Annotated[float, decimals(3)]
Micro: TypeAlias = Annotated[float, decimals(6)]


class Flat:
    """Annotation: the fields of this nested dataclass are written as keys of the outer object."""


class OmitDefault:
    """Annotation: the key is omitted if the field has its default."""


# NaN and infinity are written as null; this annotation reads null as NaN. Without it, a null is
# damage.
NanAsNull = BeforeValidator(lambda value: math.nan if value is None else value)


def to_json(event: JsonRecord) -> dict[str, Any]:
    """Return the object that is written as a line.

    >>> class Lost(JsonRecord, word="lost"):
    ...     rank: int
    ...     after_s: Annotated[float, decimals(1)]
    >>> to_json(Lost(3, 0.25))
    {'event': 'lost', 'rank': 3, 'after_s': 0.2}
    """
    return {"event": event.word, **write_record(event)}


def from_json(record: Any, kinds: Mapping[str, type]) -> Any:
    """Return the record that :func:`to_json` wrote, up to rounding of numbers.

    Args:
        record: the object of a line.
        kinds: word -> dataclass.

    Returns:
        None if the type is unknown, a key without a default is missing, or a value has a wrong
        type.
    """
    try:
        return read_record(kinds[record["event"]], record)
    except (TypeError, ValueError, LookupError):
        return None


def write_record(record: Any) -> dict[str, Any]:
    """Return the JSON object of a dataclass; NaN and infinity become null."""
    kind: type = type(record)
    written = as_json(
        _adapter(kind).serializer.to_python(
            record, mode="json", by_alias=True, warnings=False, fallback=plain_items
        )
    )
    flat = _flat(kind)
    content: dict[str, Any] = {}
    for name, value in written.items():
        if name in flat:
            content |= value
        else:
            content[name] = value
    for name, default in _omitted(kind).items():
        if content[name] == default:
            del content[name]
    return content


def read_record(kind: type[T], record: Any) -> T:
    """Return the dataclass that :func:`write_record` wrote.

    Raises:
        ValueError: a key without a default is missing, or a value has a wrong type.
    """
    hashable: type = kind  # for mypy
    adapter: TypeAdapter[T] = _adapter(hashable)
    nested: dict[str, Any] = {
        name: read_record(hint, record) for name, hint in _flat(hashable).items()
    }
    if nested:
        return adapter.validate_python({**record, **nested})
    try:
        text = json_bytes(record, inf_nan_mode="null")
    except PydanticSerializationError:  # a file name has bytes that are no characters
        text = json.dumps(record, ensure_ascii=False).encode(errors="replace")
    return adapter.validate_json(text, strict=True)


@cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


@cache
def _flat(kind: type) -> dict[str, type]:
    """Return the types of the fields that are written as keys of the outer object."""
    return {name: hint.__origin__ for name, hint in _marked(kind, Flat)}


@cache
def _omitted(kind: type) -> dict[str, Any]:
    """Return the defaults, in types of JSON, of the keys that are omitted if they have them."""
    defaults: dict[str, Any] = {}
    for flat_kind in _flat(kind).values():
        defaults |= _omitted(flat_kind)
    fields = kind.__dataclass_fields__  # type: ignore[attr-defined]
    for name, _ in _marked(kind, OmitDefault):
        default = fields[name].default
        if default is dataclasses.MISSING:
            default = fields[name].default_factory()
        defaults[name] = as_json(default)
    return defaults


def _marked(kind: type, mark: type) -> list[tuple[str, Any]]:
    """Return the names and types of the fields with an annotation."""
    hints = get_type_hints(kind, include_extras=True)
    return [
        (name, hint) for name, hint in hints.items() if mark in getattr(hint, "__metadata__", ())
    ]
