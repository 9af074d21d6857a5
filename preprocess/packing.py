"""Writing a data set into one HDF5 file, which :mod:`preprocess.sources.hdf5` reads; its layout is described there."""

from __future__ import annotations

import errno
import glob
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import h5py
import numpy as np

from preprocess.base import BadSample, CannotWrite, ClassSource, InputError, Source, counted
from preprocess.files.deaf_file import DeafFile
from preprocess.pipeline import Pipeline

Progress = Callable[[int], object]


def write_hdf5(parts: Mapping[str, Source | Pipeline], path: str | Path,
               progress: Progress = lambda count: None, made_from: str = "") -> list[BadSample]:
    """Write a data set to an HDF5 file, which appears whole or not at all.

    Args:
        parts: ``train`` and perhaps ``validation``: a source, whose files are kept as they are; or a pipeline, which
            does to each image what is done before it is written.
        path: of the file.
        progress: called with the number of samples that have just been done.
        made_from: is kept in the file, to tell later what it holds.

    Returns:
        The samples that could not be used and are left out.

    Raises:
        InputError: a pipeline is random, or does not end in uint8; or the file has no place there.
        CannotWrite: the disk is full, ...
    """
    place = Path(path)
    if not place.name or place.is_dir():
        raise InputError(f"{place} is a folder; it must be the name of a file")
    partial = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    for left_over in place.parent.glob(f".{glob.escape(place.name)}.*.tmp"):  # of a process that was killed
        left_over.unlink(missing_ok=True)
    bad = []
    try:
        with _create(partial, place) as plain:
            target = DeafFile(plain, place)

            def advance(count: int) -> None:
                target.check()
                progress(count)

            with target.hdf5() as file:
                file.attrs["made_from"] = made_from
                for name, part in parts.items():
                    bad += _write_part(file.create_group(name), part, advance)
            with _writing(place):
                os.fsync(plain.fileno())
                os.replace(partial, place)
    finally:
        with suppress(OSError):  # what went wrong before says more
            partial.unlink(missing_ok=True)
    return bad


def _create(partial: Path, path: Path) -> IO[bytes]:
    try:
        with _writing(path):
            return open(partial, "w+b", buffering=0)
    except CannotWrite as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG):
            raise
        raise InputError(f"cannot write {path}: {error.strerror}") from error


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Tell errors of writing from those of reading samples."""
    try:
        yield
    except OSError as error:
        raise CannotWrite(error.errno, error.strerror or str(error), str(path)) from error


def _write_part(group: h5py.Group, part: Source | Pipeline, progress: Progress) -> list[BadSample]:
    """Write one part; samples that cannot be used leave no gap."""
    images, sample = _room(group, part)
    source = part.source if isinstance(part, Pipeline) else part
    if not isinstance(source, ClassSource):
        raise InputError("only samples of classes can be written into such a file")
    kept: list[int] = []
    bad = []
    for index in range(len(source)):
        try:
            images[len(kept)] = sample(index)
            kept.append(index)
        except BadSample as error:
            bad.append(error)
        progress(1)
    if not kept:
        raise InputError(f"none of the {counted(len(source), 'sample')} can be used; the first: {bad[0]}")
    images.resize(len(kept), axis=0)
    group.create_dataset("labels", data=source.labels[kept].astype(np.int64))
    for name, texts in (("classes", source.classes), ("names", [source.name(index) for index in kept]),
                        ("left_out", [sample.name for sample in bad]),
                        ("left_out_because", [sample.reason for sample in bad])):
        group.create_dataset(name, data=texts, dtype=h5py.string_dtype())
    return bad


def _room(group: h5py.Group, part: Source | Pipeline) -> tuple[h5py.Dataset, Callable[[int], np.ndarray]]:
    """The data set for the images, and what makes one of them."""
    if not isinstance(part, Pipeline):
        images = group.create_dataset("images", (len(part),), h5py.vlen_dtype(np.uint8), maxshape=(None,),
                                      chunks=(min(len(part), 64),))
        return images, lambda index: _encoded(part, index)
    if part.is_random or part.sample.affine or part.sample.image.dtype != "uint8":
        raise InputError("only transforms that are not random and end in uint8 can be done beforehand")
    shape = part.sample.image.shape
    images = group.create_dataset("images", (part.samples, *shape), np.uint8, maxshape=(None, *shape),
                                  chunks=(1, *shape))
    return images, lambda index: part.finish(part.prepare(index), index, epoch=0).image


def _encoded(source: Source, index: int) -> np.ndarray:
    data = source.read(index)
    if isinstance(data, np.ndarray):
        raise InputError(f"{source.name(index)} is an array, not an encoded file to keep as it is")
    return np.frombuffer(data, np.uint8)
