"""Declare the sections of a spec: frozen dataclasses that are validated, described, and written.

The docstring below a key describes it, as in Sphinx, unless ``Field(description=...)`` does. So
``help()`` of a section has these texts, too.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import pairwise
from textwrap import wrap
from typing import Annotated, Any, TypeVar, dataclass_transform, get_args, get_origin

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass

T = TypeVar("T")

# Between what a section is and the texts of its keys, in its docstring.
KEYS_HEADING = "\n\nKeys:\n"

_ANY: TypeAdapter[Any] = TypeAdapter(Any)


@dataclass_transform(frozen_default=True, field_specifiers=(Field,))
def section(owner: type[T]) -> type[T]:
    """Make a class a section of a spec: a frozen dataclass that refuses unknown keys."""
    config = ConfigDict(
        extra="forbid",
        arbitrary_types_allowed=True,
        allow_inf_nan=False,
        json_schema_extra=_describe_keys,
    )
    validated: Any = dataclass(frozen=True, config=config)(owner)
    validated.__doc__ = _SectionDoc(inspect.cleandoc(owner.__doc__ or ""))
    return validated


class _SectionDoc(str):
    """The docstring of a section, to which the texts of its keys are added when it is read."""

    __slots__ = ()

    def __get__(self, instance: object, owner: type) -> str:
        if "__dataclass_fields__" not in owner.__dict__:  # while it is being made
            return str(self)
        lines = [
            "\n".join(wrap(f"{key}: {text}", 96, initial_indent="    ", subsequent_indent=" " * 8))
            for key, text in key_texts(owner).items()
        ]
        return str(self) + (KEYS_HEADING + "\n".join(lines) if lines else "")


@cache
def key_texts(owner: type) -> dict[str, str]:
    """Return the text of each key of a section, in order; of a key that is a section, its text.

    Pydantic's ``use_attribute_docstrings`` would parse the source at every import.

    Args:
        owner: the dataclass of the section.
    """
    [definition] = ast.parse(inspect.getsource(owner)).body
    assert isinstance(definition, ast.ClassDef)
    below: dict[str, str] = {}
    for key, text in pairwise(definition.body):
        match key, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(description))),
            ):
                below[name] = " ".join(description.split())
    return {
        field.name: below.get(field.name)
        or getattr(field.default, "description", None)
        or _text_of_type(str(field.type), owner)
        for field in fields(owner)
    }


def _text_of_type(name: str, owner: type) -> str:
    """Return what a section is, in a sentence, by its name in the module of another; or ""."""
    kind = vars(sys.modules[owner.__module__]).get(name)
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return str(vars(kind)["__doc__"]) if is_section(kind) else ""


def is_section(kind: Any) -> bool:
    """Return True if a value is the class of a section."""
    return isinstance(kind, type) and isinstance(vars(kind).get("__doc__"), _SectionDoc)


def plain(value: Any) -> Any:
    """Convert settings to mappings and lists, without default values."""
    if is_dataclass(value):
        value = _ANY.dump_python(value, exclude_defaults=True)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def _describe_keys(schema: dict[str, Any], owner: type) -> None:
    """Add the text of each key to the JSON Schema of a section.

    Args:
        schema: the schema, which changes.
        owner: the dataclass of the section.
    """
    for key, text in key_texts(owner).items():
        if text and "$ref" not in schema["properties"][key]:
            schema["properties"][key].setdefault("description", text)
