"""Functions of the user's own as transforms."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from preprocess.base import BadImage, import_function


@dataclasses.dataclass(frozen=True)
class UserTransform:
    """A function of the user's, named by its import path.

    Args:
        path: ``module:function``; the function takes (image, rng, training) and ``parameters``.
        parameters: passed by name.
    """

    path: str
    parameters: dict[str, Any] = dataclasses.field(default_factory=dict)

    is_random: ClassVar[bool] = True  # nobody knows

    @cached_property
    def function(self) -> Any:
        """The function itself."""
        return import_function(self.path, "transform")

    def apply(self, image: np.ndarray, rng: np.random.Generator, training: bool) -> np.ndarray:
        """What the user's function makes of it."""
        try:
            # A copy, for the function may write into it.
            return self.function(np.array(image), rng, training, **self.parameters)
        except BadImage:
            raise
        except Exception as error:
            error.add_note(f"in the transform {self.path}")
            raise
