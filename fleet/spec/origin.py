"""Locate the keys of a spec: file, line and key path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleet.errors import SpecMistake


@dataclass(frozen=True)
class Origin:
    """The place where a spec was read.

    Attributes:
        file: the path as the user gave it; ``spec`` for a spec that was made in code.
        lines: key path -> its line, counted from 1; empty for a spec that was made in code.
    """

    file: str = "spec"
    lines: Mapping[tuple, int] = field(default_factory=dict, repr=False)

    def mistake(
        self, keys: Sequence[Any], wrong: str, right: str = "", name: str | None = None
    ) -> SpecMistake:
        """Return a mistake at a key path.

        Args:
            keys: the key path.
            wrong: what is wrong there.
            right: what would be right.
            name: a name for the place that replaces its key path.
        """
        if self._is_of_an_added_entry(keys):
            return SpecMistake("entry", None, key_path(keys[2:]), wrong, right)
        key = key_path(keys) if name is None else name
        return SpecMistake(self.file, self.line(keys), key, wrong, right)

    def line(self, keys: Sequence[Any]) -> int | None:
        """Return the line of a key path or its nearest parent; None if it has none."""
        path = tuple(keys)
        while path and path not in self.lines:
            path = path[:-1]
        if self._is_of_an_added_entry(keys):
            return None
        return self.lines.get(path)

    def _is_of_an_added_entry(self, key_path: Sequence[Any]) -> bool:
        """Return True for a key of an entry that was added to a run."""
        is_of_an_entry = len(key_path) > 2 and key_path[0] == "models"
        return is_of_an_entry and bool(self.lines) and tuple(key_path[:2]) not in self.lines


def is_below(key: str, above: str) -> bool:
    """Return True if a dotted key equals another one or lies below it.

    >>> is_below("train.batch.size", "train.batch"), is_below("train.batches", "train.batch")
    (True, False)
    """
    return f"{key}.".startswith(f"{above}.")


def key_path(path: Sequence[Any]) -> str:
    """Format a key path as users write it.

    >>> key_path(("models", 0, "gpus"))
    'models[0].gpus'
    """
    text = ""
    for step in path:
        step_text = str(step) if str(step).isprintable() else ascii(step)
        if isinstance(step, int):
            text += f"[{step_text}]"
        elif text:
            text += f".{step_text}"
        else:
            text = step_text
    return text
