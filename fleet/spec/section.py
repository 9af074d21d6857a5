"""Declare the sections of a spec: frozen dataclasses that are validated, and described.

The docstring below a key describes it, as in Sphinx, unless ``Field(description=...)`` does.
"""

from __future__ import annotations

import ast
import inspect
from itertools import pairwise
from typing import Any, TypeVar, dataclass_transform

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

T = TypeVar("T")


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
