"""Samples whose crop and mirror images are left to the device that trains: a row of bytes each.

A row has the pixels of the image as they were before, and the place to which they go: (top, left, upside, mirror),
int32. The window begins at (top, left), perhaps outside of the image, where all is 0. Then top and bottom change places
where ``upside`` is 1, left and right where ``mirror`` is. :func:`finished` says it in NumPy.
"""

from __future__ import annotations

import numpy as np

from preprocess.sample import PLACE_BYTES, ImageSpec, SampleSpec, wire_dtype


def packed(images: np.ndarray, places: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Rows of bytes (k, bytes), uint8; into ``out`` where it is given.

    Args:
        images: (k, height, width, channels).
        places: (k, 4), as the module says.
    """
    pixels = (
        np.ascontiguousarray(images, wire_dtype(images.dtype))
        .reshape(len(images), -1)
        .view(np.uint8)
    )
    if out is None:
        rows = np.empty((len(images), pixels.shape[1] + PLACE_BYTES), np.uint8)
    else:
        rows = out
    rows[:, :-PLACE_BYTES] = pixels
    rows[:, -PLACE_BYTES:] = np.ascontiguousarray(places, np.int32).view(np.uint8)
    return rows


def parted(rows: np.ndarray, image: ImageSpec) -> tuple[np.ndarray, np.ndarray]:
    """The images (k, height, width, channels) of rows, and the places (k, 4) of their pixels."""
    pixels = (
        np.ascontiguousarray(rows[:, :-PLACE_BYTES]).view(image.dtype).reshape(-1, *image.shape)
    )
    return pixels, np.ascontiguousarray(rows[:, -PLACE_BYTES:]).view(np.int32)


def finished(rows: np.ndarray, sample: SampleSpec) -> np.ndarray:
    """Samples as networks are fed with them, (k, height, width, channels), of what travels."""
    if sample.unfinished is None:
        return rows
    images, places = parted(rows, sample.unfinished)
    height, width = sample.image.shape[:2]
    found = np.empty((len(rows), *sample.image.shape), sample.image.dtype)
    for image, shown, (top, left, upside, mirror) in zip(
        images, found, places.tolist(), strict=True
    ):
        shown[:] = window(image, top, left, (height, width))[
            :: -1 if upside else 1, :: -1 if mirror else 1
        ]
    return found


def window(
    image: np.ndarray, top: int, left: int, size: tuple[int, int], outside: int = 0
) -> np.ndarray:
    """The window at (top, left) of an image or a mask; what lies outside of it is ``outside``."""
    height, width = image.shape[:2]
    bottom = top + size[0]
    right = left + size[1]
    if top >= 0 and left >= 0 and bottom <= height and right <= width:
        return image[top:bottom, left:right]
    shape = (*size, *image.shape[2:])
    if outside:
        found = np.full(shape, outside, image.dtype)
    else:
        found = np.zeros(shape, image.dtype)
    inside = image[max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)]
    y = max(-top, 0)
    x = max(-left, 0)
    found[y : y + inside.shape[0], x : x + inside.shape[1]] = inside
    return found
