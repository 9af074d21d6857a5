"""A source and its transforms: from indices to arrays of one shape and type."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from preprocess.base import AUGMENT, Source, UnreadableSample
from preprocess.batches import BatchWork
from preprocess.chain import Chain, PreparedSample
from preprocess.lazy_numba import NUMBA
from preprocess.probe import infer_sample_spec
from preprocess.sample import ArraySpec, SampleSpec, wire_dtype
from preprocess.target import TargetReader, TargetSpec
from preprocess.transforms import Transform
from preprocess.transforms.on_device import set_device_input
from preprocess.transforms.packed_variants import PackedSlice

_Arrays: TypeAlias = np.ndarray | Sequence[np.ndarray]
_BLOCK = 64  # samples of a batch in memory before their random transforms


class _BatchBuffer(threading.local):
    """Reusable memory for the samples of a batch before their random transforms.

    Allocating fresh memory costs more than cropping and flipping a large image.
    """

    def __init__(self) -> None:
        self._arrays = dict[tuple[tuple[int, ...], np.dtype], np.ndarray]()

    def of(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return memory for samples of a shape and dtype, (k, ...); only the newest is kept."""
        if (shape, dtype) not in self._arrays:
            self._arrays = {(shape, dtype): np.empty((_BLOCK, *shape), dtype)}
        return self._arrays[shape, dtype]


