"""What the modules of this package share: errors, the ``Source`` protocol, import paths.

InputError (ValueError)   what the user asked for is wrong
CannotWrite (OSError)     the file system refuses a file that is to be written
BadImage                  one image cannot be used; who raises it does not know its name
BadSample                 the same with the name of the file or record
"""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import traceback
import unicodedata
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from preprocess.user_code import import_user_module


def printable(text: str) -> str:
    r"""Make a name writable as UTF-8: what was no UTF-8 in the name of a file becomes ``\xNN``.

    >>> printable("caf\udce9.png"), printable("café.png")
    ('caf\\xe9.png', 'café.png')
    """
    return encoded(text).decode(errors="backslashreplace")


def encoded(text: str) -> bytes:
    """Encode a name as the file system has it, whatever is in it."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:  # a surrogate that stands for no byte
        return text.encode(errors="backslashreplace")


def spelled(name: str) -> str:
    r"""Give a name of a class as it compares: without spaces around it, each accent in one letter with its base.

    >>> spelled("cafe\u0301 ") == "café"
    True
    """
    return unicodedata.normalize("NFC", name).strip()


class InputError(ValueError):
    """What the user asked for is wrong; the message names the place and what would be right."""

    def __init__(self, message: object = "") -> None:
        super().__init__(printable(str(message)))


class CannotWrite(OSError):
    """A file cannot be written: the disk is full, read-only, ...; other errors of the system are about what is read."""


class UnreadableImage(Exception):
    """An image that cannot be used. A user's transform may raise it too; the sample is then skipped."""


class UnreadableSample(Exception):
    """A sample that is skipped and counted.

    Attributes:
        name: the file or the record.
        reason: why it cannot be used.
        position: its place in the batch that was asked for, where there is one.
    """

    def __init__(self, name: str, reason: str, position: int | None = None) -> None:
        name = printable(name)
        reason = printable(reason)
        super().__init__(name, reason, position)
        self.name = name
        self.reason = reason
        self.position = position

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def counted(number: int, what: str) -> str:
    """So many of something.

    >>> counted(1, "GPU"), counted(2, "GPU")
    ('1 GPU', '2 GPUs')
    """
    return f"{number} {what}{'' if number == 1 else 's'}"


def and_more(things: Sized) -> str:
    """What stands behind the first of some things, where there are others.

    >>> and_more([1, 2, 3]), and_more([1])
    (' (and 2 more)', '')
    """
    if len(things) > 1:
        return f" (and {len(things) - 1} more)"
    return ""


def twice_in(names: Sequence[str]) -> str | None:
    """The first of some names that stands there a second time.

    >>> twice_in(("a", "b", "a")), twice_in(("a", "b"))
    ('a', None)
    """
    return next((name for place, name in enumerate(names) if name in names[:place]), None)


@runtime_checkable
class Source(Protocol):
    """A set of samples that are read by index, each with what a network is to answer.

    One of classes is a :class:`ClassSource`; :mod:`preprocess.target` says how targets of other kinds, and weights of
    samples, are given.
    """

    def __len__(self) -> int: ...

    def read(self, index: int) -> bytes | np.ndarray:
        """The input of one sample: an encoded image file, or an array of numbers of any shape.

        An image is (height, width, channels), uint8.

        Raises:
            BadSample: it is missing or unreadable.
        """

    def name(self, index: int) -> str:
        """What to call the sample in a message: its file or record."""

    def order(self, seed: int, epoch: int) -> np.ndarray:
        """The order of the samples in one epoch of the stream.

        Returns:
            A permutation of ``range(len(self))``, int64: a function of seed and epoch alone.
        """


@runtime_checkable
class ClassSource(Source, Protocol):
    """A source each of whose samples is of one class."""

    @property
    def labels(self) -> np.ndarray:
        """The class of every sample, int64, 0 <= label < len(classes)."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; a label is a position in it."""


def read_input(source: Source, index: int) -> bytes | np.ndarray:
    """Read a sample of a source, which may also give a tensor or an image of Pillow.

    Raises:
        BadSample: it is missing or unreadable.
        InputError: the source gives something else.
    """
    given: Any = source.read(index)
    if isinstance(given, bytes | np.ndarray):
        return given
    if isinstance(given, bytearray | memoryview):
        return bytes(given)
    return array_of(given, f"data.source: read({index})", "the bytes of an image file or an array")


def array_of(given: Any, giver: str, wanted: str) -> np.ndarray:
    """Make an array of what a user's function gives, such as a tensor.

    Args:
        giver: what gives it, and `wanted` what it should give, for the message.

    Raises:
        InputError: it is none, or cannot be read as one.
    """
    why = ""
    if hasattr(given, "__array__") or hasattr(given, "__array_interface__"):
        try:
            return np.asarray(given)
        except Exception as error:  # a tensor on a GPU, or one with a gradient, says what to do
            why = f": {in_one_line(error)}"
    raise InputError(f"{giver} gives a {type(given).__name__}; it should give {wanted}{why}")


