"""Probe a data set: learn from a few samples what they are after their transforms.

Only this module reads samples to learn their shapes and types. All others are given a
:class:`~preprocess.sample.SampleSpec`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from statistics import median
from typing import Any, cast

import numpy as np

from launch.errors import InputError, pluralize
from preprocess.base import INPUT, Source, UnreadableImage, UnreadableSample
from preprocess.chain import Chain
from preprocess.decode import count_bits_used
from preprocess.records import RecordTransforms, format_sizes, input_sources
from preprocess.sample import ArraySpec, InputSpec, RecordSpec, SampleSpec
from preprocess.target import plain_targets, target_of
from preprocess.transforms import Transform
from preprocess.transforms.color import Standardize
from preprocess.transforms.decoding import Decode
from preprocess.transforms.on_device import OnDevice, split_device
from preprocess.transforms.packed_variants import PackedVariants

PROBES = 8  # number of probed samples
_FEW_BITS = 14  # 16-bit images that use no more bits lose most gray levels in 8 bits


@dataclass(frozen=True)
class _ProbedSample:
    """One probed sample."""

    index: int
    name: str
    stored: np.ndarray  # up to the first random transform
    input: np.ndarray  # after all transforms
    mask: np.ndarray | None  # its mask after all transforms
    fixed_s: float  # seconds up to `stored`
    varying_s: float  # seconds from there to `input`


@dataclass(frozen=True)
class SampleProbe:
    """The result of probing a few samples of a source.

    Attributes:
        sample: their spec, without what is stored of them.
        stored: the spec up to the first random transform; None if samples differ there.
        not_stored_reason: then why samples cannot be stored.
        is_raw: True if nothing is done to a sample up to there.
        fixed_s: median seconds per sample up to the first random transform, with reading.
        varying_s: median seconds per sample from there on.
        remark: a warning for the user; empty if there is none.
        examples: name of an input -> (k, ...) the probed inputs before the last scale.
    """

    sample: SampleSpec
    stored: InputSpec | None
    not_stored_reason: str
    is_raw: bool
    fixed_s: float
    varying_s: float
    remark: str = ""
    examples: Mapping[str, np.ndarray] = field(default_factory=dict, compare=False, repr=False)

    def with_stored(self) -> SampleSpec:
        """Return the sample's spec with what is stored of it.

        Raises:
            InputError: samples differ before the first random transform.
        """
        if self.stored is None:
            raise InputError(self.not_stored_reason)
        return self.sample.with_stored(self.stored)


def infer_sample_spec(
    source: Source,
    transforms: Sequence[Transform] | RecordTransforms,
    seed: int,
    keep: bool = False,
    fixed: int | None = None,
) -> SampleSpec:
    """Infer the spec of a source's samples; see :func:`probe_samples`.

    Args:
        source: the samples.
        transforms: the transforms of a pipeline, in order.
        seed: the seed of the random transforms.
        keep: True if samples are to be stored: then they must agree before the first random
            transform too.
        fixed: see :class:`~preprocess.chain.Chain`.

    Raises:
        InputError: no sample can be used, samples differ in shape, or transforms do not fit them.
    """
    result = probe_samples(source, transforms, seed, fixed)
    if keep:
        return result.with_stored()
    return result.sample


def probe_samples(
    source: Source,
    transforms: Sequence[Transform] | RecordTransforms,
    seed: int,
    fixed: int | None = None,
) -> SampleProbe:
    """Read and transform ``PROBES`` samples of a source, each once.

    Args:
        source: the samples.
        transforms: the transforms of a pipeline, in order.
        seed: the seed of the random transforms.
        fixed: see :class:`~preprocess.chain.Chain`.

    Raises:
        InputError: no sample can be used, samples differ in shape, or transforms do not fit them.
    """
    if isinstance(transforms, RecordTransforms):
        return _probe_records(source, transforms, seed)
    return _probe_input(source, transforms, seed, fixed)[0]


def _probe_records(source: Source, transforms: RecordTransforms, seed: int) -> SampleProbe:
    """Probe samples of several inputs, each input as if it were the only one."""
    parts: dict[str, SampleProbe] = {}
    sizes: dict[str, dict[int, tuple[int, ...]]] = {}
    sources = input_sources(source, transforms)
    with next(iter(sources.values())).reader.holding():
        for name, items in transforms.fields:
            try:
                parts[name], probed = _probe_input(sources[name], items, seed, None)
            except InputError as error:
                raise InputError(f"input {name}: {error}") from error
            sizes[name] = {sample.index: sample.stored.shape[:2] for sample in probed}
    for name in transforms.moving[1:]:
        for index, size in sizes[transforms.moving[0]].items():
            if sizes[name].get(index, size) != size:
                raise InputError(
                    f"data.together: {transforms.moving[0]} and {name} must have one size before "
                    f"random transforms, and {source.name(index)} has {format_sizes(size)} and "
                    f"{format_sizes(sizes[name][index])}; add a resize or a crop to both"
                )
    sample = SampleSpec.of_parts(
        {name: part.sample for name, part in parts.items()},
        parts[transforms.owner].sample.target,
        tuple(pad.name for pad in transforms.pads),
        transforms.varying,
    )
    stored = None
    if all(part.stored is not None for part in parts.values()):
        stored = RecordSpec.of({name: cast(ArraySpec, part.stored) for name, part in parts.items()})
    return SampleProbe(
        sample,
        stored,
        "; ".join(filter(None, (part.not_stored_reason for part in parts.values()))),
        all(part.is_raw for part in parts.values()),
        sum(part.fixed_s for part in parts.values()),
        sum(part.varying_s for part in parts.values()),
        "\n".join(filter(None, (part.remark for part in parts.values()))),
        {name: part.examples[INPUT] for name, part in parts.items()},
    )


def _probe_input(
    source: Source, transforms: Sequence[Transform], seed: int, fixed: int | None
) -> tuple[SampleProbe, list[_ProbedSample]]:
    """Probe samples of one array; return also the probed samples."""
    transforms, deferred = split_device(transforms)
    counting = _BitCountingSource(source)
    chain = Chain(cast(Source, counting), transforms, seed, fixed)
    probed = _probe_usable(chain)
    array = _common_array_spec(probed)
    is_picture = array.dtype == "uint8" and len(array.shape) == 3
    if is_picture and transforms and type(transforms[-1]) is Standardize:
        raise InputError(
            "transforms: standardize is for tables and arrays of other numbers, and samples are "
            f"{array}, images; use scale, or scale: data for the mean and deviation of the images"
        )
    if chain.affine is not None:
        chain.affine.check(array.shape[-1] if array.shape else 1)
    target = target_of(source).without_names().with_center(plain_targets(source))
    if probed[0].mask is not None:
        target = target.with_size(_common_mask_size(probed))
    stored, not_stored_reason = _common_stored_spec(probed, chain)
    if chain.is_precise:
        array = array.as_float64()
        if stored is not None:
            stored = stored.as_float64()
    sample = SampleSpec(array, target.outputs, chain.affine, None, target)
    if deferred is not None:
        sample = _with_device_augmentation(sample, deferred, probed[0].name)
    result = SampleProbe(
        sample,
        stored,
        not_stored_reason,
        chain.is_raw,
        median(sample_probe.fixed_s for sample_probe in probed),
        median(sample_probe.varying_s for sample_probe in probed),
        _depth_warning(counting.bits, transforms),
        {INPUT: np.stack([sample_probe.input for sample_probe in probed])},
    )
    return result, probed


class _BitCountingSource:
    """Wrapper of a source that records how many bits its 16-bit images use.

    Attributes:
        bits: the number of bits that each sample uses, if it was read; 0 for other samples.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.bits: list[int] = []

    def __len__(self) -> int:
        return len(self._source)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def read(self, index: int) -> bytes | np.ndarray:
        """Read a sample; see :class:`~preprocess.base.Source`."""
        content = self._source.read(index)
        self.bits.append(count_bits_used(content) if isinstance(content, bytes) else 0)
        return content


