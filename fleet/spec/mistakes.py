"""Convert validation errors to mistakes: where, what is wrong, what would be right."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from fleet.spec.engine_keys import Problem
from fleet.spec.schema import Document
from fleet.spec.train import Train


def explain(
    error: ValidationError,
    content: Any,
    prefix: tuple = (),
    owner: type = Document,
) -> list[Problem]:
    """Convert pydantic's errors to problems in the words of specs.

    Args:
        error: the errors.
        content: the validated part of the document.
        prefix: the key path of this part.
        owner: the section that this part is.
    """
    rights_by_mistake: dict[tuple, list[str]] = {}
    items = error.errors(include_url=False)
    for item in items:
        depth = len(item["loc"])
        if item["type"] == "too_short" and any(
            len(nested["loc"]) > depth and nested["loc"][:depth] == item["loc"] for nested in items
        ):
            continue  # pydantic does not count invalid items
        path = _document_path(item, content)
        # Such an error concerns several keys, possibly with default values.
        if _section_at(owner, path, content) is Train and item["type"] == "value_error":
            keys, wrong, right = _split_message(item["msg"].removeprefix("Value error, "))
            path += keys
        else:
            wrong, right = _wrong_and_right(item, path, _section_at(owner, path[:-1], content))
        rights = rights_by_mistake.setdefault(((*prefix, *path), wrong), [])
        if right and right not in rights:
            rights.append(right)
    return [
        (path, wrong, ", or ".join(rights)) for (path, wrong), rights in rights_by_mistake.items()
    ]


def _split_message(message: str) -> tuple[tuple[str, ...], str, str]:
    """Split a message about `train` into its keys, what is wrong, and what would be right."""
    location, _, text = message.partition(": ")
    keys = tuple(location.split("."))
    if keys[0] not in _keys(Train):
        keys = ()
        text = message
    wrong, _, right = text.partition("; ")
    return keys, wrong, right


def _wrong_and_right(item: ErrorDetails, path: tuple, owner: Any) -> tuple[str, str]:
    """Describe what is wrong at a key path of a section, and what would be right."""
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
        if _has(content, step):
            path.append(step)
            content = content[step]
    if item["type"] == "missing":
        return (*path, item["loc"][-1])
    return tuple(path)


def _has(content: Any, step: Any) -> bool:
    """Return True if a part of a document has this key or index."""
    if isinstance(content, list | tuple):
        return isinstance(step, int) and step < len(content)
    return isinstance(content, Mapping) and step in content


def _section_at(owner: Any, path: Sequence[Any], content: Any) -> Any:
    """Find the section at a key path below another one; None if there is no section.

    Where several are allowed, it is the one with most of the keys in the content.
    """
    sections = [owner]
    for step in path:
        setting = _keys(_best_section(sections, content)).get(step)
        if setting is not None:
            sections = list(_sections_in(setting.annotation))
        content = content[step] if _has(content, step) else None
    return _best_section(sections, content)


def _best_section(sections: Sequence[Any], content: Any) -> Any:
    keys = set(content) if isinstance(content, Mapping) else set()
    return max(sections, key=lambda section: len(keys & set(_keys(section))), default=None)


def _keys(section: Any) -> Mapping[Any, FieldInfo]:
    """Return the keys of a section; none for anything else."""
    return getattr(section, "__pydantic_fields__", {})


def _sections_in(annotation: Any) -> Iterator[Any]:
    """Yield the sections among the values that an annotation allows."""
    if _keys(annotation):
        yield annotation
    for part in get_args(annotation):
        yield from _sections_in(part)


def _valid_keys(owner: Any, wrong: str) -> str:
    """List the keys of a section with their defaults; the closest one first."""
    if owner is None:
        return ""
    keys = []
    for name, setting in _keys(owner).items():
        default = setting.get_default(call_default_factory=True)
        plain = isinstance(default, bool | int | float | str | tuple) and default not in ("", ())
        keys.append(f"{name} ({default})" if plain and name != "transforms" else name)
    close = difflib.get_close_matches(wrong, _keys(owner), n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    if keys:
        return f"{hint}valid keys: {', '.join(keys)}"
    return "there are no keys here"
