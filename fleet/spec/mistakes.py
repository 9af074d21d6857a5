"""Convert validation errors to mistakes: where, what is wrong, what would be right."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields as dataclass_fields
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from fleet.spec.data import Data, Target
from fleet.spec.fields import default_of
from fleet.spec.schema import Checkpoint, Document, ModelEntry, Profile, Resources, Schedule
from fleet.spec.search import Budget, Objective, Prune, Search
from fleet.spec.space import Range
from fleet.spec.train import Batch, Optimizer, Start, Stopping, Train

Mistake = TypeVar("Mistake")


def explain(
    error: ValidationError,
    content: Any,
    mistake: Callable[[tuple, str, str], Mistake],
    prefix: tuple = (),
    owner: type | None = None,
) -> list[Mistake]:
    """Convert pydantic's errors to mistakes in the words of specs.

    Args:
        error: the errors.
        content: the validated part of the document.
        mistake: makes a mistake from a key path, what is wrong, and what would be right.
        prefix: the key path of this part.
        owner: the dataclass of this part; None for the document itself.
    """
    rights_by_mistake: dict[tuple, list[str]] = {}
    items = error.errors(include_url=False)
    for item in items:
        depth = len(item["loc"])
        if item["type"] == "too_short" and any(
            len(nested["loc"]) > depth and nested["loc"][:depth] == item["loc"] for nested in items
        ):
            continue  # pydantic does not count invalid items
        path = (*prefix, *_document_path(item, content))
        if path == prefix:
            section = owner
        elif path:
            section = _PARTS.get(str(path[-1]))
        else:
            section = None
        # Such an error concerns several keys, possibly with default values.
        if section is Train and item["type"] == "value_error":
            keys, wrong, right = _split_message(item["msg"].removeprefix("Value error, "), section)
            rights_by_mistake.setdefault(((*path, *keys), wrong), []).extend(
                [right] if right else []
            )
            continue
        wrong, right = _wrong_and_right(item, path, owner if path[:-1] == prefix else None)
        rights = rights_by_mistake.setdefault((path, wrong), [])
        if right and right not in rights:
            rights.append(right)
    return [
        mistake(path, wrong, ", or ".join(rights))
        for (path, wrong), rights in rights_by_mistake.items()
    ]


def _split_message(message: str, owner: type) -> tuple[tuple[str, ...], str, str]:
    """Split a section's message into its keys, what is wrong, and what would be right."""
    location, _, text = message.partition(": ")
    keys = tuple(location.split("."))
    if keys[0] not in {field.name for field in dataclass_fields(owner)}:
        keys = ()
        text = message
    wrong, _, right = text.partition("; ")
    return keys, wrong, right


def _wrong_and_right(item: ErrorDetails, path: tuple, owner: type | None) -> tuple[str, str]:
    """Describe what is wrong at a key path, and what would be right."""
    owner = owner or _owner(path[:-1])
    if item["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return f"unknown key {path[-1]!r}", _valid_keys(owner, str(path[-1]))
    if item["type"] == "missing":
        return "is missing", _valid_keys(owner, "")
    message = item["msg"].removeprefix("Value error, ")
    for pattern, replacement in _IN_YAML:
        message = re.sub(pattern, replacement, message)
    value = repr(item["input"])
    return value if len(value) <= 60 else value[:57] + "...", message[:1].lower() + message[1:]


# Pydantic's messages name the types of Python; users think in the types of YAML.
_IN_YAML = (
    (r"a valid dictionary|a dictionary or an instance of \w+", "a mapping"),
    ("a valid tuple|a valid list", "a list"),
    ("^(Tuple|List) should", "The list should"),
    (" after validation|, unable to .*", ""),
    ("a valid string", "text"),
)


def _document_path(item: ErrorDetails, content: Any) -> tuple:
    """Return the part of pydantic's location that is a key path of the document."""
    path: list[Any] = []
    step: Any
    for step in item["loc"]:
        if (isinstance(content, Mapping) and step in content) or (
            isinstance(content, list | tuple) and isinstance(step, int) and step < len(content)
        ):
            path.append(step)
            content = content[step]
    if item["type"] == "missing":
        return (*path, item["loc"][-1])
    return tuple(path)


_PARTS: dict[str, type] = {
    "data": Data,
    "train": Train,
    "schedule": Schedule,
    "profile": Profile,
    "resources": Resources,
    "checkpoint": Checkpoint,
    "batch": Batch,
    "optimizer": Optimizer,
    "stopping": Stopping,
    "start": Start,
    "target": Target,
    "prune": Prune,
    "search": Search,
    "budget": Budget,
}


def _owner(path: Sequence[Any]) -> type | None:
    """Find the dataclass at a key path of the document."""
    if not path:
        return Document
    if path[0] == "models" and len(path) == 2:
        return ModelEntry
    if path[0] == "models" and len(path) == 4 and path[2] == "space":
        return Range
    if path[0] == "models" and len(path) == 5 and path[3] == "objectives":
        return Objective
    return _PARTS.get(str(path[-1]))


def _valid_keys(owner: type | None, wrong: str) -> str:
    """List the keys of a section with their defaults; the closest one first."""
    if owner is None:
        return ""
    keys = []
    for field in dataclass_fields(owner):
        default = default_of(field)
        plain = isinstance(default, bool | int | float | str | tuple) and default not in ("", ())
        keys.append(
            f"{field.name} ({default})" if plain and field.name != "transforms" else field.name
        )
    close = difflib.get_close_matches(wrong, [field.name for field in dataclass_fields(owner)], n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    if keys:
        return f"{hint}valid keys: {', '.join(keys)}"
    return "there are no keys here"
