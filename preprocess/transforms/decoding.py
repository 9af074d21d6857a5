"""From the bytes of an image file to an array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from preprocess.base import InputError
from preprocess.decode import MinSize, Mode, decode, reduction, to_array
from preprocess.transforms.base import FORBID, LeavesPixels, Transform, as_image
from preprocess.transforms.geometry import RandomResizedCrop, Resize


@dataclass(frozen=True, config=FORBID)
class Decode(LeavesPixels):
    """The bytes of an image file to an array; always the first transform.

    Sources that hold arrays need no decoding. There it brings the channels of images to its mode, and leaves arrays of
    another rank or type as they are.
    """

    mode: Annotated[Mode, Field(description="RGB, or L for greyscale with one channel")] = "RGB"
    bits: Annotated[
        int,
        Field(
            strict=True,
            ge=8,
            le=16,
            description="how many bits greyscale files of 16 bits use, from 8 to 16; larger numbers become white",
        ),
    ] = 16

    is_random: ClassVar[bool] = False

    def apply(
        self,
        image: bytes | np.ndarray,
        rng: np.random.Generator | None = None,
        training: bool = True,
        at_least: MinSize | None = None,
    ) -> np.ndarray:
        """Decode it, at a smaller size where ``at_least`` (height, width) is enough."""
        if isinstance(image, bytes):
            return decode(image, self.mode, at_least, self.bits)
        return self._of_mode(image)

    def reduction(self, image: bytes | np.ndarray) -> int:
        """By how much it makes an image smaller: 1, 2, 4 or 8."""
        return 1

    def _of_mode(self, image: np.ndarray) -> np.ndarray:
        is_image = image.ndim == 3 and image.dtype == np.uint8
        if not is_image or image.shape[2] == (3 if self.mode == "RGB" else 1):
            return image
        if image.shape[2] not in (1, 3):
            raise InputError(
                f"decode makes {self.mode} of arrays with 1 or 3 channels, and samples have {image.shape[2]}; leave "
                "decode out, or drop channels beforehand, such as the transparency of RGBA"
            )
        return to_array(as_image(image, self).convert(self.mode))


@dataclass(frozen=True, config=FORBID)
class DecodeSmaller(Decode):
    """The same where a transform follows at once that makes the image smaller, whatever it shows of it.

    A JPEG is decoded at a fraction of its size that is enough for that transform. The fraction depends on the image and
    on that one transform, and on nothing else: so a network comes to the same numbers alone and beside others, and from
    a copy that was decoded once.

    Attributes:
        following: what follows. A crop is none of these: from an image at half its size it would show twice as much.
    """

    following: Resize | RandomResizedCrop = Field(kw_only=True)

    def apply(
        self,
        image: bytes | np.ndarray,
        rng: np.random.Generator | None = None,
        training: bool = True,
        at_least: MinSize | None = None,
    ) -> np.ndarray:
        """Decode it, at a smaller size where that is enough for what follows."""
        return super().apply(image, at_least=self.following.min_size)

    def reduction(self, image: bytes | np.ndarray) -> int:
        """See :meth:`Decode.reduction`."""
        if isinstance(image, bytes):
            return reduction(image, self.following.min_size)
        return 1


def with_reduced_decoding(transforms: Sequence[Transform]) -> tuple[Transform, ...]:
    """A whole list of transforms whose images are decoded no larger than the second one of it needs them."""
    match transforms:
        case [Decode(mode, bits), Resize() | RandomResizedCrop() as following, *_]:
            return DecodeSmaller(mode, bits, following=following), *transforms[1:]
    return tuple(transforms)


def with_full_decoding(transforms: Sequence[Transform]) -> tuple[Transform, ...]:
    """The same transforms for images that have masks, which are as large as the image."""
    match transforms:
        case [DecodeSmaller(mode, bits), *_]:
            return Decode(mode, bits), *transforms[1:]
    return tuple(transforms)
