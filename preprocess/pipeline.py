"""A source and its transforms: from indices to arrays of one shape and type.

A sample's random transforms draw from a generator that is keyed by (seed, stream epoch, sample index) and by
nothing else. So it does not matter which process prepares a sample, or when, or next to which others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from preprocess.base import AUGMENT, BadImage, BadSample, InputError, Source
from preprocess.transforms import Affine, Decode, Resize, Scale, Transform

PROBES = 8  # samples that are looked at before the start


class Pipeline:
    """Prepares the samples of a source.

    Args:
        source: where they come from.
        transforms: what is done to them, in order. A :class:`Scale` at the end is left to the trainers.
        seed: of the random transforms.

    Attributes:
        shape: (height, width, channels) of every prepared sample.
        dtype: uint8, or float32 where a transform makes it so.
        affine: what the trainers do to the samples first; None for nothing.

    Raises:
        InputError: no sample can be read, samples that differ in shape, or transforms that do not fit them.
    """

    def __init__(self, source: Source, transforms: Sequence[Transform], seed: int) -> None:
        self.source = source
        self.affine: Affine | None = None
        if transforms and isinstance(transforms[-1], Scale):
            self.affine = transforms[-1].affine
            transforms = transforms[:-1]
        self._fixed, self._varying = split_transforms(transforms)
        self._seed = seed
        self._random = _Generators(seed)
        self.shape, self.dtype = self._probe()
        if self.affine is not None:
            self.affine.check(self.shape[2])

    @property
    def samples(self) -> int:
        """How many the source has."""
        return len(self.source)

    def order(self, epoch: int) -> np.ndarray:
        """The permutation of the samples in one epoch of the stream."""
        return self.source.order(self._seed, epoch)

    @property
    def is_random(self) -> bool:
        """Whether a sample differs from epoch to epoch."""
        return bool(self._varying)

    def prepare(self, index: int) -> np.ndarray:
        """Read a sample and do what is the same in every epoch: the part worth caching.

        Raises:
            BadSample: it cannot be read or decoded.
        """
        try:
            data = self.source.read(index)
        except IndexError as error:
            raise InputError(f"the source says that it has {self.samples} samples, and has none at {index}: {error}"
                             ) from error
        try:
            return self._fix(data)
        except BadImage as error:
            raise BadSample(self.source.name(index), str(error)) from error

    def prepared_shape(self) -> tuple[int, ...]:
        """The shape of all prepared samples, judged by a few that are spread over the source.

        Raises:
            InputError: they differ, or are not uint8: these cannot be kept.
        """
        found = [(self.source.name(index), image) for index, image in self._some(self.prepare)]
        for name, image in found:
            if image.dtype != np.uint8:
                raise InputError(f"{name} is {_describe(image)} before the first random transform; only uint8 is kept")
            if image.shape != found[0][1].shape:
                raise InputError(f"{found[0][0]} is {_describe(found[0][1])} and {name} {_describe(image)} before the "
                                 "first random transform; a resize or a crop before it would make them one")
        return found[0][1].shape

    def keep(self, indices: Iterable[int], images: np.ndarray, labels: np.ndarray) -> list[BadSample]:
        """Do the part that is worth keeping: the same as :meth:`load`, up to the first random transform."""
        return self._each(indices, self.prepare, images, labels)

    def finish_kept(self, kept: np.ndarray, kept_labels: np.ndarray, indices: np.ndarray, epoch: int,
                    images: np.ndarray, labels: np.ndarray) -> list[BadSample]:
        """Do the rest to samples that :meth:`keep` has left; what it could not use stays marked, and is not told again.

        Args:
            kept, kept_labels: (k, ...) and (k,).
            indices: (k,) of the source.
            epoch, images, labels: as in :meth:`load`.
        """
        if not self._varying:
            images[:], labels[:] = kept, kept_labels
            return []
        images[kept_labels < 0] = 0
        labels[:] = kept_labels
        usable = np.flatnonzero(kept_labels >= 0)
        bad = []
        for position in usable.tolist():
            try:
                images[position] = self.finish(kept[position], int(indices[position]), epoch)
            except BadSample as error:
                error.position = position
                images[position], labels[position] = 0, -1
                bad.append(error)
        return bad

    def finish(self, image: np.ndarray, index: int, epoch: int, training: bool = True) -> np.ndarray:
        """Do to a prepared sample what differs from epoch to epoch, and check its shape.

        Raises:
            BadSample: a transform cannot be applied to it, or it has another shape or type than the others.
        """
        image = self._vary(image, index, epoch, training)
        if image.shape != self.shape or _wire_dtype(image.dtype) != self.dtype:
            raise BadSample(self.source.name(index), f"is {_describe(image)}; the others are "
                                                     f"{' x '.join(map(str, self.shape))} {self.dtype}")
        return image

    def load(self, indices: Iterable[int], epoch: int, images: np.ndarray, labels: np.ndarray,
             training: bool = True) -> list[BadSample]:
        """Prepare samples into arrays that are there already.

        Args:
            indices: k samples of the source.
            epoch: of the stream.
            images: (k, *shape) of ``dtype``, is overwritten.
            labels: (k,) int64, is overwritten.
            training: false for evaluation: no randomness, centre crops.

        Returns:
            The samples that cannot be used, each with its position; their images are 0 and their labels -1.
        """
        return self._each(indices, lambda index: self.finish(self.prepare(index), index, epoch, training), images,
                          labels)

    def _each(self, indices: Iterable[int], make: Callable[[int], np.ndarray], images: np.ndarray, labels: np.ndarray
              ) -> list[BadSample]:
        bad = []
        for position, index in enumerate(map(int, indices)):
            try:
                image = make(index)
                if image.shape != images.shape[1:]:
                    raise BadSample(self.source.name(index), f"is {_describe(image)}; the others are "
                                                             f"{' x '.join(map(str, images.shape[1:]))}")
                images[position] = image
                labels[position] = self.source.labels[index]
            except BadSample as error:
                error.position = position
                images[position] = 0
                labels[position] = -1
                bad.append(error)
        return bad

    def _fix(self, image: bytes | np.ndarray) -> np.ndarray:
        transforms = self._fixed
        if isinstance(image, np.ndarray) and image.ndim != 3:
            raise BadImage(f"is an array of {image.ndim} dimensions, not (height, width, channels)")
        if transforms and isinstance(transforms[0], Decode):
            image = transforms[0].apply(image, at_least=_enough(transforms[1:2]))
            transforms = transforms[1:]
        if isinstance(image, bytes):
            raise InputError("transforms: the source holds encoded image files, so the first must be decode")
        for transform in transforms:
            image = transform.apply(image, self._random.generator, True)
        return image

    def _vary(self, image: np.ndarray, index: int, epoch: int, training: bool) -> np.ndarray:
        if not self._varying:
            return image
        rng = self._random.at(epoch, index)
        try:
            for transform in self._varying:
                image = transform.apply(image, rng, training)
        except BadImage as error:
            raise BadSample(self.source.name(index), str(error)) from error
        return image

    def _probe(self) -> tuple[tuple[int, int, int], np.dtype]:
        """Shape and type of the samples, from a few that are spread over the source."""
        found = [(self.source.name(index), image) for index, image in self._some(
            lambda index: self._vary(self.prepare(index), index, 0, True))]
        name, image = found[0]
        if image.ndim != 3 or not (image.dtype == np.uint8 or image.dtype.kind == "f"):
            raise InputError(f"{name} becomes {_describe(image)}; transforms must give images "
                             "(height, width, channels) of uint8 or float32")
        for other_name, other in found[1:]:
            if _describe(other) != _describe(image):
                raise InputError(f"transforms: samples must end in one shape; add a resize or a crop, for "
                                 f"{name} is {_describe(image)} and {other_name} is {_describe(other)}")
        height, width, channels = image.shape
        return (height, width, channels), _wire_dtype(image.dtype)

    def _some(self, make: Callable[[int], np.ndarray]) -> list[tuple[int, np.ndarray]]:
        """A few samples, spread over the source; the first that can be used, where none of these can."""
        count = len(self.source)
        if not count:
            raise InputError("the data set is empty")

        def usable(indices: Iterable[int]) -> Iterator[tuple[int, np.ndarray]]:
            for index in indices:
                try:
                    yield index, make(index)
                except BadSample as error:
                    complaints.append(error)

        complaints: list[BadSample] = []
        spread = np.unique(np.linspace(0, count - 1, PROBES).astype(int)).tolist()
        found = list(usable(spread)) or list(islice(usable(range(count)), 1))
        if not found:
            raise InputError(f"none of the {count} samples can be used; the first: {complaints[0]}")
        return found


class _Generators:
    """A generator for each (epoch, index), at the cost of setting a counter (under 2 microseconds).

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
        self._philox.state = {"bit_generator": "Philox", "state": {"counter": counter, "key": self._key},
                              "buffer": self._buffer, "buffer_pos": 4, "has_uint32": 0, "uinteger": 0}
        return self.generator


