"""User-defined functions as transforms."""

from __future__ import annotations

import dataclasses
import inspect
import zlib
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from launch.errors import InputError
from preprocess.base import UnreadableImage, as_array
from preprocess.import_path import import_function
from preprocess.transforms.base import Mask
from preprocess.user_code import UserCode, exclusive_generators, seed_generators


@dataclasses.dataclass(frozen=True)
class UserTransform:
    """A user-defined function, named by its import path.

    If samples have masks, only the function knows whether it moves pixels. So it also receives
    ``mask``, (height, width) integers, and returns image and mask; a function without this
    parameter is refused.

    Args:
        path: ``module:function``; the function takes (image, rng, training) and ``parameters``.
        parameters: passed by name.
    """

    path: str
    parameters: dict[str, Any] = dataclasses.field(default_factory=dict)

    is_random: ClassVar[bool] = True  # unknown, so assumed

    @cached_property
    def function(self) -> Any:
        """The imported function."""
        with self._code.running():
            return import_function(self.path, "transform")

    def check(self) -> None:
        """Check that the function accepts its arguments.

        Raises:
            InputError: it takes other parameters.
        """
        function = self.function
        try:
            mask = {"mask": None} if self._takes_masks else {}
            inspect.signature(function).bind(None, None, None, **mask, **self.parameters)
        except TypeError as error:
            raise InputError(
                f"transform {self.path}: {error}; it should take (image, rng, training), and by "
                "name what the spec gives it"
            ) from None
        except ValueError:  # a C function without a signature
            pass

    @cached_property
    def _code(self) -> UserCode:
        return UserCode(keeps_rng_state=False)

    def __getstate__(self) -> dict[str, Any]:
        """Omit the function: each rank imports its module itself."""
        return {"path": self.path, "parameters": self.parameters}

    def apply(self, image: np.ndarray, rng: np.random.Generator, training: bool) -> np.ndarray:
        """Call the function on an image, (height, width, channels) or (...)."""
        return self._array(self._call(image, rng, training))

    def apply_with_mask(
        self, image: np.ndarray, mask: Mask, rng: np.random.Generator, training: bool
    ) -> tuple[np.ndarray, Mask]:
        """Call the function on an image and its mask.

        Raises:
            InputError: it takes no mask, or does not return one.
        """
        if not self._takes_masks:
            raise InputError(
                f"transform {self.path}: samples have masks, and it takes none; it should have a "
                "parameter mask, (height, width) integers, and return (image, mask)"
            )
        result = self._call(image, rng, training, mask=np.array(mask.pixels))
        if not (isinstance(result, tuple) and len(result) == 2):
            raise InputError(
                f"transform {self.path}: it should return (image, mask) where samples have masks, "
                f"not {type(result).__name__}"
            )
        return self._array(result[0]), dataclasses.replace(mask, pixels=self._array(result[1]))

    def _array(self, value: Any) -> np.ndarray:
        return as_array(value, f"transform {self.path}", "a NumPy array")

    @cached_property
    def _takes_masks(self) -> bool:
        kinds = inspect.Parameter
        parameters = inspect.signature(self.function).parameters.values()
        return any(
            parameter.name == "mask" or parameter.kind is kinds.VAR_KEYWORD
            for parameter in parameters
        )

    def _call(
        self, image: np.ndarray, rng: np.random.Generator, training: bool, **mask: np.ndarray
    ) -> Any:
        function = self.function
        try:
            with exclusive_generators(), self._code.running(quick=True):
                if rng is not None:  # fixed transforms draw nothing
                    seed_generators(_seed_of(rng))
                # A copy, because the function may write into it.
                return function(np.array(image), rng, training, **mask, **self.parameters)
        except UnreadableImage:
            raise
        except Exception as error:
            error.add_note(f"in the transform {self.path}")
            raise


def _seed_of(rng: np.random.Generator) -> int:
    """Derive a seed from a generator's state without drawing from it."""
    state: Any = rng.bit_generator.state["state"]
    states = [
        value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
        for value in state.values()
    ]
    return zlib.crc32(b"".join(states))
