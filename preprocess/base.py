"""Errors, the ``Source`` protocol and import paths, shared by the modules of this package.

InputError (ValueError)   the user's input is wrong
CannotWrite (OSError)     the file system refuses to write a file
UnreadableImage           one image cannot be used; the raising code does not know its name
UnreadableSample          the same, with the name of the file or record
"""

from __future__ import annotations

import importlib
import math
import sysconfig
import traceback
import unicodedata
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from keyword import iskeyword
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from launch.errors import InputError, printable


def normalize_name(name: str) -> str:
    r"""Normalize the name of a class for comparison: strip spaces and compose accents (NFC).

    >>> normalize_name("cafe\u0301 ") == "café"
    True
    """
    return unicodedata.normalize("NFC", name).strip()


class CannotWrite(OSError):
    """A file cannot be written: the disk is full, read-only, and so on."""


class UnreadableImage(Exception):
    """An image that cannot be used; a user's transform may raise it to skip the sample."""


class UnreadableSample(Exception):
    """A sample that is skipped and counted.

    Attributes:
        name: the file or record.
        reason: why it cannot be used.
        position: its index in the requested batch, if any.
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


def and_more(things: Sized) -> str:
    """Format how many items follow the first; empty if none.

    >>> and_more([1, 2, 3]), and_more([1])
    (' (and 2 more)', '')
    """
    if len(things) > 1:
        return f" (and {len(things) - 1} more)"
    return ""


def first_duplicate(names: Sequence[str]) -> str | None:
    """Return the first name that occurs a second time; None if all differ.

    >>> first_duplicate(("a", "b", "a")), first_duplicate(("a", "b"))
    ('a', None)
    """
    return next((name for position, name in enumerate(names) if name in names[:position]), None)


@runtime_checkable
class Source(Protocol):
    """A set of samples, read by index, each with a target.

    A source of classes is a :class:`ClassSource`. :mod:`preprocess.target` says how a source gives
    targets of other kinds and weights.
    """

    def __len__(self) -> int: ...

    def read(self, index: int) -> Any:
        """Read the input of one sample: an encoded image file, or an array of numbers.

        Returns:
            The bytes of an image file; or an array of any shape and numeric type. An image is
            (height, width, channels), uint8. A sample of several inputs is a mapping of their names
            to such values (:mod:`preprocess.records`).

        Raises:
            UnreadableSample: the sample is missing or unreadable.
        """

    def name(self, index: int) -> str:
        """Return the sample's name for messages: its file or record."""

    def order(self, seed: int, epoch: int) -> np.ndarray:
        """Return the order of the samples in one epoch of the stream.

        Returns:
            A permutation of ``range(len(self))``, (n,) int64, that depends on seed and epoch alone.
        """


@runtime_checkable
class ClassSource(Source, Protocol):
    """A source whose samples each belong to one class."""

    @property
    def labels(self) -> np.ndarray:
        """The class of every sample, (n,) int64, 0 <= label < len(classes)."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; a label is an index into it."""


INPUT = "input"  # the name of an input that the source gives no name
# What else a batch holds, and what PyTorch calls a module itself.
_RESERVED = ("weight", "index", "target", "self")


def check_input_name(name: object, origin: str) -> None:
    """Check that networks can take one of several inputs by a name.

    Args:
        name: the name.
        origin: where it was found, for the message.

    Raises:
        InputError: it is not an identifier of Python, or is reserved.
    """
    is_name = isinstance(name, str) and name.isidentifier() and not iskeyword(name)
    if not is_name or name in _RESERVED:
        raise InputError(
            f"{origin}: networks cannot take an input by the name {name!r}; the name of each of "
            f"several inputs should be an identifier of Python, and not {', '.join(_RESERVED)}"
        )


_READY = (bytes, np.ndarray)  # forms of an input that need no conversion


def read_input(source: Source, index: int) -> bytes | np.ndarray:
    """Read the input of a sample; a source may also return a tensor or a Pillow image.

    Returns:
        The bytes of an image file, or an array of any shape.

    Raises:
        UnreadableSample: the sample is missing or unreadable.
        InputError: the source returns something else.
    """
    content: Any = source.read(index)
    if isinstance(content, _READY):  # by far the most frequent, and samples may be small
        return content
    return as_input(content, f"data.source: read({index})")


