"""Prepare samples of several inputs: each input by a pipeline of its own, into one record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from preprocess.base import LENGTHS, Source, UnreadableSample, rng_for
from preprocess.chain import PreparedSample
from preprocess.length_order import order_by_length
from preprocess.padding import row_lengths
from preprocess.pipeline import Pipeline
from preprocess.records import (
    AnyTransforms,
    Counts,
    InputSource,
    RecordReader,
    RecordTransforms,
)
from preprocess.sample import SampleSpec
from preprocess.target import TargetSpec, class_target
from preprocess.transforms.packed_variants import PackedSlice

_BLOCK = 64  # records that are held until all their inputs are prepared


class _MovingPart(Pipeline):
    """An input whose pixels move as those of others, so that they must have one size."""

    source: InputSource

    def prepare(self, index: int) -> PreparedSample:
        """Read a sample and apply the fixed transforms; see :meth:`Pipeline.prepare`."""
        prepared = super().prepare(index)
        self.source.check_size(index, prepared.input.shape[:2])
        return prepared


class RecordPipeline:
    """Prepares the samples of a source of several inputs; see :class:`Pipeline`.

    Each sample is read once. A sample of which one input cannot be used cannot be used.

    Args:
        source: the source of the samples.
        transforms: the transforms of each input.
        seed: the seed of the random transforms.
        sample: what comes out, as :func:`preprocess.probe.infer_sample_spec` returned it.
        fixed: how many transforms of each input :meth:`load_stored` applies; None for those before
            the first random one.
        carried: the target of stored samples, if another pipeline stored them.

    Attributes:
        row_lengths: the inputs of which batches are cut to their longest row -> (samples,) int64.
    """

    def __init__(
        self,
        source: Source,
        transforms: RecordTransforms,
        seed: int,
        sample: SampleSpec,
        fixed: Mapping[str, int] | None = None,
        carried: TargetSpec | None = None,
    ) -> None:
        self.source = source
        self.sample = sample
        self._seed = seed
        self._owner = transforms.owner
        self._carried = carried or sample.stored_target
        self._reader = RecordReader(source, transforms)
        self.row_lengths = row_lengths(source, transforms.pads)
        self._parts = {
            name: (_MovingPart if name in transforms.moving else Pipeline)(
                InputSource(self._reader, name, name == self._owner),
                items,
                seed,
                self._part_sample(name),
                None if fixed is None else fixed[name],
                carried if name == self._owner else None,
                None,
                transforms.draws(name),
            )
            for name, items in transforms.fields
        }

    def _part_sample(self, name: str) -> SampleSpec:
        part = self.sample.parts[name]
        if name == self._owner:
            return replace(part, target=self.sample.target, classes=self.sample.classes)
        return replace(part, target=class_target(2), classes=2)

    @property
    def samples(self) -> int:
        """The number of samples in the source."""
        return len(self.source)

    @property
    def is_random(self) -> bool:
        """True if a sample may differ from epoch to epoch."""
        return any(part.is_random for part in self._parts.values())

    @property
    def has_host_work(self) -> bool:
        """True if a prepared sample needs more than draws for the device."""
        return any(part.has_host_work for part in self._parts.values())

    def order(self, epoch: int) -> np.ndarray:
        """Return the permutation of the samples in one epoch of the stream, (n,) int64.

        Samples of like length lie together, if rows of batches differ in length.
        """
        order = self.source.order(self._seed, epoch)
        if self.lengths is None:
            return order
        return order_by_length(order, self.lengths, rng_for(self._seed, LENGTHS, epoch))

    @property
    def lengths(self) -> np.ndarray | None:
        """The length of each sample, (samples,) int64, of all its inputs; None if they are equal.

        An epoch is ordered by it.
        """
        if not self.row_lengths:
            return None
        return np.sum(list(self.row_lengths.values()), axis=0)

    def empty(self, samples: int) -> tuple[np.ndarray, np.ndarray]:
        """Allocate records (samples,) and targets (samples,) of dtype ``target.wire``."""
        return (
            np.empty(samples, self.sample.wire.dtype),
            np.empty(samples, self.sample.target.wire),
        )

    def empty_stored(self, samples: int) -> tuple[np.ndarray, np.ndarray]:
        """Allocate records and targets as :meth:`load_stored` writes them."""
        stored = self.sample.stored
        assert stored is not None
        return np.empty(samples, stored.dtype), np.empty(samples, self.sample.stored_target.wire)

    def load(
        self,
        indices: Iterable[int],
        epoch: int,
        inputs: np.ndarray,
        targets: np.ndarray,
        training: bool = True,
    ) -> list[UnreadableSample]:
        """Read and transform samples into existing arrays; see :meth:`Pipeline.load`."""
        return self._load_blocks(
            indices,
            lambda part, rows, fields, labels: part.load(rows, epoch, fields, labels, training),
            inputs,
            targets,
            self.sample.target,
        )

    def load_stored(
        self, indices: Iterable[int], inputs: np.ndarray, targets: np.ndarray
    ) -> list[UnreadableSample]:
        """Read samples and apply the fixed transforms; see :meth:`Pipeline.load_stored`."""
        return self._load_blocks(
            indices,
            lambda part, rows, fields, labels: part.load_stored(rows, fields, labels),
            inputs,
            targets,
            self.sample.stored_target,
        )

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
        """Apply the varying transforms to stored records; see :meth:`Pipeline.augment_stored`."""
        labels = np.where(self._carried.is_usable(stored_targets), 0, -1).astype(np.int64)
        scratch = np.empty_like(labels)
        bad = dict[int, UnreadableSample]()
        for name, part in self._parts.items():
            is_owner = name == self._owner
            for error in part.augment_stored(
                stored[name],
                stored_targets if is_owner else labels,
                indices,
                epoch,
                inputs[name],
                targets if is_owner else scratch,
                training,
            ):
                assert error.position is not None
                bad.setdefault(error.position, error)
        return self._left_out(bad, inputs, targets, self.sample.target)

    def select_slice(self, stored: np.ndarray) -> np.ndarray:
        """Return stored records, (k,): all pipelines use the whole of them."""
        return stored

    def convert_targets(self, stored_targets: np.ndarray, indices: np.ndarray) -> np.ndarray:
        """Convert targets of stored records; see :meth:`Pipeline.convert_targets`."""
        return self._parts[self._owner].convert_targets(stored_targets, indices)

    def _load_blocks(
        self,
        indices: Iterable[int],
        load: _Load,
        inputs: np.ndarray,
        targets: np.ndarray,
        target: TargetSpec,
    ) -> list[UnreadableSample]:
        rows = np.fromiter(indices, np.int64)
        bad = dict[int, UnreadableSample]()
        for first in range(0, len(rows), _BLOCK):
            block = slice(first, min(first + _BLOCK, len(rows)))
            scratch = np.empty(block.stop - first, np.int64)
            block_indices = rows[block].tolist()
            with self._reader.holding(block_indices):
                for name, part in self._parts.items():
                    is_owner = name == self._owner
                    labels = targets[block] if is_owner else scratch
                    spec = target if is_owner else part.sample.target
                    fields = inputs[name][block]
                    arrays = self._reader.held_inputs(block_indices, name)
                    if arrays and part.copy(arrays, rows[block], fields, labels, spec):
                        continue
                    for error in load(part, rows[block], fields, labels):
                        assert error.position is not None
                        bad.setdefault(first + error.position, error)
        return self._left_out(bad, inputs, targets, target)

    @staticmethod
    def _left_out(
        bad: Mapping[int, UnreadableSample],
        inputs: np.ndarray,
        targets: np.ndarray,
        target: TargetSpec,
    ) -> list[UnreadableSample]:
        """Zero and mark the samples that cannot be used, and return why, in order."""
        for position, error in bad.items():
            error.position = position
            inputs[position] = np.zeros((), inputs.dtype)
            target.mark_unusable(targets, position)
        return [bad[position] for position in sorted(bad)]


_Load: TypeAlias = Callable[[Pipeline, np.ndarray, np.ndarray, np.ndarray], list[UnreadableSample]]
AnyPipeline: TypeAlias = Pipeline | RecordPipeline


def make_input_pipeline(
    source: Source, transforms: AnyTransforms, name: str, seed: int, part: SampleSpec
) -> Pipeline:
    """Return a pipeline of one input of a source's samples, without their targets if of several.

    Args:
        source: the source of the samples.
        transforms: the transforms of all inputs.
        name: the name of the input.
        seed: the seed of the random transforms.
        part: the spec of the input.
    """
    if isinstance(transforms, tuple):
        return Pipeline(source, transforms, seed, part)
    reader = RecordReader(source, transforms)
    return Pipeline(
        InputSource(reader, name, has_target=False),
        transforms.by_input[name],
        seed,
        replace(part, target=class_target(2), classes=2),
    )


def make_pipeline(
    source: Source,
    transforms: AnyTransforms,
    seed: int,
    sample: SampleSpec,
    fixed: Counts | None = None,
    carried: TargetSpec | None = None,
    piece: PackedSlice | None = None,
) -> AnyPipeline:
    """Return the pipeline of samples of one input, or of several; see :class:`Pipeline`."""
    if isinstance(transforms, RecordTransforms):
        assert not isinstance(fixed, int)
        return RecordPipeline(source, transforms, seed, sample, fixed, carried)
    assert not isinstance(fixed, Mapping)
    return Pipeline(source, transforms, seed, sample, fixed, carried, piece)
