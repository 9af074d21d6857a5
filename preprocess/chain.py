"""A source and its transforms, one sample at a time: from an index to an input of whatever shape comes out.

A sample's random transforms draw from a generator that is keyed by (seed, stream epoch, sample index) and by
nothing else. So it does not matter which process prepares a sample, or when, or next to which others.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np

from preprocess.base import (
    AUGMENT,
    InputError,
    Source,
    UnreadableImage,
    UnreadableSample,
    counted,
    read_input,
)
from preprocess.batches import Work, done
from preprocess.sample import Affine, wire_dtype
from preprocess.target import is_mask, read_mask, target_of
from preprocess.transforms import Transform
from preprocess.transforms.base import Mask
from preprocess.transforms.color import Scale, Standardize
from preprocess.transforms.decoding import Decode, decoded_whole
from preprocess.transforms.on_device import OnDevice
from preprocess.transforms.packed_variants import PackedVariants
from preprocess.user_code import UserCode


class Part(NamedTuple):
    """What the transforms work on.

    Attributes:
        image: the input: (height, width, channels), or an array of any other shape.
        mask: (height, width), where the targets are masks.
    """

    image: np.ndarray
    mask: np.ndarray | None = None


class Chain:
    """The transforms of a source, in two parts: what is the same in every epoch, and what is not.

    Args:
        source: where samples come from.
        transforms: what is done to them, in order. A :class:`Scale` at the end is left to the trainers, and so is a
            :class:`Standardize`.
        seed: of the random transforms.
        fixed: how many of the first transforms are the part that is the same in every epoch; None for all before the
            first random one.

    Attributes:
        affine: what the trainers do to an image first; None for nothing.
        is_precise: whether numbers with a fraction stay float64.
    """

    def __init__(
        self, source: Source, transforms: Sequence[Transform], seed: int, fixed: int | None = None
    ) -> None:
        self.source = source
        transforms, scale = split_scale(transforms)
        self.affine = affine_of(scale)
        self.is_precise = self.affine is not None and self.affine.precise
        self._masks = target_of(source) if is_mask(source) else None
        if self._masks is not None:
            transforms = decoded_whole(transforms)
        self._fixed, self._varying = split_transforms(transforms, fixed)
        self._seed = seed
        self._random = _Generators(seed)
        self._code = code_of(source)

    @property
    def is_random(self) -> bool:
        """Whether a sample may differ from epoch to epoch."""
        return bool(self._varying)

    @property
    def is_work(self) -> bool:
        """Whether more is done to a prepared sample than to draw what the device does to it."""
        return not all(isinstance(transform, OnDevice) for transform in self._varying)

    @property
    def varying(self) -> int:
        """How many transforms differ from epoch to epoch."""
        return len(self._varying)

    @property
    def is_raw(self) -> bool:
        """Whether nothing is done that is the same in every epoch, but reading."""
        return not self._fixed

    @property
    def scales_early(self) -> bool:
        """Whether the part that is the same in every epoch makes numbers with a fraction of pixels."""
        return any(isinstance(transform, Scale) for transform in self._fixed)

    def prepare(self, index: int) -> Part:
        """Read a sample and do what is the same in every epoch: the part worth caching.

        Raises:
            BadSample: it cannot be read or decoded.
        """
        try:
            with self._reading():
                data = read_input(self.source, index)
            if self._masks is None:
                mask = None
            else:
                mask = read_mask(self.source, index, self._masks)
        except IndexError as error:
            raise InputError(
                f"the source says that it has {counted(len(self.source), 'sample')}, and has none at "
                f"{index}: {error}"
            ) from error
        try:
            return self._fix(data, mask)
        except UnreadableImage as error:
            raise UnreadableSample(self.source.name(index), str(error)) from error

    def _reading(self) -> AbstractContextManager[None]:
        if self._code is None:
            return nullcontext()
        return self._code.running(quick=True)

    def vary(self, part: Part, index: int, epoch: int, training: bool = True) -> Part:
        """Do to a prepared sample what differs from epoch to epoch.

        Args:
            part: what :meth:`prepare` gives.
            training: false for evaluation: no randomness, centre crops.

        Raises:
            BadSample: a transform cannot be applied to it.
        """
        if not self._varying:
            return part
        try:
            return self._apply(self._varying, part, self._random.at(epoch, index), training)
        except UnreadableImage as error:
            raise UnreadableSample(self.source.name(index), str(error)) from error

    def begin(
        self,
        kernels: Any,
        images: np.ndarray | Sequence[np.ndarray],
        masks: np.ndarray | Sequence[np.ndarray] | None,
        indices: np.ndarray,
        epoch: int,
        training: bool,
    ) -> tuple[Work, int]:
        """Do to prepared samples of one shape what differs from epoch to epoch, as far as that can be at once.

        Args:
            images, masks: (k, ...) of what :meth:`prepare` gives.

        Returns:
            The samples, and how many transforms were done to them; :meth:`end` does the rest.
        """
        void = 0 if self._masks is None else self._masks.void
        return done(
            self._varying,
            kernels,
            np.asarray(images),
            None if masks is None else np.asarray(masks),
            void,
            self._seed,
            epoch,
            indices,
            training,
        )

    def end(
        self, begun: tuple[Work, int], row: int, index: int, epoch: int, training: bool
    ) -> Part:
        """Do the rest to one of these samples; see :meth:`vary`."""
        work, place = begun
        work.settle()
        rng = self._random.at(epoch, index)
        rng.random(int(work.used[row]))  # what was drawn
        part = Part(work.images[row], None if work.masks is None else work.masks[row])
        try:
            return self._apply(self._varying[place:], part, rng, training)
        except UnreadableImage as error:
            raise UnreadableSample(self.source.name(index), str(error)) from error

    def _fix(self, data: bytes | np.ndarray, mask: np.ndarray | None) -> Part:
        transforms = self._fixed
        image = data
        if isinstance(image, np.ndarray):
            image = _numbers(image, self.is_precise)
        if transforms and isinstance(transforms[0], Decode | PackedVariants):
            image = transforms[0].apply(image)
            transforms = transforms[1:]
        if isinstance(image, bytes):
            raise InputError(
                "transforms: the source holds encoded image files, so the first must be decode"
            )
        if mask is not None and mask.shape != image.shape[:2]:
            raise UnreadableImage(
                f"is {' x '.join(map(str, image.shape[:2]))} pixels, and its mask "
                f"{' x '.join(map(str, mask.shape))}"
            )
        return self._apply(transforms, Part(image, mask), self._random.generator, True)

    def _apply(
        self, transforms: Sequence[Transform], part: Part, rng: np.random.Generator, training: bool
    ) -> Part:
        image = part.image
        if self._masks is None or part.mask is None:
            for transform in transforms:
                image = transform.apply(image, rng, training)
            return Part(image)
        mask = Mask(part.mask, self._masks.void)
        for transform in transforms:
            image, mask = transform.apply_with_mask(image, mask, rng, training)
        return Part(image, mask.pixels)


def code_of(source: Any) -> UserCode | None:
    """The code of a source of the user's own; None of ours."""
    while isinstance(inner := getattr(source, "source", None), Source):
        source = inner
    module = type(source).__module__
    if module.startswith("preprocess."):
        return None
    return UserCode(module)