def _depth_warning(bits: Sequence[int], transforms: Sequence[Transform]) -> str:
    """Return a warning if 16-bit images use fewer bits than ``decode`` assumes; else "".

    Args:
        bits: the number of bits that a few samples use.
        transforms: the transforms of the pipeline.
    """
    if not transforms:
        return ""
    first = transforms[0]
    if isinstance(first, PackedVariants):
        decoders = [transforms_of_list[0] for transforms_of_list in first.lists]
    else:
        decoders = [first]
    is_set = any(not isinstance(decode, Decode) or decode.bits < 16 for decode in decoders)
    if is_set or not bits or not all(0 < used <= _FEW_BITS for used in bits):
        return ""
    used = max(8, *bits)
    return (
        f"data: images have 16 bits, of which the probed ones use {used}, so decode keeps about "
        f"{2 ** (used - 8)} of 256 gray levels; decode: {{bits: {used}}} keeps all of grayscale "
        "images, and images in color should be converted to 8 bits"
    )


def _spread_indices(count: int) -> list[int]:
    """Choose a few indices, spread over the source."""
    if count:
        return np.unique(np.linspace(0, count - 1, PROBES).astype(int)).tolist()
    return []


def _probe_usable(chain: Chain) -> list[_ProbedSample]:
    """Probe a few spread samples; if none can be used, the first that can."""
    source = chain.source
    count = len(source)
    if not count:
        raise InputError("the data set is empty")
    complaints: list[UnreadableSample] = []

    def usable(indices: Iterable[int]) -> Iterator[_ProbedSample]:
        for index in indices:
            try:
                began = time.perf_counter()
                prepared = chain.prepare(index)
                prepared_at = time.perf_counter()
                array, mask = chain.augment(prepared, index, epoch=0)
                yield _ProbedSample(
                    index,
                    source.name(index),
                    prepared.input,
                    array,
                    mask,
                    prepared_at - began,
                    time.perf_counter() - prepared_at,
                )
            except UnreadableSample as error:
                complaints.append(error)

    probed = list(usable(_spread_indices(count))) or list(islice(usable(range(count)), 1))
    if not probed:
        raise InputError(
            f"none of the {pluralize(count, 'sample')} can be used; the first: {complaints[0]}"
        )
    return probed


