"""A copy of a data set in which all is done that is the same in every epoch: a spec's ``cache: file``."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, cast

import h5py
import numpy as np

from preprocess.base import DataSet, InputError, Source, UnreadableSample, encoded
from preprocess.chain import split_scale, split_transforms
from preprocess.packing import Progress, write_hdf5
from preprocess.pipeline import Pipeline
from preprocess.sample import SampleSpec
from preprocess.source import View
from preprocess.sources.hdf5 import HDF5, open_hdf5
from preprocess.sources.hdf5_file import open_file, refusing
from preprocess.target import is_mask, plain_targets
from preprocess.transforms import Transform

_FORM = (
    3  # of the copies; in those of an earlier form masks are not turned by their EXIF orientation
)


def decode_once(
    data: DataSet,
    transforms: Sequence[Transform],
    samples: Mapping[str, SampleSpec],
    path: str | Path,
    progress: Progress = lambda count: None,
) -> Decoded:
    """A copy of a data set in which all is done that is the same in every epoch; made where it is not there yet.

    A copy that other transforms or other samples have led to is made anew. (That a file of the same name has
    other content is not noticed here: a run deletes the copy when its data has changed.)

    Args:
        data: with encoded images.
        transforms: all of a spec's. Those before the first random one are done, and have to end in one shape.
        samples: what the samples of each part are, by the names of :meth:`DataSet.parts`, with what is kept of them.
        path: of the HDF5 file.
        progress: called with the number of samples that have just been done.

    Raises:
        InputError: there is nothing to do once for all epochs; or the file has no place there.
        CannotWrite: the disk is full, ...
    """
    fixed, _ = split_transforms(split_scale(transforms)[0])
    if not fixed:
        raise InputError(
            "transforms: the first is random or a scale, so nothing can be done once for all epochs"
        )
    made_from = _fingerprint(data, fixed)
    if not _is_made_from(path, made_from):
        write_hdf5(
            {
                name: _pipeline(source, fixed, samples[name])
                for name, source in data.parts().items()
            },
            path,
            progress,
            made_from,
        )
    copies = dict(zip(("train", "validation", "test"), open_hdf5(str(path)), strict=True))
    parts = {
        name: Copied(source, cast(HDF5, copies[name])) for name, source in data.parts().items()
    }
    left_out = [sample for part in parts.values() for sample in part.left_out]
    copy = replace(
        data, train=parts["train"], validation=parts.get("validation"), test=parts.get("test")
    )
    return Decoded(copy, tuple(transforms[len(fixed) :]), left_out)


class Copied(View):
    """The samples of a source as they lie in a copy.

    Each keeps its number, its name and its target, and epochs have the order that they have without a copy. What could
    not be used when the copy was made keeps its place as well, and cannot be read.

    Args:
        source: of which the copy was made.
        copy: of it.

    Attributes:
        left_out: what cannot be read.
    """

    def __init__(self, source: Source, copy: HDF5) -> None:
        super().__init__(source, np.arange(len(source)))
        self._copy = copy
        self.left_out = copy.left_out()
        self._reasons = {bad.position: bad.reason for bad in self.left_out}
        self._rows = np.cumsum([index not in self._reasons for index in range(len(source))]) - 1
        if is_mask(source):
            self.target = copy.target

    def read(self, index: int) -> bytes | np.ndarray:
        """What was made of the sample once; see :class:`~preprocess.base.Source`."""
        if index in self._reasons:
            raise UnreadableSample(self.name(index), self._reasons[index])
        return self._copy.read(int(self._rows[index]))

    def read_target(self, index: int) -> np.ndarray:
        """What was made of its mask."""
        return self._copy.read_target(int(self._rows[index]))


class Decoded(NamedTuple):
    """What :func:`decode_once` gives.

    Attributes:
        data: the copy, whose parts are :class:`Copied`.
        transforms: those that are still to be done.
        left_out: samples that could not be used, and are not in the copy.
    """

    data: DataSet
    transforms: tuple[Transform, ...]
    left_out: list[UnreadableSample]


def _pipeline(source: Source, fixed: Sequence[Transform], sample: SampleSpec) -> Pipeline:
    if sample.kept is None:
        raise ValueError(
            "the part of a sample that is kept is unknown; probe(..., keep=True) finds it out"
        )
    return Pipeline(
        source,
        fixed,
        seed=0,
        sample=SampleSpec(sample.kept, sample.classes, target=sample.kept_target),
    )


def _fingerprint(data: DataSet, transforms: Sequence[Transform]) -> str:
    """A hash of what a copy depends on: the transforms, the names of the samples and their targets; masks are not read."""
    found = hashlib.sha256(repr((_FORM, transforms, data.classes)).encode())
    for source in data.parts().values():
        targets = plain_targets(source)
        weights = getattr(source, "weights", None)
        for index in range(len(source)):
            said = "" if targets is None else targets[index]
            found.update(encoded(f"{source.name(index)}\0{said}\n"))
        if weights is not None:
            found.update(np.asarray(weights).tobytes())
        found.update(b"\0")
    return found.hexdigest()


def _is_made_from(path: str | Path, made_from: str) -> bool:
    if not os.path.isfile(path):
        return False
    if not h5py.is_hdf5(path):
        raise InputError(f"{path} exists and is not an HDF5 file, so it is not replaced")
    with refusing(path), open_file(path) as file:
        if "made_from" not in file.attrs:
            raise InputError(
                f"{path} exists and this program did not make it from images, so it is not replaced"
            )
        return file.attrs["made_from"] == made_from
