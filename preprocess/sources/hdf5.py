"""Samples in one HDF5 file: fewer files for a parallel file system, and images that are decoded already.

    /train/images       (n,) of variable-length uint8: encoded files; or (n, height, width, channels) uint8
    /train/labels       (n,) int64
    /train/classes      (c,) str: what the labels mean; the numbers themselves where it is missing
    /train/names        (n,) str: where each sample came from; may be missing
    /validation/...     the same, where there is validation data

A file with ``images`` and ``labels`` at its root is read too.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import IO, NamedTuple

import h5py
import numpy as np

from preprocess.base import BadSample, CannotWrite, DataSet, InputError, RandomAccess, Source
from preprocess.files.deaf_file import DeafFile
from preprocess.passing import read_patiently
from preprocess.pipeline import Pipeline, split_transforms
from preprocess.transforms import Scale, Transform


class HDF5(RandomAccess):
    """The samples in one group of an HDF5 file.

    Args:
        path: of the file.
        group: where ``images`` and ``labels`` are.

    Raises:
        InputError: something else is there.
    """

    def __init__(self, path: str, group: str) -> None:
        self.path = path
        self.group = group
        with _open(path) as file:
            part = file[group]
            self._check(part)
            self.labels = part["labels"][:].astype(np.int64)
            self.classes = tuple(part["classes"].asstr()[:] if "classes" in part
                                 else map(str, range(self.labels.max(initial=-1) + 1)))
        if self.labels.min(initial=0) < 0 or self.labels.max(initial=-1) >= len(self.classes):
            raise InputError(f"{path}: {group}/labels are not all in 0..{len(self.classes) - 1}, "
                             f"for there are {len(self.classes)} classes")

    def read(self, index: int) -> bytes | np.ndarray:
        """The encoded file or the array; see :class:`~preprocess.base.Source`."""
        image = read_patiently(lambda: self._images[index], lambda: self.name(index),
                               again=lambda: self.__dict__.pop("_images", None))
        return image if image.ndim == 3 else image.tobytes()

    def name(self, index: int) -> str:
        """The name that was kept, or the number."""
        part = self._images.parent
        kept = part["names"].asstr()[index] if "names" in part else index
        return f"{self.path}:{self.group}[{kept}]"

    def left_out(self) -> list[BadSample]:
        """What could not be used when the file was made."""
        part = self._images.parent
        if "left_out" not in part:
            return []
        return [BadSample(name, reason) for name, reason in zip(
            part["left_out"].asstr()[:], part["left_out_because"].asstr()[:], strict=True)]

    def __getstate__(self) -> dict[str, object]:
        """Without the file that is open: other ranks open it themselves."""
        return {name: value for name, value in self.__dict__.items() if name != "_images"}

    @cached_property
    def _images(self) -> h5py.Dataset:
        return _open(self.path)[self.group]["images"]

    def _check(self, part: h5py.Group) -> None:
        for name in ("images", "labels"):
            if not isinstance(part.get(name), h5py.Dataset):
                raise InputError(f"{self.path}: no data set {self.group.rstrip('/')}/{name} in it")
        images, labels = part["images"], part["labels"]
        encoded = images.ndim == 1 and h5py.check_vlen_dtype(images.dtype) == np.uint8
        if not (encoded or (images.ndim == 4 and images.dtype == np.uint8)):
            raise InputError(f"{self.path}: {self.group}/images is {images.shape} of {images.dtype}; wanted "
                             "are (n, height, width, channels) uint8, or (n,) encoded images of "
                             "variable-length uint8")
        if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
            raise InputError(f"{self.path}: {self.group}/labels is {labels.shape} of {labels.dtype}; "
                             f"{images.shape[:1]} integers are wanted, one for each image")


def _open(path: str | Path) -> h5py.File:
    """For reading, without a lock, which parallel file systems may not have: files are replaced, never changed."""
    return h5py.File(path, "r", locking=False)


def open_hdf5(path: str) -> tuple[HDF5, HDF5 | None]:
    """The training samples of a file and, where it has some, those for validation.

    Raises:
        InputError: not such a file.
    """
    if not os.path.isfile(path):
        raise InputError(f"{path}: no such file")
    if not h5py.is_hdf5(path):
        raise InputError(f"{path} is not an HDF5 file")
    with _open(path) as file:
        groups = [name for name in ("train", "validation") if name in file]
    if "train" not in groups:
        return HDF5(path, "/"), None
    return HDF5(path, "/train"), HDF5(path, "/validation") if "validation" in groups else None


Progress = Callable[[int], object]


def _silent(count: int) -> None:
    pass


def write_hdf5(data: DataSet, transforms: Sequence[Transform], path: str | Path, progress: Progress = _silent,
               made_from: str = "") -> list[BadSample]:
    """Write a data set to an HDF5 file, which appears whole or not at all.

    Args:
        data: what to write.
        transforms: none to keep the files as they are; else what is done to each image before it is written:
            transforms that are not random and that end in one shape and uint8.
        path: of the file.
        progress: called with the number of samples that have just been done.
        made_from: is kept in the file, to tell later what it holds.

    Returns:
        The samples that could not be used and are left out.

    Raises:
        InputError: the transforms are random, or do not end in uint8; or the file has no place there.
        CannotWrite: the disk is full, ...
    """
    place = Path(path)
    if not place.name or place.is_dir():
        raise InputError(f"{place} is a folder; a file's name is wanted")
    partial = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    for left_over in place.parent.glob(f".{glob.escape(place.name)}.*.tmp"):  # of a process that was killed
        left_over.unlink(missing_ok=True)
    parts = {"train": data.train} | ({} if data.validation is None else {"validation": data.validation})
    bad = []
    try:
        with _create(partial, place) as plain:
            target = DeafFile(plain)

            def advance(count: int) -> None:
                with _writing(place):
                    target.check()
                progress(count)

            try:
                with h5py.File(target, "w") as file:
                    file.attrs["made_from"] = made_from
                    for name, source in parts.items():
                        bad += _write_part(file.create_group(name), source, data.classes, transforms, advance)
            except Exception:
                with _writing(place):
                    target.check()  # the cause, where HDF5 has read back what could not be written
                raise
            with _writing(place):
                target.check()
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
    """Tell errors in writing from those in reading samples."""
    try:
        yield
    except OSError as error:
        raise CannotWrite(error.errno, error.strerror or str(error), str(path)) from error


def decode_once(data: DataSet, transforms: Sequence[Transform], path: str | Path, progress: Progress = _silent
                ) -> Decoded:
    """A copy of a data set in which all is done that is the same in every epoch; made where it is not there yet.

    A copy that other transforms or other samples have led to is made anew. (That a file of the same name has
    other content is not noticed: delete the copy then.)

    Args:
        data: with encoded images.
        transforms: all of a spec's. Those before the first random one are done, and have to end in one shape.
        path: of the HDF5 file.
        progress: called with the number of samples that have just been done.

    Raises:
        InputError: the samples end in different shapes; or the file has no place there.
        CannotWrite: the disk is full, ...
    """
    fixed, _ = split_transforms(transforms[:-1] if transforms and isinstance(transforms[-1], Scale) else transforms)
    if not fixed:
        raise InputError("transforms: the first is random or a scale, so nothing can be done once for all epochs")
    made_from = _fingerprint(data, fixed)
    if not _is_made_from(path, made_from):
        write_hdf5(data, fixed, path, progress, made_from)
    train, validation = open_hdf5(str(path))
    left_out = [sample for part in (train, validation) if part is not None for sample in part.left_out()]
    return Decoded(DataSet(train, validation, data.classes), tuple(transforms[len(fixed):]), left_out)


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


def _fingerprint(data: DataSet, transforms: Sequence[Transform]) -> str:
    """A hash of what a copy depends on: the transforms, the names of the samples and their labels."""
    found = hashlib.sha256(repr((transforms, data.classes)).encode())
    for source in filter(None, (data.train, data.validation)):
        for index in range(len(source)):
            found.update(f"{source.name(index)}\0{source.labels[index]}\n".encode())
        found.update(b"\0")
    return found.hexdigest()


def _is_made_from(path: str | Path, made_from: str) -> bool:
    if not os.path.isfile(path):
        return False
    if not h5py.is_hdf5(path):
        raise InputError(f"{path} is there and is not an HDF5 file: not replaced")
    with _open(path) as file:
        if "made_from" not in file.attrs:
            raise InputError(f"{path} is there and was not made from images by this program: not replaced")
        return file.attrs["made_from"] == made_from


def _write_part(group: h5py.Group, source: Source, classes: tuple[str, ...], transforms: Sequence[Transform],
                progress: Progress) -> list[BadSample]:
    """Write one source; samples that cannot be used leave no gap."""
    images, sample = _prepare(group, source, transforms)
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
        raise InputError(f"none of the {len(source)} samples can be used; the first: {bad[0]}")
    images.resize(len(kept), axis=0)
    group.create_dataset("labels", data=source.labels[kept].astype(np.int64))
    for name, texts in (("classes", classes), ("names", [source.name(index) for index in kept]),
                        ("left_out", [sample.name for sample in bad]),
                        ("left_out_because", [sample.reason for sample in bad])):
        group.create_dataset(name, data=texts, dtype=h5py.string_dtype())
    return bad


def _prepare(group: h5py.Group, source: Source, transforms: Sequence[Transform]
             ) -> tuple[h5py.Dataset, Callable[[int], np.ndarray]]:
    """The data set for the images, and what makes one of them."""
    count = len(source)
    if not transforms:
        images = group.create_dataset("images", (count,), h5py.vlen_dtype(np.uint8), maxshape=(None,),
                                      chunks=(min(count, 64),))
        return images, lambda index: _encoded(source, index)
    pipeline = Pipeline(source, transforms, seed=0)
    if pipeline.is_random or pipeline.affine or pipeline.dtype != np.uint8:
        raise InputError("only transforms that are not random and end in uint8 can be done beforehand")
    shape = pipeline.shape
    images = group.create_dataset("images", (count, *shape), np.uint8, maxshape=(None, *shape),
                                  chunks=(1, *shape))
    return images, lambda index: pipeline.finish(pipeline.prepare(index), index, epoch=0)


def _encoded(source: Source, index: int) -> np.ndarray:
    data = source.read(index)
    if isinstance(data, np.ndarray):
        raise InputError(f"{source.name(index)} is an array, not an encoded file to keep as it is")
    return np.frombuffer(data, np.uint8)
