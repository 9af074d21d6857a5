"""The results of several lists of transforms for one file, packed into one row.

Networks that share no transform can still share reading a file, and decoding it to one size. Shared
memory has one row for each sample: it holds the result of each list before its first random
transform.
"""

from __future__ import annotations

import dataclasses
import math
from itertools import accumulate
from typing import ClassVar

import numpy as np

from preprocess.base import UnreadableImage
from preprocess.transforms.base import LeavesPixels, Transform
from preprocess.transforms.decoding import Decode


@dataclasses.dataclass(frozen=True)
class PackedSlice(LeavesPixels):
    """The part of a row that belongs to one list.

    Args:
        start: its first number.
        shape: the shape of the result.
    """

    start: int
    shape: tuple[int, ...]

    is_random: ClassVar[bool] = False

    def apply(
        self, image: np.ndarray, rng: np.random.Generator | None = None, training: bool = True
    ) -> np.ndarray:
        """Take the slice of a row, or of several (..., numbers); return (..., *shape)."""
        piece = image[..., self.start : self.start + math.prod(self.shape)]
        return piece.reshape(*image.shape[:-1], *self.shape)


@dataclasses.dataclass(frozen=True)
class PackedVariants(LeavesPixels):
    """Apply several lists of transforms to the bytes of an image file, or to an array.

    Args:
        lists: lists of transforms, none of them random, the first of each a :class:`Decode`.
        shapes: the shapes of their results.
    """

    lists: tuple[tuple[Transform, ...], ...]
    shapes: tuple[tuple[int, ...], ...]

    is_random: ClassVar[bool] = False

    def apply(
        self,
        image: bytes | np.ndarray,
        rng: np.random.Generator | None = None,
        training: bool = True,
    ) -> np.ndarray:
        """Return the row of a sample, (numbers,); each size is decoded once.

        Raises:
            UnreadableImage: it cannot be decoded, or has another size than the others if that
                matters.
        """
        rng = rng or np.random.default_rng(0)
        decoded = dict[tuple[str, int, int], np.ndarray]()
        variants = []
        for (first, *further), shape in zip(self.lists, self.shapes, strict=True):
            assert isinstance(first, Decode)
            how = first.mode, first.bits, first.reduction(image)
            if how not in decoded:
                decoded[how] = first.apply(image)
            result = decoded[how]
            for transform in further:
                result = transform.apply(result, rng, training)
            if result.shape != shape:
                raise UnreadableImage(
                    f"is {' x '.join(map(str, result.shape))} before the first random transform; "
                    f"the others are {' x '.join(map(str, shape))}"
                )
            variants.append(result.ravel())
        return np.concatenate(variants)

    def slices(self) -> tuple[PackedSlice, ...]:
        """Return where in a row each list's result is."""
        ends = accumulate(map(math.prod, self.shapes), initial=0)
        return tuple(map(PackedSlice, ends, self.shapes))
