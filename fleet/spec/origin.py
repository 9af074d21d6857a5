"""Where the parts of a spec stand: the file, its lines, and key paths as people write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleet.errors import SpecMistake


@dataclass(frozen=True)
class Origin:
    """Where a spec was read.

    Attributes:
        file: as it was named; just ``spec`` for one that was made in code.
        lines: key path -> the line where it stands, counted from 1; none for one that was made in code.
    """

    file: str = "spec"
    lines: Mapping[tuple, int] = field(default_factory=dict, repr=False)

    def mistake(
        self, where: Sequence[Any], wrong: str, right: str = "", name: str | None = None
    ) -> SpecMistake:
        """A mistake at a place.

        Args:
            where: its key path.
            wrong, right: what is wrong there, and what would be right.
            name: what to call the place instead of its key path.
        """
        if self._is_of_an_added_entry(where):
            return SpecMistake("entry", None, key_path(where[2:]), wrong, right)
        key = key_path(where) if name is None else name
        return SpecMistake(self.file, self.line(where), key, wrong, right)

    def line(self, where: Sequence[Any]) -> int | None:
        """The line of a place, or of the nearest one above it; None where that is not in this file."""
        path = tuple(where)
        while path and path not in self.lines:
            path = path[:-1]
        if self._is_of_an_added_entry(where):
            return None
        return self.lines.get(path)

    def _is_of_an_added_entry(self, where: Sequence[Any]) -> bool:
        """Whether it is in an entry that somebody has added to a run: the file of the spec has no line of that."""
        is_of_an_entry = len(where) > 2 and where[0] == "models"
        return is_of_an_entry and bool(self.lines) and tuple(where[:2]) not in self.lines


def is_below(key: str, above: str) -> bool:
    """Whether a dotted key is another one, or lies below it.

    >>> is_below("train.batch.size", "train.batch"), is_below("train.batches", "train.batch")
    (True, False)
    """
    return f"{key}.".startswith(f"{above}.")


def key_path(where: Sequence[Any]) -> str:
    """A key path as people write it.

    >>> key_path(("models", 0, "gpus"))
    'models[0].gpus'
    """
    text = ""
    for step in where:
        shown = str(step) if str(step).isprintable() else ascii(step)
        text += f"[{shown}]" if isinstance(step, int) else f".{shown}" if text else shown
    return text
