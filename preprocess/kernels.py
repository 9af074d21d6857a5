"""Loops over a batch of images, which numba compiles and which run without the interpreter's lock.

Each comes to the bits of what :mod:`preprocess.transforms` does to one image at a time with NumPy and Pillow, which is
the reference. :mod:`preprocess.batches` says when these are used. Images are flat here, so that their rows are plain
slices: LLVM then turns the innermost loops into vectors.
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
    """The type of an array that is only read, such as a file's."""
    return types.Array(kind, axes, "C", readonly=True)


def _compiled(*signature: Any, inline: str = "never") -> Callable[[Callable[..., Any]], Any]:
    def compile_it(function: Callable[..., Any]) -> Any:
        try:
            return njit(*signature, cache=True, nogil=True, inline=inline)(function)
        except (
            RuntimeError
        ):  # no folder for the compiled code can be written: it is compiled anew in each process
            return njit(*signature, nogil=True, inline=inline)(function)

    return compile_it


# ---- random numbers ----------------------------------------------------------------------------


@_compiled()
def _product(a: Any, b: Any) -> Any:
    """(upper, lower) 64 bits of a product."""
    low = uint64(0xFFFFFFFF)
    a_up = a >> uint64(32)
    a_low = a & low
    b_up = b >> uint64(32)
    b_low = b & low
    middle = a_up * b_low + ((a_low * b_low) >> uint64(32))
    other = a_low * b_up + (middle & low)
    return a_up * b_up + (middle >> uint64(32)) + (other >> uint64(32)), a * b


