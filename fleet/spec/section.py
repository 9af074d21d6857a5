"""Declare the sections of a spec: frozen dataclasses that are validated, described, and written.

The docstring below a key describes it, as in Sphinx, unless ``Field(description=...)`` does.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from dataclasses import is_dataclass
from itertools import pairwise
from typing import Any, TypeVar, dataclass_transform

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass

T = TypeVar("T")

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
    return dataclass(frozen=True, config=config)(owner)  # type: ignore[return-value]


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
    """Add the docstring below each key to the JSON Schema of a section.

    Pydantic's ``use_attribute_docstrings`` would parse the source at every import.

    Args:
        schema: the schema, which changes.
        owner: the dataclass of the section.
    """
    [definition] = ast.parse(inspect.getsource(owner)).body
    assert isinstance(definition, ast.ClassDef)
    for key, text in pairwise(definition.body):
        match key, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(description))),
            ):
                schema["properties"][name]["description"] = " ".join(description.split())
