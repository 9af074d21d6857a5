"""What several lists of transforms make of one file, side by side in one row.

Networks that have no transform in common can share the reading of a file all the same, and the decoding as far as it is
to the same size. Memory that is shared has one row for each sample: it holds what each list has come to before its
first random transform.
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
    """Takes from a row what one list has made.

    Args:
        start: where it begins.
        shape: of it.
    """

    start: int
    shape: tuple[int, ...]

    is_random: ClassVar[bool] = False

    def apply(
        self, image: np.ndarray, rng: np.random.Generator | None = None, training: bool = True
    ) -> np.ndarray:
        """The piece of a row, or of each of some rows (..., numbers)."""
        piece = image[..., self.start : self.start + math.prod(self.shape)]
        return piece.reshape(*image.shape[:-1], *self.shape)


@dataclasses.dataclass(frozen=True)
class PackedVariants(LeavesPixels):
    """Makes a row of the bytes of an image file, or of an array.

    Args:
        lists: of transforms, none of them random, the first of each a :class:`Decode`.
        shapes: of what each makes.
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
        """(numbers,); an image is decoded once for all that want it alike.

        Raises:
            BadImage: it cannot be decoded, or has another size than the others where that matters.
        """
        rng = rng or np.random.default_rng(0)
        decoded = dict[tuple[str, int, int], np.ndarray]()
        variants = []
        for (first, *further), shape in zip(self.lists, self.shapes, strict=True):
            assert isinstance(first, Decode)
            how = first.mode, first.bits, first.reduction(image)
            if how not in decoded:
                decoded[how] = first.apply(image)
            part = decoded[how]
            for transform in further:
                part = transform.apply(part, rng, training)
            if part.shape != shape:
                raise UnreadableImage(
                    f"is {' x '.join(map(str, part.shape))} before the first random transform; the others "
                    f"are {' x '.join(map(str, shape))}"
                )
            variants.append(part.ravel())
        return np.concatenate(variants)

    def slices(self) -> tuple[PackedSlice, ...]:
        """Where in a row what each list makes is."""
        ends = accumulate(map(math.prod, self.shapes), initial=0)
        return tuple(map(PackedSlice, ends, self.shapes))
