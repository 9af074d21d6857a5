"""Transforms of the size, position and orientation of an image."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar

import numpy as np
from PIL import Image
from pydantic import Field
from pydantic.dataclasses import dataclass

from preprocess.base import UnreadableImage
from preprocess.decode import to_array
from preprocess.deferred_augmentation import cut_window
from preprocess.transforms import base


@dataclass(frozen=True, config=base.FORBID)
class Resize(base.MovesPixels):
    """Resize the image with antialiasing; one number keeps its aspect ratio."""

    size: Annotated[
        base.Pixels | tuple[base.Pixels, base.Pixels],
        Field(description="[height, width], or one number for the shorter side, in pixels"),
    ]
    filter: base.Filter = "bilinear"

    is_random: ClassVar[bool] = False

    def min_size(self, height: int, width: int) -> tuple[int, int]:
        """Return (height, width) below which an image would have to be enlarged."""
        if isinstance(self.size, tuple):
            return self.size
        return (self.size, self.size)

    def apply(self, image: np.ndarray, rng: np.random.Generator, training: bool) -> np.ndarray:
        """Resize an image, (height, width, 1 or 3) uint8."""
        base.channels(image, self)
        height, width = self.output_size(*image.shape[:2])
        if (height, width) == image.shape[:2]:
            return image
        how = Image.Resampling[self.filter.upper()]
        return to_array(base.as_image(image, self).resize((width, height), how))

    def move(self, mask: base.Mask, rng: np.random.Generator, training: bool) -> np.ndarray:
        """Resize a mask by nearest neighbors."""
        height, width = mask.pixels.shape
        to_height, to_width = self.output_size(height, width)
        rows = nearest(height, to_height)
        columns = nearest(width, to_width)
        return mask.pixels[rows[:, None], columns]

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the resized (height, width) of an image of this size."""
        if isinstance(self.size, tuple):
            return self.size
        shorter = min(height, width)
        return round(height * self.size / shorter), round(width * self.size / shorter)


class _Crop(base.MovesPixels):
    """Mixin for transforms of a ``size`` that crop at their ``position``."""

    def apply(self, image: np.ndarray, rng: np.random.Generator, training: bool) -> np.ndarray:
        """Crop an image, (height, width, channels)."""
        base.channels(image, self)
        return self._cut(image, rng, training)

    def move(self, mask: base.Mask, rng: np.random.Generator, training: bool) -> np.ndarray:
        """Crop a mask; padding is ignored."""
        return self._cut(mask.pixels, rng, training, mask.void)

    def _cut(
        self: Any, image: np.ndarray, rng: np.random.Generator, training: bool, outside: int = 0
    ) -> np.ndarray:
        top, left = self.position(image.shape[0], image.shape[1], rng if training else None)
        return cut_window(image, top, left, self.size, outside)


@dataclass(frozen=True, config=base.FORBID)
class RandomCrop(_Crop):
    """Crop at a uniformly random position; in evaluation at the center."""

    size: base.Size
    padding: Annotated[
        int,
        Field(
            strict=True,
            ge=0,
            description="pixels of black that are added to each side first, not below 0",
        ),
    ] = 0

    is_random: ClassVar[bool] = True

    def position(self, height: int, width: int, rng: np.random.Generator | None) -> tuple[int, int]:
        """Return (top, left) of the crop, which may begin outside of the image.

        Args:
            height: the height of the image.
            width: the width of the image.
            rng: the sample's generator; None for the center.

        Raises:
            UnreadableImage: the image is too small.
        """
        room_y, room_x = _room(height, width, self.size, self.padding)
        if rng is None:
            top = room_y // 2
            left = room_x // 2
        else:
            top = int(rng.random() * (room_y + 1))
            left = int(rng.random() * (room_x + 1))
        return top - self.padding, left - self.padding