class Pipeline(Chain):
    """Prepares the samples of a source as arrays; reads nothing before it is asked to.

    :meth:`load` reads and transforms samples. With a stored sample set, :meth:`load_stored` applies
    the fixed transforms once, and :meth:`augment_stored` the others in each epoch.

    Args:
        source: the source of the samples.
        transforms: the transforms, in order. A scale at the end is left to the trainers.
        seed: the seed of the random transforms.
        sample: what comes out, as :func:`preprocess.probe.infer_sample_spec` returned it.
        fixed: how many transforms :meth:`load_stored` applies; None for those before the first
            random one.
        carried: the target of stored samples, if another pipeline stored them.
        piece: the slice of such samples that this pipeline uses.
        draws: see :class:`~preprocess.chain.Chain`.
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
        draws: int = AUGMENT,
    ) -> None:
        super().__init__(
            source, set_device_input(transforms, sample.deferred_input), seed, fixed, draws
        )
        self.sample = sample
        self._piece = piece
        self.is_precise = sample.wire.dtype == "float64"
        self._carried = carried or sample.stored_target
        self._shape = sample.wire.shape
        self._dtype = np.dtype(sample.wire.dtype)
        self._target = sample.target
        self.row_lengths: dict[str, np.ndarray] = {}  # see RecordPipeline
        self.lengths: np.ndarray | None = None  # as above
        self._room = _BatchBuffer()

    @classmethod
    def from_source(cls, source: Source, transforms: Sequence[Transform], seed: int) -> Pipeline:
        """Create a pipeline after probing the source for its sample spec."""
        return cls(source, transforms, seed, infer_sample_spec(source, transforms, seed))

    @property
    def samples(self) -> int:
        """The number of samples in the source."""
        return len(self.source)

    def order(self, epoch: int) -> np.ndarray:
        """Return the permutation of the samples in one epoch of the stream, (n,) int64."""
        return self.source.order(self._seed, epoch)

    def empty(self, samples: int) -> tuple[np.ndarray, np.ndarray]:
        """Allocate inputs (samples, ...) and targets (samples,) of dtype ``target.wire``."""
        inputs = np.empty((samples, *self._shape), self._dtype)
        targets = np.empty(samples, self._target.wire)
        return inputs, targets

    def empty_stored(self, samples: int) -> tuple[np.ndarray, np.ndarray]:
        """Allocate inputs and targets as :meth:`load_stored` writes them."""
        stored = self.sample.stored
        assert stored is not None
        return np.empty((samples, *stored.shape), stored.dtype), np.empty(
            samples, self.sample.stored_target.wire
        )

    def augment_checked(
        self, sample: PreparedSample, index: int, epoch: int, training: bool = True
    ) -> PreparedSample:
        """Apply the varying transforms to a prepared sample, and check its shape.

        Raises:
            UnreadableSample: a transform cannot be applied, or its shape or type differs from the
                others.
        """
        return self._check(self.augment(sample, index, epoch, training), index)

    def _check(self, sample: PreparedSample, index: int) -> PreparedSample:
        array = sample.input
        is_double = self.is_precise and array.dtype.kind == "f"
        if array.shape != self._shape or not (is_double or wire_dtype(array.dtype) == self._dtype):
            raise UnreadableSample(
                self.source.name(index),
                f"is {ArraySpec.of(array)}; the others are {self.sample.wire}",
            )
        return sample

    def load(
        self,
        indices: Iterable[int],
        epoch: int,
        inputs: np.ndarray,
        targets: np.ndarray,
        training: bool = True,
    ) -> list[UnreadableSample]:
        """Read and transform samples into existing arrays.

        Args:
            indices: k samples of the source.
            epoch: the epoch of the stream.
            inputs: (k, ...) of the input's shape and dtype, overwritten.
            targets: (k,) of the target's dtype ``wire``, overwritten.
            training: False for evaluation: no randomness, center crops.

        Returns:
            The unusable samples, each with its position; their inputs are 0 and their targets
            marked.
        """
        if not self.is_random or self._kernels is None:
            return self._load_each(
                indices,
                lambda index: self._make(index, epoch, training),
                inputs,
                targets,
                self._target,
            )
        rows = np.fromiter(indices, np.int64)
        bad = list[UnreadableSample]()
        for first in range(0, len(rows), _BLOCK):
            batches = dict[object, tuple[np.ndarray, list[int], list[np.ndarray | None]]]()
            for position, index in enumerate(rows[first : first + _BLOCK].tolist(), first):
                try:
                    array, mask = self.prepare(index)
                    kind = (
                        (array.shape, array.dtype),
                        None if mask is None else (mask.shape, mask.dtype),
                    )
                    if kind not in batches:
                        batches[kind] = self._room.of(*kind[0]), [], []
                    room, positions, masks = batches[kind]
                    room[len(positions)] = array
                    positions.append(position)
                    masks.append(mask)
                except UnreadableSample as error:
                    bad.append(self._left_out(error, position, inputs, targets, self._target))
            for room, positions, masks in batches.values():
                bad += self._vary(
                    room[: len(positions)],
                    [mask for mask in masks if mask is not None] or None,
                    np.array(positions),
                    rows,
                    epoch,
                    inputs,
                    targets,
                    training,
                )
        return sorted(bad, key=lambda error: error.position or 0)

    @property
    def _kernels(self) -> Any:
        """The compiled loops, which have no float64; None if they cannot be used."""
        if self.is_precise:
            return None
        return NUMBA.kernels

    def _make(self, index: int, epoch: int, training: bool) -> PreparedSample:
        sample = self.prepare(index)
        began = time.perf_counter()
        try:
            return self.augment_checked(sample, index, epoch, training)
        finally:
            if self.is_random:
                NUMBA.add_slow_time(time.perf_counter() - began)

    def copy(
        self,
        arrays: Sequence[Any],
        indices: np.ndarray,
        inputs: np.ndarray,
        targets: np.ndarray,
        spec: TargetSpec,
    ) -> bool:
        """Write samples that have been read and need no transform.

        This takes a fraction of the time of :meth:`load` if samples are small.

        Args:
            arrays: k inputs, as the source gave them.
            indices: (k,) integers, the samples.
            inputs: (k, ...) of the input's shape and dtype, overwritten.
            targets: (k,) of the dtype ``spec.wire``, overwritten.
            spec: the spec of the targets.

        Returns:
            False if some samples need more, or are unusable; then all must be loaded.
        """
        if self._fixed or self._varying or self._masks is not None:
            return False
        shape = inputs.shape[1:]
        dtype = inputs.dtype
        for position, array in enumerate(arrays):
            if not (isinstance(array, np.ndarray) and array.shape == shape):
                return False
            if array.dtype != dtype and (self.is_precise or wire_dtype(array.dtype) != dtype):
                return False
            inputs[position] = array
            if dtype.kind == "f" and not np.isfinite(inputs[position]).all():
                return False
        self._target_reader(spec).write_all(targets, np.arange(len(indices)), indices)
        return True

    def load_stored(
        self, indices: Iterable[int], inputs: np.ndarray, targets: np.ndarray
    ) -> list[UnreadableSample]:
        """Read samples and apply the fixed transforms: what a stored sample set holds.

        Args:
            indices: k samples of the source.
            inputs: (k, ...) of the stored shape and dtype, overwritten.
            targets: (k,) of the stored target's dtype ``wire``, overwritten.

        Returns:
            The unusable samples, each with its position.
        """
        return self._load_each(indices, self.prepare, inputs, targets, self.sample.stored_target)

    def augment_stored(
        self,
        stored: np.ndarray,
        stored_targets: np.ndarray,
        indices: np.ndarray,
        epoch: int,
        inputs: np.ndarray,
        targets: np.ndarray,
        training: bool = True,
    ) -> list[UnreadableSample]:
        """Apply the varying transforms to stored samples.

        Samples that :meth:`load_stored` could not use stay marked and are not returned again.

        Args:
            stored: (k, ...), as :meth:`load_stored` wrote them.
            stored_targets: (k,), as :meth:`load_stored` wrote them.
            indices: (k,) integers, the samples.
            epoch: see :meth:`load`.
            inputs: see :meth:`load`.
            targets: see :meth:`load`.
            training: see :meth:`load`.

        Returns:
            The samples that have become unusable, each with its position.
        """
        stored = self.select_slice(stored)
        if not self.is_random:
            inputs[:], targets[:] = stored, self.convert_targets(stored_targets, indices)
            return []
        target = self._carried
        usable = target.is_usable(stored_targets)
        masks = target.masks_in(stored_targets)
        for position in np.flatnonzero(~usable).tolist():
            inputs[position] = 0
            self._target.mark_unusable(targets, position)

        positions = np.flatnonzero(usable)
        if len(positions) < len(stored):
            stored = stored[positions]
            if masks is not None:
                masks = masks[positions]
        return self._vary(stored, masks, positions, indices, epoch, inputs, targets, training)

    def _vary(
        self,
        prepared: _Arrays,
        masks: _Arrays | None,
        positions: np.ndarray,
        indices: np.ndarray,
        epoch: int,
        inputs: np.ndarray,
        targets: np.ndarray,
        training: bool,
    ) -> list[UnreadableSample]:
        """Apply the varying transforms to samples of one shape, batched as far as possible.

        Args:
            prepared: (m, ...), the prepared samples ``indices[positions]``.
            masks: (m, height, width); None without masks.
            positions: (m,) integers, where they go in ``inputs`` and ``targets``.
        """
        kernels = self._kernels
        began = time.perf_counter()
        batch = None
        if kernels is not None and len(positions):
            batch = self.augment_batch(
                kernels, prepared, masks, indices[positions], epoch, training
            )
            if batch[1] == self.varying_count and self._take(
                batch[0], positions, indices, inputs, targets
            ):
                return []
        bad = []
        for row, (position, index) in enumerate(
            zip(positions.tolist(), indices[positions].tolist(), strict=True)
        ):
            try:
                if batch is None:
                    sample = self.augment(
                        PreparedSample(prepared[row], None if masks is None else masks[row]),
                        index,
                        epoch,
                        training,
                    )
                else:
                    sample = self.finish_sample(batch, row, index, epoch, training)
                self._check(sample, index)
                self._reader.write(targets, position, index, sample.mask)
                inputs[position] = sample.input
            except UnreadableSample as error:
                bad.append(self._left_out(error, position, inputs, targets, self._target))
        if kernels is None:
            NUMBA.add_slow_time(time.perf_counter() - began)
        return bad

    def _take(
        self,
        work: BatchWork,
        positions: np.ndarray,
        indices: np.ndarray,
        inputs: np.ndarray,
        targets: np.ndarray,
    ) -> bool:
        """Write a finished batch to its positions; return False if its form is wrong."""
        mask = self._target.mask
        if work.output_form != (self._shape, self._dtype) or (
            work.masks is not None
            and (mask is None or (work.size, work.masks.dtype) != (mask.shape, mask.dtype))
        ):
            return False
        is_all = len(positions) == len(inputs)
        work.apply_pending(inputs if is_all else None)
        if not is_all:
            inputs[positions] = work.images
        self._reader.write_all(targets, positions, indices[positions], work.masks)
        return True

    def select_slice(self, stored: np.ndarray) -> np.ndarray:
        """Return the part of stored samples (k, ...) that this pipeline uses."""
        if self._piece is None:
            return stored
        return self._piece.apply(stored)

    def convert_targets(self, stored_targets: np.ndarray, indices: np.ndarray) -> np.ndarray:
        """Convert targets of stored samples that need no transform any more.

        Args:
            stored_targets: (k,), as another pipeline wrote them; masks are taken from there.
            indices: (k,) integers, the samples.

        Returns:
            (k,) of this pipeline's target dtype ``wire``.
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

    def _target_reader(self, spec: TargetSpec) -> TargetReader:
        if spec is self._target:
            return self._reader
        return TargetReader(self.source, spec)

    def _load_each(
        self,
        indices: Iterable[int],
        make: Callable[[int], PreparedSample],
        inputs: np.ndarray,
        targets: np.ndarray,
        spec: TargetSpec,
    ) -> list[UnreadableSample]:
        reader = self._target_reader(spec)
        bad = []
        for position, index in enumerate(map(int, indices)):
            try:
                array, mask = make(index)
                if array.shape != inputs.shape[1:]:
                    raise UnreadableSample(
                        self.source.name(index),
                        f"is {ArraySpec.of(array)}; the others are "
                        f"{' x '.join(map(str, inputs.shape[1:]))}",
                    )
                reader.write(targets, position, index, mask)
                inputs[position] = array
            except UnreadableSample as error:
                bad.append(self._left_out(error, position, inputs, targets, spec))
        return bad

    @staticmethod
    def _left_out(
        error: UnreadableSample,
        position: int,
        inputs: np.ndarray,
        targets: np.ndarray,
        spec: TargetSpec,
    ) -> UnreadableSample:
        """Zero and mark a sample that cannot be used."""
        error.position = position
        inputs[position] = 0
        spec.mark_unusable(targets, position)
        return error
