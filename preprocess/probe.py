"""The first look at a data set: what its samples are after their transforms, judged by a few of them.

This is the one place that reads samples in order to learn what they are like. All others are told, by a
:class:`~preprocess.sample.SampleSpec`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from preprocess.base import BadSample, InputError, Source, counted
from preprocess.chain import Chain
from preprocess.sample import ImageSpec, SampleSpec
from preprocess.target import target_of
from preprocess.transforms import Transform

PROBES = 8  # samples that are looked at, spread over the source


@dataclass(frozen=True)
class _Probed:
    """One sample that was looked at."""

    name: str
    kept: np.ndarray  # up to the first random transform
    image: np.ndarray  # after all transforms
    mask: np.ndarray | None  # its mask, then


def probe(source: Source, transforms: Sequence[Transform], seed: int, keep: bool = False) -> SampleSpec:
    """Find out what the samples of a source are; reads each of ``PROBES`` samples once.

    Args:
        source: the samples.
        transforms: of a pipeline, in order.
        seed: of the random transforms.
        keep: whether samples are to be kept decoded: then they must be alike before the first random transform too.

    Raises:
        InputError: no sample can be used, samples that differ in shape, or transforms that do not fit them.
    """
    chain = Chain(source, transforms, seed)
    found = _look(chain)
    image = _alike_at_the_end(found)
    if chain.affine is not None:
        chain.affine.check(image.shape[-1] if image.shape else 1)
    target = replace(target_of(source), names=())
    if found[0].mask is not None:
        target = replace(target, size=_alike_masks(found))
    return SampleSpec(image, target.outputs, chain.affine, _alike_when_kept(found, chain) if keep else None, target)


def _look(chain: Chain) -> list[_Probed]:
    """A few samples, spread over the source; the first that can be used, where none of these can."""
    source, count = chain.source, len(chain.source)
    if not count:
        raise InputError("the data set is empty")
    complaints: list[BadSample] = []

    def usable(indices: Iterable[int]) -> Iterator[_Probed]:
        for index in indices:
            try:
                kept = chain.prepare(index)
                image, mask = chain.vary(kept, index, epoch=0)
                yield _Probed(source.name(index), kept.image, image, mask)
            except BadSample as error:
                complaints.append(error)

    spread = np.unique(np.linspace(0, count - 1, PROBES).astype(int)).tolist()
    found = list(usable(spread)) or list(islice(usable(range(count)), 1))
    if not found:
        raise InputError(f"none of the {counted(count, 'sample')} can be used; the first: {complaints[0]}")
    return found


def _alike_at_the_end(found: Sequence[_Probed]) -> ImageSpec:
    name, image = found[0].name, ImageSpec.of(found[0].image)
    if np.dtype(image.dtype).kind not in "fiu":
        raise InputError(f"{name} becomes {image}; transforms must give numbers")
    for other in found[1:]:
        if ImageSpec.of(other.image) != image:
            raise InputError(f"transforms: samples must end in one shape, but {name} is {image} and {other.name} is "
                             f"{ImageSpec.of(other.image)}; add a resize or a crop")
    return image


def _alike_masks(found: Sequence[_Probed]) -> tuple[int, int]:
    """The size of the masks after all transforms, which is that of their images."""
    for one in found:
        assert one.mask is not None
        if one.mask.shape != one.image.shape[:2]:  # of a transform of the user's own
            raise InputError(f"{one.name} becomes {ImageSpec.of(one.image)} and its mask {ImageSpec.of(one.mask)}; "
                             "transforms must leave both the same height and width")
    height, width = found[0].image.shape[:2]
    return height, width


def _alike_when_kept(found: Sequence[_Probed], chain: Chain) -> ImageSpec:
    name, image = found[0].name, ImageSpec.of(found[0].kept)
    for other in found:
        if chain.scales_early and other.kept.dtype != np.uint8:
            raise InputError(f"{other.name} is {ImageSpec.of(other.kept)} before the first random transform; only "
                             "uint8 is kept")
        if ImageSpec.of(other.kept) != image:
            raise InputError(f"{name} is {image} and {other.name} {ImageSpec.of(other.kept)} before the first random "
                             "transform; add a resize or a crop before it")
    return image
