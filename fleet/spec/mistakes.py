"""What is wrong with a spec, in the words of whoever wrote it: the place, the mistake, what would be right."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields as dataclass_fields
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from fleet.errors import SpecMistake
from fleet.spec.data import Data, Target
from fleet.spec.fields import default_of
from fleet.spec.schema import Checkpoint, Document, ModelEntry, Profile, Resources, Schedule
from fleet.spec.search import Budget, Objective, Prune, Search
from fleet.spec.space import Range
from fleet.spec.train import Batch, Optimizer, Start, Stopping, Train


def explain(
    error: ValidationError,
    content: Any,
    mistake: Callable[..., SpecMistake],
    prefix: tuple = (),
    owner: type | None = None,
) -> list[SpecMistake]:
    """Pydantic's errors in our words.

    Args:
        content: what was validated.
        prefix: its place in the document.
        owner: the dataclass that stands there; nothing for the document itself.
    """
    found: dict[tuple, list[str]] = {}
    items = error.errors(include_url=False)
    for item in items:
        depth = len(item["loc"])
        if item["type"] == "too_short" and any(
            len(other["loc"]) > depth and other["loc"][:depth] == item["loc"] for other in items
        ):
            continue  # members that are wrong were not counted
        where = (*prefix, *_document_path(item, content))
        if where == prefix:
            section = owner
        elif where:
            section = _PARTS.get(str(where[-1]))
        else:
            section = None
        if (
            section is Train and item["type"] == "value_error"
        ):  # of many keys, and perhaps of others' defaults
            keys, wrong, right = _said_of(item["msg"].removeprefix("Value error, "), section)
            found.setdefault(((*where, *keys), wrong), []).extend([right] if right else [])
            continue
        wrong, right = _wrong_and_right(item, where, owner if where[:-1] == prefix else None)
        rights = found.setdefault((where, wrong), [])
        if right and right not in rights:
            rights.append(right)
    return [mistake(where, wrong, ", or ".join(rights)) for (where, wrong), rights in found.items()]


def _said_of(message: str, owner: type) -> tuple[tuple[str, ...], str, str]:
    """The keys below a section that a message of it begins with, what is wrong there, and what would be right."""
    place, _, said = message.partition(": ")
    keys = tuple(place.split("."))
    if keys[0] not in {field.name for field in dataclass_fields(owner)}:
        keys = ()
        said = message
    wrong, _, right = said.partition("; ")
    return keys, wrong, right


def _wrong_and_right(item: ErrorDetails, where: tuple, owner: type | None) -> tuple[str, str]:
    """What is wrong at a place, and what would be right."""
    owner = owner or _owner(where[:-1])
    if item["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return f"no key is named {where[-1]!r}", _valid_keys(owner, str(where[-1]))
    if item["type"] == "missing":
        return "is missing", _valid_keys(owner, "")
    message = item["msg"].removeprefix("Value error, ")
    for pydantics, ours in _IN_YAML:
        message = re.sub(pydantics, ours, message)
    shown = repr(item["input"])
    return shown if len(shown) <= 60 else shown[:57] + "...", message[:1].lower() + message[1:]


# Pydantic speaks of Python's types; whoever writes a spec thinks in YAML's.
_IN_YAML = (
    (r"a valid dictionary|a dictionary or an instance of \w+", "a mapping"),
    ("a valid tuple|a valid list", "a list"),
    ("^(Tuple|List) should", "The list should"),
    (" after validation|, unable to .*", ""),
    ("a valid string", "text"),
)


def _document_path(item: ErrorDetails, content: Any) -> tuple:
    """The part of pydantic's location that is a path in the document: it also names union members."""
    where: list[Any] = []
    step: Any
    for step in item["loc"]:
        if (isinstance(content, Mapping) and step in content) or (
            isinstance(content, list | tuple) and isinstance(step, int) and step < len(content)
        ):
            where.append(step)
            content = content[step]
    if item["type"] == "missing":
        return (*where, item["loc"][-1])
    return tuple(where)


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


def _owner(place: Sequence[Any]) -> type | None:
    """The dataclass that stands at a place of the document."""
    if not place:
        return Document
    if place[0] == "models" and len(place) == 2:
        return ModelEntry
    if place[0] == "models" and len(place) == 4 and place[2] == "space":
        return Range
    if place[0] == "models" and len(place) == 5 and place[3] == "objectives":
        return Objective
    return _PARTS.get(str(place[-1]))


def _valid_keys(owner: type | None, wrong: str) -> str:
    """The keys that a part of the spec has, with their defaults; the nearest first."""
    if owner is None:
        return ""
    shown = []
    for field in dataclass_fields(owner):
        default = default_of(field)
        plain = isinstance(default, bool | int | float | str | tuple) and default not in ("", ())
        shown.append(
            f"{field.name} ({default})" if plain and field.name != "transforms" else field.name
        )
    close = difflib.get_close_matches(wrong, [field.name for field in dataclass_fields(owner)], n=1)
    hint = f"{close[0]}? " if close else ""
    if shown:
        return f"{hint}valid keys: {', '.join(shown)}"
    return "there are no keys here"
