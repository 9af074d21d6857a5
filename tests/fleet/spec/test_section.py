"""Docstrings below the keys of a section as descriptions in its JSON Schema."""

from __future__ import annotations

from pydantic import Field, TypeAdapter

from fleet.spec.documentation import json_schema
from fleet.spec.section import section


@section
class Section:
    """A section."""

    short: int = 1
    """A short text."""
    long: int = 2
    """A text
    of two lines.
    """
    plain: int = 3
    computed: int = Field(default=4, description=f"{2 + 2} by default.")

    @property
    def double(self) -> int:
        """No key."""
        return 2 * self.short


def test_describe_keys_joins_lines_of_docstrings() -> None:
    keys = TypeAdapter(Section).json_schema()["properties"]
    assert {name: key.get("description") for name, key in keys.items()} == {
        "short": "A short text.",
        "long": "A text of two lines.",
        "plain": None,
        "computed": "4 by default.",
    }


def test_json_schema_of_a_unit_has_no_other_default() -> None:
    every = json_schema()["$defs"]["Checkpoint"]["properties"]["every"]
    assert [choice for choice in every["anyOf"] if "default" in choice] == []
