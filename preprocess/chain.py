"""A source with its transforms, one sample at a time: from an index to a network's input.

Random transforms draw from a generator keyed by (seed, stream epoch, sample index) and by nothing
else. So it does not matter which process prepares a sample, when, or next to which others.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from launch.errors import InputError, pluralize
from preprocess.base import AUGMENT, Source, UnreadableImage, UnreadableSample, read_input
from preprocess.batches import BatchWork, apply_batch
from preprocess.sample import Affine, wire_dtype
from preprocess.target import is_mask, read_mask, target_of
from preprocess.transforms import Transform
from preprocess.transforms.base import Mask
from preprocess.transforms.color import Scale, Standardize
from preprocess.transforms.decoding import Decode, with_full_decoding
from preprocess.transforms.on_device import OnDevice
from preprocess.transforms.packed_variants import PackedVariants
from preprocess.user_code import UserCode, running_user_code


class PreparedSample(NamedTuple):
    """The arrays that transforms work on.

    Attributes:
        input: the input: (height, width, channels), or an array of any other shape.
        mask: (height, width) integers if targets are masks; else None.
    """

    input: np.ndarray
    mask: np.ndarray | None = None


class Chain:
    """The transforms of a source in two parts: fixed transforms, and transforms that vary by epoch.

    Args:
        source: the source of the samples.
        transforms: the transforms, in order. A :class:`Scale` or :class:`Standardize` at the end is
            left to the trainers.
        seed: the seed of the random transforms.
        fixed: how many of the first transforms are fixed; None for all before the first random one.
        draws: the purpose of the random numbers; inputs of a sample that have the same move alike.

    Attributes:
        affine: the scaling that trainers apply to inputs first; None if there is none.
        is_precise: True if floating-point numbers stay float64.
    """

    def __init__(
        self,
        source: Source,
        transforms: Sequence[Transform],
        seed: int,
        fixed: int | None = None,
        draws: int = AUGMENT,
    ) -> None:
        self.source = source
        transforms, scale = split_scale(transforms)
        self.affine = affine_of(scale)
        self.is_precise = self.affine is not None and self.affine.precise
        self._masks = None
        if is_mask(source):
            self._masks = target_of(source).mask
            transforms = with_full_decoding(transforms)
        self._fixed, self._varying = split_transforms(transforms, fixed)
        self._seed = seed
        self._draws = draws
        self._random = _Generators(seed, draws)
        self._code = user_code_of(source)

    @property
    def is_random(self) -> bool:
        """True if a sample may differ from epoch to epoch."""
        return bool(self._varying)

    @property
    def has_host_work(self) -> bool:
        """True if a prepared sample needs more than draws for the device."""
        return not all(isinstance(transform, OnDevice) for transform in self._varying)

    @property
    def varying_count(self) -> int:
        """The number of transforms that vary by epoch."""
        return len(self._varying)

    @property
    def is_raw(self) -> bool:
        """True if the fixed part is only reading."""
        return not self._fixed

    @property
    def has_early_scale(self) -> bool:
        """True if the fixed part converts pixels to floating point."""
        return any(isinstance(transform, Scale) for transform in self._fixed)

    def prepare(self, index: int) -> PreparedSample:
        """Read a sample and apply the fixed transforms: the part worth caching.

        Raises:
            UnreadableSample: it cannot be read or decoded.
            InputError: the source has fewer samples than it says, or the transforms do not fit.
        """
        try:
            with running_user_code(self._code, quick=True):
                data = read_input(self.source, index)
            if self._masks is None:
                mask = None
            else:
                mask = read_mask(self.source, index, self._masks)
        except IndexError as error:
            raise InputError(
                f"the source says that it has {pluralize(len(self.source), 'sample')}, and has "
                f"none at {index}: {error}"
            ) from error
        try:
            return self._fix(data, mask)
        except UnreadableImage as error:
            raise UnreadableSample(self.source.name(index), str(error)) from error

    def augment(
        self, sample: PreparedSample, index: int, epoch: int, training: bool = True
    ) -> PreparedSample:
        """Apply the transforms that vary by epoch to a prepared sample.

        Args:
            sample: the result of :meth:`prepare`.
            index: the index of the sample.
            epoch: the epoch of the stream.
            training: False for evaluation: no randomness, center crops.

        Raises:
            UnreadableSample: a transform cannot be applied to it.
        """
        if not self._varying:
            return sample
        try:
            return self._apply(self._varying, sample, self._random.at(epoch, index), training)
        except UnreadableImage as error:
            raise UnreadableSample(self.source.name(index), str(error)) from error

    def augment_batch(
        self,
        kernels: Any,
        inputs: np.ndarray | Sequence[np.ndarray],
        masks: np.ndarray | Sequence[np.ndarray] | None,
        indices: np.ndarray,
        epoch: int,
        training: bool,
    ) -> tuple[BatchWork, int]:
        """Apply the varying transforms to samples of one shape, as far as batches support them.

        Args:
            kernels: the module :mod:`preprocess.kernels`.
            inputs: (k, ...), of what :meth:`prepare` returned.
            masks: (k, height, width); None without masks.
            indices: (k,) integers, the samples.
            epoch: the epoch of the stream.
            training: False for evaluation.

        Returns:
            The batch, and the number of transforms applied; :meth:`finish_sample` applies the
            others.
        """
        void = 0 if self._masks is None else self._masks.void
        return apply_batch(
            self._varying,
            kernels,
            np.asarray(inputs),
            None if masks is None else np.asarray(masks),
            void,
            (self._seed, self._draws),
            epoch,
            indices,
            training,
        )

    def finish_sample(
        self, batch: tuple[BatchWork, int], row: int, index: int, epoch: int, training: bool
    ) -> PreparedSample:
        """Apply the remaining transforms to one sample of a batch; see :meth:`augment`.

        Args:
            batch: the result of :meth:`augment_batch`.
            row: the row of the sample in the batch.
            index: the index of the sample.
            epoch: the epoch of the stream.
            training: False for evaluation.
        """
        work, done = batch
        work.apply_pending()
        rng = self._random.at(epoch, index)
        rng.random(int(work.draw_counts[row]))  # skip the numbers already drawn
        sample = PreparedSample(work.images[row], None if work.masks is None else work.masks[row])
        try:
            return self._apply(self._varying[done:], sample, rng, training)
        except UnreadableImage as error:
            raise UnreadableSample(self.source.name(index), str(error)) from error

    def _fix(self, data: bytes | np.ndarray, mask: np.ndarray | None) -> PreparedSample:
        transforms = self._fixed
        array = data
        if isinstance(array, np.ndarray):
            array = _as_numbers(array, self.is_precise)
        if transforms and isinstance(transforms[0], Decode | PackedVariants):
            array = transforms[0].apply(array)
            transforms = transforms[1:]
        if isinstance(array, bytes):
            raise InputError(
                "transforms: the source holds encoded image files, so the first must be decode"
            )
        if mask is not None and mask.shape != array.shape[:2]:
            raise UnreadableImage(
                f"is {' x '.join(map(str, array.shape[:2]))} pixels, and its mask "
                f"{' x '.join(map(str, mask.shape))}"
            )
        return self._apply(transforms, PreparedSample(array, mask), self._random.generator, True)

    def _apply(
        self,
        transforms: Sequence[Transform],
        sample: PreparedSample,
        rng: np.random.Generator,
        training: bool,
    ) -> PreparedSample:
        array = sample.input
        if self._masks is None or sample.mask is None:
            for transform in transforms:
                array = transform.apply(array, rng, training)
            return PreparedSample(array)
        mask = Mask(sample.mask, self._masks.void)
        for transform in transforms:
            array, mask = transform.apply_with_mask(array, mask, rng, training)
        return PreparedSample(array, mask.pixels)


def user_code_of(source: Any) -> UserCode | None:
    """Return the user code that a source runs; None for a built-in source.

    A source with ``restores_settings`` calls the user code of another in a context of its own.
    """
    if getattr(source, "restores_settings", False):
        return None
    while isinstance(inner := getattr(source, "source", None), Source):
        source = inner
    module = type(source).__module__
    if module.startswith("preprocess."):
        return None
    return UserCode(module)


def _as_numbers(array: np.ndarray, is_precise: bool) -> np.ndarray:
    """Convert an array of a source to the dtype in which it travels.

    Args:
        array: an array of any shape.
        is_precise: True to keep floating-point numbers as float64.

    Raises:
        UnreadableImage: it holds something else than finite numbers.
    """
    if array.dtype.kind not in "fiub":
        raise UnreadableImage(f"is an array of {array.dtype}, not of numbers")
    is_double = is_precise and array.dtype.kind == "f"
    numbers = array.astype(np.float64 if is_double else wire_dtype(array.dtype), copy=False)
    if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
        raise UnreadableImage("has a number that is NaN or infinite")
    return numbers


class _Generators(threading.local):
    """One random generator per thread, set to any (epoch, index) in under 2 microseconds.

    It is thread-local: a generator set by another thread between two draws would continue with that
    thread's numbers. Philox turns a 128-bit key and a 256-bit counter into random bits. The key is
    the seed and the purpose; each sample of each epoch has 2**128 values of the counter to itself.
    """

    def __init__(self, seed: int, draws: int = AUGMENT) -> None:
        self._key = np.array([seed, draws], np.uint64)
        self._philox = np.random.Philox(key=self._key)
        self._buffer = np.zeros(4, np.uint64)
        self.generator = np.random.Generator(self._philox)

    def at(self, epoch: int, index: int) -> np.random.Generator:
        """Set the generator to the start of a sample's stream and return it."""
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
    """Return what trainers do first; a neutral Affine for Standardize, which needs the data."""
    if isinstance(scale, Standardize):
        return Affine(0.0, 1.0, 1.0)
    if scale is None:
        return None
    return scale.affine


