"""Inputs of unequal length, such as tokens: their lengths, and how rows are filled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from launch.errors import InputError
from preprocess.base import INPUT, Source, UnreadableImage, UnreadableSample, format_exception


@dataclass(frozen=True)
class Pad:
    """How an input of unequal length is padded: at the end of its first axis.

    Attributes:
        name: the name of the input.
        to: the length of rows as they travel; longer ones are cut.
        value: the number that fills the end.
        varies: whether batches are cut to their longest row; else all have the length ``to``.
    """

    name: str
    to: int
    value: float = 0
    varies: bool = False

    def apply(self, array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Pad or cut an array.

        Args:
            array: (length, ...).

        Returns:
            (to, ...) of the same dtype, and its mask, (to,) uint8.

        Raises:
            UnreadableImage: it is a single number.
            InputError: its dtype cannot hold the number that fills the end.
        """
        if not array.ndim:
            raise UnreadableImage("is a single number, so it has no length to pad")
        if array.dtype.kind in "iub" and not _is_number_of(self.value, array.dtype):
            raise InputError(
                f"data.pad: {self.name}: {array.dtype} cannot hold the value {self.value:g}"
            )
        length = min(len(array), self.to)
        padded = np.full((self.to, *array.shape[1:]), self.value, array.dtype)
        padded[:length] = array[:length]
        mask = np.zeros(self.to, np.uint8)
        mask[:length] = 1
        return padded, mask


def _is_number_of(value: float, dtype: np.dtype) -> bool:
    """Return True if a dtype of whole numbers can hold a number."""
    if dtype.kind == "b":
        return value in (0, 1)
    limits = np.iinfo(dtype)
    return float(value).is_integer() and limits.min <= value <= limits.max


def measure_lengths(
    source: Source, names: Sequence[str], progress: Callable[[int], object] = lambda count: None
) -> dict[str, np.ndarray]:
    """Return the lengths of inputs along their first axis, (samples,) int64 each.

    Args:
        source: the samples. If it has ``input_lengths``, name -> (samples,), none is read.
        names: the inputs.
        progress: called with the number of samples just read.

    Returns:
        The lengths; 0 for samples that cannot be read.

    Raises:
        InputError: the input does not exist or has no length, or a sample cannot be read.
    """
    known_lengths = given_lengths(source)
    if all(name in known_lengths for name in names):
        return {name: known_lengths[name] for name in names}
    lengths = {name: np.zeros(len(source), np.int64) for name in names}
    for index in range(len(source)):
        progress(1)
        try:
            content: Any = source.read(index)
        except UnreadableSample:
            continue
        except InputError:
            raise
        except Exception as error:  # a source of the user may raise anything
            raise InputError(
                f"reading {source.name(index)} failed: {format_exception(error)}"
            ) from error
        if not isinstance(content, Mapping):
            content = {INPUT: content}
        for name, values in lengths.items():
            if name not in content:
                raise InputError(f"no input is named {name!r}; there are {', '.join(content)}")
            if isinstance(content[name], bytes | bytearray | memoryview):
                raise InputError(f"{name}: files of images cannot be padded")
            try:
                values[index] = len(content[name])
            except TypeError:
                raise InputError(
                    f"{name}: {source.name(index)} is a single number, without a length"
                ) from None
    return lengths


def given_lengths(source: Source) -> dict[str, np.ndarray]:
    """Return the lengths that a source tells in ``input_lengths``.

    Raises:
        InputError: they are not one whole number for each sample.
    """
    attribute: Any = getattr(source, "input_lengths", {})
    if not isinstance(attribute, Mapping):
        raise InputError(
            f"input_lengths of the source is a {type(attribute).__name__}; it should map names of "
            "inputs to (samples,) integers"
        )
    lengths = {}
    for name, values in attribute.items():
        array = np.asarray(values)
        if array.shape != (len(source),) or array.dtype.kind not in "iu" or (array < 0).any():
            raise InputError(
                f"input_lengths[{name!r}] of the source is {array.shape} {array.dtype}; it should "
                f"be ({len(source)},) integers from 0, the length of each sample"
            )
        lengths[str(name)] = array.astype(np.int64)
    return lengths


def row_lengths(source: Source, pads: Sequence[Pad]) -> dict[str, np.ndarray]:
    """Return the lengths of rows of inputs of which batches are cut to their longest row.

    Args:
        source: the samples, whose lengths are known (:class:`preprocess.views.Measured`).
        pads: how its inputs are padded.

    Returns:
        (samples,) int64 for each such input, at most the length of rows as they travel.
    """
    known_lengths: Mapping[str, np.ndarray] = getattr(source, "input_lengths", {})
    return {
        pad.name: np.minimum(known_lengths[pad.name], pad.to)
        for pad in pads
        if pad.varies and pad.name in known_lengths
    }
