"""Describe the keys of a spec by the docstrings below them, as Sphinx does."""

from __future__ import annotations

import ast
import inspect
from itertools import pairwise
from typing import Any


def describe_keys(schema: dict[str, Any], section: type) -> None:
    """Add the docstring below each key to the JSON Schema of a section.

    Pydantic's ``use_attribute_docstrings`` would parse the source at every import.

    Args:
        schema: the schema, which changes.
        section: the dataclass of the section.
    """
    [definition] = ast.parse(inspect.getsource(section)).body
    assert isinstance(definition, ast.ClassDef)
    for key, text in pairwise(definition.body):
        match key, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(description))),
            ):
                schema["properties"][name]["description"] = " ".join(description.split())
