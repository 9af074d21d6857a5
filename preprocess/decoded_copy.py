"""A copy of a data set with the fixed transforms applied: ``cache: file`` of a spec."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import h5py
import numpy as np

from launch.errors import InputError, encode_name
from preprocess.base import DataSet, Source, UnreadableSample
from preprocess.chain import split_scale, split_transforms
from preprocess.packing import Progress, write_hdf5
from preprocess.pipeline import Pipeline
from preprocess.sample import SampleSpec
from preprocess.sources.hdf5 import HDF5, open_hdf5
from preprocess.sources.hdf5_file import open_file, wrapping_errors
from preprocess.target import is_mask, plain_targets
from preprocess.transforms import Transform
from preprocess.views import View

_FORMAT_VERSION = 3  # of the copies; before 3, masks ignored their EXIF orientation


def decode_once(
    data: DataSet,
    transforms: Sequence[Transform],
    samples: Mapping[str, SampleSpec],
    path: str | Path,
    progress: Progress = lambda count: None,
) -> DecodedCopy:
    """Return a copy of a data set with the fixed transforms applied; make it if missing.

    A copy made with other transforms or samples is replaced. (Changed content of a file with the
    same name is not noticed here: a run deletes the copy when its data has changed.)

    Args:
        data: data with encoded images.
        transforms: all of the spec's. Those before the first random one are applied, and must end
            in one shape.
        samples: the spec of a sample of each split, by the names of :meth:`DataSet.splits`, with
            :attr:`SampleSpec.stored`.
        path: the path of the HDF5 file.
        progress: called with the number of samples just done.

    Raises:
        InputError: no transform is fixed; or the file cannot be created there.
        CannotWrite: the disk is full, and so on.
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
                for name, source in data.splits().items()
            },
            path,
            progress,
            made_from,
        )
    copies = dict(zip(("train", "validation", "test"), open_hdf5(str(path)), strict=True))
    sources = {
        name: CopiedSource(source, cast(HDF5, copies[name]))
        for name, source in data.splits().items()
    }
    unreadable = [sample for source in sources.values() for sample in source.unreadable]
    copy = replace(
        data, train=sources["train"], validation=sources.get("validation"), test=sources.get("test")
    )
    return DecodedCopy(copy, tuple(transforms[len(fixed) :]), unreadable)


class CopiedSource(View):
    """The samples of a source, read from a copy.

    Each keeps its index, name and target, and epochs have the same order as without a copy. A
    sample that was unreadable when the copy was made keeps its index, and reading it raises.

    Args:
        source: the original.
        copy: the path of the copy.

    Attributes:
        unreadable: the samples that cannot be read.
    """

    def __init__(self, source: Source, copy: HDF5) -> None:
        super().__init__(source, np.arange(len(source)))
        self._copy = copy
        self.unreadable = copy.unreadable()
        self._reasons = {bad.position: bad.reason for bad in self.unreadable}
        self._rows = np.cumsum([index not in self._reasons for index in range(len(source))]) - 1
        if is_mask(source):
            self.target = copy.target

    def read(self, index: int) -> bytes | np.ndarray:
        """Return the copied input, (...) or bytes; see :class:`~preprocess.base.Source`."""
        if index in self._reasons:
            raise UnreadableSample(self.name(index), self._reasons[index])
        return self._copy.read(int(self._rows[index]))

    def read_target(self, index: int) -> np.ndarray:
        """Return the copied mask, (height, width) integers."""
        return self._copy.read_target(int(self._rows[index]))


class DecodedCopy(NamedTuple):
    """The result of :func:`decode_once`.

    Attributes:
        data: the copy, whose splits are :class:`CopiedSource`.
        transforms: those still to be applied.
        unreadable: samples that cannot be used and are not in the copy.
    """

    data: DataSet
    transforms: tuple[Transform, ...]
    unreadable: list[UnreadableSample]


def _pipeline(source: Source, fixed: Sequence[Transform], sample: SampleSpec) -> Pipeline:
    if sample.stored is None:
        raise ValueError("sample.stored is missing; infer_sample_spec(..., keep=True) sets it")
    return Pipeline(
        source,
        fixed,
        seed=0,
        sample=SampleSpec(sample.stored, sample.classes, target=sample.stored_target),
    )


def _fingerprint(data: DataSet, transforms: Sequence[Transform]) -> str:
    """Hash what a copy depends on: transforms, sample names and targets; masks are not read."""
    digest = hashlib.sha256(repr((_FORMAT_VERSION, transforms, data.classes)).encode())
    for source in data.splits().values():
        targets = plain_targets(source)
        weights = getattr(source, "weights", None)
        for index in range(len(source)):
            target = "" if targets is None else _target_at(targets, index)
            digest.update(encode_name(f"{source.name(index)}\0{target}\n"))
        if weights is not None:
            digest.update(np.asarray(weights).tobytes())
        digest.update(b"\0")
    return digest.hexdigest()


def _target_at(targets: Any, index: int) -> Any:
    """Return the target of a sample; of several, as text."""
    if not isinstance(targets, Mapping):
        return targets[index]
    return ", ".join(f"{name}={values[index]}" for name, values in targets.items())


def _is_made_from(path: str | Path, made_from: str) -> bool:
    if not os.path.isfile(path):
        return False
    if not h5py.is_hdf5(path):
        raise InputError(f"{path} exists and is not an HDF5 file, so it is not replaced")
    with wrapping_errors(path), open_file(path) as file:
        if "made_from" not in file.attrs:
            raise InputError(
                f"{path} exists and this program did not make it from images, so it is not replaced"
            )
        return file.attrs["made_from"] == made_from
