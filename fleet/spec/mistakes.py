"""Convert validation errors to mistakes: where, what is wrong, what would be right."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from fleet.spec.engine_keys import Problem
from fleet.spec.meant_keys import find_meant_key, keys_of, sections_in
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
            wrong, right = _wrong_and_right(item, path, owner, content, prefix)
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
    if keys[0] not in keys_of(Train):
        keys = ()
        text = message
    wrong, _, right = text.partition("; ")
    return keys, wrong, right


def _wrong_and_right(
    item: ErrorDetails, path: tuple, root: type, content: Any, prefix: tuple
) -> tuple[str, str]:
    """Describe what is wrong at a key path of a section, and what would be right."""
    owner = _section_at(root, path[:-1], content)
    if item["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        word = str(path[-1])
        siblings = content
        for step in path[:-1]:
            siblings = siblings[step]
        meant, is_certain = find_meant_key(
            word, (*prefix, *path[:-1]), owner, siblings, root is Document
        )
        hint = f"did you mean {meant}? " if meant else ""
        return f"unknown key {word!r}", (hint if is_certain else hint + _valid_keys(owner)).strip()
    if item["type"] == "missing":
        return "is missing", _valid_keys(owner)
    message = item["msg"].removeprefix("Value error, ")
    for pattern, replacement in _IN_YAML:
        message = re.sub(pattern, replacement, message)
    message = message[:1].lower() + message[1:]
    if item["type"] == "value_error" and _section_at(root, path, content) is not None:
        wrong, _, right = message.partition("; ")  # about several keys, which it names
        return wrong, right
    value = repr(item["input"])
    return value if len(value) <= 60 else value[:57] + "...", message


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
        setting = keys_of(_best_section(sections, content)).get(step)
        if setting is not None:
            sections = list(sections_in(setting.annotation))
        content = content[step] if _has(content, step) else None
    return _best_section(sections, content)


def _best_section(sections: Sequence[Any], content: Any) -> Any:
    keys = set(content) if isinstance(content, Mapping) else set()
    return max(sections, key=lambda section: len(keys & set(keys_of(section))), default=None)


def _valid_keys(owner: Any) -> str:
    """List the keys of a section with their defaults."""
    if owner is None:
        return ""
    keys = []
    for name, setting in keys_of(owner).items():
        default = setting.get_default(call_default_factory=True)
        plain = isinstance(default, bool | int | float | str | tuple) and default not in ("", ())
        keys.append(f"{name} ({default})" if plain and name != "transforms" else name)
    if keys:
        return f"valid keys: {', '.join(keys)}"
    return "there are no keys here"