def split_scale(
    transforms: Sequence[Transform],
) -> tuple[tuple[Transform, ...], Scale | Standardize | None]:
    """Split off the scale at the end of the transforms, which trainers apply."""
    if transforms and isinstance(transforms[-1], Scale | Standardize):
        return tuple(transforms[:-1]), transforms[-1]
    return tuple(transforms), None


def count_common(lists: Sequence[Sequence[Transform]]) -> int:
    """Count the leading transforms that all lists share, before the first random one or scale.

    If lists differ only in a :class:`Scale` at their end, all others count, random ones too.
    """
    rests = [split_scale(transforms)[0] for transforms in lists]
    if all(heads == rests[0] for heads in rests):
        return len(rests[0])
    differing = (
        position
        for position, column in enumerate(zip(*rests, strict=False))
        if column.count(column[0]) < len(column)
    )
    return min(next(differing, len(rests[0])), *map(count_fixed, lists))


def count_fixed(transforms: Sequence[Transform]) -> int:
    """Count the transforms before the first random one or scale."""
    return next(
        (
            position
            for position, transform in enumerate(transforms)
            if transform.is_random or isinstance(transform, Scale | Standardize)
        ),
        len(transforms),
    )


def split_transforms(
    transforms: Sequence[Transform], fixed: int | None = None
) -> tuple[tuple[Transform, ...], tuple[Transform, ...]]:
    """Split transforms after the first ``fixed``, or before the first random one."""
    first = next(
        (i for i, transform in enumerate(transforms) if transform.is_random), len(transforms)
    )
    if fixed is not None:
        first = fixed
    return tuple(transforms[:first]), tuple(transforms[first:])
