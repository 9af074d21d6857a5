"""Loops over bytes in vectors of 16 and more, which numba compiles; only for who finds it installed.

Neither NumPy nor the compiler by itself comes to these instructions: pixels of three bytes in reverse order are a
shuffle within a vector, and numbers that are too many for the processor's caches are better written past them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_LANES = 16  # numbers, or pixels, at a time
_I8, _I32, _I64, _F32 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()


def _compiled(function: Callable[..., None]) -> Any:
    try:
        return njit(cache=True, nogil=True)(function)
    except RuntimeError:  # no folder for the compiled code can be written: it is compiled anew in each process
        return njit(nogil=True)(function)


def _vector(context: Any, builder: Any, array_type: Any, array: Any, place: Any, kind: Any) -> Any:
    """A pointer to the vector that begins at a place of an array."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [place]), kind.as_pointer())


def _read(builder: Any, pointer: Any) -> Any:
    vector = builder.load(pointer)
    vector.align = 1
    return vector


def _shuffled(builder: Any, vector: Any, places: list[int]) -> Any:
    mask = ir.Constant(ir.VectorType(_I32, len(places)), places)
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), mask)


@intrinsic
def _scale_lanes(typing: Any, pixels: Any, at: Any, multiplier: Any, offset: Any, column: Any, out: Any) -> Any:
    """``out[at:] = pixels[at:] * multiplier[column:] + offset[column:]``, past the caches, one rounding each."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        of_pixels, _, of_multiplier, of_offset, _, of_out = signature.args
        source, place, by, plus, start, target = arguments
        floats = ir.VectorType(_F32, _LANES)
        numbers = builder.uitofp(_read(builder, _vector(context, builder, of_pixels, source, place,
                                                        ir.VectorType(_I8, _LANES))), floats)
        numbers = builder.fmul(numbers, _read(builder, _vector(context, builder, of_multiplier, by, start, floats)))
        numbers = builder.fadd(numbers, _read(builder, _vector(context, builder, of_offset, plus, start, floats)))
        for first in range(0, _LANES, 4):  # of 16 bytes, which is how NumPy aligns
            part = _shuffled(builder, numbers, list(range(first, first + 4)))
            to = _vector(context, builder, of_out, target, builder.add(place, ir.Constant(_I64, first)), part.type)
            stored = builder.store(part, to)
            stored.align = 16
            stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(_I32, 1)]))
        return context.get_dummy_value()

    return types.void(pixels, at, multiplier, offset, column, out), generate


@intrinsic
def _mirror_lanes(typing: Any, pixels: Any, at: Any, out: Any, to: Any) -> Any:
    """16 pixels of three bytes, from ``pixels[at]`` to ``out[to]``, in reverse order."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        of_pixels, _, of_out, _ = signature.args
        source, place, target, start = arguments
        kind = ir.VectorType(_I8, 3 * _LANES)
        found = _read(builder, _vector(context, builder, of_pixels, source, place, kind))
        places = [3 * pixel + channel for pixel in reversed(range(_LANES)) for channel in range(3)]
        stored = builder.store(_shuffled(builder, found, places),
                               _vector(context, builder, of_out, target, start, kind))
        stored.align = 1
        return context.get_dummy_value()

    return types.void(pixels, at, out, to), generate


def _scale(pixels: Any, multiplier: Any, offset: Any, out: Any, width: int) -> None:
    whole = width - width % 16
    for row in range(0, pixels.shape[0], width):
        for column in range(0, whole, 16):
            _scale_lanes(pixels, row + column, multiplier, offset, column, out)
        for column in range(whole, width):
            out[row + column] = np.float32(pixels[row + column]) * multiplier[column] + offset[column]


def _mirror(pixels: Any, stride: int, width: int, out: Any) -> None:
    for row in range(out.shape[0] // (3 * width)):
        to, at = 3 * width * row, stride * row + 3 * width
        for _ in range(width // 16):
            at -= 48
            _mirror_lanes(pixels, at, out, to)
            to += 48
        for _ in range(width % 16):
            at -= 3
            for channel in range(3):
                out[to + channel] = pixels[at + channel]
            to += 3


_scale_compiled, _mirror_compiled = _compiled(_scale), _compiled(_mirror)


def scale_past_caches(pixels: np.ndarray, multiplier: np.ndarray, offset: np.ndarray, out: np.ndarray) -> None:
    """Scale rows of bytes to numbers that are too many for the caches.

    Args:
        pixels: (rows, width) uint8, contiguous.
        multiplier, offset: (width,) float32.
        out: as many float32, contiguous, from an address that 16 divides; so does ``4 * width``. Is overwritten.
    """
    _scale_compiled(pixels.reshape(-1), np.ascontiguousarray(multiplier), np.ascontiguousarray(offset), out.reshape(-1),
                    pixels.shape[1])


def mirror(image: np.ndarray, out: np.ndarray) -> None:
    """Swap left and right.

    Args:
        image: (height, width, 3) uint8, whose rows may lie apart and are contiguous each.
        out: of the same shape, contiguous; is overwritten.
    """
    height, width = image.shape[:2]
    stride = image.strides[0]
    pixels = np.lib.stride_tricks.as_strided(image, ((height - 1) * stride + 3 * width,), (1,), writeable=False)
    _mirror_compiled(pixels, stride, width, out.reshape(-1))
