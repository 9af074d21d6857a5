"""Samples in one HDF5 file: fewer files for a parallel file system, and images that are decoded already.

    /train/images       (n,) of variable-length uint8: encoded files; or (n, height, width, channels) uint8
    /train/labels       (n,) int64
    /train/classes      (c,) str: what the labels mean; the numbers themselves where it is missing
    /train/names        (n,) str: where each sample came from; may be missing
    /validation/...     the same, where there is validation data

A file with ``images`` and ``labels`` at its root is read too.
"""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path

import h5py
import numpy as np

from preprocess.base import BadSample, InputError, RandomAccess
from preprocess.passing import read_patiently


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
        self.places = (f"{os.path.realpath(path)}:{group}",)
        with open_file(path) as file:
            part = file[group]
            self._check(part)
            self.labels = part["labels"][:].astype(np.int64)
            self.classes = tuple(part["classes"].asstr()[:] if "classes" in part
                                 else map(str, range(self.labels.max(initial=-1) + 1)))
        if self.labels.min(initial=0) < 0 or self.labels.max(initial=-1) >= len(self.classes):
            raise InputError(f"{path}: {group}/labels must all be in 0..{len(self.classes) - 1}, "
                             f"because there are {len(self.classes)} classes")

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
        return open_file(self.path)[self.group]["images"]

    def _check(self, part: h5py.Group) -> None:
        for name in ("images", "labels"):
            if not isinstance(part.get(name), h5py.Dataset):
                raise InputError(f"{self.path}: it has no data set {self.group.rstrip('/')}/{name}")
        images, labels = part["images"], part["labels"]
        encoded = images.ndim == 1 and h5py.check_vlen_dtype(images.dtype) == np.uint8
        if not (encoded or (images.ndim == 4 and images.dtype == np.uint8)):
            raise InputError(f"{self.path}: {self.group}/images is {images.shape} of {images.dtype}; it must "
                             "be (n, height, width, channels) uint8, or (n,) encoded images of "
                             "variable-length uint8")
        if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
            raise InputError(f"{self.path}: {self.group}/labels is {labels.shape} of {labels.dtype}; "
                             f"it must be {images.shape[:1]} integers, one for each image")


def open_file(path: str | Path) -> h5py.File:
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
    with open_file(path) as file:
        groups = [name for name in ("train", "validation") if name in file]
    if "train" not in groups:
        return HDF5(path, "/"), None
    return HDF5(path, "/train"), HDF5(path, "/validation") if "validation" in groups else None