def _numbers(array: np.ndarray, is_precise: bool) -> np.ndarray:
    """An array that a source has given, of the type in which it travels.

    Args:
        is_precise: whether numbers with a fraction stay float64.

    Raises:
        BadImage: it holds no numbers, or one that is none.
    """
    if array.dtype.kind not in "fiub":
        raise UnreadableImage(f"is an array of {array.dtype}, not of numbers")
    is_double = is_precise and array.dtype.kind == "f"
    numbers = array.astype(np.float64 if is_double else wire_dtype(array.dtype), copy=False)
    if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
        raise UnreadableImage("has a number that is NaN or infinite")
    return numbers


class _Generators(threading.local):
    """A generator for each (epoch, index), at the cost of setting a counter (under 2 microseconds).

    Each thread has one of its own: one that was set by another between two draws would go on with that one's numbers.
    Philox turns a 128-bit key and a 256-bit counter into random bits. The key is the seed; each sample of
    each epoch has 2**128 values of the counter for itself.
    """

    def __init__(self, seed: int) -> None:
        self._key = np.array([seed, AUGMENT], np.uint64)
        self._philox = np.random.Philox(key=self._key)
        self._buffer = np.zeros(4, np.uint64)
        self.generator = np.random.Generator(self._philox)

    def at(self, epoch: int, index: int) -> np.random.Generator:
        """The one generator, set to the beginning of a sample's stream."""
        counter = np.array([0, 0, index, epoch], np.uint64)
        self._philox.state = {
            "bit_generator": "Philox",
            "state": {"counter": counter, "key": self._key},
            "buffer": self._buffer,
            "buffer_pos": 4,
            "has_uint32": 0,
            "uinteger": 0,
        }
        return self.generator


def affine_of(scale: Scale | Standardize | None) -> Affine | None:
    """What trainers do to an image first; one that leaves it as it is, where the training samples will tell."""
    if isinstance(scale, Standardize):
        return Affine(0.0, 1.0, 1.0)
    if scale is None:
        return None
    return scale.affine


def split_scale(
    transforms: Sequence[Transform],
) -> tuple[tuple[Transform, ...], Scale | Standardize | None]:
    """The transforms that preprocessors do, and what scales at the end, which is left to the trainers."""
    if transforms and isinstance(transforms[-1], Scale | Standardize):
        return tuple(transforms[:-1]), transforms[-1]
    return tuple(transforms), None


def common_part(lists: Sequence[Sequence[Transform]]) -> int:
    """How many transforms some lists have in common at their beginning, before the first random one or scale.

    Where they differ in a :class:`Scale` at their end alone, that is all others, random ones too.
    """
    rests = [split_scale(transforms)[0] for transforms in lists]
    if all(rest == rests[0] for rest in rests):
        return len(rests[0])
    alike = (
        place
        for place, found in enumerate(zip(*rests, strict=False))
        if found.count(found[0]) < len(found)
    )
    return min(next(alike, len(rests[0])), *map(fixed_part, lists))


def fixed_part(transforms: Sequence[Transform]) -> int:
    """How many transforms there are before the first random one or scale: what may be done once for several networks."""
    return next(
        (
            place
            for place, transform in enumerate(transforms)
            if transform.is_random or isinstance(transform, Scale | Standardize)
        ),
        len(transforms),
    )


def split_transforms(
    transforms: Sequence[Transform], fixed: int | None = None
) -> tuple[tuple[Transform, ...], tuple[Transform, ...]]:
    """The first ones, so many, or else those before the first random one; and the rest."""
    first = next(
        (i for i, transform in enumerate(transforms) if transform.is_random), len(transforms)
    )
    if fixed is not None:
        first = fixed
    return tuple(transforms[:first]), tuple(transforms[first:])
