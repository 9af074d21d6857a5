"""A source and its transforms: from indices to arrays of one shape and type."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from preprocess.base import Source, UnreadableSample
from preprocess.batches import BatchWork
from preprocess.chain import Chain, PreparedSample
from preprocess.lazy_numba import NUMBA
from preprocess.probe import infer_sample_spec
from preprocess.sample import ImageSpec, SampleSpec, wire_dtype
from preprocess.target import TargetReader, TargetSpec
from preprocess.transforms import Transform
from preprocess.transforms.on_device import set_device_input
from preprocess.transforms.packed_variants import PackedSlice

_Arrays: TypeAlias = np.ndarray | Sequence[np.ndarray]
_BLOCK = 64  # samples of a batch, which are in memory as they were before their random transforms


class _BatchBuffer(threading.local):
    """Memory for samples of a batch as they are before their random transforms.

    It is used again and again: to have fresh memory costs more than to cut and mirror a large image.
    """

    def __init__(self) -> None:
        self._arrays = dict[tuple[tuple[int, ...], np.dtype], np.ndarray]()

    def of(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Room for samples of a shape and type, (k, ...); only the newest is kept."""
        if (shape, dtype) not in self._arrays:
            self._arrays = {(shape, dtype): np.empty((_BLOCK, *shape), dtype)}
        return self._arrays[shape, dtype]


