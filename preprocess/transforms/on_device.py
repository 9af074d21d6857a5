"""A crop and flips that are deferred to the training device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from preprocess.base import UnreadableImage
from preprocess.deferred_augmentation import pack_rows
from preprocess.sample import ArraySpec, wire_dtype
from preprocess.transforms.base import Mask, MovesPixels, Transform, channels
from preprocess.transforms.color import Scale, Standardize
from preprocess.transforms.geometry import CenterCrop, Flip, RandomCrop


@dataclass(frozen=True)
class OnDevice(MovesPixels):
    """Draw where pixels go as some transforms do, and defer moving them to the device.

    A sample becomes a row of bytes (:mod:`preprocess.deferred_augmentation`). Its mask is moved
    here.

    Attributes:
        transforms: one crop at most, and flips.
        image: the spec of all samples before; None if not known yet.
    """

    transforms: tuple[RandomCrop | CenterCrop | Flip, ...]
    image: ArraySpec | None = None

    is_random: ClassVar[bool] = True

    def apply(self, image: np.ndarray, rng: np.random.Generator, training: bool) -> np.ndarray:
        """Return the row of an image, (bytes,) uint8."""
        channels(image, self)
        if not self.accepts(image.shape, image.dtype):
            raise UnreadableImage(f"is {ArraySpec.of(image)}; the others are {self.image}")
        height, width = image.shape[:2]
        to_height, to_width = self.size(height, width)
        top = left = 0
        flip_y = flip_x = False
        for transform in self.transforms:
            if not isinstance(transform, Flip):
                top, left = transform.position(height, width, rng if training else None)
                # In a flipped image, positions are counted from the other end.
                if flip_y:
                    top = height - to_height - top
                if flip_x:
                    left = width - to_width - left
            elif training:
                is_flipped_x, is_flipped_y = transform.draw(rng)
                flip_y = flip_y ^ is_flipped_y
                flip_x = flip_x ^ is_flipped_x
        return pack_rows(image[None], np.array([[top, left, flip_y, flip_x]]))[0]

    def move(self, mask: Mask, rng: np.random.Generator, training: bool) -> np.ndarray:
        """Move the mask by the same random numbers."""
        for transform in self.transforms:
            mask = replace(mask, pixels=transform.move(mask, rng, training))
        return mask.pixels

    def accepts(self, shape: tuple[int, ...], dtype: np.dtype) -> bool:
        """Return True if an image of this shape and dtype is like the others."""
        return self.image in (None, ArraySpec(shape, str(wire_dtype(dtype))))

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return the (height, width) of the device's result for an image of this size.

        Raises:
            UnreadableImage: it is too small for the crop.
        """
        for transform in self.transforms:
            if not isinstance(transform, Flip):
                transform.position(height, width, None)
                return transform.size
        return height, width


def defer_to_device(transforms: Sequence[Transform]) -> tuple[Transform, ...]:
    """Defer as many of the last transforms to the device as it supports: a crop and flips.

    Fixed transforms stay, and so does a scale at the end, which trainers apply anyway.
    """
    end = len(transforms) - (bool(transforms) and isinstance(transforms[-1], Scale | Standardize))
    first = next(
        (position for position, transform in enumerate(transforms[:end]) if transform.is_random),
        end,
    )
    begin = end
    crops = 0
    while begin > first and isinstance(
        previous := transforms[begin - 1], RandomCrop | CenterCrop | Flip
    ):
        crops += not isinstance(previous, Flip)
        if crops > 1:
            break
        begin -= 1
    if begin == end:
        return tuple(transforms)
    deferred = OnDevice(tuple(transforms[begin:end]))  # type: ignore[arg-type]
    return *transforms[:begin], deferred, *transforms[end:]


def set_device_input(
    transforms: Sequence[Transform], image: ArraySpec | None
) -> tuple[Transform, ...]:
    """Set the spec of samples before the deferred transforms."""
    return tuple(
        replace(transform, image=image) if isinstance(transform, OnDevice) else transform
        for transform in transforms
    )


def inline_device_transforms(transforms: Sequence[Transform]) -> tuple[Transform, ...]:
    """Undo :func:`defer_to_device`."""
    return tuple(
        inner
        for transform in transforms
        for inner in (transform.transforms if isinstance(transform, OnDevice) else (transform,))
    )


def split_device(transforms: Sequence[Transform]) -> tuple[tuple[Transform, ...], OnDevice | None]:
    """Split transforms into those of hosts and trainers, and the deferred one."""
    deferred = next(
        (transform for transform in transforms if isinstance(transform, OnDevice)), None
    )
    return tuple(transform for transform in transforms if transform is not deferred), deferred
