"""Decode image files to arrays: Pillow for every format, simplejpeg for JPEG if installed.

Both decoders follow these rules:

- grayscale, palette and CMYK images are converted to ``mode``; transparency is dropped, not
  blended;
- 16-bit grayscale keeps the upper 8 of its ``bits``: of 16, unless the spec says fewer;
- the EXIF orientation is applied: the array is what an image viewer shows; unreadable EXIF data is
  ignored;
- of an animation, the first frame is used.

simplejpeg decodes with the slow exact transform and smooth upsampling, which are Pillow's settings,
so both give the same bytes. Files that it refuses go to Pillow, except files that libjpeg calls
corrupt: Pillow does not report these warnings.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Literal, TypeAlias

import numpy as np
import PIL
from PIL import Image

from preprocess.base import UnreadableImage

try:
    import simplejpeg
except ImportError:  # optional: faster than Pillow
    simplejpeg = None

Mode = Literal["RGB", "L"]
# A minimum (height, width), or a function that returns it for an image's size.
MinSize: TypeAlias = tuple[int, int] | Callable[[int, int], tuple[int, int]]

_ORIENTATION_TAG = 0x0112  # the EXIF tag
_TRANSPOSES = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_CORRUPT = ("Corrupt JPEG data", "Premature end of JPEG")  # how libjpeg's warnings begin


def decoder_name() -> str:
    """Return the name of the library that decodes JPEG files here."""
    if simplejpeg is None:
        return "Pillow " + PIL.__version__
    return "simplejpeg"


def decode(
    data: bytes, mode: Mode = "RGB", at_least: MinSize | None = None, bits: int = 16
) -> np.ndarray:
    """Decode an image file.

    Args:
        data: the bytes of the file.
        mode: ``RGB`` or ``L`` (grayscale).
        at_least: the minimum (height, width) of the displayed image. A JPEG that is larger by a
            factor of 2, 4 or 8 is decoded directly at that fraction of its size, which is faster;
            the result is never smaller than ``at_least`` in either direction.
        bits: the bits that 16-bit grayscale files use; larger numbers become white.

    Returns:
        (height, width, channels) uint8, with 3 channels for RGB and 1 for L.

    Raises:
        UnreadableImage: the bytes are not an image, or the image is damaged.
    """
    if simplejpeg is not None and data[:2] == b"\xff\xd8":
        array = _decode_simplejpeg(data, mode, at_least)
        if array is not None:
            return array
    return _decode_pillow(data, mode, at_least, bits)


def reduction(data: bytes, at_least: MinSize) -> int:
    """Return by how much :func:`decode` shrinks an image: 1, 2, 4 or 8.

    Args:
        data: the bytes of the file; 1 is returned if they cannot be decoded.
        at_least: see :func:`decode`.
    """
    if data[:2] != b"\xff\xd8":  # not a JPEG file, nor one that begins like it
        return 1
    try:
        if simplejpeg is not None:
            height, width, *_ = simplejpeg.decode_jpeg_header(data)
            height, width = _displayed_size(height, width, _orientation_of_jpeg(data))
        else:
            with Image.open(io.BytesIO(data)) as image:
                height, width = _displayed_size(image.height, image.width, _orientation(image))
    except Exception:  # decode reports what is wrong
        return 1
    return _draft_scale(height, width, _min_size_for(at_least, height, width))


def count_bits_used(data: bytes) -> int:
    """Count the bits that the largest number of a 16-bit image needs; 0 for other files.

    Of several channels Pillow keeps the upper 8 bits, so the count is approximate.
    """
    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.mode.startswith("I;16"):
                return int(np.asarray(image).max(initial=0)).bit_length()
            if _is_deep(image):
                return 8 + int(np.asarray(image).max(initial=0)).bit_length()
    except Exception:  # decode reports what is wrong
        return 0
    return 0


def to_array(image: Image.Image) -> np.ndarray:
    """Convert a Pillow image to an array (height, width, channels)."""
    array = np.asarray(image)
    if array.ndim == 2:
        return array[:, :, None]
    return array


def to_image(array: np.ndarray) -> Image.Image:
    """Convert an array (height, width, 1 or 3), uint8, to a Pillow image."""
    return Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)


def open_image(data: bytes) -> Image.Image:
    """Open an image file without decoding it.

    Raises:
        UnreadableImage: Pillow would misread it: a BMP of 8 bits with a black-and-white palette.
        Exception: it is not an image; Pillow's parsers raise many kinds.
    """
    image = Image.open(io.BytesIO(data))
    if image.format == "BMP" and image.mode == "1" and data[28:30] == b"\x08\0":
        raise UnreadableImage(
            "is a BMP file of 8 bits with two colors, which Pillow misreads; save it as PNG"
        )
    return image


def load_upright(image: Image.Image) -> Image.Image:
    """Load an opened image and apply its EXIF orientation."""
    image.load()  # this also applies the orientation of TIFF files
    return _transpose(image, _orientation(image))


def _orientation(image: Image.Image) -> Image.Transpose | None:
    """Return the transposition that the EXIF orientation asks for; None if unreadable."""
    try:
        return _TRANSPOSES.get(image.getexif().get(_ORIENTATION_TAG, 1))
    except Exception:  # Pillow's parsers raise many kinds for damaged data
        return None


def _orientation_of_jpeg(data: bytes) -> Image.Transpose | None:
    if b"Exif\0" not in data:
        return None
    try:
        with Image.open(io.BytesIO(data)) as image:
            return _orientation(image)
    except Image.DecompressionBombError as error:
        raise UnreadableImage(f"cannot be decoded: {error}") from error
    except Exception:  # as above
        return None


def _transpose(image: Image.Image, turn: Image.Transpose | None) -> Image.Image:
    if turn is None:
        return image
    return image.transpose(turn)


def _displayed_size(height: int, width: int, turn: Image.Transpose | None) -> tuple[int, int]:
    """Return (height, width) of an image after its transposition."""
    is_on_its_side = turn in (_TRANSPOSES[5], _TRANSPOSES[6], _TRANSPOSES[7], _TRANSPOSES[8])
    if is_on_its_side:
        return (width, height)
    return (height, width)


def _decode_simplejpeg(data: bytes, mode: Mode, at_least: MinSize | None) -> np.ndarray | None:
    try:
        height, width, space, _ = simplejpeg.decode_jpeg_header(data)
        # Pillow converts CMYK and plain RGB.
        is_usual = space in ("YCbCr", "Gray")
        turn = _orientation_of_jpeg(data)
        seen = _displayed_size(height, width, turn)
        scale = 8
        if is_usual:
            scale = _draft_scale(*seen, _min_size_for(at_least, *seen))
        if space in ("CMYK", "YCCK"):
            colorspace = "CMYK"
        elif mode == "L":
            colorspace = "GRAY"
        else:
            colorspace = "RGB"
        array = simplejpeg.decode_jpeg(
            data,
            colorspace=colorspace,
            fastdct=False,
            fastupsample=False,
            min_height=-(-height // scale),
            min_width=-(-width // scale),
        )
    except ValueError as error:
        reason = str(error)
        if reason.startswith(_CORRUPT) and "ICC" not in reason:
            raise UnreadableImage(f"is damaged or truncated: {reason}") from None
        return None
    if not is_usual:
        return None
    if turn is None:
        return array
    return to_array(_transpose(to_image(array), turn))


def _min_size_for(at_least: MinSize | None, height: int, width: int) -> tuple[int, int] | None:
    """Return the minimum (height, width) for an image of this size."""
    if callable(at_least):
        return at_least(height, width)
    return at_least


def _draft_scale(height: int, width: int, at_least: tuple[int, int] | None) -> int:
    if at_least is None:
        return 1
    room = min(height // at_least[0], width // at_least[1])
    return next(scale for scale in (8, 4, 2, 1) if scale <= max(room, 1))


def _decode_pillow(data: bytes, mode: Mode, at_least: MinSize | None, bits: int) -> np.ndarray:
    try:
        with open_image(data) as image:
            if image.format in ("JPEG", "MPO"):
                turn = _orientation(image)
                seen = _displayed_size(image.height, image.width, turn)
                size = _min_size_for(at_least, *seen)
                image.draft(
                    "L" if mode == "L" else None, size and _displayed_size(*size, turn)[::-1]
                )
            if bits < 16:
                _check_depth(image)
            # Pillow scales these to 0..65535
            is_pgm = image.format == "PPM" and image.mode == "I"
            return to_array(_convert(load_upright(image), mode, bits, is_pgm))
    except Image.UnidentifiedImageError:
        raise UnreadableImage("not an image file that Pillow knows") from None
    except UnreadableImage:
        raise
    except Exception as error:  # Pillow's parsers raise many kinds for damaged files
        raise UnreadableImage(f"cannot be decoded: {error}") from error


def _is_deep(image: Image.Image) -> bool:
    """Return True if an opened image has 16 bits in each of several channels."""
    return not image.mode.startswith("I") and ";16" in str(getattr(image, "tile", ""))


def _check_depth(image: Image.Image) -> None:
    """Refuse 16 bits in each of several channels: `bits` applies to one channel."""
    if _is_deep(image):
        raise UnreadableImage(
            "has 16 bits in each of several channels; decode: bits is for one channel, so convert "
            "it to 8 bits"
        )


def _convert(image: Image.Image, mode: Mode, bits: int, is_pgm: bool) -> Image.Image:
    if image.mode.startswith("I;16") or is_pgm:
        numbers = np.asarray(image).astype(np.int64) >> (bits - 8)
        image = Image.fromarray(numbers.clip(max=255).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError(f"32-bit pixels (Pillow's mode {image.mode}) have no fixed range")
    # Pillow warns of palettes with transparency unless they become RGBA first.
    if image.mode == "P":
        image = image.convert("RGBA")
    if image.mode == mode:
        return image
    return image.convert(mode)
