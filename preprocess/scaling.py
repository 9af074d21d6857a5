"""Scale bytes to numbers, ``x * multiplier + offset`` with one rounding each, at full speed.

NumPy passes over the pixels twice and broadcasts short operands slowly. The compiled loop passes
once and gives the same bits.
"""

from __future__ import annotations

import time

import numpy as np

from preprocess.lazy_numba import NUMBA


def along_row(
    multiplier: np.ndarray, offset: np.ndarray, width: int
) -> tuple[np.ndarray, np.ndarray]:
    """Repeat numbers per channel for each pixel of a row; scalars stay scalars.

    Args:
        multiplier: a scalar or (channels,), float32.
        offset: a scalar or (channels,), float32.
        width: the width of the image, in pixels.

    Returns:
        Two arrays (width * channels,), or the two scalars.
    """
    if not (multiplier.ndim or offset.ndim):
        return multiplier, offset
    multiplier, offset = np.broadcast_arrays(multiplier, offset)
    return np.tile(multiplier, width), np.tile(offset, width)


def scale_into(
    out: np.ndarray, inputs: np.ndarray, multiplier: np.ndarray, offset: np.ndarray
) -> None:
    """Scale images, or other arrays with the channels last.

    Args:
        out: (..., height, width, channels) float32, overwritten.
        inputs: arrays of the same shape.
        multiplier: a scalar or (channels,), float32.
        offset: a scalar or (channels,), float32.
    """
    # rows are not contiguous, or it is not an image
    if not out.flags.c_contiguous or out.ndim < 3:
        np.add(np.multiply(inputs, multiplier, out=out, dtype=np.float32), offset, out=out)
        return
    pixels = out.shape[-2] * out.shape[-1]
    rows = inputs.reshape(-1, pixels)
    scaled = out.reshape(-1, pixels)
    multiplier, offset = along_row(multiplier, offset, out.shape[-2])
    if inputs.dtype != np.uint8:
        _by_numpy(rows, multiplier, offset, scaled)
    elif NUMBA.kernels is None:
        began = time.perf_counter()
        _by_numpy(rows, multiplier, offset, scaled)
        NUMBA.add_slow_time(time.perf_counter() - began)
    else:
        NUMBA.kernels.scale(
            np.ascontiguousarray(rows),
            *(
                np.ascontiguousarray(np.broadcast_to(operand, pixels), np.float32)
                for operand in (multiplier, offset)
            ),
            scaled,
        )


def _by_numpy(
    rows: np.ndarray, multiplier: np.ndarray, offset: np.ndarray, out: np.ndarray
) -> None:
    np.multiply(rows, multiplier, out=out, dtype=np.float32)
    np.add(out, offset, out=out)
