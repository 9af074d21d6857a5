"""Numbers of any size to numbers about 0, by what the training samples are like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from preprocess.base import InputError
from preprocess.transforms.base import FORBID, LeavesPixels


@dataclass(frozen=True, config=FORBID)
class Standardize(LeavesPixels):
    """Numbers to numbers of mean 0 and standard deviation 1 over the training samples: (x - mean) / deviation, float32.

    Always the last transform; for tables and arrays. Networks do it themselves, so it is exported with them.
    """

    per: Annotated[Literal["feature", "array"], Field(
        description="feature: a mean and a deviation for each place in the last axis of a sample, such as a column of "
                    "a table; array: one of each for all numbers")] = "feature"

    is_random: ClassVar[bool] = False

    def apply(self, image: np.ndarray, rng: np.random.Generator, training: bool) -> np.ndarray:
        """Nothing: whoever knows the training samples takes it from the end of a list."""
        raise InputError("standardize must come last")

    def features(self, shape: Sequence[int]) -> int:
        """How many means there are of samples of a shape."""
        return shape[-1] if self.per == "feature" and shape else 1
