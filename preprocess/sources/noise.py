"""Synthetic data: small images of noise, for runs whose networks are emulated."""

from __future__ import annotations

import numpy as np

from launch.errors import InputError
from preprocess.base import RandomAccess

_IMAGES = 256  # distinct images; more would take longer to send to all ranks


class Noise(RandomAccess):
    """Images of noise, whose classes take turns.

    Args:
        samples: their number.
        classes: their number.
        size: the size of a side, in pixels.
    """

    def __init__(self, samples: int, classes: int, size: int) -> None:
        self.classes = tuple(f"class {label}" for label in range(classes))
        self.labels = np.arange(samples) % classes
        rng = np.random.default_rng(0)
        self._images = rng.integers(0, 256, (_IMAGES, size, size, 1), np.uint8)

    def read(self, index: int) -> np.ndarray:
        """Return an image, (size, size, 1) uint8; see :class:`~preprocess.base.Source`."""
        return self._images[index % _IMAGES]

    def name(self, index: int) -> str:
        """Return a sample's name; see :class:`~preprocess.base.Source`."""
        return f"noise {index}"


def open_noise(
    path: str | None = None,
    samples: int = 1000,
    validation: int = 0,
    classes: int = 10,
    size: int = 8,
) -> tuple[Noise, Noise | None]:
    """Open ``samples`` training and ``validation`` validation samples.

    Raises:
        InputError: a number is not an integer, or too small.
    """
    for name, value, minimum in (
        ("samples", samples, 1),
        ("validation", validation, 0),
        ("classes", classes, 2),
        ("size", size, 1),
    ):
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise InputError(
                f"builtin:noise: {name}: {value} should be a whole number from {minimum}"
            )
    return Noise(samples, classes, size), Noise(validation, classes, size) if validation else None
