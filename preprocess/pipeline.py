"""A source and its transforms: from indices to arrays of one shape and type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from preprocess.base import BadSample, Source
from preprocess.chain import Chain
from preprocess.probe import probe
from preprocess.sample import ImageSpec, SampleSpec, wire_dtype
from preprocess.transforms import Transform


class Pipeline:
    """Prepares the samples of a source. Nothing is read until the first is asked for.

    Args:
        source: where they come from.
        transforms: what is done to them, in order. A scale at the end is left to the trainers.
        seed: of the random transforms.
        sample: what comes out, as :func:`preprocess.probe.probe` has found it.
    """

    def __init__(self, source: Source, transforms: Sequence[Transform], seed: int, sample: SampleSpec) -> None:
        self.sample, self._seed = sample, seed
        self._chain = Chain(source, transforms, seed)
        self._shape, self._dtype = sample.image.shape, np.dtype(sample.image.dtype)

    @classmethod
    def probed(cls, source: Source, transforms: Sequence[Transform], seed: int) -> Pipeline:
        """The same, of samples that have not been looked at yet; see :func:`preprocess.probe.probe`."""
        return cls(source, transforms, seed, probe(source, transforms, seed))

    @property
    def source(self) -> Source:
        """Where samples come from."""
        return self._chain.source

    @property
    def samples(self) -> int:
        """How many the source has."""
        return len(self.source)

    @property
    def is_random(self) -> bool:
        """Whether a sample differs from epoch to epoch."""
        return self._chain.is_random

    def order(self, epoch: int) -> np.ndarray:
        """The permutation of the samples in one epoch of the stream."""
        return self.source.order(self._seed, epoch)

    def empty(self, samples: int) -> tuple[np.ndarray, np.ndarray]:
        """Room for so many samples: images (samples, height, width, channels) and labels (samples,) int64."""
        return np.empty((samples, *self._shape), self._dtype), np.empty(samples, np.int64)

    def prepare(self, index: int) -> np.ndarray:
        """Read a sample and do what is the same in every epoch; see :meth:`preprocess.chain.Chain.prepare`."""
        return self._chain.prepare(index)

    def finish(self, image: np.ndarray, index: int, epoch: int, training: bool = True) -> np.ndarray:
        """Do to a prepared sample what differs from epoch to epoch, and check its shape.

        Raises:
            BadSample: a transform cannot be applied to it, or it has another shape or type than the others.
        """
        image = self._chain.vary(image, index, epoch, training)
        if image.shape != self._shape or wire_dtype(image.dtype) != self._dtype:
            raise BadSample(self.source.name(index), f"is {ImageSpec.of(image)}; the others are {self.sample.image}")
        return image

    def load(self, indices: Iterable[int], epoch: int, images: np.ndarray, labels: np.ndarray,
             training: bool = True) -> list[BadSample]:
        """Prepare samples into arrays that are there already.

        Args:
            indices: k samples of the source.
            epoch: of the stream.
            images: (k, height, width, channels) of the sample's type, is overwritten.
            labels: (k,) int64, is overwritten.
            training: false for evaluation: no randomness, centre crops.

        Returns:
            The samples that cannot be used, each with its position; their images are 0 and their labels -1.
        """
        return self._each(indices, lambda index: self.finish(self.prepare(index), index, epoch, training), images,
                          labels)

    def keep(self, indices: Iterable[int], images: np.ndarray, labels: np.ndarray) -> list[BadSample]:
        """Do the part that is worth keeping: the same as :meth:`load`, up to the first random transform.

        Args:
            indices: k samples of the source.
            images: (k, height, width, channels) uint8, of the kept shape; is overwritten.
            labels: (k,) int64, is overwritten.
        """
        return self._each(indices, self.prepare, images, labels)

    def finish_kept(self, kept: np.ndarray, kept_labels: np.ndarray, indices: np.ndarray, epoch: int,
                    images: np.ndarray, labels: np.ndarray) -> list[BadSample]:
        """Do the rest to samples that :meth:`keep` has left; what it could not use stays marked, and is not told again.

        Args:
            kept, kept_labels: (k, height, width, channels) uint8 and (k,) int64.
            indices: (k,) of the source.
            epoch, images, labels: as in :meth:`load`.
        """
        if not self._chain.is_random:
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

    def _each(self, indices: Iterable[int], make: Callable[[int], np.ndarray], images: np.ndarray, labels: np.ndarray
              ) -> list[BadSample]:
        bad = []
        for position, index in enumerate(map(int, indices)):
            try:
                image = make(index)
                if image.shape != images.shape[1:]:
                    raise BadSample(self.source.name(index), f"is {ImageSpec.of(image)}; the others are "
                                                             f"{' x '.join(map(str, images.shape[1:]))}")
                images[position] = image
                labels[position] = self.source.labels[index]
            except BadSample as error:
                error.position = position
                images[position] = 0
                labels[position] = -1
                bad.append(error)
        return bad
