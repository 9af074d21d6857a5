"""From the bytes of an image file to an array."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from preprocess.decode import Enough as Enough
from preprocess.decode import Mode, decode, to_array
from preprocess.transforms.base import FORBID, LeavesPixels, as_image


@dataclass(frozen=True, config=FORBID)
class Decode(LeavesPixels):
    """The bytes of an image file to an array; always the first transform.

    Sources that hold arrays need no decoding. It only brings the channels of those that are images to its mode, and
    leaves arrays of another rank or type as they are.
    """

    mode: Annotated[Mode, Field(description="RGB, or L for greyscale with one channel")] = "RGB"

    is_random: ClassVar[bool] = False

    def apply(self, image: bytes | np.ndarray, rng: np.random.Generator | None = None, training: bool = True,
              at_least: Enough | None = None) -> np.ndarray:
        """Decode it, at a smaller size where ``at_least`` (height, width) is enough."""
        if isinstance(image, bytes):
            return decode(image, self.mode, at_least)
        is_image = image.ndim == 3 and image.dtype == np.uint8
        if not is_image or image.shape[2] == (3 if self.mode == "RGB" else 1):
            return image
        return to_array(as_image(image, self).convert(self.mode))