def as_input(content: Any, giver: str) -> bytes | np.ndarray:
    """Convert the input of a sample, such as a tensor or a Pillow image.

    Args:
        content: what a source returned.
        giver: who returned it, for the message.

    Raises:
        InputError: it is neither the bytes of a file nor an array.
    """
    if isinstance(content, _READY):
        return content
    if isinstance(content, bytearray | memoryview):
        return bytes(content)
    return as_array(content, giver, "the bytes of an image file or an array")


def as_array(value: Any, giver: str, expected: str) -> np.ndarray:
    """Convert what a user's function returned, such as a tensor, to an array.

    Args:
        value: the returned object.
        giver: who returned it, for the message.
        expected: a description of the expected result, for the message.

    Raises:
        InputError: it cannot be converted to an array.
    """
    reason = ""
    if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
        try:
            return np.asarray(value)
        except Exception as error:  # a tensor on a GPU or with a gradient explains itself
            reason = f": {format_exception(error)}"
    raise InputError(
        f"{giver} returned a {type(value).__name__}; it should return {expected}{reason}"
    )


def row_numbers(source: Source) -> np.ndarray:
    """Return where each sample lies in the table, array or list of files, (n,) int64 from 0.

    It is the sample's index, unless the source has an attribute ``row_numbers``, as a subset of
    another source has.
    """
    numbers = getattr(source, "row_numbers", None)
    if numbers is None:
        return np.arange(len(source))
    return np.asarray(numbers, np.int64)


class RandomAccess:
    """Mixin for sources that read samples equally fast in any order: the order is uniform.

    Its length is that of ``labels``; a class without labels defines ``__len__`` itself.
    """

    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def order(self, seed: int, epoch: int) -> np.ndarray:
        """Return a uniformly random permutation, (n,) int64; see :class:`Source`."""
        return rng_for(seed, ORDER, epoch).permutation(len(self))


# Purposes of randomness: independent streams of one seed.
SPLIT = 1
ORDER = 2
AUGMENT = 3
TEST_SPLIT = 4
FOLDS = 5
LENGTHS = 6


def flatten_rows(array: np.ndarray) -> np.ndarray:
    """Return an array (n, ...) as (n, values), also without rows, where NumPy cannot infer -1."""
    return array.reshape(len(array), math.prod(array.shape[1:]))


def rng_for(seed: int, purpose: int, *more: int) -> np.random.Generator:
    """Return the generator for one purpose of the run's seed.

    Args:
        seed: the seed of the run.
        purpose: a constant of this module, such as ``SPLIT``.
        more: further integers, such as the epoch.
    """
    return np.random.default_rng([seed, purpose, *more])


def format_exception(error: BaseException) -> str:
    """Format an exception of user code in one line, with the user's file and line.

    >>> format_exception(ValueError("two\\nlines"))
    'ValueError: two lines'
    """
    text = str(error)
    if isinstance(error, SyntaxError):
        text = error.msg
    description = f"{type(error).__name__}: {' '.join(text.split())}".removesuffix(": ")
    location = _line_of_user_code(error)
    if location is None:
        return description
    return f"{description} ({location[0]}, line {location[1]})"


def _line_of_user_code(error: BaseException) -> tuple[str, int] | None:
    """Return the last (file, line) in user code; else the last one at all."""
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
    user_frames = [(file, line) for file, line in frames if not file.startswith(_INSTALLED)]
    return next(reversed(user_frames or frames), None)


_HERE = str(Path(__file__).parent)
_IMPORTLIB = str(Path(importlib.__file__).parent)
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


@dataclass(frozen=True)
class DataSet:
    """The sources that networks train on and are scored with.

    Attributes:
        train: the training samples.
        validation: chooses the best epoch of a network, and the best network.
        classes: the names of the classes, labels or values; empty if they have none.
        test: never used for selection; finished networks are scored on it.
        remark: a warning for the user; empty if there is none.
    """

    train: Source
    validation: Source | None
    classes: tuple[str, ...]
    test: Source | None = None
    remark: str = ""

    def splits(self) -> dict[str, Source]:
        """Return the existing sources by split: ``train``, ``validation``, ``test``."""
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: source for name, source in splits.items() if source is not None}
