"""The first look at a data set: what its samples are after their transforms, judged by a few of them.

This is the one place that reads samples in order to learn what they are like. All others are told, by a
:class:`~preprocess.sample.SampleSpec`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from statistics import median
from typing import Any, cast

import numpy as np

from preprocess.base import InputError, Source, UnreadableImage, UnreadableSample, counted
from preprocess.chain import Chain
from preprocess.decode import bits_used
from preprocess.sample import ImageSpec, SampleSpec
from preprocess.target import plain_targets, target_of
from preprocess.transforms import Transform
from preprocess.transforms.color import Standardize
from preprocess.transforms.decoding import Decode
from preprocess.transforms.on_device import OnDevice, split_device
from preprocess.transforms.packed_variants import PackedVariants

PROBES = 8  # samples that are looked at, spread over the source
_FEW_BITS = 14  # images of 16 bits that use no more lose most of their grey levels in 8 bits


@dataclass(frozen=True)
class _Probed:
    """One sample that was looked at."""

    name: str
    kept: np.ndarray  # up to the first random transform
    image: np.ndarray  # after all transforms
    mask: np.ndarray | None  # its mask, then
    fixed_s: float  # what it took to come to `kept`
    varying_s: float  # and from there to `image`


@dataclass(frozen=True)
class SampleProbe:
    """What a few samples of a source have shown.

    Attributes:
        sample: what they are; what is kept of them is left open.
        kept: a sample up to the first random transform; None where samples are not alike there.
        unkept: then why no sample can be kept.
        is_raw: whether nothing is done, up to there, to what the source gives.
        fixed_s, varying_s: seconds that a sample takes up to the first random transform, reading included, and from
            there on; medians.
        remark: what their owner should know of them; empty if there is nothing.
    """

    sample: SampleSpec
    kept: ImageSpec | None
    unkept: str
    is_raw: bool
    fixed_s: float
    varying_s: float
    remark: str = ""

    def keeping(self) -> SampleSpec:
        """The samples, with what is kept of them.

        Raises:
            InputError: they are not alike before the first random transform.
        """
        if self.kept is None:
            raise InputError(self.unkept)
        return replace(self.sample, kept=self.kept)


def probe(
    source: Source,
    transforms: Sequence[Transform],
    seed: int,
    keep: bool = False,
    fixed: int | None = None,
) -> SampleSpec:
    """Find out what the samples of a source are; see :func:`look`.

    Args:
        keep: whether samples are to be kept decoded: then they must be alike before the first random transform too.
        fixed: as for :class:`~preprocess.chain.Chain`.

    Raises:
        InputError: no sample can be used, samples that differ in shape, or transforms that do not fit them.
    """
    found = look(source, transforms, seed, fixed)
    if keep:
        return found.keeping()
    return found.sample


def look(
    source: Source, transforms: Sequence[Transform], seed: int, fixed: int | None = None
) -> SampleProbe:
    """Look at some samples of a source; reads each of ``PROBES`` samples once.

    Args:
        source: the samples.
        transforms: of a pipeline, in order.
        seed: of the random transforms.
        fixed: as for :class:`~preprocess.chain.Chain`.

    Raises:
        InputError: no sample can be used, samples that differ in shape, or transforms that do not fit them.
    """
    transforms, left = split_device(transforms)
    watched = _Watched(source)
    chain = Chain(cast(Source, watched), transforms, seed, fixed)
    found = _samples(chain)
    image = _alike_at_the_end(found)
    is_picture = image.dtype == "uint8" and len(image.shape) == 3
    if is_picture and transforms and isinstance(transforms[-1], Standardize):
        raise InputError(
            f"transforms: standardize is for tables and arrays of other numbers, and samples are {image}, "
            "images; it should be scale"
        )
    if chain.affine is not None:
        chain.affine.check(image.shape[-1] if image.shape else 1)
    target = replace(target_of(source), names=())
    if target.kind == "value":
        center = np.mean(plain_targets(source), axis=0, dtype=np.float64)
        target = replace(target, center=tuple(center.ravel().tolist()))
    if found[0].mask is not None:
        target = replace(target, size=_alike_masks(found))
    kept, unkept = _alike_when_kept(found, chain)
    if chain.is_precise:
        image = image.precise()
        kept = None if kept is None else kept.precise()
    sample = SampleSpec(image, target.outputs, chain.affine, None, target)
    if left is not None:
        sample = _left_to_device(sample, left, found[0].name)
    return SampleProbe(
        sample,
        kept,
        unkept,
        chain.is_raw,
        median(one.fixed_s for one in found),
        median(one.varying_s for one in found),
        _on_depth(watched.bits, transforms),
    )


class _Watched:
    """A source of which it is noted how many bits its images of 16 bits use.

    Attributes:
        bits: of each sample that was read; 0 of those that are no such images.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.bits: list[int] = []

    def __len__(self) -> int:
        return len(self._source)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def read(self, index: int) -> bytes | np.ndarray:
        """See :class:`~preprocess.base.Source`."""
        found = self._source.read(index)
        self.bits.append(bits_used(found) if isinstance(found, bytes) else 0)
        return found