def row_numbers(source: Source) -> np.ndarray:
    """Where each sample lies in the table, the array or the list of files that is read, (n,) int64 from 0.

    It is the number of the sample, unless a source has an attribute ``row_numbers``: one that is a part of another.
    """
    found = getattr(source, "row_numbers", None)
    if found is None:
        return np.arange(len(source))
    return np.asarray(found, np.int64)


class RandomAccess:
    """Gives a source whose samples cost the same in any order a uniformly random one.

    It has as many samples as labels; one without labels says by itself how many.
    """

    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def order(self, seed: int, epoch: int) -> np.ndarray:
        """A uniformly random permutation; see :class:`Source`."""
        return rng_for(seed, ORDER, epoch).permutation(len(self))


# Purposes of randomness: streams of one seed that must not be the same stream.
SPLIT = 1
ORDER = 2
AUGMENT = 3
TEST_SPLIT = 4
FOLDS = 5


def rng_for(seed: int, purpose: int, *more: int) -> np.random.Generator:
    """A generator of its own for each purpose that the user's one seed serves."""
    return np.random.default_rng([seed, purpose, *more])


def import_function(path: str, role: str) -> Any:
    """The function that an import path ``module:function`` names; see :func:`import_object`.

    Raises:
        InputError: no such module, no such function, or not a function.
    """
    function = import_object(path, role)
    if not callable(function):
        raise InputError(f"{role} {path!r} is a {type(function).__name__}, not a function")
    return function


def import_object(path: str, role: str, form: str = "module:function") -> Any:
    """What an import path ``module:name`` names.

    The working directory is looked in too, as under ``python -m``.

    Args:
        path: such as ``my_package.my_module:my_function``.
        role: what it is wanted as, for the message: ``transform``, ``data source``.
        form: of such a path, for the message.

    Raises:
        InputError: no such module, importing it raises, or it has no such name.
    """
    module_name, _, name = path.partition(":")
    if not (module_name and name):
        raise InputError(f"{role} {path!r} is not an import path {form}")
    folder = os.getcwd()
    if not {"", folder} & {*sys.path}:
        sys.path.append(folder)
    try:
        module = import_user_module(module_name)
    except KeyboardInterrupt:
        raise
    except (
        BaseException
    ) as error:  # the module is the user's: anything may go wrong in it, and it may exit
        raise InputError(
            f"{role} {path!r}: cannot import {module_name!r}: {in_one_line(error)}"
        ) from error
    found = getattr(module, name, None)
    if found is None:
        raise InputError(f"{role} {path!r}: module {module_name!r} has no {name!r}")
    return found


def in_one_line(error: BaseException) -> str:
    """What went wrong in a user's code: the exception, what it says, and the line of theirs where it happened.

    >>> in_one_line(ValueError("two\\nlines"))
    'ValueError: two lines'
    """
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    what = f"{type(error).__name__}: {' '.join(said.split())}".removesuffix(": ")
    place = _place(error)
    if place is None:
        return what
    return f"{what} ({place[0]}, line {place[1]})"


def _place(error: BaseException) -> tuple[str, int] | None:
    """The file and the line: the last one that is neither ours nor of an installed package, where there is one."""
    if (
        isinstance(error, SyntaxError)
        and error.lineno
        and error.filename
        and Path(error.filename).is_file()
    ):
        return error.filename, error.lineno
    frames = [
        (frame.filename, frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.lineno is not None
        and not frame.filename.startswith(("<frozen importlib", _IMPORTLIB, _HERE))
    ]
    theirs = [(file, line) for file, line in frames if not file.startswith(_INSTALLED)]
    return next(reversed(theirs or frames), None)


_HERE = str(Path(__file__).parent)
_IMPORTLIB = str(Path(importlib.__file__).parent)
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


@dataclass(frozen=True)
class DataSet:
    """What the networks learn from and what they are judged by.

    Attributes:
        validation: chooses the best epoch of a network, and the best network.
        classes: the names of the classes, labels or values; empty where they have none.
        test: chooses nothing; finished networks are judged on it.
        remark: what its owner should know about it; empty if there is nothing.
    """

    train: Source
    validation: Source | None
    classes: tuple[str, ...]
    test: Source | None = None
    remark: str = ""

    def parts(self) -> dict[str, Source]:
        """The sources by what they are for: ``train`` and, where there are such, ``validation`` and ``test``."""
        parts = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: source for name, source in parts.items() if source is not None}
