"""Batched transforms: the same bits as one sample at a time, many times as fast.

Each sample draws from its own generator, so all draws of a batch can be made at once. Crops and
flips are postponed until another transform needs the pixels, and then done in one pass. A transform
without a batched version ends the batch: the remaining transforms run sample by sample, from where
each sample's generator stands.

Without the compiled loops (:mod:`preprocess.lazy_numba`), all samples are processed one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from launch.errors import InputError
from preprocess.base import UnreadableImage
from preprocess.deferred_augmentation import pack_rows
from preprocess.sample import CROP_BYTES, wire_dtype
from preprocess.transforms import Transform
from preprocess.transforms.color import ColorJitter, Scale
from preprocess.transforms.geometry import (
    CenterCrop,
    Flip,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    nearest,
)
from preprocess.transforms.on_device import OnDevice

_FILTERS = {"bilinear": 0, "bicubic": 1, "lanczos": 2}


class BatchWork:
    """A batch on its way through the transforms.

    Args:
        kernels: the module :mod:`preprocess.kernels`.
        images: (k, height, width, channels).
        masks: (k, height, width) integers; None without masks.
        void: the mask value of pixels outside of the image.
        uniforms: (k, draws) float64, the first numbers of each sample's generator.

    Attributes:
        draw_counts: (k,) int64, how many numbers each sample has used.
    """

    def __init__(
        self,
        kernels: Any,
        images: np.ndarray,
        masks: np.ndarray | None,
        void: int,
        uniforms: np.ndarray,
    ) -> None:
        self.kernels = kernels
        self.images = images
        self.masks = masks
        self.void = void
        self.count = len(images)
        self._uniforms = uniforms
        self.draw_counts = np.zeros(self.count, np.int64)
        self._window: tuple[np.ndarray, np.ndarray, tuple[int, int]] | None = None
        self._flip_x, self._flip_y = np.zeros((2, self.count), bool)
        self._is_deferred = False

    @property
    def size(self) -> tuple[int, int]:
        """The current (height, width) of an image."""
        if self._window is None:
            return (self.images.shape[1], self.images.shape[2])
        return self._window[2]

    @property
    def output_form(self) -> tuple[tuple[int, ...], np.dtype]:
        """The shape and dtype of an image once all pending operations are applied."""
        if self._is_deferred:
            return (self.images[:1].nbytes + CROP_BYTES,), np.dtype(np.uint8)
        return (*self.size, *self.images.shape[3:]), self.images.dtype

    def draw(self) -> np.ndarray:
        """Draw the next number of each sample, (k,) float64 in [0, 1)."""
        self.draw_counts += 1
        return self._uniforms[np.arange(self.count), self.draw_counts - 1]

    def peek(self, count: int) -> np.ndarray:
        """Return the next ``count`` numbers of each sample, (k, count), without using them."""
        return np.take_along_axis(
            self._uniforms, self.draw_counts[:, None] + np.arange(count), axis=1
        )

    def crop(self, top: np.ndarray, left: np.ndarray, size: tuple[int, int]) -> None:
        """Crop each image to a window.

        Args:
            top: (k,) int64, the first row of each window; may lie outside of the image.
            left: (k,) int64, the first column of each window.
            size: (height, width) of all windows.
        """
        if self._window is not None:
            self.apply_pending()
        height, width = self.size
        # In a flipped image, positions are counted from the other end.
        self._window = (
            np.where(self._flip_y, height - size[0] - top, top),
            np.where(self._flip_x, width - size[1] - left, left),
            size,
        )

    def flip(self, flip_x: np.ndarray | None, flip_y: np.ndarray | None) -> None:
        """Flip some of the images.

        Args:
            flip_x: (k,) bool, True to swap left and right; None for no image.
            flip_y: (k,) bool, True to swap top and bottom; None for no image.
        """
        if flip_x is not None:
            self._flip_x = self._flip_x ^ flip_x
        if flip_y is not None:
            self._flip_y = self._flip_y ^ flip_y

    def defer(self) -> None:
        """Defer the pending crop and flips to the device; masks are cropped here."""
        if self.masks is not None:
            self.masks = self._cut_out(self.masks[..., None], self.void, None)[..., 0]
        self.images = self.images.astype(wire_dtype(self.images.dtype), copy=False)
        self._is_deferred = True

    def apply_pending(self, out: np.ndarray | None = None) -> None:
        """Apply, or encode for the device, what is pending; into ``out`` if given."""
        if self._is_deferred:
            self.images = pack_rows(self.images, self._places(), out)
        elif self._window is not None or self._flip_x.any() or self._flip_y.any():
            self.images = self._cut_out(self.images, 0, out)
            if self.masks is not None:
                self.masks = self._cut_out(self.masks[..., None], self.void, None)[..., 0]
        elif out is not None:
            out[:] = self.images
        self._window = None
        self._flip_x, self._flip_y = np.zeros((2, self.count), bool)
        self._is_deferred = False

    def _places(self) -> np.ndarray:
        """Return where pixels go (:mod:`preprocess.deferred_augmentation`), (k, 4) int."""
        top, left = (0, 0) if self._window is None else self._window[:2]
        return np.stack(np.broadcast_arrays(top, left, self._flip_y, self._flip_x), axis=1)

    def _cut_out(self, images: np.ndarray, outside: int, out: np.ndarray | None) -> np.ndarray:
        zeros = np.zeros(self.count, np.int64)
        top, left, size = self._window or (zeros, zeros, images.shape[1:3])
        pixel = images.shape[3] * images.itemsize
        fits = out is not None and out.flags.c_contiguous
        if out is not None and fits:
            result = out
        else:
            result = np.empty((self.count, *size, images.shape[3]), images.dtype)
        # -1 and 255 are the same in all their bytes
        self.kernels.windows(
            _bytes(images),
            *images.shape[1:3],
            pixel,
            top,
            left,
            self._flip_x,
            self._flip_y,
            outside & 0xFF,
            _bytes(result),
            *size,
        )
        if out is not None and not fits:
            out[:] = result
        return result

    def resize(
        self,
        window: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
        size: tuple[int, int],
        kind: int,
    ) -> None:
        """Resize a window of each image to one size.

        Args:
            window: top, left, height and width, each (k,) int64.
            size: (height, width) of the result.
            kind: the filter: 0 bilinear, 1 bicubic, 2 lanczos.
        """
        top, left, heights, widths = window
        images = self.images
        self.images = np.empty((self.count, *size, images.shape[3]), np.uint8)
        self.kernels.resize(
            _bytes(images),
            *images.shape[1:],
            top,
            left,
            heights,
            widths,
            kind,
            _bytes(self.images),
            *size,
        )
        if self.masks is not None:
            rows = top[:, None] + nearest(heights[:, None], size[0])
            columns = left[:, None] + nearest(widths[:, None], size[1])
            masks = self.masks
            self.masks = np.empty((self.count, *size), masks.dtype)
            self.kernels.pick(_lines(masks), rows, columns, masks.itemsize, _lines(self.masks))


def apply_batch(
    transforms: Sequence[Transform],
    kernels: Any,
    images: np.ndarray,
    masks: np.ndarray | None,
    void: int,
    key: tuple[int, int],
    epoch: int,
    indices: np.ndarray,
    training: bool,
) -> tuple[BatchWork, int]:
    """Apply as many of the first transforms as have a batched version.

    Args:
        transforms: the transforms, in order.
        kernels: the module :mod:`preprocess.kernels`.
        images: (k, height, width, channels) or (k, ...), not modified.
        masks: (k, height, width) integers, not modified; None without masks.
        void: the mask value of pixels outside of the image.
        key: the seed of the run, and the purpose of the random numbers.
        epoch: the epoch of the stream.
        indices: (k,) integers, the samples.
        training: False for evaluation: no randomness, center crops.

    Returns:
        The batch, and the number of transforms applied.
    """
    draws = 0
    if training:
        draws = sum(map(_max_draws, transforms))
    uniforms = np.empty((len(images), 4 * -(-draws // 4)))
    if draws:
        kernels.uniforms(*key, epoch, np.ascontiguousarray(indices, np.int64), uniforms)
    work = BatchWork(kernels, images, masks, void, uniforms)
    for count, transform in enumerate(transforms):
        apply = _BATCHED.get(type(transform))
        if apply is None or work.images.ndim != 4 or not apply(transform, work, training):
            return work, count
    return work, len(transforms)


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _lines(masks: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(masks).view(np.uint8)


# ---- each transform: returns False, and changes nothing, if it does not apply to the samples ----


def _crop(crop: RandomCrop | CenterCrop, work: BatchWork, training: bool) -> bool:
    padding = 0
    if isinstance(crop, RandomCrop):
        padding = crop.padding
    room_y, room_x = (
        length + 2 * padding - cropped for length, cropped in zip(work.size, crop.size, strict=True)
    )
    if min(room_y, room_x) < 0:
        return False
    if training and isinstance(crop, RandomCrop):
        top = (work.draw() * (room_y + 1)).astype(np.int64)
        left = (work.draw() * (room_x + 1)).astype(np.int64)
    else:
        top = np.full(work.count, room_y // 2)
        left = np.full(work.count, room_x // 2)
    work.crop(top - padding, left - padding, crop.size)
    return True


def _flip(flip: Flip, work: BatchWork, training: bool) -> bool:
    if training:
        horizontal = vertical = None
        if flip.horizontal:
            horizontal = work.draw() < 0.5
        if flip.vertical:
            vertical = work.draw() < 0.5
        work.flip(horizontal, vertical)
    return True


def _on_device(deferred: OnDevice, work: BatchWork, training: bool) -> bool:
    work.apply_pending()
    try:
        deferred.size(*work.size)
    except UnreadableImage:
        return False
    if not deferred.accepts(work.images.shape[1:], work.images.dtype):
        return False
    for transform in deferred.transforms:
        _BATCHED[type(transform)](transform, work, training)
    work.defer()
    return True


def _is_pillow_image(work: BatchWork) -> bool:
    """Apply what is pending; return True if Pillow has such images."""
    work.apply_pending()
    return work.images.dtype == np.uint8 and work.images.shape[3] in (1, 3)


def _resize(resize: Resize, work: BatchWork, training: bool) -> bool:
    if (resize.filter not in _FILTERS) or not _is_pillow_image(work):
        return False
    size = resize.output_size(*work.size)
    if size != work.size:
        height, width = (np.full(work.count, length) for length in work.size)
        zeros = np.zeros(work.count, np.int64)
        work.resize((zeros, zeros, height, width), size, _FILTERS[resize.filter])
    return True


def _random_resized_crop(crop: RandomResizedCrop, work: BatchWork, training: bool) -> bool:
    if (crop.filter not in _FILTERS) or not _is_pillow_image(work):
        return False
    height, width = work.size
    window = np.tile(crop.window(height, width, None), (work.count, 1))
    if training:
        window[:] = crop.fallback_window(height, width)
        tries = work.peek(22)
        low, high = crop.scale
        pixels = height * width * (low + (high - low) * tries[:, :20:2])
        low, high = np.log(crop.ratio)
        aspect = np.exp(low + (high - low) * tries[:, 1:20:2])
        heights = np.rint(np.sqrt(pixels / aspect))
        widths = np.rint(np.sqrt(pixels * aspect))
        fits = (heights > 0) & (heights <= height) & (widths > 0) & (widths <= width)
        has_fit = fits.any(axis=1)
        first_fit = fits.argmax(axis=1)
        rows = np.arange(work.count)
        h = heights[rows, first_fit]
        w = widths[rows, first_fit]
        drawn = np.where(has_fit, 2 * first_fit + 2, 20)
        fitting = np.stack(
            [
                tries[rows, np.minimum(drawn, 20)] * (height - h + 1),
                tries[rows, np.minimum(drawn, 20) + 1] * (width - w + 1),
                h,
                w,
            ],
            axis=1,
        ).astype(np.int64)
        window[has_fit] = fitting[has_fit]
        work.draw_counts += np.where(has_fit, drawn + 2, 20)
    top, left, h, w = np.ascontiguousarray(window.T)
    work.resize((top, left, h, w), crop.output_size, _FILTERS[crop.filter])
    return True


def _color_jitter(change: ColorJitter, work: BatchWork, training: bool) -> bool:
    if not training:
        return True
    if not _is_pillow_image(work):
        return False
    changes = change.changes()
    kinds, low, high = (np.array([amount[column] for amount in changes]) for column in range(3))
    count = len(changes)
    if count > 1:
        order = np.argsort(work.peek(count), axis=1)
    else:
        order = np.zeros((work.count, 1), np.int64)
    if count > 1:
        work.draw_counts += count
    amounts = low[order] + (high - low)[order] * work.peek(count)
    work.draw_counts += count
    images = work.images.reshape(work.count, -1, work.images.shape[3]).copy()
    work.kernels.jitter(images, kinds[order], amounts)
    work.images = images.reshape(work.images.shape)
    return True


def _scale(scale: Scale, work: BatchWork, training: bool) -> bool:
    work.apply_pending()
    try:
        scale.affine.check(work.images.shape[3])
    except InputError:
        return False
    work.images = scale.affine.apply(work.images)
    return True


_BATCHED: dict[type, Callable[[Any, BatchWork, bool], bool]] = {
    RandomCrop: _crop,
    CenterCrop: _crop,
    Flip: _flip,
    Resize: _resize,
    RandomResizedCrop: _random_resized_crop,
    ColorJitter: _color_jitter,
    Scale: _scale,
    OnDevice: _on_device,
}
# at most
_MAX_DRAWS: dict[type, int] = {
    RandomCrop: 2,
    Flip: 2,
    RandomResizedCrop: 22,
    ColorJitter: 8,
}


def _max_draws(transform: Transform) -> int:
    """Return the maximum number of draws of a transform."""
    if isinstance(transform, OnDevice):
        return sum(map(_max_draws, transform.transforms))
    return _MAX_DRAWS.get(type(transform), 0)
