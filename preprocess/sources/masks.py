"""Masks in files of their own: images of one number a pixel, which is the pixel's class, or ``.npy`` arrays."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import numpy as np
from PIL import Image

from preprocess.base import BadImage, BadSample, InputError
from preprocess.files.npz import is_npy, parse_npy
from preprocess.fingerprint import UNSEEN, looked_at, of, seen_of_files
from preprocess.passing import read_file
from preprocess.target import TargetSpec, TargetWish

_IGNORED = (
    -1
)  # in place of the number of pixels that count for nothing, where numbers are replaced by classes
_MOST = 256  # values of pixels that are taken for classes without being said to be some


def decode_mask(data: bytes) -> np.ndarray:
    """The numbers of a mask; those of a palette are places in it.

    Args:
        data: an image file, or a ``.npy`` file.

    Raises:
        BadImage: it is damaged, or has several numbers for each pixel.
    """
    if is_npy(data):
        return plain_mask(parse_npy(data))
    try:
        with Image.open(io.BytesIO(data)) as image:
            return plain_mask(np.asarray(image))
    except BadImage:
        raise
    except Exception as error:  # Pillow's parsers meet damaged files with exceptions of many kinds
        raise BadImage(f"its mask cannot be decoded: {error}") from error


def plain_mask(found: np.ndarray) -> np.ndarray:
    """A mask as (height, width) of an integer type.

    Raises:
        BadImage: it is something else.
    """
    if found.ndim == 3 and found.shape[2] == 1:
        found = found[:, :, 0]
    if found.ndim != 2 or found.dtype.kind not in "iub":
        raise BadImage(
            f"its mask is {found.shape} of {found.dtype}; it should have one whole number for each pixel, "
            "its class: a greyscale or palette image, or an array (height, width) of integers"
        )
    return found.astype(np.uint8) if found.dtype.kind == "b" else found


class PixelClasses:
    """Which number in a mask is which class.

    Args:
        values: the number of each class, ascending or not; none where each number that is in any mask is a class.
        names: of the classes.
        ignore: the number of pixels that count for nothing; None where there are none.

    Raises:
        InputError: that number is one of a class.
    """

    def __init__(
        self, values: Sequence[int] = (), names: Sequence[str] = (), ignore: int | None = None
    ) -> None:
        if ignore is not None and ignore in values:
            raise InputError(
                f"data.target: ignore: {ignore} is the value of the class {names[values.index(ignore)]}; "
                "it should be that of pixels of no class"
            )
        self.names, self.ignore = tuple(names), ignore
        self._values = np.array(values, np.int64)
        self._is_plain = list(values) == list(range(len(values)))
        self._sorter = np.argsort(self._values)

    @classmethod
    def told(cls, pixels: Mapping[str, int] | None, target: TargetWish | None) -> PixelClasses:
        """As a spec says it.

        Args:
            pixels: the option of this name: the number that each class has in the masks, by the name of the class.
            target: its ``data.target``, whose classes have numbers from 0 on where there are no ``pixels``.

        Raises:
            InputError: the pixels are no numbers of their own.
        """
        wish = target or TargetWish("mask")
        if pixels is None:
            count = wish.outputs or len(wish.names)
            return cls(range(count), wish.names or list(map(str, range(count))), wish.ignore)
        if not isinstance(pixels, Mapping) or len(pixels) < 2:
            raise InputError(
                f"pixels: {pixels} should give each class a pixel value, like {{sky: 0, cloud: 255}}"
            )
        values = list(pixels.values())
        is_wrong = any(
            isinstance(value, bool) or not isinstance(value, int) or value < 0 for value in values
        )
        if is_wrong or len(set(values)) < len(values):
            raise InputError(
                f"pixels: {dict(pixels)} should give each class a whole number of its own, from 0"
            )
        return cls(values, list(map(str, pixels)), wish.ignore)

    @property
    def spec(self) -> TargetSpec:
        """The description of such masks."""
        ignore = self.ignore if self._is_plain or self.ignore is None else _IGNORED
        return TargetSpec("mask", len(self.names), self.names, ignore=ignore)

    def apply(self, mask: np.ndarray) -> np.ndarray:
        """The classes of the pixels; where the numbers are the classes, whoever reads the mask checks them.

        Raises:
            BadImage: a pixel has a number that is no class.
        """
        if self._is_plain:
            return mask
        place = np.searchsorted(self._values, mask, sorter=self._sorter).clip(
            max=len(self._values) - 1
        )
        classes = self._sorter[place]
        foreign = self._values[classes] != mask
        if self.ignore is not None:
            classes[mask == self.ignore] = _IGNORED
            foreign &= mask != self.ignore
        if foreign.any():
            raise self._foreign(mask, foreign)
        return classes.astype(np.int32)

    def _foreign(self, mask: np.ndarray, foreign: np.ndarray) -> BadImage:
        row, column = np.argwhere(foreign)[0]
        there = ", ".join(map(str, self._values[:5])) + (" ..." if len(self._values) > 5 else "")
        return BadImage(
            f"its mask has the value {mask[row, column]} at row {row}, column {column}; the values of the "
            f"{len(self.names)} classes are {there}"
        )


class Masks:
    """The masks of a source, encoded.

    Args:
        count: how many.
        classes: as they are said, or those that the masks for training have; without any, all are looked at.
        name: what to call a mask, by its number.
        content: a mask as it lies there: the bytes of an image file or a ``.npy`` file, or numbers. Raises BadSample
            where it cannot be read.

    Attributes:
        classes: which number is which class.

    Raises:
        InputError: one cannot be read, where all are looked at.
    """

    def __init__(
        self,
        count: int,
        classes: PixelClasses,
        name: Callable[[int], str],
        content: Callable[[int], bytes | np.ndarray],
    ) -> None:
        self.name, self._content = name, content
        self.classes = classes if classes.names else self._found(count, classes.ignore)

    @property
    def spec(self) -> TargetSpec:
        """The description of the masks."""
        return self.classes.spec

    def read(self, index: int) -> np.ndarray:
        """The classes of the pixels of a mask, (height, width).

        Raises:
            BadSample: it cannot be read, or has a pixel of no class.
        """
        mask = self.decoded(index)
        try:
            return self.classes.apply(mask)
        except BadImage as error:
            raise BadSample(self.name(index), str(error)) from error

    def seen(self, keys: np.ndarray) -> dict[str, np.ndarray]:
        """What some of the masks are known by; see :mod:`preprocess.fingerprint`."""
        content, rows = np.full(len(keys), UNSEEN, np.uint64), looked_at(len(keys))
        for row in rows.tolist():
            with suppress(BadSample):
                content[row] = of(self.decoded(row))
        return {"content": content}

    def decoded(self, index: int) -> np.ndarray:
        """The numbers of a mask.

        Raises:
            BadSample: it cannot be read, or is none.
        """
        try:
            found = self._content(index)
            return plain_mask(found) if isinstance(found, np.ndarray) else decode_mask(found)
        except BadImage as error:
            raise BadSample(self.name(index), str(error)) from error

    def _found(self, count: int, ignore: int | None) -> PixelClasses:
        """The numbers that are in any mask."""
        values: set[int] = set()
        for index in range(count):
            try:
                values.update(np.unique(self.decoded(index)).tolist())
            except BadSample as error:
                raise InputError(
                    f"{error} (all masks are read, to find the classes, unless data.target or "
                    "options: pixels says them)"
                ) from error
            if len(values) > _MOST:
                raise InputError(
                    f"{self.name(index)}: with this mask there are more than {_MOST} values of pixels; "
                    "are they classes? say so in data.target, or in options: pixels"
                )
        values -= {ignore}
        if len(values) < 2:
            raise InputError(
                f"{self.name(0)}: all pixels of all masks have the value {', '.join(map(str, values))}; "
                "at least two classes are needed"
            )
        return PixelClasses(sorted(values), [str(value) for value in sorted(values)], ignore)


class MaskFiles(Masks):
    """The masks of a source, one file each.

    Args:
        files: their paths.
        classes: see :class:`Masks`.
    """

    def __init__(self, files: Sequence[str], classes: PixelClasses) -> None:
        self._files = list(files)
        super().__init__(len(files), classes, self._files.__getitem__, self._read)

    def some(self, rows: np.ndarray) -> MaskFiles:
        """Those of some samples."""
        return MaskFiles([self._files[row] for row in rows.tolist()], self.classes)

    def seen(self, keys: np.ndarray) -> dict[str, np.ndarray]:  # noqa: D102 - Masks says it
        return seen_of_files(keys, self._files)

    def _read(self, index: int) -> bytes:
        return read_file(self._files[index], lambda: self._files[index])