def _common_array_spec(probed: Sequence[_ProbedSample]) -> ArraySpec:
    name = probed[0].name
    array = ArraySpec.of(probed[0].input)
    if np.dtype(array.dtype).kind not in "fiu":
        raise InputError(f"{name} becomes {array}; transforms must give numbers")
    for sample in probed[1:]:
        sample_array = ArraySpec.of(sample.input)
        if sample_array != array:
            advice = "add a resize or a crop"
            if len(array.shape) < 3 and array.shape[1:] == sample_array.shape[1:]:
                advice = "pad them (data.pad), or let a transform give them one length"
            raise InputError(
                f"transforms: samples must end in one shape, but {name} is {array} and "
                f"{sample.name} is {sample_array}; {advice}"
            )
    return array


def _with_device_augmentation(sample: SampleSpec, deferred: OnDevice, name: str) -> SampleSpec:
    """Return the spec of a sample after the device's augmentation."""
    array = sample.input
    assert isinstance(array, ArraySpec)
    if len(array.shape) != 3:
        raise InputError(
            f"data.augment_on: device: it crops and mirrors images, and {name} becomes {array}"
        )
    try:
        size = deferred.size(*array.shape[:2])
    except UnreadableImage as error:
        raise InputError(f"none of the samples can be used; the first: {name} {error}") from error
    if sample.target.semantics.is_of_pixels:
        target = sample.target.with_size(size)
    else:
        target = sample.target
    return replace(
        sample,
        input=replace(array, shape=(*size, array.shape[2])),
        target=target,
        deferred_input=array,
    )


def _common_mask_size(probed: Sequence[_ProbedSample]) -> tuple[int, int]:
    """Return the (height, width) of the masks after all transforms."""
    for sample in probed:
        assert sample.mask is not None
        if sample.mask.shape != sample.input.shape[:2]:  # from a user's transform
            raise InputError(
                f"{sample.name} becomes {ArraySpec.of(sample.input)} and its mask "
                f"{ArraySpec.of(sample.mask)}; transforms must leave both the same height and width"
            )
    height, width = probed[0].input.shape[:2]
    return height, width


def _common_stored_spec(
    probed: Sequence[_ProbedSample], chain: Chain
) -> tuple[ArraySpec | None, str]:
    """Return the spec up to the first random transform; or None and the reason."""
    name = probed[0].name
    array = ArraySpec.of(probed[0].stored)
    for sample in probed:
        if chain.has_early_scale and sample.stored.dtype != np.uint8:
            return None, (
                f"{sample.name} is {ArraySpec.of(sample.stored)} before the first random "
                "transform; only uint8 is kept"
            )
        if ArraySpec.of(sample.stored) != array:
            return None, (
                f"{name} is {array} and {sample.name} {ArraySpec.of(sample.stored)} before the "
                "first random transform; add a resize or a crop before it"
            )
    return array, ""
