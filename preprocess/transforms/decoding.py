"""Transforms from the bytes of an image file to an array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from launch.errors import InputError
from preprocess.decode import MinSize, Mode, decode, reduction, to_array
from preprocess.transforms.base import FORBID, LeavesPixels, Transform, as_image
from preprocess.transforms.geometry import RandomResizedCrop, Resize


@dataclass(frozen=True, config=FORBID)
class Decode(LeavesPixels):
    """Decode the bytes of an image file to an array; must be the first transform.

    Arrays need no decoding: channels of uint8 images are converted to the mode, and other arrays
    are unchanged.
    """

    mode: Annotated[Mode, Field(description="RGB, or L for grayscale with one channel")] = "RGB"
    bits: Annotated[
        int,
        Field(
            strict=True,
            ge=8,
            le=16,
            description="how many bits grayscale files of 16 bits use, from 8 to 16; larger "
            "numbers become white",
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
        """Decode an image to (height, width, channels) uint8.

        Args:
            image: the bytes of a file, or an array.
            rng: unused.
            training: unused.
            at_least: the minimum (height, width), if a smaller size than the image's is enough.
        """
        if isinstance(image, bytes):
            return decode(image, self.mode, at_least, self.bits)
        return self._of_mode(image)

    def reduction(self, image: bytes | np.ndarray) -> int:
        """Return by how much it shrinks an image: 1, 2, 4 or 8."""
        return 1

    def _of_mode(self, image: np.ndarray) -> np.ndarray:
        is_image = image.ndim == 3 and image.dtype == np.uint8
        if not is_image or image.shape[2] == (3 if self.mode == "RGB" else 1):
            return image
        if image.shape[2] not in (1, 3):
            raise InputError(
                f"decode makes {self.mode} of arrays with 1 or 3 channels, and samples have "
                f"{image.shape[2]}; leave decode out, or remove channels first, such as the "
                "transparency of RGBA"
            )
        return to_array(as_image(image, self).convert(self.mode))


@dataclass(frozen=True, config=FORBID)
class DecodeSmaller(Decode):
    """Decode at a reduced size if the next transform shrinks the image anyway.

    A JPEG is decoded at a fraction of its size that is enough for that transform. The fraction
    depends on the image and on that one transform only, so a network gets the same numbers alone
    and beside others, and from a copy that was decoded once.

    Attributes:
        following: the next transform. It cannot be a crop, which would show twice as much of an
            image at half its size.
    """

    following: Resize | RandomResizedCrop = Field(kw_only=True)

    def apply(
        self,
        image: bytes | np.ndarray,
        rng: np.random.Generator | None = None,
        training: bool = True,
        at_least: MinSize | None = None,
    ) -> np.ndarray:
        """Decode an image, at a reduced size if that is enough for the next transform."""
        return super().apply(image, at_least=self.following.min_size)

    def reduction(self, image: bytes | np.ndarray) -> int:
        """Return by how much it shrinks an image; see :meth:`Decode.reduction`."""
        if isinstance(image, bytes):
            return reduction(image, self.following.min_size)
        return 1


def with_reduced_decoding(transforms: Sequence[Transform]) -> tuple[Transform, ...]:
    """Let a list of transforms decode no larger than its second one needs."""
    match transforms:
        case [Decode(mode, bits), Resize() | RandomResizedCrop() as following, *_]:
            return DecodeSmaller(mode, bits, following=following), *transforms[1:]
    return tuple(transforms)


def with_full_decoding(transforms: Sequence[Transform]) -> tuple[Transform, ...]:
    """Let a list of transforms decode at full size, as masks need."""
    match transforms:
        case [DecodeSmaller(mode, bits), *_]:
            return Decode(mode, bits), *transforms[1:]
    return tuple(transforms)
