"""Masks: images of one number per pixel, the pixel's class, or ``.npy`` arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeAlias

import numpy as np
from PIL import Image

from launch.errors import InputError
from preprocess.base import UnreadableImage, UnreadableSample
from preprocess.decode import load_upright, open_image
from preprocess.files.npz import is_npy, parse_npy
from preprocess.fingerprint import NOT_READ, hash64, hash_files, select_rows
from preprocess.target import Request, TargetSpec, TargetWish
from preprocess.transient_errors import read_file

Color: TypeAlias = tuple[int, int, int]

# Replaces the number of ignored pixels when numbers are mapped to classes.
_IGNORED = -1
_MAX_CLASSES = 256  # the most pixel values that may be classes without a request
_PALETTES = 100  # masks whose palettes are compared if the classes are known
_LOSSY = ("JPEG", "MPO", "JPEG2000", "AVIF")  # Pillow's names of formats that change numbers
_LOSSY_IN_TIFF = ("jpeg", "tiff_jpeg", "webp")  # the same for compressions in TIFF


class UnfitMask(UnreadableImage):
    """A mask that is not damaged, but whose numbers have no meaning shared with other masks."""


class DecodedMask(NamedTuple):
    """The content of a mask's file.

    Attributes:
        numbers: (height, width) integers; those of a palette image are indices into it.
        palette: (colors, 3) uint8; None without one. Images of one bit have black and white.
        is_grey: True if the numbers are 8-bit gray levels.
    """

    numbers: np.ndarray
    palette: np.ndarray | None = None
    is_grey: bool = False

    def colors(self) -> dict[int, Color]:
        """Return the color of each number that occurs; {} without a palette."""
        if self.palette is None:
            return {}
        used = [number for number in np.unique(self.numbers).tolist() if number < len(self.palette)]
        return {number: _color(self.palette, number) for number in used}


def decode_mask(data: bytes) -> DecodedMask:
    """Decode a mask and apply its EXIF orientation, as for its image.

    Args:
        data: the bytes of an image file or a ``.npy`` file.

    Raises:
        UnreadableImage: it is damaged, or has several numbers for each pixel.
        UnfitMask: its format changes numbers.
    """
    if is_npy(data):
        return DecodedMask(plain_mask(parse_npy(data)))
    try:
        with open_image(data) as image:
            _check_lossless(image, data)
            image = load_upright(image)
            return DecodedMask(plain_mask(np.asarray(image)), _palette(image), image.mode == "L")
    except UnfitMask:
        raise
    except UnreadableImage as error:
        raise UnreadableImage(f"its mask {str(error).removeprefix('its mask ')}") from error
    except Exception as error:  # Pillow's parsers raise many kinds for damaged files
        raise UnreadableImage(f"its mask cannot be decoded: {error}") from error


def _check_lossless(image: Image.Image, data: bytes) -> None:
    is_lossy = image.format in _LOSSY
    if image.format == "TIFF":
        is_lossy = image.info.get("compression") in _LOSSY_IN_TIFF
    if image.format == "WEBP":
        is_lossy = b"VP8L" not in data
    if is_lossy:
        raise UnfitMask(
            f"its mask is in the format {image.format}, which changes numbers; save masks as PNG"
        )


def _palette(image: Image.Image) -> np.ndarray | None:
    if image.mode == "1":
        return np.array([[0, 0, 0], [255, 255, 255]], np.uint8)
    colors = None
    if image.mode == "P":
        colors = image.getpalette("RGB")
    if colors is None:
        return None
    return np.array(colors, np.uint8).reshape(-1, 3)


def _color(palette: np.ndarray, number: int) -> Color:
    red, green, blue = palette[number].tolist()
    return red, green, blue


def plain_mask(pixels: np.ndarray) -> np.ndarray:
    """Return a mask as (height, width) of an integer dtype.

    Raises:
        UnreadableImage: it is something else.
    """
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.ndim != 2 or pixels.dtype.kind not in "iub":
        raise UnreadableImage(
            f"its mask is {pixels.shape} of {pixels.dtype}; it should have one whole number for "
            "each pixel, its class: a grayscale or palette image, or an array (height, width) of "
            "integers"
        )
    if pixels.dtype.kind == "b":
        return pixels.astype(np.uint8)
    return pixels


class PixelClasses:
    """The mapping from numbers in a mask to classes.

    Args:
        values: the number of each class, in any order; empty if each number in any mask is a class.
        names: the names of the classes.
        ignore: the number of ignored pixels; None if there are none.
        colors: the color that each number has in palettes, if known.
        by_grey: True if a color's gray level is its number, not its index in the palette.

    Raises:
        InputError: ``ignore`` is the number of a class.
    """

    def __init__(
        self,
        values: Sequence[int] = (),
        names: Sequence[str] = (),
        ignore: int | None = None,
        colors: Mapping[int, Color] | None = None,
        by_grey: bool = False,
    ) -> None:
        if ignore is not None and ignore in values:
            raise InputError(
                f"data.target: ignore: {ignore} is the value of the class "
                f"{names[values.index(ignore)]}; it must be the value of pixels of no class"
            )
        self.names = tuple(names)
        self.ignore = ignore
        self.colors = dict(colors or {})
        self.by_grey = by_grey
        self._values = np.array(values, np.int64)
        self._is_plain = list(values) == list(range(len(values)))
        self._sorter = np.argsort(self._values)

    @classmethod
    def from_options(
        cls, pixels: Mapping[str, int] | None, target: TargetWish | None
    ) -> PixelClasses:
        """Create the mapping from a spec.

        Args:
            pixels: the option of this name: the number of each class in masks.
            target: the ``data.target``, whose classes have numbers from 0 without ``pixels``.

        Raises:
            InputError: the pixels are not distinct integers from 0.
        """
        request = target or TargetWish("mask")
        if pixels is None:
            count = request.outputs or len(request.names)
            return cls(range(count), request.names or list(map(str, range(count))), request.ignore)
        if not isinstance(pixels, Mapping) or len(pixels) < 2:
            raise InputError(
                f"pixels: {pixels} should give each class a pixel value, like "
                f"{{sky: 0, cloud: 255}}"
            )
        values = list(pixels.values())
        is_wrong = any(
            isinstance(value, bool) or not isinstance(value, int) or value < 0 for value in values
        )
        if is_wrong or len(set(values)) < len(values):
            raise InputError(
                f"pixels: {dict(pixels)} should give each class a different integer from 0"
            )
        return cls(values, list(map(str, pixels)), request.ignore)

    @classmethod
    def from_request(cls, pixels: Mapping[str, int] | None, request: Request) -> PixelClasses:
        """Create the mapping from a spec that may request several targets by name.

        Args:
            pixels: see :meth:`from_options`.
            request: the ``data.target``, of which one may be a mask.
        """
        if isinstance(request, Mapping):
            requests = [single for single in request.values() if single.semantics.is_of_pixels]
            request = requests[0] if requests else None
        return cls.from_options(pixels, request)

    def of_palettes(self, colors: Mapping[int, Color], by_grey: bool) -> PixelClasses:
        """Return the same classes for masks whose palettes are known."""
        values = self._values.tolist()
        return PixelClasses(values, self.names, self.ignore, colors, by_grey)

    @property
    def values(self) -> tuple[int, ...]:
        """The number of each class."""
        return tuple(self._values.tolist())

    def numbers(self, mask: DecodedMask) -> np.ndarray:
        """Return the numbers of a mask, (height, width), with the same meaning in all masks.

        Raises:
            UnfitMask: a number has another color than in other masks, or a color is not gray.
        """
        if mask.palette is None:
            return mask.numbers
        if self.by_grey:
            wrong = {number: rgb for number, rgb in mask.colors().items() if len({*rgb}) > 1}
            if wrong:
                raise UnfitMask(
                    "the palettes of masks differ, so gray levels are the numbers, and its mask "
                    f"has the color {next(iter(wrong.values()))}"
                )
            return mask.palette[:, 0][mask.numbers.clip(max=len(mask.palette) - 1)]
        for number, color in self.colors.items():
            if number >= len(mask.palette) or _color(mask.palette, number) == color:
                continue
            if (mask.numbers == number).any():
                raise UnfitMask(
                    f"the palettes of masks differ: the value {number} has the color "
                    f"{_color(mask.palette, number)} in this rgb and {color} in others; save all "
                    "masks with rgb palette, or as grayscale images of the values"
                )
        return mask.numbers

    @property
    def spec(self) -> TargetSpec:
        """The target spec of such masks."""
        ignore = self.ignore
        if ignore is not None and not self._is_plain:
            ignore = _IGNORED
        return TargetSpec("mask", len(self.names), self.names, ignore=ignore)

    def apply(self, mask: np.ndarray) -> np.ndarray:
        """Map numbers to classes; plain numbers are checked when the mask is read.

        Args:
            mask: (height, width) integers.

        Returns:
            (height, width) integers, the classes.

        Raises:
            UnreadableImage: a pixel has a number of no class.
        """
        if self._is_plain:
            return mask
        position = np.searchsorted(self._values, mask, sorter=self._sorter).clip(
            max=len(self._values) - 1
        )
        classes = self._sorter[position]
        foreign = self._values[classes] != mask
        if self.ignore is not None:
            classes[mask == self.ignore] = _IGNORED
            foreign &= mask != self.ignore
        if foreign.any():
            raise self._foreign(mask, foreign)
        return classes.astype(np.int32)

    def _foreign(self, mask: np.ndarray, foreign: np.ndarray) -> UnreadableImage:
        row, column = np.argwhere(foreign)[0]
        listed_values = ", ".join(map(str, self._values[:5])) + (
            " ..." if len(self._values) > 5 else ""
        )
        return UnreadableImage(
            f"its mask has the value {mask[row, column]} at row {row}, column {column}; the "
            f"values of the {len(self.names)} classes are {listed_values}"
        )


class Masks:
    """The encoded masks of a source.

    Args:
        count: number of masks.
        classes: from the options, or those of the training masks; if empty, all masks are read.
        name: returns the name of a mask, by index.
        content: returns a mask as it is stored: the bytes of an image or ``.npy`` file, or numbers.
            Raises UnreadableSample.

    Attributes:
        classes: the classes of mask pixels.

    Raises:
        InputError: all masks are read, and one cannot be.
    """

    def __init__(
        self,
        count: int,
        classes: PixelClasses,
        name: Callable[[int], str],
        content: Callable[[int], bytes | np.ndarray],
    ) -> None:
        self.name = name
        self._content = content
        if classes.names:
            self.classes = self._check_palettes(count, classes)
        else:
            self.classes = self._find_classes(count, classes)

    @property
    def spec(self) -> TargetSpec:
        """The target spec of the masks."""
        return self.classes.spec

    def read(self, index: int) -> np.ndarray:
        """Read the classes of a mask's pixels, (height, width) integers.

        Raises:
            UnreadableSample: it cannot be read, or has a pixel of no class.
        """
        mask = self.read_numbers(index)
        try:
            return self.classes.apply(mask)
        except UnreadableImage as error:
            raise UnreadableSample(self.name(index), str(error)) from error

    def hashes(self, keys: np.ndarray) -> dict[str, np.ndarray]:
        """Hash some of the masks; see :mod:`preprocess.fingerprint`."""
        content = np.full(len(keys), NOT_READ, np.uint64)
        rows = select_rows(len(keys))
        for row in rows.tolist():
            with suppress(UnreadableSample):
                content[row] = hash64(self.read_numbers(row))
        return {"content": content}

    def read_numbers(self, index: int) -> np.ndarray:
        """Read the numbers of a mask, (height, width) integers.

        Raises:
            UnreadableSample: it cannot be read, or is not a mask.
        """
        try:
            return self.classes.numbers(self._decoded(index))
        except UnreadableImage as error:
            raise UnreadableSample(self.name(index), str(error)) from error

    def _decoded(self, index: int) -> DecodedMask:
        content = self._content(index)
        if isinstance(content, np.ndarray):
            return DecodedMask(plain_mask(content))
        return decode_mask(content)

    def _check_palettes(self, count: int, classes: PixelClasses) -> PixelClasses:
        """Compare the palettes of a few masks; return the classes with what was learned.

        Raises:
            InputError: palettes differ, or their format changes numbers.
        """
        palettes = _Palettes(classes.colors, classes.ignore)
        for index in select_rows(count, _PALETTES).tolist():
            try:
                content = self._content(index)
                if isinstance(content, np.ndarray):  # then all are arrays
                    break
                mask = decode_mask(content)
                classes.numbers(mask)
                palettes.add(mask, self.name(index))
            except UnfitMask as error:
                raise InputError(f"{self.name(index)}: {error}") from error
            except (UnreadableImage, UnreadableSample):  # counted later, when it is read
                continue
        known_values = {*classes.values, classes.ignore}
        levels = palettes.grey_levels()
        means_levels = (
            levels is not None and levels <= known_values and not {*palettes.colors} <= known_values
        )
        if palettes.difference and not means_levels:
            raise InputError(palettes.difference)
        by_grey = classes.by_grey or means_levels
        return classes.of_palettes({} if by_grey else palettes.colors, by_grey)

    def _find_classes(self, count: int, requested: PixelClasses) -> PixelClasses:
        """Find the numbers that occur in any mask."""
        values: set[int] = set()
        palettes = _Palettes({}, requested.ignore)
        for index in range(count):
            try:
                mask = self._decoded(index)
            except UnfitMask as error:
                raise InputError(f"{self.name(index)}: {error}") from error
            except (UnreadableImage, UnreadableSample) as error:
                if isinstance(error, UnreadableSample):
                    named: object = error
                else:
                    named = f"{self.name(index)}: {error}"
                raise InputError(
                    f"{named} (all masks are read to find the classes unless "
                    "data.target or options: pixels gives them)"
                ) from error
            palettes.add(mask, self.name(index))
            if mask.palette is None:
                values.update(np.unique(mask.numbers).tolist())
            if len(values | {*palettes.colors}) > _MAX_CLASSES:
                raise InputError(
                    f"{self.name(index)}: with this mask there are more than {_MAX_CLASSES} "
                    "values of pixels; if they are classes, set data.target or options: pixels"
                )
        by_grey = bool(palettes.difference)
        levels = palettes.grey_levels()
        if by_grey and (levels is None or palettes.is_ambiguous):
            raise InputError(palettes.difference)
        values |= levels if by_grey and levels else {*palettes.colors}
        values -= {requested.ignore}
        if len(values) < 2:
            raise InputError(
                f"{self.name(0)}: all pixels of all masks have the value "
                f"{', '.join(map(str, values))}; at least two classes are required"
            )
        colors = {} if by_grey else palettes.colors
        names = [str(value) for value in sorted(values)]
        return PixelClasses(sorted(values), names, requested.ignore, colors, by_grey)


class _Palettes:
    """Comparison of the palettes of masks, for the colors that are used.

    Args:
        colors: known colors of numbers.
        ignore: the number of ignored pixels.

    Attributes:
        colors: the color of each number that occurs in palette masks.
        difference: how palettes differ; empty if they do not.
        is_ambiguous: True if a number may be an index in some masks and a gray level in others.
    """

    def __init__(self, colors: Mapping[int, Color], ignore: int | None) -> None:
        self.colors = dict(colors)
        self.difference = ""
        self.is_ambiguous = False
        self._ignore = ignore
        self._origins: dict[int, str] = {}
        self._used: set[Color] = set()
        self._greys: dict[int, str] = {}

    def add(self, mask: DecodedMask, name: str) -> None:
        """Compare one more mask."""
        if mask.is_grey:
            self._greys |= dict.fromkeys(np.unique(mask.numbers).tolist(), name)
        for number, color in mask.colors().items():
            self._used.add(color)
            first_color = self.colors.setdefault(number, color)
            first_mask = self._origins.setdefault(number, name)
            if first_color != color:
                self._differ(name, number, color, f"in {first_mask} it is {first_color}")
        for number, (level, *channels) in self.colors.items():
            is_grey = channels == [level, level]
            if is_grey and level not in (number, self._ignore) and level in self._greys:
                self.is_ambiguous |= number in self._greys
                origin = self._origins.get(number, name)
                first_mask = f"{self._greys[level]} has the value {level}"
                self._differ(origin, number, (level, level, level), first_mask)

    def grey_levels(self) -> set[int] | None:
        """Return the gray levels of all colors that occur; None if some are not gray."""
        if any(len({*color}) > 1 for color in self._used):
            return None
        return {color[0] for color in self._used}

    def _differ(self, name: str, number: int, color: Color, contrast: str) -> None:
        self.difference = self.difference or (
            f"{name}: the palettes of masks differ: the value {number} is the color {color} here, "
            f"and {contrast}; save all masks with one palette, or as grayscale images of the values"
        )


class MaskFiles(Masks):
    """The masks of a source, one file each.

    Args:
        files: their paths.
        classes: see :class:`Masks`.
    """

    def __init__(self, files: Sequence[str], classes: PixelClasses) -> None:
        self._files = list(files)
        super().__init__(len(files), classes, self._files.__getitem__, self._read)

    def select(self, rows: np.ndarray) -> MaskFiles:
        """Return the masks of the samples ``rows``, (m,) integers."""
        return MaskFiles([self._files[row] for row in rows.tolist()], self.classes)

    def hashes(self, keys: np.ndarray) -> dict[str, np.ndarray]:  # noqa: D102 - Masks says it
        return hash_files(keys, self._files)

    def _read(self, index: int) -> bytes:
        return read_file(self._files[index], lambda: self._files[index])
