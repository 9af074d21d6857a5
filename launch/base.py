"""What the modules of this package share: their error, and how texts are checked that are filled in later."""

from __future__ import annotations

from collections.abc import Set
from string import Formatter


class InputError(ValueError):
    """A batch system, or what it or the user said, that cannot be worked with; the message says what would be right."""


def check_fields(text: str, known: Set[str], place: str) -> None:
    """Refuse braces that are not around one of the words that are filled in.

    Raises:
        InputError: they are around something else; the message names the place.

    >>> check_fields("--nodes={count}", {"nodes"}, "my site")
    Traceback (most recent call last):
    ...
    launch.base.InputError: my site: '--nodes={count}' may have braces only around {nodes}
    """
    try:
        fields = [(name, spec, conversion) for _, name, spec, conversion in Formatter().parse(text) if name is not None]
    except ValueError:
        fields = [(text, "", None)]
    if any(name not in known or spec or conversion for name, spec, conversion in fields):
        wanted = ", ".join(f"{{{name}}}" for name in sorted(known))
        raise InputError(f"{place}: {text!r} may have braces only around {wanted}")
