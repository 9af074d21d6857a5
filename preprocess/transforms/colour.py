"""Transforms of an image's values."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
from PIL import ImageEnhance
from pydantic import Field
from pydantic.dataclasses import dataclass

from preprocess.base import counted
from preprocess.decode import to_array
from preprocess.sample import Affine
from preprocess.transforms.base import FORBID, Jitter, Positive, Real, as_image


@dataclass(frozen=True, config=FORBID)
class ColorJitter:
    """Change brightness, contrast and saturation, in this order, each by a random factor.

    A parameter x means a factor uniform in [max(0, 1 - x), 1 + x]; 0 leaves the property alone.
    """

    brightness: Jitter = 0.0
    contrast: Jitter = 0.0
    saturation: Jitter = 0.0

    is_random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (self.brightness or self.contrast or self.saturation):
            raise ValueError("needs brightness, contrast or saturation above 0")

    def apply(self, image: np.ndarray, rng: np.random.Generator, training: bool) -> np.ndarray:
        """The image, its colours changed."""
        if not training:
            return image
        picture = as_image(image, self)
        for enhance, amount in ((ImageEnhance.Brightness, self.brightness),
                                (ImageEnhance.Contrast, self.contrast),
                                (ImageEnhance.Color, self.saturation)):
            if amount:
                low, high = max(0.0, 1 - amount), 1 + amount
                picture = enhance(picture).enhance(low + (high - low) * rng.random())
        return to_array(picture)


@dataclass(frozen=True, config=FORBID)
class Scale:
    """Pixels 0..255 to numbers that networks like: (x / 255 - mean) / std, float32.

    Where it is the last transform the trainers do it, so that images travel as uint8.
    """

    mean: Annotated[Real | tuple[Real, ...], Field(
        description="a number, or a list of one for each channel; pixels are from 0 to 1")] = 0.0
    std: Annotated[Positive | tuple[Positive, ...], Field(
        description="a number above 0, or a list of one for each channel")] = 1.0

    is_random: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if isinstance(self.mean, tuple) and isinstance(self.std, tuple) and len(self.mean) != len(self.std):
            raise ValueError(f"{counted(len(self.mean), 'mean')} and {counted(len(self.std), 'standard deviation')}; "
                             "each channel needs one of each")

    @cached_property
    def affine(self) -> Affine:
        """The same as one multiplication and one addition."""
        return Affine(self.mean, self.std)

    def apply(self, image: np.ndarray, rng: np.random.Generator, training: bool) -> np.ndarray:
        """The numbers."""
        self.affine.check(image.shape[2])
        return self.affine.apply(image)