@_compiled(void(uint64, uint64, uint64, _read(int64), float64[:, ::1]))
def uniforms(seed: Any, stream: Any, epoch: Any, indices: Any, out: Any) -> None:
    """What NumPy's Philox draws first for each sample of an epoch, from 0 to 1; four at a time."""
    for row in range(out.shape[0]):
        for block in range(out.shape[1] // 4):
            c0 = uint64(block + 1)
            c1 = uint64(0)
            c2 = uint64(indices[row])
            c3 = uint64(epoch)
            k0 = uint64(seed)
            k1 = uint64(stream)
            for _ in range(10):
                up0, low0 = _product(uint64(0xD2E7470EE14C6C93), c0)
                up1, low1 = _product(uint64(0xCA5A826395121157), c2)
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
    """Bytes of one array to another. Part of an array would be a reference that is counted, which costs as much."""
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
    """Pixels of three bytes in reverse order, four of them at a time, which are three words (of any alignment)."""
    groups = pixels // 4
    rest = pixels - 4 * groups
    words = source[at + 3 * rest : at + 3 * pixels].view(np.uint32)
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
    for pixel in range(rest):
        for byte in range(3):
            target[uint64(to + 12 * groups + 3 * pixel + byte)] = source[
                uint64(at + 3 * (rest - 1 - pixel) + byte)
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
    mirror: Any,
    upside: Any,
    outside: Any,
    out: Any,
    to_height: Any,
    to_width: Any,
) -> None:
    """Cut a window out of each image, and mirror it where it is to be; bytes from outside of the image are ``outside``.

    Args:
        pixel: bytes of one.
        mirror, upside: whether left and right, top and bottom change places.
    """
    for row in range(top.size):
        first = max(0, -left[row])
        last = min(to_width, width - left[row])
        for y in range(to_height):
            at = top[row] + (to_height - 1 - y if upside[row] else y)
            to = (row * to_height + y) * to_width * pixel
            is_inside = 0 <= at < height and first < last
            if not is_inside or last - first < to_width:
                out[to : to + to_width * pixel] = outside
            if not is_inside:
                continue
            at = ((row * height + at) * width + left[row] + first) * pixel
            to += (to_width - last if mirror[row] else first) * pixel
            if not mirror[row]:
                _copy(images, at, out, to, (last - first) * pixel)
            elif pixel == 3:
                _mirror_threes(images, at, out, to, last - first)
            else:
                _mirror_any(images, at, out, to, last - first, pixel)


@_compiled(void(_read(uint8, 3), int64[:, ::1], int64[:, ::1], int64, uint8[:, :, ::1]))
def pick(images: Any, rows: Any, columns: Any, pixel: Any, out: Any) -> None:
    """Of each image the pixels in some of its rows and columns."""
    for place in range(out.shape[0]):
        for y in range(rows.shape[1]):
            for x in range(columns.shape[1]):
                for byte in range(pixel):
                    out[place, y, x * pixel + byte] = images[
                        place, rows[place, y], columns[place, x] * pixel + byte
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
    whole = x * math.pi
    third = x / 3 * math.pi
    return math.sin(whole) / whole * (math.sin(third) / third)


@_compiled()
def _taps(size: Any, to: Any, kind: Any, first: Any, count: Any, weights: Any) -> None:
    """Of which pixels each new one is made, and by which weights."""
    scale = size / to
    stretch = max(scale, 1.0)
    support = (kind + 1.0) * stretch
    found = np.empty(weights.shape[1])
    for x in range(to):
        centre = (x + 0.5) * scale
        low = max(int(centre - support + 0.5), 0)
        many = min(int(centre + support + 0.5), size) - low
        total = 0.0
        first[x] = low
        count[x] = many
        for tap in range(many):
            found[tap] = _weight((tap + low - centre + 0.5) * (1.0 / stretch), kind)
            total += found[tap]
        for tap in range(many):
            share = found[tap] / total if total != 0.0 else found[tap]
            weights[x, tap] = int(share * (1 << _BITS) + (-0.5 if share < 0 else 0.5))


@_compiled()
def _byte(total: Any) -> Any:
    return uint8(min(max(total >> _BITS, 0), 255))


@_compiled()
def _narrow(source: Any, target: Any, channels: Any, first: Any, count: Any, weights: Any) -> None:
    """A row at another width."""
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
    for place in range(totals.size):
        totals[place] += np.int32(source[place]) * weight


@_compiled()
def _round(totals: Any, target: Any) -> None:
    for place in range(totals.size):
        target[place] = _byte(totals[place])


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
    """Bring a window of each image to one size, as Pillow does.

    Args:
        kind: of filter: 0 bilinear, 1 bicubic, 2 lanczos.
    """
    most = 2 * (kind + 1) * (max(height // to_height, width // to_width) + 1) + 3
    first_x = np.empty(to_width, np.int64)
    count_x = np.empty(to_width, np.int64)
    weights_x = np.empty((to_width, most), np.int32)
    first_y = np.empty(to_height, np.int64)
    count_y = np.empty(to_height, np.int64)
    weights_y = np.empty((to_height, most), np.int32)
    line = to_width * channels
    narrow = np.empty((height, line), np.uint8)
    totals = np.empty(line, np.int32)
    for row in range(top.size):
        _taps(widths[row], to_width, kind, first_x, count_x, weights_x)
        _taps(heights[row], to_height, kind, first_y, count_y, weights_y)
        for y in range(heights[row]):
            at = ((row * height + top[row] + y) * width + left[row]) * channels
            source = images[at : at + widths[row] * channels]
            if widths[row] == to_width:
                _copy(source, 0, narrow[y], 0, source.size)
            else:
                _narrow(source, narrow[y], channels, first_x, count_x, weights_x)
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


# ---- colours: Pillow's Blend.c and Convert.c ---------------------------------------------------


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
    """To hue, saturation and value, and back, the hue turned by so many 256ths; each of them is a byte between."""
    most = max(red, max(green, blue))
    least = min(red, min(green, blue))
    if most == least:
        return most, most, most
    spread = np.float32(most - least)
    saturation = np.float32(spread / np.float32(most))
    to_red = np.float32(np.float32(most - red) / spread)
    to_green = np.float32(np.float32(most - green) / spread)
    to_blue = np.float32(np.float32(most - blue) / spread)
    if red == most:
        hue = np.float32(to_blue - to_green)
    elif green == most:
        hue = np.float32(2.0 + np.float64(to_red) - np.float64(to_blue))
    else:
        hue = np.float32(4.0 + np.float64(to_green) - np.float64(to_red))
    hue = np.float32((np.float64(hue) / 6.0 + 1.0) % 1.0)
    h = uint8(uint8(int(np.float64(hue) * 255.0)) + by)
    s = uint8(int(np.float64(saturation) * 255.0))
    if s == 0:
        return most, most, most
    sixth = math.floor(np.float64(np.float32(h)) * 6.0 / 255.0)
    rest = np.float32(np.float64(np.float32(h)) * 6.0 / 255.0 - np.float64(np.float32(sixth)))
    part = np.float32(np.float64(np.float32(s)) / 255.0)
    value = np.float64(np.float32(most))
    p = uint8(int(value * (1.0 - np.float64(part)) + 0.5))
    q = uint8(int(value * (1.0 - np.float64(np.float32(part * rest))) + 0.5))
    t = uint8(int(value * (1.0 - np.float64(part) * (1.0 - np.float64(rest))) + 0.5))
    place = int(sixth) % 6
    if place == 0:
        return most, t, p
    if place == 1:
        return q, most, p
    if place == 2:
        return p, most, t
    if place == 3:
        return p, q, most
    if place == 4:
        return (t, p, most)
    return (most, p, q)


@_compiled(void(uint8[:, :, ::1], int64[:, ::1], float64[:, ::1]))
def jitter(images: Any, kinds: Any, amounts: Any) -> None:
    """Change the colours of images (samples, pixels, channels) in their place.

    Args:
        kinds: (samples, changes): 0 brightness, 1 contrast, 2 saturation, 3 hue, in the order in which they are made.
        amounts: of each: a factor, or of the hue a share of the colour circle.
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
                        total += (
                            image[x, 0]
                            if channels == 1
                            else _grey(image[x, 0], image[x, 1], image[x, 2])
                        )
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
    """``rows * multiplier + offset``, one rounding each."""
    for row in range(rows.shape[0]):
        source = rows[row]
        target = out[row]
        for column in range(target.size):
            target[column] = np.float32(source[column]) * multiplier[column] + offset[column]
