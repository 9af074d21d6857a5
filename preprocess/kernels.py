"""Loops over a batch of images, compiled by numba and run without the interpreter's lock.

Each loop gives exactly the bits that :mod:`preprocess.transforms` gives for one image at a time
with NumPy and Pillow, which is the reference. :mod:`preprocess.batches` calls them. Images are
flat arrays here, so that rows are plain slices and LLVM vectorizes the innermost loops.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import boolean, float32, float64, int64, njit, types, uint8, uint32, uint64, void

_BITS = 22  # after the point of the weights by which Pillow resizes
_HALF = 1 << (_BITS - 1)


def _read(kind: Any, axes: int = 1) -> Any:
    """Return the numba type of a read-only C-contiguous array."""
    return types.Array(kind, axes, "C", readonly=True)


def _compiled(*signature: Any, inline: str = "never") -> Callable[[Callable[..., Any]], Any]:
    def compile_it(function: Callable[..., Any]) -> Any:
        try:
            return njit(*signature, cache=True, nogil=True, inline=inline)(function)
        except RuntimeError:  # no cache folder is writable: each process compiles for itself
            return njit(*signature, nogil=True, inline=inline)(function)

    return compile_it


# ---- random numbers ----------------------------------------------------------------------------


@_compiled()
def _multiply(a: Any, b: Any) -> Any:
    """Multiply two uint64; return the (upper, lower) 64 bits of the product."""
    low = uint64(0xFFFFFFFF)
    a_up = a >> uint64(32)
    a_low = a & low
    b_up = b >> uint64(32)
    b_low = b & low
    middle = a_up * b_low + ((a_low * b_low) >> uint64(32))
    cross = a_low * b_up + (middle & low)
    return a_up * b_up + (middle >> uint64(32)) + (cross >> uint64(32)), a * b


@_compiled(void(uint64, uint64, uint64, _read(int64), float64[:, ::1]))
def uniforms(seed: Any, stream: Any, epoch: Any, indices: Any, out: Any) -> None:
    """Draw the first uniform numbers in [0, 1) of each sample, exactly as NumPy's Philox does.

    Args:
        seed: uint64, the first half of the Philox key.
        stream: uint64, the purpose of the numbers; the second half of the key.
        epoch: uint64, of the stream.
        indices: (n,) int64, the samples.
        out: (n, draws) float64, overwritten; draws is a multiple of 4.
    """
    for row in range(out.shape[0]):
        for block in range(out.shape[1] // 4):
            c0 = uint64(block + 1)
            c1 = uint64(0)
            c2 = uint64(indices[row])
            c3 = uint64(epoch)
            k0 = uint64(seed)
            k1 = uint64(stream)
            for _ in range(10):
                up0, low0 = _multiply(uint64(0xD2E7470EE14C6C93), c0)
                up1, low1 = _multiply(uint64(0xCA5A826395121157), c2)
                c0 = up1 ^ c1 ^ k0
                c1 = low1
                c2 = up0 ^ c3 ^ k1
                c3 = low0
                k0 = k0 + uint64(0x9E3779B97F4A7C15)
                k1 = k1 + uint64(0xBB67AE8584CAA73B)
            out[row, 4 * block] = (c0 >> uint64(11)) * 2.0**-53
            out[row, 4 * block + 1] = (c1 >> uint64(11)) * 2.0**-53
            out[row, 4 * block + 2] = (c2 >> uint64(11)) * 2.0**-53
            out[row, 4 * block + 3] = (c3 >> uint64(11)) * 2.0**-53


# ---- windows: crop, pad, mirror ----------------------------------------------------------------


@_compiled(inline="always")
def _copy(source: Any, at: Any, target: Any, to: Any, size: Any) -> None:
    """Copy bytes between arrays; a slice would cost as much as the copy in reference counting."""
    for byte in range(size):
        target[uint64(to + byte)] = source[uint64(at + byte)]


@_compiled(inline="always")
def _mirror_any(source: Any, at: Any, target: Any, to: Any, pixels: Any, width: Any) -> None:
    for pixel in range(pixels):
        for byte in range(width):
            target[uint64(to + width * pixel + byte)] = source[
                uint64(at + width * (pixels - 1 - pixel) + byte)
            ]


@_compiled(inline="always")
def _mirror_threes(source: Any, at: Any, target: Any, to: Any, pixels: Any) -> None:
    """Reverse pixels of three bytes, four pixels (three unaligned 32-bit words) at a time."""
    groups = pixels // 4
    remainder = pixels - 4 * groups
    words = source[at + 3 * remainder : at + 3 * pixels].view(np.uint32)
    turned = target[to : to + 12 * groups].view(np.uint32)
    for group in range(groups):
        after = uint64(3 * group)
        before = uint64(3 * (groups - 1 - group))
        a = words[before]
        b = words[before + uint64(1)]
        c = words[before + uint64(2)]
        turned[after] = (c >> uint32(8)) | ((b << uint32(8)) & uint32(0xFF000000))
        turned[after + uint64(1)] = (
            (b >> uint32(24))
            | ((c & uint32(0xFF)) << uint32(8))
            | ((a >> uint32(24)) << uint32(16))
            | (b << uint32(24))
        )
        turned[after + uint64(2)] = ((b >> uint32(8)) & uint32(0xFF)) | (a << uint32(8))
    for pixel in range(remainder):
        for byte in range(3):
            target[uint64(to + 12 * groups + 3 * pixel + byte)] = source[
                uint64(at + 3 * (remainder - 1 - pixel) + byte)
            ]


@_compiled(
    void(
        _read(uint8),
        int64,
        int64,
        int64,
        int64[::1],
        int64[::1],
        boolean[::1],
        boolean[::1],
        uint8,
        uint8[::1],
        int64,
        int64,
    )
)
def windows(
    images: Any,
    height: Any,
    width: Any,
    pixel: Any,
    top: Any,
    left: Any,
    flip_x: Any,
    flip_y: Any,
    outside: Any,
    out: Any,
    to_height: Any,
    to_width: Any,
) -> None:
    """Cut a window out of each of n images and mirror it.

    Args:
        images: (n * height * width * pixel,) uint8.
        height: the height of the images, in pixels.
        width: the width of the images, in pixels.
        pixel: bytes per pixel.
        top: (n,) int64, the first row of each window; may lie outside of the image.
        left: (n,) int64, the first column of each window.
        flip_x: (n,) bool, True to swap left and right.
        flip_y: (n,) bool, True to swap top and bottom.
        outside: uint8, the value of bytes outside of the image.
        out: (n * to_height * to_width * pixel,) uint8, overwritten.
        to_height: the height of the windows, in pixels.
        to_width: the width of the windows, in pixels.
    """
    for row in range(top.size):
        first = max(0, -left[row])
        last = min(to_width, width - left[row])
        for y in range(to_height):
            at = top[row] + (to_height - 1 - y if flip_y[row] else y)
            to = (row * to_height + y) * to_width * pixel
            is_inside = 0 <= at < height and first < last
            if not is_inside or last - first < to_width:
                out[to : to + to_width * pixel] = outside
            if not is_inside:
                continue
            at = ((row * height + at) * width + left[row] + first) * pixel
            to += (to_width - last if flip_x[row] else first) * pixel
            if not flip_x[row]:
                _copy(images, at, out, to, (last - first) * pixel)
            elif pixel == 3:
                _mirror_threes(images, at, out, to, last - first)
            else:
                _mirror_any(images, at, out, to, last - first, pixel)


@_compiled(void(_read(uint8, 3), int64[:, ::1], int64[:, ::1], int64, uint8[:, :, ::1]))
def pick(images: Any, rows: Any, columns: Any, pixel: Any, out: Any) -> None:
    """Select rows and columns of each of n images.

    Args:
        images: (n, height, width * pixel) uint8.
        rows: (n, to_height) int64.
        columns: (n, to_width) int64.
        pixel: bytes per pixel.
        out: (n, to_height, to_width * pixel) uint8, overwritten.
    """
    for image in range(out.shape[0]):
        for y in range(rows.shape[1]):
            for x in range(columns.shape[1]):
                for byte in range(pixel):
                    out[image, y, x * pixel + byte] = images[
                        image, rows[image, y], columns[image, x] * pixel + byte
                    ]


# ---- another size: Pillow's Resample.c ---------------------------------------------------------


@_compiled()
def _weight(x: Any, kind: Any) -> Any:
    x = abs(x)
    if kind == 0:
        if x < 1.0:
            return 1.0 - x
        return 0.0
    if kind == 1:
        if x < 1.0:
            return ((-0.5 + 2.0) * x - (-0.5 + 3.0)) * x * x + 1
        if x < 2.0:
            return (((x - 5) * x + 8) * x - 4) * -0.5
        return 0.0
    if x >= 3.0:
        return 0.0
    if x == 0.0:
        return 1.0
    angle = x * math.pi
    third_angle = x / 3 * math.pi
    return math.sin(angle) / angle * (math.sin(third_angle) / third_angle)


@_compiled()
def _resize_weights(size: Any, to: Any, kind: Any, first: Any, count: Any, weights: Any) -> None:
    """Compute which source pixels, with which weights, each resized pixel is made of."""
    scale = size / to
    stretch = max(scale, 1.0)
    support = (kind + 1.0) * stretch
    raw = np.empty(weights.shape[1])
    for x in range(to):
        center = (x + 0.5) * scale
        low = max(int(center - support + 0.5), 0)
        taps = min(int(center + support + 0.5), size) - low
        total = 0.0
        first[x] = low
        count[x] = taps
        for tap in range(taps):
            raw[tap] = _weight((tap + low - center + 0.5) * (1.0 / stretch), kind)
            total += raw[tap]
        for tap in range(taps):
            share = raw[tap] / total if total != 0.0 else raw[tap]
            weights[x, tap] = int(share * (1 << _BITS) + (-0.5 if share < 0 else 0.5))


@_compiled()
def _byte(total: Any) -> Any:
    return uint8(min(max(total >> _BITS, 0), 255))


@_compiled()
def _resize_row(
    source: Any, target: Any, channels: Any, first: Any, count: Any, weights: Any
) -> None:
    """Resize one row of pixels to another width."""
    half = np.int32(_HALF)
    for x in range(first.size):
        if channels == 3:  # three sums at a time
            red = half
            green = half
            blue = half
            at = uint64(3 * first[x])
            to = uint64(3 * x)
            for tap in range(count[x]):
                weight = weights[x, tap]
                red += np.int32(source[at]) * weight
                green += np.int32(source[at + uint64(1)]) * weight
                blue += np.int32(source[at + uint64(2)]) * weight
                at += uint64(3)
            target[to], target[to + uint64(1)], target[to + uint64(2)] = (
                _byte(red),
                _byte(green),
                _byte(blue),
            )
        else:
            total = half
            for tap in range(count[x]):
                total += np.int32(source[first[x] + tap]) * weights[x, tap]
            target[x] = _byte(total)


@_compiled()
def _add(totals: Any, source: Any, weight: Any) -> None:
    for position in range(totals.size):
        totals[position] += np.int32(source[position]) * weight


@_compiled()
def _round(totals: Any, target: Any) -> None:
    for position in range(totals.size):
        target[position] = _byte(totals[position])


@_compiled(
    void(
        _read(uint8),
        int64,
        int64,
        int64,
        int64[::1],
        int64[::1],
        int64[::1],
        int64[::1],
        int64,
        uint8[::1],
        int64,
        int64,
    )
)
def resize(
    images: Any,
    height: Any,
    width: Any,
    channels: Any,
    top: Any,
    left: Any,
    heights: Any,
    widths: Any,
    kind: Any,
    out: Any,
    to_height: Any,
    to_width: Any,
) -> None:
    """Resize a window of each of n images to one size, as Pillow does.

    Args:
        images: (n * height * width * channels,) uint8.
        height: the height of the images, in pixels.
        width: the width of the images, in pixels.
        channels: bytes per pixel.
        top: (n,) int64, the first row of each window.
        left: (n,) int64, the first column of each window.
        heights: (n,) int64, of the windows.
        widths: (n,) int64, of the windows.
        kind: the filter: 0 bilinear, 1 bicubic, 2 lanczos.
        out: (n * to_height * to_width * channels,) uint8, overwritten.
        to_height: the height of the result, in pixels.
        to_width: the width of the result, in pixels.
    """
    max_taps = 2 * (kind + 1) * (max(height // to_height, width // to_width) + 1) + 3
    first_x = np.empty(to_width, np.int64)
    count_x = np.empty(to_width, np.int64)
    weights_x = np.empty((to_width, max_taps), np.int32)
    first_y = np.empty(to_height, np.int64)
    count_y = np.empty(to_height, np.int64)
    weights_y = np.empty((to_height, max_taps), np.int32)
    line = to_width * channels
    narrow = np.empty((height, line), np.uint8)
    totals = np.empty(line, np.int32)
    for row in range(top.size):
        _resize_weights(widths[row], to_width, kind, first_x, count_x, weights_x)
        _resize_weights(heights[row], to_height, kind, first_y, count_y, weights_y)
        for y in range(heights[row]):
            at = ((row * height + top[row] + y) * width + left[row]) * channels
            source = images[at : at + widths[row] * channels]
            if widths[row] == to_width:
                _copy(source, 0, narrow[y], 0, source.size)
            else:
                _resize_row(source, narrow[y], channels, first_x, count_x, weights_x)
        for y in range(to_height):
            to = (row * to_height + y) * line
            target = out[to : to + line]
            if heights[row] == to_height:
                _copy(narrow[y], 0, target, 0, target.size)
                continue
            totals[:] = _HALF
            for tap in range(count_y[y]):
                _add(totals, narrow[first_y[y] + tap], weights_y[y, tap])
            _round(totals, target)


# ---- colors: Pillow's Blend.c and Convert.c ---------------------------------------------------


@_compiled()
def _blend(a: Any, b: Any, share: Any) -> Any:
    mixed = np.float32(a) + share * np.float32(np.int32(b) - np.int32(a))
    return uint8(min(max(mixed, np.float32(0)), np.float32(255)))


@_compiled()
def _grey(red: Any, green: Any, blue: Any) -> Any:
    return uint8(
        (np.int32(red) * 19595 + np.int32(green) * 38470 + np.int32(blue) * 7471 + 0x8000) >> 16
    )


@_compiled()
def _turn_hue(red: Any, green: Any, blue: Any, by: Any) -> Any:
    """Shift the hue of an RGB pixel by `by` 256ths, through HSV bytes as Pillow does."""
    maximum = max(red, max(green, blue))
    minimum = min(red, min(green, blue))
    if maximum == minimum:
        return maximum, maximum, maximum
    spread = np.float32(maximum - minimum)
    saturation = np.float32(spread / np.float32(maximum))
    to_red = np.float32(np.float32(maximum - red) / spread)
    to_green = np.float32(np.float32(maximum - green) / spread)
    to_blue = np.float32(np.float32(maximum - blue) / spread)
    if red == maximum:
        hue = np.float32(to_blue - to_green)
    elif green == maximum:
        hue = np.float32(2.0 + np.float64(to_red) - np.float64(to_blue))
    else:
        hue = np.float32(4.0 + np.float64(to_green) - np.float64(to_red))
    hue = np.float32((np.float64(hue) / 6.0 + 1.0) % 1.0)
    h = uint8(uint8(int(np.float64(hue) * 255.0)) + by)
    s = uint8(int(np.float64(saturation) * 255.0))
    if s == 0:
        return maximum, maximum, maximum
    sixth = math.floor(np.float64(np.float32(h)) * 6.0 / 255.0)
    fraction = np.float32(np.float64(np.float32(h)) * 6.0 / 255.0 - np.float64(np.float32(sixth)))
    part = np.float32(np.float64(np.float32(s)) / 255.0)
    value = np.float64(np.float32(maximum))
    p = uint8(int(value * (1.0 - np.float64(part)) + 0.5))
    q = uint8(int(value * (1.0 - np.float64(np.float32(part * fraction))) + 0.5))
    t = uint8(int(value * (1.0 - np.float64(part) * (1.0 - np.float64(fraction))) + 0.5))
    sector = int(sixth) % 6
    if sector == 0:
        return maximum, t, p
    if sector == 1:
        return q, maximum, p
    if sector == 2:
        return p, maximum, t
    if sector == 3:
        return p, q, maximum
    if sector == 4:
        return (t, p, maximum)
    return (maximum, p, q)


@_compiled(void(uint8[:, :, ::1], int64[:, ::1], float64[:, ::1]))
def jitter(images: Any, kinds: Any, amounts: Any) -> None:
    """Change the colors of n images in place.

    Args:
        images: (n, pixels, channels) uint8, overwritten.
        kinds: (n, changes) int64 in the order of application: 0 brightness, 1 contrast,
            2 saturation, 3 hue.
        amounts: (n, changes) float64: a factor; for the hue, a share of the color circle.
    """
    table = np.empty(256, np.uint8)
    pixels = images.shape[1]
    channels = images.shape[2]
    for row in range(images.shape[0]):
        image = images[row]
        for change in range(kinds.shape[1]):
            kind = kinds[row, change]
            share = np.float32(amounts[row, change])
            if kind < 2:
                against = uint8(0)
                total = 0
                if kind == 1:
                    for x in range(pixels):
                        if channels == 1:
                            total += image[x, 0]
                        else:
                            total += _grey(image[x, 0], image[x, 1], image[x, 2])
                    against = uint8(int(total / pixels + 0.5))
                for byte in range(256):
                    table[byte] = _blend(against, uint8(byte), share)
                for x in range(pixels):
                    for channel in range(channels):
                        image[x, channel] = table[image[x, channel]]
            elif channels == 3 and kind == 2:
                for x in range(pixels):
                    grey = _grey(image[x, 0], image[x, 1], image[x, 2])
                    for channel in range(3):
                        image[x, channel] = _blend(grey, image[x, channel], share)
            elif channels == 3:
                by = uint8(int(round(amounts[row, change] * 255)) & 255)
                for x in range(pixels):
                    image[x, 0], image[x, 1], image[x, 2] = _turn_hue(
                        image[x, 0], image[x, 1], image[x, 2], by
                    )


# ---- bytes to numbers --------------------------------------------------------------------------


@_compiled(void(_read(uint8, 2), _read(float32), _read(float32), float32[:, ::1]))
def scale(rows: Any, multiplier: Any, offset: Any, out: Any) -> None:
    """Compute ``rows * multiplier + offset``, each operation rounded once.

    Args:
        rows: (n, columns) uint8.
        multiplier: (columns,) float32.
        offset: (columns,) float32.
        out: (n, columns) float32, overwritten.
    """
    for row in range(rows.shape[0]):
        source = rows[row]
        target = out[row]
        for column in range(target.size):
            target[column] = np.float32(source[column]) * multiplier[column] + offset[column]
