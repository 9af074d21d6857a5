"""Bytes to numbers, ``x * multiplier + offset`` with one rounding each, as fast as a core can.

NumPy goes over the pixels twice, and takes operands of a few numbers element by element. A loop that numba compiles
goes over them once, and gives the same bits. What a whole batch becomes is too large for the caches of a core, and is
written past them: otherwise each line of the memory is read before it is overwritten.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

# Bytes of an image that is worth the loop: loading numba takes over half a second, and small images scale fast anyway.
LARGE = 64 * 2**10
_TOO_LARGE = 4 * 2**20  # bytes of numbers for the caches of a core


def along_row(multiplier: np.ndarray, offset: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers for each channel, repeated for each pixel of a row; scalars stay as they are.

    Args:
        multiplier, offset: float32, scalars or (channels,).
        width: of an image, in pixels.

    Returns:
        Two arrays (width x channels,), or the two scalars.
    """
    if not (multiplier.ndim or offset.ndim):
        return multiplier, offset
    multiplier, offset = np.broadcast_arrays(multiplier, offset)
    return np.tile(multiplier, width), np.tile(offset, width)


def scale_into(out: np.ndarray, images: np.ndarray, multiplier: np.ndarray, offset: np.ndarray) -> None:
    """Scale images, or other arrays, whose last axis is then taken for the channels.

    Args:
        out: (..., height, width, channels) float32, is overwritten.
        images: of the same shape.
        multiplier, offset: float32, scalars or (channels,).
    """
    if not out.flags.c_contiguous or out.ndim < 3:  # its rows cannot be written as one, or it is no image
        np.add(np.multiply(images, multiplier, out=out, dtype=np.float32), offset, out=out)
        return
    pixels = out.shape[-2] * out.shape[-1]
    rows, scaled = images.reshape(-1, pixels), out.reshape(-1, pixels)
    multiplier, offset = along_row(multiplier, offset, out.shape[-2])
    if images.dtype != np.uint8 or out.shape[-3] * pixels < LARGE:
        _by_numpy(rows, multiplier, offset, scaled)
        return
    multiplier, offset = np.broadcast_to(multiplier, pixels), np.broadcast_to(offset, pixels)
    is_aligned = pixels % 4 == 0 and scaled.ctypes.data % 16 == 0 and rows.flags.c_contiguous
    if out.nbytes >= _TOO_LARGE and is_aligned and (fast := vectors()) is not None:
        fast.scale_past_caches(rows, multiplier, offset, scaled)
    else:
        _loop()(rows, multiplier, offset, scaled)


def _by_numpy(rows: np.ndarray, multiplier: np.ndarray, offset: np.ndarray, out: np.ndarray) -> None:
    np.multiply(rows, multiplier, out=out, dtype=np.float32)
    np.add(out, offset, out=out)


def _by_element(rows: Any, multiplier: Any, offset: Any, out: Any) -> None:
    for row in range(rows.shape[0]):
        for column in range(rows.shape[1]):
            out[row, column] = np.float32(rows[row, column]) * multiplier[column] + offset[column]


@cache
def vectors() -> ModuleType | None:
    """The loops of :mod:`preprocess.vectors`; None where numba is not installed."""
    try:
        return import_module("preprocess.vectors")
    except ImportError:
        return None


@cache
def _loop() -> Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], None]:
    """The compiled loop; numpy's way where numba is not installed."""
    try:
        from numba import njit
    except ImportError:
        return _by_numpy
    compiled: Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], None]
    try:
        compiled = njit(cache=True, nogil=True)(_by_element)
    except RuntimeError:  # no folder for the compiled code can be written: it is compiled anew in each process
        compiled = njit(nogil=True)(_by_element)
    return compiled
