"""What all transforms share: their protocol, the types of their parameters, and Pillow's images."""

from __future__ import annotations

from typing import Annotated, Protocol

import numpy as np
from PIL import Image
from pydantic import ConfigDict, Field

from preprocess.base import InputError
from preprocess.decode import to_image

# A description says what is wanted: messages and the JSON Schema show it.
Pixels = Annotated[int, Field(strict=True, gt=0)]
Size = Annotated[tuple[Pixels, Pixels], Field(description="[height, width] of the crop, in pixels")]
Real = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Switch = Annotated[bool, Field(strict=True)]
Jitter = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False,
                                description="x of the factors 1 - x to 1 + x, a number not below 0")]
FORBID = ConfigDict(extra="forbid")


class Transform(Protocol):
    """An image to an image."""

    @property
    def is_random(self) -> bool:
        """Whether the result depends on the generator or on ``training``."""

    def apply(self, image: np.ndarray, rng: np.random.Generator, training: bool) -> np.ndarray:
        """The image, transformed."""


def as_image(image: np.ndarray, transform: object) -> Image.Image:
    """For transforms that Pillow carries out.

    Raises:
        InputError: not an image that Pillow has.
    """
    if image.dtype != np.uint8 or image.shape[2] not in (1, 3):
        raise InputError(f"{type(transform).__name__} works on uint8 images with 1 or 3 channels, not on "
                         f"{image.dtype} with {image.shape[2]}; put scale after it")
    return to_image(np.ascontiguousarray(image))
