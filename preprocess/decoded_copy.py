"""A copy of a data set in which all is done that is the same in every epoch: a spec's ``cache: file``."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np

from preprocess.base import BadSample, DataSet, InputError, Source
from preprocess.chain import split_scale, split_transforms
from preprocess.packing import Progress, write_hdf5
from preprocess.pipeline import Pipeline
from preprocess.sample import SampleSpec
from preprocess.sources.hdf5 import HDF5, open_file, open_hdf5
from preprocess.target import plain_targets
from preprocess.transforms import Transform


def decode_once(data: DataSet, transforms: Sequence[Transform], samples: Mapping[str, SampleSpec],
                path: str | Path, progress: Progress = lambda count: None) -> Decoded:
    """A copy of a data set in which all is done that is the same in every epoch; made where it is not there yet.

    A copy that other transforms or other samples have led to is made anew. (That a file of the same name has
    other content is not noticed: delete the copy then.)

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
        raise InputError("transforms: the first is random or a scale, so nothing can be done once for all epochs")
    made_from = _fingerprint(data, fixed)
    if not _is_made_from(path, made_from):
        parts = {name: _pipeline(source, fixed, samples[name]) for name, source in data.parts().items()}
        write_hdf5(parts, path, progress, made_from)
    train, validation, test = open_hdf5(str(path))
    left_out = [sample for part in (train, validation, test) if isinstance(part, HDF5)
                for sample in part.left_out()]
    return Decoded(DataSet(train, validation, data.classes, test), tuple(transforms[len(fixed):]), left_out)


class Decoded(NamedTuple):
    """What :func:`decode_once` gives.

    Attributes:
        data: the copy.
        transforms: those that are still to be done.
        left_out: samples that could not be used, and are not in the copy.
    """

    data: DataSet
    transforms: tuple[Transform, ...]
    left_out: list[BadSample]


def _pipeline(source: Source, fixed: Sequence[Transform], sample: SampleSpec) -> Pipeline:
    if sample.kept is None:
        raise ValueError("the part of a sample that is kept is unknown; probe(..., keep=True) finds it out")
    return Pipeline(source, fixed, seed=0, sample=SampleSpec(sample.kept, sample.classes, target=sample.kept_target))


def _fingerprint(data: DataSet, transforms: Sequence[Transform]) -> str:
    """A hash of what a copy depends on: the transforms, the names of the samples and their targets; masks are not read.
    """
    found = hashlib.sha256(repr((transforms, data.classes)).encode())
    for source in data.parts().values():
        targets, weights = plain_targets(source), getattr(source, "weights", None)
        for index in range(len(source)):
            said = "" if targets is None else targets[index]
            found.update(f"{source.name(index)}\0{said}\n".encode())
        if weights is not None:
            found.update(np.asarray(weights).tobytes())
        found.update(b"\0")
    return found.hexdigest()


def _is_made_from(path: str | Path, made_from: str) -> bool:
    if not os.path.isfile(path):
        return False
    if not h5py.is_hdf5(path):
        raise InputError(f"{path} exists and is not an HDF5 file, so it is not replaced")
    with open_file(path) as file:
        if "made_from" not in file.attrs:
            raise InputError(f"{path} exists and this program did not make it from images, so it is not replaced")
        return file.attrs["made_from"] == made_from
