"""What one sample is, to everything behind the transforms: the stream, the engines, the checkpoints.

Rank 0 finds it out once (:mod:`preprocess.probe`) and sends it to all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from preprocess.base import InputError
from preprocess.scaling import along_row, scale_into
from preprocess.target import TargetSpec, class_target

FLOAT32_LIMIT = (
    4096  # deviations between the mean of numbers and 0 from which on float32 loses what differs
)
CROP_BYTES = 16  # of where the pixels of a sample go, of which something is left to the device


def wire_dtype(dtype: np.dtype) -> np.dtype:
    """The type with which numbers travel: those with a fraction as float32, truth values as uint8.

    It is always in the byte order of this machine.
    """
    if dtype.kind == "b":
        return np.dtype(np.uint8)
    if dtype.kind == "f":
        return np.dtype(np.float32)
    return dtype.newbyteorder("=")


@dataclass(frozen=True)
class ImageSpec:
    """The shape and the type of the input of a sample: an image, or any other array of numbers.

    Attributes:
        shape: (height, width, channels) of an image; of other inputs any.
        dtype: a numpy type name.
    """

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, image: np.ndarray) -> ImageSpec:
        """An array as it travels: numbers with a fraction as float32."""
        return cls(image.shape, str(wire_dtype(image.dtype)))

    def as_float64(self) -> ImageSpec:
        """The same with numbers that have a fraction as float64."""
        if self.dtype == "float32":
            return replace(self, dtype="float64")
        return self

    @property
    def size(self) -> int:
        """Numbers in it."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return self.size * np.dtype(self.dtype).itemsize

    def random_inputs(self, random: np.random.Generator, rows: int) -> np.ndarray:
        """Make up inputs that networks of such data take: (rows, ...) of this type.

        Whole numbers that are no image may be those of tokens or categories, of which there are two at least.
        """
        shape = (rows, *self.shape)
        if np.issubdtype(self.dtype, np.integer):
            values = 256 if len(self.shape) == 3 else 2
            return random.integers(0, values, shape).astype(self.dtype)
        return random.random(shape, np.float32)

    def __str__(self) -> str:
        return f"{' x '.join(map(str, self.shape)) or 'a number,'} {self.dtype}"


