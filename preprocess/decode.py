"""Encoded image files to arrays: Pillow for every format, simplejpeg for JPEG where it is installed.

What an image becomes is decided here, once for both decoders:

- greyscale, palette and CMYK images become what ``mode`` asks for; transparency is dropped, not blended;
- 16-bit greyscale keeps its upper 8 bits;
- an EXIF orientation is applied: the array is what an image viewer shows;
- of an animation the first frame is taken.

simplejpeg decodes with the slow exact transform and smooth upsampling, which are Pillow's settings, so both
give the same bytes; files that it refuses go to Pillow, whose word on them is final.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Literal, TypeAlias

import numpy as np
import PIL
from PIL import Image, ImageOps

from preprocess.base import BadImage

try:
    import simplejpeg
except ImportError:  # optional: faster than Pillow
    simplejpeg = None

Mode = Literal["RGB", "L"]
# A (height, width) of the image that is enough, or what gives it for the image's own.
Enough: TypeAlias = tuple[int, int] | Callable[[int, int], tuple[int, int]]

_ORIENTATION = 0x0112  # the EXIF tag


def decoder_name() -> str:
    """Which library decodes JPEG files here, for the log of a run."""
    return "Pillow " + PIL.__version__ if simplejpeg is None else "simplejpeg"


def decode(data: bytes, mode: Mode = "RGB", at_least: Enough | None = None) -> np.ndarray:
    """Decode an image file.

    Args:
        data: the bytes of the file.
        mode: ``RGB`` or ``L`` (greyscale).
        at_least: (height, width) of the image, as it is seen, that is enough. A JPEG that is larger by a factor of 2, 4
            or 8 is then decoded directly at that fraction of its size (the decoder leaves out coefficients), which
            is faster; the result is never smaller than ``at_least`` in either direction.

    Returns:
        uint8 array (height, width, channels), 3 channels for RGB and 1 for L.

    Raises:
        BadImage: the bytes are not an image, or the image is damaged.
    """
    if simplejpeg is not None and data[:2] == b"\xff\xd8" and b"Exif\0" not in data:
        array = _decode_simplejpeg(data, mode, at_least)
        if array is not None:
            return array
    return _decode_pillow(data, mode, at_least)


def reduction(data: bytes, at_least: Enough) -> int:
    """By how much :func:`decode` makes an image smaller, 1, 2, 4 or 8; 1 of what it cannot decode."""
    if data[:2] != b"\xff\xd8":  # JPEG files, and those that begin with one
        return 1
    try:
        if simplejpeg is not None and b"Exif\0" not in data:
            height, width, *_ = simplejpeg.decode_jpeg_header(data)
        else:
            with Image.open(io.BytesIO(data)) as image:
                height, width = _seen(image)
    except Exception:  # as in decode, which says what is wrong
        return 1
    return _draft_scale(height, width, _of_size(at_least, height, width))


def to_array(image: Image.Image) -> np.ndarray:
    """A Pillow image as an array (height, width, channels)."""
    array = np.asarray(image)
    return array[:, :, None] if array.ndim == 2 else array


def to_image(array: np.ndarray) -> Image.Image:
    """An array (height, width, 1 or 3), uint8, as a Pillow image."""
    return Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)


def _decode_simplejpeg(data: bytes, mode: Mode, at_least: Enough | None) -> np.ndarray | None:
    try:
        height, width, space, _ = simplejpeg.decode_jpeg_header(data)
        if space not in ("YCbCr", "Gray"):  # CMYK, and RGB stored as such
            return None
        scale = _draft_scale(height, width, _of_size(at_least, height, width))
        return simplejpeg.decode_jpeg(
            data,
            colorspace="GRAY" if mode == "L" else "RGB",
            fastdct=False,
            fastupsample=False,
            min_height=-(-height // scale),
            min_width=-(-width // scale),
        )
    except ValueError:
        return None


def _of_size(at_least: Enough | None, height: int, width: int) -> tuple[int, int] | None:
    """What is enough of an image of this size."""
    return at_least(height, width) if callable(at_least) else at_least


def _draft_scale(height: int, width: int, at_least: tuple[int, int] | None) -> int:
    if at_least is None:
        return 1
    room = min(height // at_least[0], width // at_least[1])
    return next(scale for scale in (8, 4, 2, 1) if scale <= max(room, 1))


def _decode_pillow(data: bytes, mode: Mode, at_least: Enough | None) -> np.ndarray:
    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.format in ("JPEG", "MPO"):
                size = _of_size(at_least, *_seen(image))
                image.draft(
                    "L" if mode == "L" else None,
                    size and (size if _is_on_its_side(image) else size[::-1]),
                )
            ImageOps.exif_transpose(image, in_place=True)
            return to_array(_convert(image, mode))
    except Image.UnidentifiedImageError:
        raise BadImage("not an image file that Pillow knows") from None
    except Exception as error:  # Pillow's parsers meet damaged files with exceptions of many kinds
        raise BadImage(f"cannot be decoded: {error}") from error


def _seen(image: Image.Image) -> tuple[int, int]:
    """(height, width) of an image as it is seen; Pillow's sizes are (width, height)."""
    return image.size if _is_on_its_side(image) else image.size[::-1]


def _is_on_its_side(image: Image.Image) -> bool:
    """Whether height and width change places when it is shown."""
    return bool(image.getexif().get(_ORIENTATION, 1) >= 5)


def _convert(image: Image.Image, mode: Mode) -> Image.Image:
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError(f"32-bit pixels (Pillow's mode {image.mode}) have no fixed range")
    if (
        image.mode == "P"
    ):  # Pillow warns of palettes with transparency unless they become RGBA first
        image = image.convert("RGBA")
    return image if image.mode == mode else image.convert(mode)
