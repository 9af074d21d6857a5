"""What all packages share: the error for bad input, and words of messages.

It imports no other module of theirs, so each package that uses it is still usable alone.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MIN_LETTERS = 3  # of a name within a longer word


def encode_name(text: str) -> bytes:
    """Encode a name as the file system does, whatever bytes it holds."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:  # a surrogate that encodes no byte
        return text.encode(errors="backslashreplace")


def printable(text: str) -> str:
    r"""Make a name writable as UTF-8; bytes that are not UTF-8 become ``\xNN``.

    >>> printable("caf\udce9.png"), printable("café.png")
    ('caf\\xe9.png', 'café.png')
    """
    return encode_name(text).decode(errors="backslashreplace")


class InputError(ValueError):
    """Unusable input from a user, a file or a batch system; the message says what is expected.

    Args:
        message: may quote names of files, whose bytes need not be UTF-8.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(printable(str(message)))


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


def _names_within(word: str, names: Iterable[str]) -> list[str]:
    """Return the longest name with which a word begins or ends, as in ``tpesampler``."""
    within = [name for name in names if word.startswith(name) or word.endswith(name)]
    return [name for name in [max(within, key=len, default="")] if len(name) >= _MIN_LETTERS]


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return a hint at the names that are close to a word, in any case; empty without any.

    >>> did_you_mean("resnt", ["ResNet", "cnn"]), did_you_mean("vgg", ["ResNet", "cnn"])
    (' (did you mean ResNet?)', '')
    >>> did_you_mean("TPESampler", ["random", "tpe"])
    ' (did you mean tpe?)'
    """
    by_lower = {name.lower(): name for name in names}
    word = word.lower()
    close = difflib.get_close_matches(word, by_lower, n=3) or _names_within(word, by_lower)
    if close:
        return f" (did you mean {', '.join(by_lower[name] for name in close)}?)"
    return ""
