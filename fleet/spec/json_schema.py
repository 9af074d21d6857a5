"""The JSON Schema of a spec file, by which editors complete keys and values, explain and check them."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from fleet.spec.model import FAMILIES
from fleet.spec.schema import Document


def json_schema() -> dict[str, Any]:
    """The whole schema."""
    schema = TypeAdapter(Document).json_schema()
    _know_the_entries(schema["$defs"])
    # A run that stays open needs no network to begin with.
    schema |= {"anyOf": [{"required": ["open_for"]}, {"properties": {"models": {"minItems": 1}}}]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "FLEET spec"}


def _know_the_entries(parts: dict[str, Any]) -> None:
    """Say what the mappings of an entry of ``models`` hold: the settings of its family, and parts of ``train``."""
    entry = parts["ModelEntry"]
    train = entry["properties"]["train"]
    entry["properties"]["train"] = {"$ref": "#/$defs/Train", **{key: train[key] for key in ("title", "description")}}
    for settings in FAMILIES.values():
        parts[settings.__name__] = TypeAdapter(settings).json_schema()
    entry["allOf"] = [{"if": {"required": ["family"], "properties": {"family": {"const": family}}},
                       "then": {"properties": {"args": {"$ref": f"#/$defs/{settings.__name__}"}}}}
                      for family, settings in FAMILIES.items()]