def _on_depth(bits: Sequence[int], transforms: Sequence[Transform]) -> str:
    """Say in a line that images of 16 bits use fewer of them; nothing where they do not, or a spec says so.

    Args:
        bits: that a few samples use.
    """
    if not transforms:
        return ""
    first = transforms[0]
    if isinstance(first, PackedVariants):
        decoders = [made[0] for made in first.lists]
    else:
        decoders = [first]
    is_told = any(not isinstance(decode, Decode) or decode.bits < 16 for decode in decoders)
    if is_told or not bits or not all(0 < used <= _FEW_BITS for used in bits):
        return ""
    used = max(8, *bits)
    return (
        f"data: images have 16 bits, of which those looked at use {used}, so decode keeps about "
        f"{2 ** (used - 8)} of 256 grey levels; decode: {{bits: {used}}} keeps all of greyscale images, and "
        "images in color should be converted to 8 bits"
    )


def _spread(count: int) -> list[int]:
    """A few samples, spread over the source."""
    if count:
        return np.unique(np.linspace(0, count - 1, PROBES).astype(int)).tolist()
    return []


def _samples(chain: Chain) -> list[_Probed]:
    """A few samples, spread over the source; the first that can be used, where none of these can."""
    source, count = chain.source, len(chain.source)
    if not count:
        raise InputError("the data set is empty")
    complaints: list[UnreadableSample] = []

    def usable(indices: Iterable[int]) -> Iterator[_Probed]:
        for index in indices:
            try:
                began = time.perf_counter()
                kept = chain.prepare(index)
                prepared = time.perf_counter()
                image, mask = chain.vary(kept, index, epoch=0)
                yield _Probed(
                    source.name(index),
                    kept.image,
                    image,
                    mask,
                    prepared - began,
                    time.perf_counter() - prepared,
                )
            except UnreadableSample as error:
                complaints.append(error)

    found = list(usable(_spread(count))) or list(islice(usable(range(count)), 1))
    if not found:
        raise InputError(
            f"none of the {counted(count, 'sample')} can be used; the first: {complaints[0]}"
        )
    return found


def _alike_at_the_end(found: Sequence[_Probed]) -> ImageSpec:
    name = found[0].name
    image = ImageSpec.of(found[0].image)
    if np.dtype(image.dtype).kind not in "fiu":
        raise InputError(f"{name} becomes {image}; transforms must give numbers")
    for other in found[1:]:
        if ImageSpec.of(other.image) != image:
            raise InputError(
                f"transforms: samples must end in one shape, but {name} is {image} and {other.name} is "
                f"{ImageSpec.of(other.image)}; add a resize or a crop"
            )
    return image


def _left_to_device(sample: SampleSpec, left: OnDevice, name: str) -> SampleSpec:
    """What a sample is when the device has done the rest to it."""
    image = sample.image
    if len(image.shape) != 3:
        raise InputError(
            f"data.augment_on: device: it crops and mirrors images, and {name} becomes {image}"
        )
    try:
        size = left.size(*image.shape[:2])
    except UnreadableImage as error:
        raise InputError(f"none of the samples can be used; the first: {name} {error}") from error
    if sample.target.kind == "mask":
        target = replace(sample.target, size=size)
    else:
        target = sample.target
    return replace(
        sample, image=replace(image, shape=(*size, image.shape[2])), target=target, unfinished=image
    )


def _alike_masks(found: Sequence[_Probed]) -> tuple[int, int]:
    """The size of the masks after all transforms, which is that of their images."""
    for one in found:
        assert one.mask is not None
        if one.mask.shape != one.image.shape[:2]:  # of a transform of the user's own
            raise InputError(
                f"{one.name} becomes {ImageSpec.of(one.image)} and its mask {ImageSpec.of(one.mask)}; "
                "transforms must leave both the same height and width"
            )
    height, width = found[0].image.shape[:2]
    return height, width


def _alike_when_kept(found: Sequence[_Probed], chain: Chain) -> tuple[ImageSpec | None, str]:
    """A sample up to the first random transform; or why there is no such thing."""
    name = found[0].name
    image = ImageSpec.of(found[0].kept)
    for other in found:
        if chain.scales_early and other.kept.dtype != np.uint8:
            return None, (
                f"{other.name} is {ImageSpec.of(other.kept)} before the first random transform; only uint8 "
                "is kept"
            )
        if ImageSpec.of(other.kept) != image:
            return None, (
                f"{name} is {image} and {other.name} {ImageSpec.of(other.kept)} before the first random "
                "transform; add a resize or a crop before it"
            )
    return image, ""