@dataclass(frozen=True, config=base.FORBID)
class RandomResizedCrop(base.DrawsWindow, base.MovesPixels):
    """Crop a random area and aspect ratio, and resize it: torchvision's `RandomResizedCrop`.

    In evaluation it takes the largest centered window of the output's ratio, without its edges.
    """

    size: Annotated[
        tuple[base.Pixels, base.Pixels] | base.Pixels,
        Field(description="[height, width], or one number for both, in pixels"),
    ]
    scale: base.Area = (0.08, 1.0)
    ratio: base.Ratio = (3 / 4, 4 / 3)
    filter: base.Filter = "bilinear"
    evaluation: Annotated[
        base.Share,
        Field(
            description="share of the largest centered window's sides that evaluation takes, above "
            "0, at most 1"
        ),
    ] = 0.875

    is_random: ClassVar[bool] = True

    def apply(self, image: np.ndarray, rng: np.random.Generator, training: bool) -> np.ndarray:
        """Crop and resize an image, (height, width, 1 or 3) uint8."""
        base.channels(image, self)
        height, width = self.output_size
        top, left, h, w = self.window(image.shape[0], image.shape[1], rng if training else None)
        picture = base.as_image(image[top : top + h, left : left + w], self)
        return to_array(picture.resize((width, height), Image.Resampling[self.filter.upper()]))

    def min_size(self, height: int, width: int) -> tuple[int, int]:
        """Return (height, width) below which the smallest window would have to be enlarged.

        A sample is decoded in one way for the windows of all epochs, and for evaluation.
        """
        area = self.scale[0] * height * width
        windows = [
            (
                math.floor(math.sqrt(area / self.ratio[1])),
                math.floor(math.sqrt(area * self.ratio[0])),
            ),
            self.window(height, width, None)[2:],
            self.fallback_window(height, width)[2:],
        ]
        h, w = map(min, zip(*windows, strict=True))
        share = max(self.output_size[0] / max(h, 1), self.output_size[1] / max(w, 1))
        return math.ceil(share * height), math.ceil(share * width)

    def move(self, mask: base.Mask, rng: np.random.Generator, training: bool) -> np.ndarray:
        """Crop and resize a mask by nearest neighbors."""
        height, width = self.output_size
        top, left, h, w = self.window(
            mask.pixels.shape[0], mask.pixels.shape[1], rng if training else None
        )
        rows = top + nearest(h, height)
        columns = left + nearest(w, width)
        return mask.pixels[rows[:, None], columns]

    @property
    def output_size(self) -> tuple[int, int]:
        """The resized (height, width)."""
        if isinstance(self.size, tuple):
            return self.size
        return (self.size, self.size)

    def window(
        self, height: int, width: int, rng: np.random.Generator | None
    ) -> tuple[int, int, int, int]:
        """Return (top, left, height, width) of the crop; centered if ``rng`` is None."""
        if rng is None:
            ratio = 1.0
            if isinstance(self.size, tuple):
                ratio = self.size[1] / self.size[0]
            return _largest(height, width, ratio, self.evaluation)
        return self.draw_window(height, width, rng) or self.fallback_window(height, width)

    def fallback_window(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Return the largest window of an allowed ratio, used if no draw fits."""
        low, high = self.ratio
        ratio = min(max(width / height, low), high)
        return _largest(height, width, ratio, 1.0)


@dataclass(frozen=True, config=base.FORBID)
class CenterCrop(_Crop):
    """Crop a window at the center of the image."""

    size: base.Size

    is_random: ClassVar[bool] = False

    def position(
        self, height: int, width: int, rng: np.random.Generator | None = None
    ) -> tuple[int, int]:
        """Return (top, left) of the crop; see :meth:`RandomCrop.position`."""
        room_y, room_x = _room(height, width, self.size, 0)
        return room_y // 2, room_x // 2


@dataclass(frozen=True, config=base.FORBID)
class Flip(base.MovesPixels):
    """Flip the image with probability one half, in each of the chosen directions."""

    horizontal: Annotated[
        base.Switch, Field(description="true if left and right may be swapped, or false")
    ] = False
    vertical: Annotated[
        base.Switch, Field(description="true if top and bottom may be swapped, or false")
    ] = False

    is_random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (self.horizontal or self.vertical):
            raise ValueError("needs horizontal: true, vertical: true, or both")

    def apply(self, image: np.ndarray, rng: np.random.Generator, training: bool) -> np.ndarray:
        """Flip an image, (height, width, channels), possibly."""
        if not training:
            return image
        base.channels(image, self)
        flip_x, flip_y = self.draw(rng)
        if flip_x:
            image = _mirror(image)
        if flip_y:
            return image[::-1]
        return image

    def draw(self, rng: np.random.Generator) -> tuple[bool, bool]:
        """Draw two booleans: swap left and right, swap top and bottom."""
        return self.horizontal and rng.random() < 0.5, self.vertical and rng.random() < 0.5

    def move(self, mask: base.Mask, rng: np.random.Generator, training: bool) -> np.ndarray:
        """Flip a mask with its image."""
        return self.apply(mask.pixels[:, :, None], rng, training)[:, :, 0]


@dataclass(frozen=True, config=base.FORBID)
class Rotate(base.MovesPixels):
    """Rotate the image about its center by a uniformly random angle; new corners are black."""

    degrees: Annotated[
        float, Field(strict=True, gt=0, le=180, description="largest angle, above 0, at most 180")
    ]

    is_random: ClassVar[bool] = True

    def apply(self, image: np.ndarray, rng: np.random.Generator, training: bool) -> np.ndarray:
        """Rotate an image, (height, width, 1 or 3) uint8."""
        if training:
            return self.turn(image, self._angle(rng))
        return image

    def move(self, mask: base.Mask, rng: np.random.Generator, training: bool) -> np.ndarray:
        """Rotate a mask with its image; new corners are ignored."""
        if not training:
            return mask.pixels
        # Pillow rotates int32 exactly, whatever the classes are.
        turned = Image.fromarray(mask.pixels.astype(np.int32)).rotate(
            self._angle(rng), Image.Resampling.NEAREST, fillcolor=mask.void
        )
        return np.asarray(turned).astype(mask.pixels.dtype)

    def _angle(self, rng: np.random.Generator) -> float:
        return (2 * rng.random() - 1) * self.degrees

    def turn(self, image: np.ndarray, degrees: float) -> np.ndarray:
        """Rotate an image by an angle, counter-clockwise."""
        return to_array(base.as_image(image, self).rotate(degrees, Image.Resampling.BILINEAR))


def _room(height: int, width: int, size: tuple[int, int], padding: int) -> tuple[int, int]:
    """Return how far a window can move down and to the right, in pixels."""
    room = height + 2 * padding - size[0], width + 2 * padding - size[1]
    if min(room) < 0:
        raise UnreadableImage(
            f"of {height} x {width} pixels is too small to crop {size[0]} x {size[1]} from; "
            "resize before the crop"
        )
    return room


def _largest(height: int, width: int, ratio: float, share: float) -> tuple[int, int, int, int]:
    """Return (top, left, height, width) of the largest centered window of a ratio, scaled."""
    h = min(height, width / ratio) * share
    w = min(width, height * ratio) * share
    rows = max(1, round(h))
    columns = max(1, round(w))
    return (height - rows) // 2, (width - columns) // 2, rows, columns


def _mirror(image: np.ndarray) -> np.ndarray:
    """Swap left and right channel by channel, which NumPy copies four times as fast."""
    mirrored = np.empty(image.shape, image.dtype)
    for channel in range(image.shape[2]):
        mirrored[:, :, channel] = image[:, ::-1, channel]
    return mirrored


def nearest(size: int | np.ndarray, to: int) -> np.ndarray:
    """Return the nearest of ``size`` input pixels for each of ``to``, (..., to) int64."""
    centers = (np.arange(to) + 0.5) * size / to
    return np.minimum(centers, size - 1).astype(np.int64)
