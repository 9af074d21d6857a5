"""A crop and mirror images that are left to the device that trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from preprocess.base import UnreadableImage
from preprocess.deferred_augmentation import packed
from preprocess.sample import ImageSpec, wire_dtype
from preprocess.transforms.base import Mask, MovesPixels, Transform, channels
from preprocess.transforms.color import Scale, Standardize
from preprocess.transforms.geometry import CenterCrop, Flip, RandomCrop


@dataclass(frozen=True)
class OnDevice(MovesPixels):
    """Draws where pixels go as some transforms do, and leaves it to the device to move them.

    A sample becomes a row of bytes (:mod:`preprocess.deferred_augmentation`). Its mask is moved here.

    Attributes:
        transforms: one crop at most, and flips.
        image: what all samples are before; None where that is not known yet.
    """

    transforms: tuple[RandomCrop | CenterCrop | Flip, ...]
    image: ImageSpec | None = None

    is_random: ClassVar[bool] = True

    def apply(self, image: np.ndarray, rng: np.random.Generator, training: bool) -> np.ndarray:
        """The row of an image, (bytes,)."""
        channels(image, self)
        if not self.takes(image.shape, image.dtype):
            raise UnreadableImage(f"is {ImageSpec.of(image)}; the others are {self.image}")
        (height, width), (to_height, to_width) = image.shape[:2], self.size(*image.shape[:2])
        top = left = 0
        upside = mirror = False
        for transform in self.transforms:
            if not isinstance(transform, Flip):
                top, left = transform.place(height, width, rng if training else None)
                # In an image that was mirrored, places are counted from the other end.
                top = height - to_height - top if upside else top
                left = width - to_width - left if mirror else left
            elif training:
                is_mirror, is_upside = transform.draw(rng)
                upside = upside ^ is_upside
                mirror = mirror ^ is_mirror
        return packed(image[None], np.array([[top, left, upside, mirror]]))[0]

    def move(self, mask: Mask, rng: np.random.Generator, training: bool) -> np.ndarray:
        """The mask, moved by the same random numbers."""
        for transform in self.transforms:
            mask = replace(mask, pixels=transform.move(mask, rng, training))
        return mask.pixels

    def takes(self, shape: tuple[int, ...], dtype: np.dtype) -> bool:
        """Whether such images are what the others are."""
        return self.image in (None, ImageSpec(shape, str(wire_dtype(dtype))))

    def size(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) of what the device makes of an image of this size.

        Raises:
            BadImage: it is too small for the crop.
        """
        for transform in self.transforms:
            if not isinstance(transform, Flip):
                transform.place(height, width, None)
                return transform.size
        return height, width


def leave_to_device(transforms: Sequence[Transform]) -> tuple[Transform, ...]:
    """The same transforms, with as many of the last ones left to the device as it can do: a crop and flips.

    What is the same in every epoch stays, and so does what scales at the end, which trainers do anyway.
    """
    end = len(transforms) - (bool(transforms) and isinstance(transforms[-1], Scale | Standardize))
    first = next((place for place, one in enumerate(transforms[:end]) if one.is_random), end)
    begin = end
    crops = 0
    while begin > first and isinstance(
        before := transforms[begin - 1], RandomCrop | CenterCrop | Flip
    ):
        crops += not isinstance(before, Flip)
        if crops > 1:
            break
        begin -= 1
    left = (OnDevice(tuple(transforms[begin:end])),) if begin < end else ()  # type: ignore[arg-type] # as was seen
    return *transforms[:begin], *left, *transforms[end:]


def expecting(transforms: Sequence[Transform], image: ImageSpec | None) -> tuple[Transform, ...]:
    """The same transforms, once it is known what samples are before what is left to the device."""
    return tuple(
        replace(one, image=image) if isinstance(one, OnDevice) else one for one in transforms
    )


def finished_on_host(transforms: Sequence[Transform]) -> tuple[Transform, ...]:
    """What :func:`leave_to_device` was given."""
    return tuple(
        each
        for one in transforms
        for each in (one.transforms if isinstance(one, OnDevice) else (one,))
    )


def split_device(transforms: Sequence[Transform]) -> tuple[tuple[Transform, ...], OnDevice | None]:
    """What hosts do, or trainers in any case, and what is left to the device."""
    left = next((one for one in transforms if isinstance(one, OnDevice)), None)
    return tuple(one for one in transforms if one is not left), left