class Pipeline(Chain):
    """Prepares the samples of a source, into arrays. Nothing is read until the first is asked for.

    Args:
        source: where they come from.
        transforms: what is done to them, in order. A scale at the end is left to the trainers.
        seed: of the random transforms.
        sample: what comes out, as :func:`preprocess.probe.infer_sample_spec` has found it.
        fixed: how many transforms :meth:`load_stored` does; None for those before the first random one.
        carried: the target of samples that :meth:`augment_stored` is given, if another pipeline has left them.
        piece: where in such samples that is of which this one makes something.
    """

    def __init__(
        self,
        source: Source,
        transforms: Sequence[Transform],
        seed: int,
        sample: SampleSpec,
        fixed: int | None = None,
        carried: TargetSpec | None = None,
        piece: PackedSlice | None = None,
    ) -> None:
        super().__init__(source, set_device_input(transforms, sample.deferred_input), seed, fixed)
        self.sample = sample
        self._piece = piece
        self.is_precise = sample.wire.dtype == "float64"
        self._carried = carried or sample.stored_target
        self._shape = sample.wire.shape
        self._dtype = np.dtype(sample.wire.dtype)
        self._target = sample.target
        self._room = _BatchBuffer()

    @classmethod
    def from_source(cls, source: Source, transforms: Sequence[Transform], seed: int) -> Pipeline:
        """The same, of samples that have not been looked at yet; see :func:`preprocess.probe.infer_sample_spec`."""
        return cls(source, transforms, seed, infer_sample_spec(source, transforms, seed))

    @property
    def samples(self) -> int:
        """How many the source has."""
        return len(self.source)

    def order(self, epoch: int) -> np.ndarray:
        """The permutation of the samples in one epoch of the stream."""
        return self.source.order(self._seed, epoch)

    def empty(self, samples: int) -> tuple[np.ndarray, np.ndarray]:
        """Room for so many samples: inputs (samples, ...), and targets (samples,) of the target's type ``wire``."""
        return np.empty((samples, *self._shape), self._dtype), np.empty(samples, self._target.wire)

    def empty_stored(self, samples: int) -> tuple[np.ndarray, np.ndarray]:
        """Room for so many samples as :meth:`load_stored` leaves them."""
        stored = self.sample.stored
        assert stored is not None
        return np.empty((samples, *stored.shape), stored.dtype), np.empty(
            samples, self.sample.stored_target.wire
        )

    def augment_checked(
        self, part: PreparedSample, index: int, epoch: int, training: bool = True
    ) -> PreparedSample:
        """Do to a prepared sample what differs from epoch to epoch, and check its shape.

        Raises:
            BadSample: a transform cannot be applied to it, or it has another shape or type than the others.
        """
        return self._check(self.augment(part, index, epoch, training), index)

    def _check(self, part: PreparedSample, index: int) -> PreparedSample:
        image = part.image
        is_double = self.is_precise and image.dtype.kind == "f"
        if image.shape != self._shape or not (is_double or wire_dtype(image.dtype) == self._dtype):
            raise UnreadableSample(
                self.source.name(index),
                f"is {ImageSpec.of(image)}; the others are {self.sample.wire}",
            )
        return part

    def load(
        self,
        indices: Iterable[int],
        epoch: int,
        images: np.ndarray,
        targets: np.ndarray,
        training: bool = True,
    ) -> list[UnreadableSample]:
        """Prepare samples into arrays that are there already.

        Args:
            indices: k samples of the source.
            epoch: of the stream.
            images: (k, ...) of the input's shape and type, is overwritten.
            targets: (k,) of the target's type ``wire``, is overwritten.
            training: false for evaluation: no randomness, centre crops.

        Returns:
            The samples that cannot be used, each with its position; their images are 0 and their targets marked.
        """
        if not self.is_random or self._kernels is None:
            return self._load_each(
                indices,
                lambda index: self._make(index, epoch, training),
                images,
                targets,
                self._target,
            )
        rows = np.fromiter(indices, np.int64)
        bad = list[UnreadableSample]()
        for first in range(0, len(rows), _BLOCK):
            batches = dict[object, tuple[np.ndarray, list[int], list[np.ndarray | None]]]()
            for position, index in enumerate(rows[first : first + _BLOCK].tolist(), first):
                try:
                    image, mask = self.prepare(index)
                    kind = (
                        (image.shape, image.dtype),
                        None if mask is None else (mask.shape, mask.dtype),
                    )
                    if kind not in batches:
                        batches[kind] = self._room.of(*kind[0]), [], []
                    room, positions, masks = batches[kind]
                    room[len(positions)] = image
                    positions.append(position)
                    masks.append(mask)
                except UnreadableSample as error:
                    bad.append(self._left_out(error, position, images, targets, self._target))
            for room, positions, masks in batches.values():
                bad += self._vary(
                    room[: len(positions)],
                    [mask for mask in masks if mask is not None] or None,
                    np.array(positions),
                    rows,
                    epoch,
                    images,
                    targets,
                    training,
                )
        return sorted(bad, key=lambda error: error.position or 0)

    @property
    def _kernels(self) -> Any:
        """The compiled loops, which know no float64; None where there are none."""
        if self.is_precise:
            return None
        return NUMBA.kernels

    def _make(self, index: int, epoch: int, training: bool) -> PreparedSample:
        part = self.prepare(index)
        began = time.perf_counter()
        try:
            return self.augment_checked(part, index, epoch, training)
        finally:
            if self.is_random:
                NUMBA.add_slow_time(time.perf_counter() - began)

    def load_stored(
        self, indices: Iterable[int], images: np.ndarray, targets: np.ndarray
    ) -> list[UnreadableSample]:
        """Do the part that is worth keeping: the same as :meth:`load`, up to the first random transform.

        Args:
            indices: k samples of the source.
            images: (k, ...) of the kept shape and type; is overwritten.
            targets: (k,) of the kept target's type ``wire``, is overwritten.
        """
        return self._load_each(indices, self.prepare, images, targets, self.sample.stored_target)

    def augment_stored(
        self,
        stored: np.ndarray,
        stored_targets: np.ndarray,
        indices: np.ndarray,
        epoch: int,
        images: np.ndarray,
        targets: np.ndarray,
        training: bool = True,
    ) -> list[UnreadableSample]:
        """Do the rest to samples that :meth:`load_stored` has left; what it could not use stays marked, and is not told again.

        Args:
            kept, kept_targets: (k, ...) and (k,), as it has left them.
            indices: (k,) of the source.
            epoch, images, targets, training: as in :meth:`load`.
        """
        stored = self.select_slice(stored)
        if not self.is_random:
            images[:], targets[:] = stored, self.convert_targets(stored_targets, indices)
            return []
        target = self._carried
        usable = target.is_usable(stored_targets)
        if target.kind == "mask":
            masks = stored_targets["target"]
        else:
            masks = None
        for position in np.flatnonzero(~usable).tolist():
            images[position] = 0
            self._target.mark_unusable(targets, position)

        positions = np.flatnonzero(usable)
        if len(positions) < len(stored):
            stored = stored[positions]
            masks = None if masks is None else masks[positions]
        return self._vary(stored, masks, positions, indices, epoch, images, targets, training)

    def _vary(
        self,
        parts: _Arrays,
        masks: _Arrays | None,
        positions: np.ndarray,
        indices: np.ndarray,
        epoch: int,
        images: np.ndarray,
        targets: np.ndarray,
        training: bool,
    ) -> list[UnreadableSample]:
        """Do to prepared samples of one shape what differs from epoch to epoch: all at once as far as that goes.

        Args:
            parts, masks: of the samples ``indices[positions]``, which go to these positions of images and targets.
        """
        kernels = self._kernels
        began = time.perf_counter()
        batch = None
        if kernels is not None and len(positions):
            batch = self.augment_batch(kernels, parts, masks, indices[positions], epoch, training)
            if batch[1] == self.varying_count and self._take(
                batch[0], positions, indices, images, targets
            ):
                return []
        bad = []
        for row, (position, index) in enumerate(
            zip(positions.tolist(), indices[positions].tolist(), strict=True)
        ):
            try:
                if batch is None:
                    part = self.augment(
                        PreparedSample(parts[row], None if masks is None else masks[row]),
                        index,
                        epoch,
                        training,
                    )
                else:
                    part = self.finish_sample(batch, row, index, epoch, training)
                self._check(part, index)
                self._reader.write(targets, position, index, part.mask)
                images[position] = part.image
            except UnreadableSample as error:
                bad.append(self._left_out(error, position, images, targets, self._target))
        if kernels is None:
            NUMBA.add_slow_time(time.perf_counter() - began)
        return bad

    def _take(
        self,
        work: BatchWork,
        positions: np.ndarray,
        indices: np.ndarray,
        images: np.ndarray,
        targets: np.ndarray,
    ) -> bool:
        """Put samples that are done to their positions; False where they are not what they should be."""
        if work.output_form != (self._shape, self._dtype) or (
            work.masks is not None
            and (work.size, work.masks.dtype) != (self._target.shape, self._target.dtype)
        ):
            return False
        is_all = len(positions) == len(images)
        work.apply_pending(images if is_all else None)
        if not is_all:
            images[positions] = work.images
        self._reader.write_all(targets, positions, indices[positions], work.masks)
        return True

    def select_slice(self, stored: np.ndarray) -> np.ndarray:
        """What is of use here of samples that another pipeline has left: (k, ...)."""
        if self._piece is None:
            return stored
        return self._piece.apply(stored)

    def convert_targets(self, stored_targets: np.ndarray, indices: np.ndarray) -> np.ndarray:
        """The targets of samples that need nothing else any more: (k,) of the target's type ``wire``.

        Args:
            kept_targets: (k,) as another pipeline has left them; masks are taken from there.
            indices: (k,) of the source.
        """
        if self._carried == self._target:
            return stored_targets
        usable = self._carried.is_usable(stored_targets)
        targets = np.empty(len(indices), self._target.wire)
        for position, index in enumerate(indices.tolist()):
            if usable[position]:
                self._reader.write(targets, position, index)
            else:
                self._target.mark_unusable(targets, position)
        return targets

    @cached_property
    def _reader(self) -> TargetReader:
        return TargetReader(self.source, self._target)

    def _load_each(
        self,
        indices: Iterable[int],
        make: Callable[[int], PreparedSample],
        images: np.ndarray,
        targets: np.ndarray,
        spec: TargetSpec,
    ) -> list[UnreadableSample]:
        if spec is self._target:
            reader = self._reader
        else:
            reader = TargetReader(self.source, spec)
        bad = []
        for position, index in enumerate(map(int, indices)):
            try:
                image, mask = make(index)
                if image.shape != images.shape[1:]:
                    raise UnreadableSample(
                        self.source.name(index),
                        f"is {ImageSpec.of(image)}; the others are "
                        f"{' x '.join(map(str, images.shape[1:]))}",
                    )
                reader.write(targets, position, index, mask)
                images[position] = image
            except UnreadableSample as error:
                bad.append(self._left_out(error, position, images, targets, spec))
        return bad

    @staticmethod
    def _left_out(
        error: UnreadableSample,
        position: int,
        images: np.ndarray,
        targets: np.ndarray,
        spec: TargetSpec,
    ) -> UnreadableSample:
        """Mark a sample that cannot be used."""
        error.position = position
        images[position] = 0
        spec.mark_unusable(targets, position)
        return error
