"""The protocol of transforms, the types of their parameters, and helpers for Pillow images."""

from __future__ import annotations

import dataclasses
import re
from typing import Annotated, Any, Literal, Protocol

import numpy as np
from PIL import Image
from pydantic import ConfigDict, Field

from launch.errors import InputError, pluralize
from preprocess.decode import to_image

# Descriptions appear in messages and in the JSON Schema.
Pixels = Annotated[int, Field(strict=True, gt=0)]
Size = Annotated[tuple[Pixels, Pixels], Field(description="[height, width] of the crop, in pixels")]
Filter = Annotated[
    Literal["nearest", "bilinear", "bicubic", "lanczos"],
    Field(description="how pixels are weighted: nearest, bilinear, bicubic or lanczos"),
]
Real = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Switch = Annotated[bool, Field(strict=True)]
Factor = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Jitter = Annotated[
    Factor | tuple[Factor, Factor],
    Field(
        description="x of the factors 1 - x to 1 + x, a number not below 0; or [lowest, highest] "
        "factor"
    ),
]
Probability = Annotated[
    float, Field(strict=True, ge=0, le=1, description="a probability, from 0 to 1")
]
Share = Annotated[float, Field(strict=True, gt=0, le=1)]
Area = Annotated[
    tuple[Share, Share],
    Field(description="[smallest, largest] share of the image's area, above 0, at most 1"),
]
Ratio = Annotated[
    tuple[Positive, Positive],
    Field(description="[narrowest, widest] ratio of width to height, numbers above 0"),
]
FORBID = ConfigDict(extra="forbid")


class Transform(Protocol):
    """A function from an image to an image."""

    @property
    def is_random(self) -> bool:
        """True if the result depends on the generator or on ``training``."""

    def apply(self, image: np.ndarray, rng: np.random.Generator, training: bool) -> np.ndarray:
        """Transform an image.

        Args:
            image: (height, width, channels), or an array of another shape if the transform takes
                it.
            rng: the sample's generator.
            training: False for evaluation.
        """

    def apply_with_mask(
        self, image: np.ndarray, mask: Mask, rng: np.random.Generator, training: bool
    ) -> tuple[np.ndarray, Mask]:
        """Transform an image as :meth:`apply` does, and move its mask with it.

        Args:
            image: (height, width, channels).
            mask: the mask of the image.
            rng: the sample's generator.
            training: False for evaluation.
        """


@dataclasses.dataclass(frozen=True)
class Mask:
    """The classes of an image's pixels.

    Attributes:
        pixels: (height, width) integers.
        void: the value of ignored pixels, such as those from outside of the image.
    """

    pixels: np.ndarray
    void: int


class LeavesPixels:
    """Mixin for transforms that leave every pixel where it is: the mask is unchanged."""

    def apply_with_mask(
        self: Transform, image: np.ndarray, mask: Mask, rng: np.random.Generator, training: bool
    ) -> tuple[np.ndarray, Mask]:
        """Transform the image; return it with its mask."""
        return self.apply(image, rng, training), mask


class MovesPixels:
    """Mixin for transforms that move pixels: the mask moves by the same random numbers."""

    def move(self, mask: Mask, rng: np.random.Generator, training: bool) -> np.ndarray:
        """Move the mask's pixels as those of its image, unmixed, (height, width) integers."""
        raise NotImplementedError

    def apply_with_mask(
        self: Any, image: np.ndarray, mask: Mask, rng: np.random.Generator, training: bool
    ) -> tuple[np.ndarray, Mask]:
        """Transform the image and its mask."""
        before = rng.bit_generator.state
        moved = self.apply(image, rng, training)
        rng.bit_generator.state = before
        return moved, dataclasses.replace(mask, pixels=self.move(mask, rng, training))


def name_of(transform: object) -> str:
    """Return the name that a transform has in a spec.

    >>> from preprocess.transforms.geometry import RandomCrop
    >>> name_of(RandomCrop((2, 2)))
    'random_crop'
    """
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(transform).__name__)
    return words.lower().removesuffix("_smaller")


def as_image(image: np.ndarray, transform: object) -> Image.Image:
    """Convert an image to a Pillow image.

    Args:
        image: (height, width, 1 or 3) uint8.
        transform: the transform that needs it, for the message.

    Raises:
        InputError: Pillow has no images of this shape and dtype.
    """
    channels(image, transform)
    if image.dtype != np.uint8 or image.shape[2] not in (1, 3):
        advice = "" if image.dtype == np.uint8 else "; put scale after it"
        raise InputError(
            f"{name_of(transform)} works on uint8 images with 1 or 3 channels, not on "
            f"{image.dtype} with {image.shape[2]}{advice}"
        )
    return to_image(np.ascontiguousarray(image))


def check_range(name: str, pair: tuple[float, float]) -> None:
    """Check that a range begins below its end.

    Raises:
        ValueError: it does not; pydantic reports it as an error of the parameter.
    """
    if pair[0] > pair[1]:
        raise ValueError(f"{name} is {list(pair)}; the first number should be the smaller")


class DrawsWindow:
    """Mixin for transforms that draw a window by `scale` (area) and `ratio` (width to height)."""

    def __post_init__(self: Any) -> None:
        check_range("scale", self.scale)
        check_range("ratio", self.ratio)

    def draw_window(
        self: Any, height: int, width: int, rng: np.random.Generator
    ) -> tuple[int, int, int, int] | None:
        """Draw a random window, uniform in area and in the logarithm of its ratio.

        It is drawn up to ten times until it fits, as in torchvision.

        Returns:
            (top, left, height, width), or None if none fits.
        """
        smallest, largest = self.scale
        log_low, log_high = np.log(self.ratio)
        for _ in range(10):
            pixels = height * width * (smallest + (largest - smallest) * rng.random())
            aspect = np.exp(log_low + (log_high - log_low) * rng.random())
            h = round(np.sqrt(pixels / aspect))
            w = round(np.sqrt(pixels * aspect))
            if 0 < h <= height and 0 < w <= width:
                return (
                    int(rng.random() * (height - h + 1)),
                    int(rng.random() * (width - w + 1)),
                    h,
                    w,
                )
        return None


def channels(image: np.ndarray, transform: object) -> int:
    """Return the number of channels of an image.

    Args:
        image: (height, width, channels).
        transform: the transform that needs it, for the message.

    Raises:
        InputError: the array has another rank.
    """
    if image.ndim != 3:
        shape = " x ".join(map(str, image.shape))
        raise InputError(
            f"{name_of(transform)} works on images (height, width, channels), not on samples of "
            f"{pluralize(image.ndim, 'dimension')} ({shape})"
        )
    return image.shape[2]