def split_transforms(transforms: Sequence[Transform]) -> tuple[tuple[Transform, ...], tuple[Transform, ...]]:
    """Those before the first random one, and the rest."""
    first = next((i for i, transform in enumerate(transforms) if transform.is_random), len(transforms))
    return tuple(transforms[:first]), tuple(transforms[first:])


def _enough(following: Sequence[Transform]) -> tuple[int, int] | None:
    """The size that a JPEG may be decoded at, because the next transform makes it smaller.

    Only a resize does: a crop from an image decoded at half its size would show twice as much.
    """
    return following[0].at_least if following and isinstance(following[0], Resize) else None


def _wire_dtype(dtype: np.dtype) -> np.dtype:
    return np.dtype(np.float32) if dtype.kind == "f" else dtype


def _describe(image: np.ndarray) -> str:
    return f"{' x '.join(map(str, image.shape))} {_wire_dtype(image.dtype)}"


@dataclass(frozen=True)
class InputSpec:
    """What networks are fed with.

    Attributes:
        shape: (height, width, channels) of a sample.
        dtype: on the wire, a numpy type name.
        classes: number of classes.
        affine: what is done to a sample first, in the engine; None for nothing.
    """

    shape: tuple[int, int, int]
    dtype: str
    classes: int
    affine: Affine | None

    @property
    def sample_bytes(self) -> int:
        """Bytes of a sample on the wire."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize
