"""Transforms of the values of an image, or of any other array."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from PIL import Image, ImageEnhance
from pydantic import Field
from pydantic.dataclasses import dataclass

from launch.errors import InputError, pluralize
from preprocess.decode import to_array
from preprocess.sample import FLOAT32_LIMIT, Affine
from preprocess.transforms import base

Shift = Annotated[float, Field(strict=True, ge=-0.5, le=0.5)]
Hue = Annotated[float, Field(strict=True, ge=0, le=0.5)]
Pixel = Annotated[int, Field(strict=True, ge=0, le=255)]


@dataclass(frozen=True, config=base.FORBID)
class ColorJitter(base.LeavesPixels):
    """Change brightness, contrast, saturation and hue at random: torchvision's `ColorJitter`.

    They change in random order. A parameter x means a factor uniform in [max(0, 1 - x), 1 + x]; 0
    leaves the property unchanged. The hue is shifted instead, by a share of the color circle.
    """

    brightness: base.Jitter = 0.0
    contrast: base.Jitter = 0.0
    saturation: base.Jitter = 0.0
    hue: Annotated[
        Hue | tuple[Shift, Shift],
        Field(
            description="x of the shifts -x to x, from 0 to 0.5; or [lowest, highest] shift, from "
            "-0.5 to 0.5"
        ),
    ] = 0.0

    is_random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not any((self.brightness, self.contrast, self.saturation, self.hue)):
            raise ValueError("needs brightness, contrast, saturation or hue above 0")
        for name in ("brightness", "contrast", "saturation", "hue"):
            if isinstance(amount := getattr(self, name), tuple):
                base.check_range(name, amount)

    def apply(self, image: np.ndarray, rng: np.random.Generator, training: bool) -> np.ndarray:
        """Change the colors of an image."""
        if not training:
            return image
        picture = base.as_image(image, self)
        changes = self.changes()
        keys = [0.0]
        if len(changes) > 1:
            keys = [rng.random() for _ in changes]
        for position in np.argsort(keys):
            change, low, high = changes[position]
            picture = _CHANGES[change](picture, low + (high - low) * rng.random())
        return to_array(picture)

    def changes(self) -> list[tuple[int, float, float]]:
        """Return (0 brightness, 1 contrast, 2 saturation or 3 hue; lowest; highest) each."""
        if isinstance(self.hue, tuple):
            hue = self.hue
        else:
            hue = (-self.hue, self.hue)
        ranges = *map(_factors, (self.brightness, self.contrast, self.saturation)), hue
        amounts = self.brightness, self.contrast, self.saturation, self.hue
        return [(change, *ranges[change]) for change, amount in enumerate(amounts) if amount]


def _factors(amount: float | tuple[float, float]) -> tuple[float, float]:
    if isinstance(amount, tuple):
        return amount
    return (max(0.0, 1 - amount), 1 + amount)


def _hue(picture: Image.Image, shift: float) -> Image.Image:
    """Shift the hue by a share of the color circle; gray stays gray."""
    if picture.mode == "L":
        return picture
    hue, saturation, value = picture.convert("HSV").split()
    turned = np.asarray(hue) + np.int32(round(shift * 255)).astype(np.uint8)  # modulo 256
    return Image.merge("HSV", (Image.fromarray(turned), saturation, value)).convert("RGB")


# Brightness, contrast, saturation and hue.
_CHANGES: tuple[Callable[[Image.Image, float], Image.Image], ...] = (
    lambda picture, factor: ImageEnhance.Brightness(picture).enhance(factor),
    lambda picture, factor: ImageEnhance.Contrast(picture).enhance(factor),
    lambda picture, factor: ImageEnhance.Color(picture).enhance(factor),
    _hue,
)


@dataclass(frozen=True, config=base.FORBID)
class RandomGrayscale(base.LeavesPixels):
    """Remove the colors of some images; all channels stay: torchvision's `RandomGrayscale`."""

    p: base.Probability = 0.1

    is_random: ClassVar[bool] = True

    def apply(self, image: np.ndarray, rng: np.random.Generator, training: bool) -> np.ndarray:
        """Return the image, possibly gray."""
        if not training or rng.random() >= self.p:
            return image
        gray = to_array(base.as_image(image, self).convert("L"))
        return np.repeat(gray, image.shape[2], axis=2)


