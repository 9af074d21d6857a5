"""Samples whose crop and flips are deferred to the training device, one row of bytes each.

A row holds the pixels of the image before, then (top, left, flip_y, flip_x) as int32. The window
begins at (top, left), possibly outside of the image, where all is 0. Then top and bottom are
swapped if ``flip_y`` is 1, left and right if ``flip_x`` is 1. :func:`finished` is the reference in
NumPy.
"""

from __future__ import annotations

import numpy as np

from preprocess.base import flatten_rows
from preprocess.sample import CROP_BYTES, ArraySpec, SampleSpec, wire_dtype


def pack_rows(images: np.ndarray, places: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Pack images and their crops into rows of bytes.

    Args:
        images: (k, height, width, channels).
        places: (k, 4) integers: top, left, flip_y, flip_x.
        out: (k, bytes) uint8 to write into; None for a new array.

    Returns:
        (k, bytes) uint8.
    """
    pixels = flatten_rows(np.ascontiguousarray(images, wire_dtype(images.dtype))).view(np.uint8)
    if out is None:
        rows = np.empty((len(images), pixels.shape[1] + CROP_BYTES), np.uint8)
    else:
        rows = out
    rows[:, :-CROP_BYTES] = pixels
    rows[:, -CROP_BYTES:] = np.ascontiguousarray(places, np.int32).view(np.uint8)
    return rows


def unpack_rows(rows: np.ndarray, image: ArraySpec) -> tuple[np.ndarray, np.ndarray]:
    """Split rows into images and crops.

    Args:
        rows: (k, bytes) uint8.
        image: the spec of an image before the crop.

    Returns:
        Images (k, height, width, channels) and crops (k, 4) int32.
    """
    pixels = np.ascontiguousarray(rows[:, :-CROP_BYTES])
    images = pixels.view(image.dtype).reshape(-1, *image.shape)
    return images, np.ascontiguousarray(rows[:, -CROP_BYTES:]).view(np.int32)


def finished(rows: np.ndarray, sample: SampleSpec) -> np.ndarray:
    """Apply the deferred crop and flips.

    Args:
        rows: (k, bytes) uint8, as the stream carries them.
        sample: the spec of the samples.

    Returns:
        (k, height, width, channels) as networks take them; ``rows`` if nothing was deferred.
    """
    if sample.deferred_input is None:
        return rows
    images, places = unpack_rows(rows, sample.deferred_input)
    height, width = sample.input.shape[:2]
    result = np.empty((len(rows), *sample.input.shape), sample.input.dtype)
    for image, target, (top, left, flip_y, flip_x) in zip(
        images, result, places.tolist(), strict=True
    ):
        window = cut_window(image, top, left, (height, width))
        if flip_y:
            window = window[::-1]
        if flip_x:
            window = window[:, ::-1]
        target[:] = window
    return result


def cut_window(
    image: np.ndarray, top: int, left: int, size: tuple[int, int], outside: int = 0
) -> np.ndarray:
    """Cut a window out of an image or a mask.

    Args:
        image: (height, width, ...).
        top: the first row; may lie outside of the image.
        left: the first column.
        size: (height, width) of the window.
        outside: the value outside of the image.

    Returns:
        (*size, ...) of the image's dtype.
    """
    height, width = image.shape[:2]
    bottom = top + size[0]
    right = left + size[1]
    if top >= 0 and left >= 0 and bottom <= height and right <= width:
        return image[top:bottom, left:right]
    shape = (*size, *image.shape[2:])
    if outside:
        result = np.full(shape, outside, image.dtype)
    else:
        result = np.zeros(shape, image.dtype)
    inside = image[max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)]
    y = max(-top, 0)
    x = max(-left, 0)
    result[y : y + inside.shape[0], x : x + inside.shape[1]] = inside
    return result
