"""What all packages share: the error for bad input, and words of messages.

It imports nothing, so each package that uses it is still usable alone.
"""

from __future__ import annotations


class InputError(ValueError):
    """Unusable input from a user, a file or a batch system; the message says what is expected."""


def pluralize(number: int, noun: str) -> str:
    """Format a count and its noun.

    >>> pluralize(1, "GPU"), pluralize(2, "GPU")
    ('1 GPU', '2 GPUs')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def in_one_line(text: object) -> str:
    r"""Format a text, or the message of an error, in one line.

    >>> in_one_line(ValueError("two\n lines"))
    'two lines'
    """
    return " ".join(str(text).split())
