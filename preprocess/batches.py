"""What transforms do to many samples of one shape at once: the bits of one after the other, many times as fast.

Transforms draw from a sample's own generator, so that all draws of a batch can be had first. Crops and mirror images
are put off until another transform needs the pixels, and then made in one go. A transform that has no function here, or
has one only for other samples, ends the batch: the rest is done one by one, from where each sample's generator is.

Where the compiled loops are not there (:mod:`preprocess.lazy_numba`), samples are done one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from preprocess.base import AUGMENT, InputError, UnreadableImage
from preprocess.deferred_augmentation import packed
from preprocess.sample import PLACE_BYTES, wire_dtype
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


class Work:
    """A batch on its way through transforms.

    Args:
        images: (k, height, width, channels).
        masks: (k, height, width); None where there are none.
        void: of masks, what comes from outside.
        uniforms: (k, draws) that are the first of each sample's generator.

    Attributes:
        used: (k,) how many of them were drawn.
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
        self.used = np.zeros(self.count, np.int64)
        self._window: tuple[np.ndarray, np.ndarray, tuple[int, int]] | None = None
        self._mirror, self._upside = np.zeros((2, self.count), bool)
        self._is_left = False

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of an image as it is now."""
        if self._window is None:
            return (self.images.shape[1], self.images.shape[2])
        return self._window[2]

    @property
    def form(self) -> tuple[tuple[int, ...], np.dtype]:
        """The shape and the type of an image when all is settled."""
        if self._is_left:
            return (self.images[:1].nbytes + PLACE_BYTES,), np.dtype(np.uint8)
        return (*self.size, *self.images.shape[3:]), self.images.dtype

    def draw(self) -> np.ndarray:
        """The next number of each sample, (k,)."""
        self.used += 1
        return self._uniforms[np.arange(self.count), self.used - 1]

    def ahead(self, many: int) -> np.ndarray:
        """The next numbers of each sample, (k, many), which :attr:`used` does not count."""
        return np.take_along_axis(self._uniforms, self.used[:, None] + np.arange(many), axis=1)

    def cut(self, top: np.ndarray, left: np.ndarray, size: tuple[int, int]) -> None:
        """Show this window of each image only."""
        if self._window is not None:
            self.settle()
        height, width = self.size
        # In an image that was mirrored, places are counted from the other end.
        self._window = (
            np.where(self._upside, height - size[0] - top, top),
            np.where(self._mirror, width - size[1] - left, left),
            size,
        )

    def flip(self, mirror: np.ndarray | None, upside: np.ndarray | None) -> None:
        """Change the places of left and right, of top and bottom, of some images."""
        if mirror is not None:
            self._mirror = self._mirror ^ mirror
        if upside is not None:
            self._upside = self._upside ^ upside

    def leave(self) -> None:
        """Leave what was put off to the device, but for masks."""
        if self.masks is not None:
            self.masks = self._cut_out(self.masks[..., None], self.void, None)[..., 0]
        self.images = self.images.astype(wire_dtype(self.images.dtype), copy=False)
        self._is_left = True

    def settle(self, out: np.ndarray | None = None) -> None:
        """Do what was put off, or write down what is left; into ``out`` where it is given, whose shape and type fit."""
        if self._is_left:
            self.images = packed(self.images, self._places(), out)
        elif self._window is not None or self._mirror.any() or self._upside.any():
            self.images = self._cut_out(self.images, 0, out)
            if self.masks is not None:
                self.masks = self._cut_out(self.masks[..., None], self.void, None)[..., 0]
        elif out is not None:
            out[:] = self.images
        self._window, (self._mirror, self._upside), self._is_left = (
            None,
            np.zeros((2, self.count), bool),
            False,
        )

    def _places(self) -> np.ndarray:
        """Where pixels go (:mod:`preprocess.deferred_augmentation`): (k, 4)."""
        top, left = (0, 0) if self._window is None else self._window[:2]
        return np.stack(np.broadcast_arrays(top, left, self._upside, self._mirror), axis=1)

    def _cut_out(self, images: np.ndarray, outside: int, out: np.ndarray | None) -> np.ndarray:
        zeros = np.zeros(self.count, np.int64)
        top, left, size = self._window or (zeros, zeros, images.shape[1:3])
        pixel = images.shape[3] * images.itemsize
        fits = out is not None and out.flags.c_contiguous
        if out is not None and fits:
            made = out
        else:
            made = np.empty((self.count, *size, images.shape[3]), images.dtype)
        self.kernels.windows(
            _bytes(images),
            *images.shape[1:3],
            pixel,
            top,
            left,
            self._mirror,
            self._upside,
            outside & 0xFF,
            _bytes(made),
            *size,
        )  # -1 and 255 are the same in all their bytes
        if out is not None and not fits:
            out[:] = made
        return made

    def resize(
        self,
        window: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
        size: tuple[int, int],
        kind: int,
    ) -> None:
        """Bring a window of each image, (top, left, height, width), to one size."""
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


def done(
    transforms: Sequence[Transform],
    kernels: Any,
    images: np.ndarray,
    masks: np.ndarray | None,
    void: int,
    seed: int,
    epoch: int,
    indices: np.ndarray,
    training: bool,
) -> tuple[Work, int]:
    """Do to a batch as many of the first transforms as can be done to it; gives the work and how many they were.

    Args:
        images, masks: of samples, which stay as they are.
        seed, epoch, indices: what random numbers depend on.
    """
    draws = sum(map(_draws, transforms)) if training else 0
    uniforms = np.empty((len(images), 4 * -(-draws // 4)))
    if draws:
        kernels.uniforms(seed, AUGMENT, epoch, np.ascontiguousarray(indices, np.int64), uniforms)
    work = Work(kernels, images, masks, void, uniforms)
    for place, transform in enumerate(transforms):
        do = _DOERS.get(type(transform))
        if do is None or work.images.ndim != 4 or not do(transform, work, training):
            return work, place
    return work, len(transforms)


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _lines(masks: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(masks).view(np.uint8)


# ---- each transform: False where it cannot be done to such samples, and nothing is changed -----


def _crop(crop: RandomCrop | CenterCrop, work: Work, training: bool) -> bool:
    padding = crop.padding if isinstance(crop, RandomCrop) else 0
    room = [have + 2 * padding - want for have, want in zip(work.size, crop.size, strict=True)]
    if min(room) < 0:
        return False
    is_drawn = training and isinstance(crop, RandomCrop)
    top, left = (
        (work.draw() * (one + 1)).astype(np.int64) if is_drawn else np.full(work.count, one // 2)
        for one in room
    )
    work.cut(top - padding, left - padding, crop.size)
    return True


def _flip(flip: Flip, work: Work, training: bool) -> bool:
    if training:
        work.flip(
            work.draw() < 0.5 if flip.horizontal else None,
            work.draw() < 0.5 if flip.vertical else None,
        )
    return True


def _on_device(left: OnDevice, work: Work, training: bool) -> bool:
    work.settle()
    try:
        left.size(*work.size)
    except UnreadableImage:
        return False
    if not left.takes(work.images.shape[1:], work.images.dtype):
        return False
    for transform in left.transforms:
        _DOERS[type(transform)](transform, work, training)
    work.leave()
    return True


def _is_picture(work: Work) -> bool:
    """Whether Pillow has such images; settles what was put off."""
    work.settle()
    return work.images.dtype == np.uint8 and work.images.shape[3] in (1, 3)


def _resize(resize: Resize, work: Work, training: bool) -> bool:
    if (resize.filter not in _FILTERS) or not _is_picture(work):
        return False
    size = resize.target(*work.size)
    if size != work.size:
        height, width = (np.full(work.count, length) for length in work.size)
        zeros = np.zeros(work.count, np.int64)
        work.resize((zeros, zeros, height, width), size, _FILTERS[resize.filter])
    return True


def _random_resized_crop(crop: RandomResizedCrop, work: Work, training: bool) -> bool:
    if (crop.filter not in _FILTERS) or not _is_picture(work):
        return False
    height, width = work.size
    window = np.tile(crop.window(height, width, None), (work.count, 1))
    if training:
        window[:] = crop.without_luck(height, width)
        tries = work.ahead(22)
        pixels = (
            height * width * (crop.scale[0] + (crop.scale[1] - crop.scale[0]) * tries[:, :20:2])
        )
        low, high = np.log(crop.ratio)
        aspect = np.exp(low + (high - low) * tries[:, 1:20:2])
        heights = np.rint(np.sqrt(pixels / aspect))
        widths = np.rint(np.sqrt(pixels * aspect))
        fits = (heights > 0) & (heights <= height) & (widths > 0) & (widths <= width)
        some = fits.any(axis=1)
        found = fits.argmax(axis=1)
        rows = np.arange(work.count)
        h = heights[rows, found]
        w = widths[rows, found]
        drawn = np.where(some, 2 * found + 2, 20)
        lucky = np.stack(
            [
                tries[rows, np.minimum(drawn, 20)] * (height - h + 1),
                tries[rows, np.minimum(drawn, 20) + 1] * (width - w + 1),
                h,
                w,
            ],
            axis=1,
        ).astype(np.int64)
        window[some] = lucky[some]
        work.used += np.where(some, drawn + 2, 20)
    top, left, h, w = np.ascontiguousarray(window.T)
    work.resize((top, left, h, w), crop.to_size, _FILTERS[crop.filter])
    return True


def _color_jitter(change: ColorJitter, work: Work, training: bool) -> bool:
    if not training:
        return True
    if not _is_picture(work):
        return False
    changes = change.changes()
    kinds, low, high = (np.array([one[place] for one in changes]) for place in range(3))
    many = len(changes)
    if many > 1:
        order = np.argsort(work.ahead(many), axis=1)
    else:
        order = np.zeros((work.count, 1), np.int64)
    work.used += many if many > 1 else 0
    amounts = low[order] + (high - low)[order] * work.ahead(many)
    work.used += many
    images = work.images.reshape(work.count, -1, work.images.shape[3]).copy()
    work.kernels.jitter(images, kinds[order], amounts)
    work.images = images.reshape(work.images.shape)
    return True


def _scale(scale: Scale, work: Work, training: bool) -> bool:
    work.settle()
    try:
        scale.affine.check(work.images.shape[3])
    except InputError:
        return False
    work.images = scale.affine.apply(work.images)
    return True


_DOERS: dict[type, Callable[[Any, Work, bool], bool]] = {
    RandomCrop: _crop,
    CenterCrop: _crop,
    Flip: _flip,
    Resize: _resize,
    RandomResizedCrop: _random_resized_crop,
    ColorJitter: _color_jitter,
    Scale: _scale,
    OnDevice: _on_device,
}
_DRAWS: dict[type, int] = {RandomCrop: 2, Flip: 2, RandomResizedCrop: 22, ColorJitter: 8}  # at most


def _draws(transform: Transform) -> int:
    """How often it draws, at most."""
    if isinstance(transform, OnDevice):
        return sum(map(_draws, transform.transforms))
    return _DRAWS.get(type(transform), 0)
