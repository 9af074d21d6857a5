"""Show ``help(fleet.api)`` on two screens, and tell which key of a section is meant.

Python would list all methods of all classes, in thousands of lines. The texts of keys are those of
the spec (:mod:`fleet.spec.section`).
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from functools import wraps
from types import ModuleType
from typing import Any

from pydantic import ValidationError

from fleet.spec.meant_keys import find_meant_key
from fleet.spec.section import is_section, key_texts

_WIDTH = 92  # letters; help() indents by four
_EXPLAINED = ("Search", "Prune", "Range", "Target")


class HelpModule(ModuleType):
    """A module whose ``help()`` is its docstring with a summary of its names."""

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        """Return the docstring, what each name is, and the keys of the sections of a spec."""
        return "\n".join(_lines(vars(self)))

    def __dir__(self) -> list[str]:
        """Return all names; none to ``help()``, since the docstring has them."""
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals["__name__"] == "inspect":
            frame = frame.f_back
        return [] if frame.f_globals["__name__"] == "pydoc" else list(super().__dir__())


def name_meant_keys(owner: Any) -> None:
    """Make the constructor of a section tell which key is meant by an unknown one.

    Args:
        owner: the section, which changes.
    """
    initialize = owner.__init__

    @wraps(initialize)
    def construct(self: Any, *values: Any, **keys: Any) -> None:
        try:
            initialize(self, *values, **keys)
        except ValidationError as error:
            unknown = [
                str(item["loc"][0])
                for item in error.errors(include_url=False)
                if item["type"] == "unexpected_keyword_argument" and len(item["loc"]) == 1
            ]
            if not unknown:
                raise
            meant, _ = find_meant_key(unknown[0], (), owner, keys, False)
            hint = f"its keys are {', '.join(key_texts(owner))}"
            if meant:
                hint = f"did you mean {meant}?"
            raise ValueError(f"{owner.__name__} has no key {unknown[0]!r}; {hint}") from None

    owner.__init__ = construct


def _lines(names: dict[str, Any]) -> Iterator[str]:
    public = {name: names[name] for name in names["__all__"]}
    sections = {name: value for name, value in public.items() if is_section(value)}
    yield names["__doc__"].strip()
    yield ""
    yield "help(Search), for example, shows the whole text of its keys, help(run) all arguments."
    yield "FUNCTIONS AND CLASSES"
    for name, value in public.items():
        if name not in sections:
            yield _clipped(f"    {name}: {_sentence(inspect.getdoc(value) or '')}")
    yield "SECTIONS OF A SPEC"
    for name, section in sections.items():
        if name in _EXPLAINED:
            yield _clipped(f"    {name}: {_sentence(section.__doc__)}")
            for key, text in key_texts(section).items():
                yield _clipped(f"        {key}: {_sentence(text)}")
        else:
            yield _clipped(f"    {name}: {', '.join(key_texts(section))}")


def _sentence(text: str) -> str:
    """Return the first sentence of a text.

    >>> _sentence("Sizes, e.g. of a batch. Then more.")
    'Sizes, e.g. of a batch'
    """
    return re.split(r"(?<!e\.g)(?<!\.\.)\.(?=\s|$)", " ".join(text.split()), maxsplit=1)[0]


def _clipped(line: str) -> str:
    """Return as many whole words of a line as fit."""
    if len(line) <= _WIDTH:
        return line
    return line[: _WIDTH - 3].rpartition(" ")[0].rstrip(" ,;:") + " ..."