@dataclass(frozen=True)
class Affine:
    """(x / unit - mean) / std as ``x * multiplier + offset``, one rounding each, on any engine.

    Attributes:
        precise: whether it is computed in float64, because float32 cannot tell the numbers apart.

    >>> Affine(mean=0.5, std=0.5).apply(np.array([[[0], [255]]], np.uint8)).ravel()
    array([-1.,  1.], dtype=float32)
    """

    mean: float | tuple[float, ...]
    std: float | tuple[float, ...]
    unit: float = 255.0
    precise: bool = field(default=False, repr=False)

    @property
    def dtype(self) -> np.dtype:
        """The type in which it is computed; what comes out is float32."""
        return np.dtype(np.float64 if self.precise else np.float32)

    @property
    def precision(self) -> float:
        """How many times the deviation lies between the mean and 0, at most: what float32 loses of it."""
        return float(np.max(np.abs(np.asarray(self.mean) / np.asarray(self.std)), initial=0.0))

    @cached_property
    def multiplier(self) -> np.ndarray:
        """A scalar or one number for each channel, of the type :attr:`dtype`."""
        return (1 / (self.unit * np.asarray(self.std, np.float64))).astype(self.dtype)

    @cached_property
    def offset(self) -> np.ndarray:
        """A scalar or one number for each channel, of the type :attr:`dtype`."""
        return (-np.asarray(self.mean, np.float64) / np.asarray(self.std, np.float64)).astype(
            self.dtype
        )

    def split_shift(self) -> tuple[np.ndarray, Affine]:
        """Split it into a shift that float32 holds, to be subtracted in float64, and the rest, for float32."""
        mean = np.asarray(self.mean, np.float64)
        shift = (mean * self.unit).astype(np.float32).astype(np.float64)
        remainder = (mean - shift / self.unit).tolist()
        return shift, replace(
            self, mean=tuple(remainder) if isinstance(remainder, list) else remainder, precise=False
        )

    def check(self, channels: int) -> None:
        """See that it fits images of so many channels.

        Raises:
            InputError: it has numbers for another number of them.
        """
        numbers = np.broadcast(self.multiplier, self.offset).size
        if numbers not in (1, channels):
            raise InputError(
                f"scale: {numbers} numbers, one for each channel, but samples have {channels} channels"
            )

    def along_row(self, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Multiplier and offset of a whole row of so many pixels; see :func:`preprocess.scaling.along_row`."""
        return along_row(self.multiplier, self.offset, width)

    def apply(self, images: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Scale images (..., height, width, channels) to float32; into ``out`` where it is given."""
        scaled = np.empty(images.shape, np.float32) if out is None else out
        if self.precise:
            np.copyto(scaled, images * self.multiplier + self.offset, casting="same_kind")
            return scaled
        scale_into(scaled, images, self.multiplier, self.offset)
        return scaled


@dataclass(frozen=True)
class SampleSpec:
    """What networks are fed with, and what they are to answer.

    Attributes:
        image: an input after the transforms, as networks take it; most often an image.
        classes: the number of classes; of other targets that of labels or values. A network has so many outputs.
        affine: what the engine does to an input first; None for nothing.
        stored: an input up to the first random transform, where samples are decoded once and kept so.
        target: what a sample's target is; a class unless it is given.
        folds: what the engine does first to an input of a network of each fold, where that differs.
        per_pipeline: what networks are fed with for which more is done to it, or something else, by the key of their feed.
        deferred_input: an input as it is before what is left to the device; None where nothing is.
    """

    image: ImageSpec
    classes: int
    affine: Affine | None = None
    stored: ImageSpec | None = None
    target: TargetSpec = None  # type: ignore[assignment]  # filled in below
    folds: tuple[Affine, ...] = ()
    per_pipeline: Mapping[str, SampleSpec] = field(default_factory=dict, hash=False)
    deferred_input: ImageSpec | None = None

    def __post_init__(self) -> None:
        if self.target is None:
            object.__setattr__(self, "target", class_target(self.classes))

    def for_pipeline(self, pipeline: str, fold: int | None = None) -> SampleSpec:
        """What the networks of a feed are fed with, or those of a fold of it: this, where no other is known."""
        spec = self.per_pipeline.get(pipeline, self)
        if fold is not None and spec.folds:
            return replace(spec, affine=spec.folds[fold], folds=())
        return spec

    def as_float64(self) -> SampleSpec:
        """The same sample, whose numbers travel as float64 where they have a fraction."""
        stored = None if self.stored is None else self.stored.as_float64()
        return replace(self, image=self.image.as_float64(), stored=stored)

    @property
    def wire(self) -> ImageSpec:
        """An input as it travels to the trainers: a row of bytes, where something is left to the device."""
        if self.deferred_input is None:
            return self.image
        return ImageSpec((self.deferred_input.nbytes + CROP_BYTES,), "uint8")

    @property
    def stored_target(self) -> TargetSpec:
        """The target of a sample that is kept: a mask then has the size of its image."""
        if self.target.kind != "mask" or self.stored is None:
            return self.target
        height, width = self.stored.shape[:2]
        return replace(self.target, size=(height, width))

    def identity(self) -> dict[str, Any]:
        """All of it that a network depends on, in the form that fingerprints of checkpoints are made from."""
        affine: dict[str, Any] | None = None
        if self.affine is not None:
            unit = {} if self.affine.unit == 255 else {"unit": self.affine.unit}
            affine = {"mean": self.affine.mean, "std": self.affine.std, **unit}
            if self.affine.precise:
                affine["precise"] = True
        return {
            "shape": self.image.shape,
            "dtype": self.image.dtype,
            "classes": self.classes,
            "affine": affine,
            **self.target.identity(),
        }