@dataclass(frozen=True, config=base.FORBID)
class RandomErasing(base.DrawsWindow, base.LeavesPixels):
    """Erase a random window of some images: torchvision's `RandomErasing`, for pixels 0-255."""

    p: base.Probability = 0.5
    scale: base.Area = (0.02, 0.33)
    ratio: base.Ratio = (0.3, 3.3)
    value: Annotated[
        Pixel | tuple[Pixel, ...] | Literal["random"],
        Field(description="0 to 255, a list of one for each channel, or random for noise"),
    ] = 0

    is_random: ClassVar[bool] = True

    def apply(self, image: np.ndarray, rng: np.random.Generator, training: bool) -> np.ndarray:
        """Return the image, possibly with a window erased."""
        if not training or rng.random() >= self.p:
            return image
        base.channels(image, self)
        if image.dtype != np.uint8:
            raise InputError(
                f"random_erasing works on uint8 images, not on {image.dtype}; put scale after it"
            )
        if isinstance(self.value, tuple) and len(self.value) != image.shape[2]:
            raise InputError(
                f"random_erasing: {pluralize(len(self.value), 'number')} of value, one for each "
                f"channel, but samples have {image.shape[2]} channels"
            )
        window = self.draw_window(image.shape[0], image.shape[1], rng)
        if window is None:
            return image
        top, left, height, width = window
        erased = image.copy()
        fill: Any = self.value
        if self.value == "random":
            fill = rng.integers(0, 256, (height, width, image.shape[2]), np.uint8)
        erased[top : top + height, left : left + width] = fill
        return erased


@dataclass(frozen=True, config=base.FORBID)
class Scale(base.LeavesPixels):
    """Scale pixels 0..255 to numbers that suit networks: (x / 255 - mean) / std, float32.

    `scale: true` scales them to 0..1, and `scale: data`, at the end of the list, by the mean and
    deviation of each channel in the training images. If it is the last transform, trainers apply
    it, so that images travel as uint8.
    """

    mean: Annotated[
        base.Real | tuple[base.Real, ...],
        Field(description="a number, or a list of one for each channel; pixels are from 0 to 1"),
    ] = 0.0
    std: Annotated[
        base.Positive | tuple[base.Positive, ...],
        Field(description="a number above 0, or a list of one for each channel"),
    ] = 1.0

    is_random: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if (
            isinstance(self.mean, tuple)
            and isinstance(self.std, tuple)
            and len(self.mean) != len(self.std)
        ):
            raise ValueError(
                f"{pluralize(len(self.mean), 'mean')} and "
                f"{pluralize(len(self.std), 'standard deviation')}; each channel needs one of each"
            )

    @cached_property
    def affine(self) -> Affine:
        """The scale as one multiplication and one addition."""
        unchecked = Affine(self.mean, self.std)
        return replace(unchecked, precise=unchecked.precision > FLOAT32_LIMIT)

    def apply(self, image: np.ndarray, rng: np.random.Generator, training: bool) -> np.ndarray:
        """Scale an image, (..., channels), to float32."""
        self.affine.check(image.shape[-1] if image.ndim else 1)
        return self.affine.apply(image)


@dataclass(frozen=True, config=base.FORBID)
class Standardize(base.LeavesPixels):
    """Standardize numbers to mean 0 and deviation 1 over the training samples, float32.

    It must be the last transform, and is for tables and arrays. Networks apply it themselves, so it
    is exported with them.
    """

    per: Annotated[
        Literal["feature", "array"],
        Field(
            description="feature: a mean and a deviation for each place in the last axis of a "
            "sample, such as a column of a table; array: one of each for all numbers"
        ),
    ] = "feature"

    is_random: ClassVar[bool] = False
    written: ClassVar[str] = "standardize"  # in a spec

    def apply(self, image: np.ndarray, rng: np.random.Generator, training: bool) -> np.ndarray:
        """Refuse: the pipeline takes it from the end of the list."""
        raise InputError(f"{self.written} must come last")

    def features(self, shape: Sequence[int]) -> int:
        """Return how many means samples of a shape have."""
        if self.per == "feature" and shape:
            return shape[-1]
        return 1


@dataclass(frozen=True, config=base.FORBID)
class ScaleByData(Standardize):
    """Scale each channel of images by its mean and deviation in the data: ``scale: data``."""

    written: ClassVar[str] = "scale: data"
