"""Samples in one HDF5 file: fewer files for a parallel file system, and images that are decoded already.

    /train/images       (n,) of variable-length uint8: encoded files; or (n, ...) numbers, such as (n, height, width,
                        channels) uint8
    /train/labels       (n,) integers: the class of each sample
    /train/classes      (c,) str: what the labels, or the pixels of masks, mean; without it, the numbers themselves
    /train/names        (n,) str: where each sample came from; may be missing
    /train/targets      in place of labels: (n, labels) or (n, values); or masks, (n, height, width) integers, or (n,)
                        of variable-length uint8: image files. Its attribute ``kind`` may say what they are
    /train/target_names str: of the labels or values; may be missing
    /train/weights      (n,) numbers from 0; may be missing
    /train/groups, /train/strata    (n,) integers: what stays together, and of what the same share is held out; may be
                        missing
    /validation/..., /test/...      the same, where there is such data

A file with ``images`` and ``labels`` at its root is read too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from preprocess.base import BadSample, InputError
from preprocess.fingerprint import Marks, described, hashed, marks_by_reading
from preprocess.passing import read_patiently
from preprocess.sources.arrays import Opened, open_parts
from preprocess.sources.masks import Masks, PixelClasses
from preprocess.sources.targets import Targeted, Targets, flat, numbered, understand
from preprocess.target import KINDS, TargetWish


class HDF5(Targeted):
    """The samples in one group of an HDF5 file.

    Args:
        path: of the file.
        group: where ``images`` and ``labels``, or ``targets``, are.
        inputs, targets, weights: other names for them.
        masks: how they are coded.
        target: what the targets are, where the spec says it.

    Raises:
        InputError: something else is there.
    """

    def __init__(
        self,
        path: str,
        group: str,
        inputs: str = "images",
        targets: str | None = None,
        weights: str = "weights",
        masks: PixelClasses = PixelClasses(),  # noqa: B008
        target: TargetWish | None = None,
    ) -> None:
        self.path = path
        self.group = group
        self._inputs = inputs
        self.places = (f"{os.path.realpath(path)}:{group}",)
        with open_file(path) as file:
            part = file[group]
            self._column = targets or (
                "targets" if "targets" in part and "labels" not in part else "labels"
            )
            self._check(part)
            count, wish = len(part[inputs]), self._wish(part[self._column], target)
            weighed = flat(part[weights][:]) if weights in part else None
            is_mask = wish is not None and wish.kind == "mask"
            super().__init__(
                self._open_masks(part, masks) if is_mask else self._understood(part, wish),
                weighed,
                count,
            )
            for name in ("groups", "strata"):
                if name in part:
                    setattr(self, name, part[name][:].astype(np.int64))

    def read(self, index: int) -> bytes | np.ndarray:
        """The encoded file or the array; see :class:`~preprocess.base.Source`."""
        image = self._row(self._inputs, index)
        if self._is_encoded:
            return image.tobytes()
        return np.array(image, ndmin=1)

    def mask(self, index: int) -> bytes | np.ndarray:
        """A mask as it lies there: a file, or numbers."""
        found = np.asarray(self._row(self._column, index))
        return found.tobytes() if self._masks_are_files else found

    def name(self, index: int) -> str:
        """The name that was kept, or the number."""
        kept = self._part["names"].asstr()[index] if "names" in self._part else index
        return f"{self.path}:{self.group}[{kept}]"

    def sample_marks(self) -> Marks:
        """See :mod:`preprocess.fingerprint`."""
        names = hashed(self._part["names"].asstr()[:].tolist()) if "names" in self._part else None
        found = marks_by_reading(self, os.path.getsize(self.path), "row", names)
        return replace(found, facts={"inputs": described(self._part[self._inputs])})

    def left_out(self) -> list[BadSample]:
        """What could not be used when the file was made, each with its place among all samples that there were."""
        part = self._part
        if "left_out_at" not in part:
            return []
        return [
            BadSample(name, reason, place)
            for name, reason, place in zip(
                part["left_out"].asstr()[:],
                part["left_out_because"].asstr()[:],
                part["left_out_at"][:].tolist(),
                strict=True,
            )
        ]

    @cached_property
    def _part(self) -> h5py.Group:
        return open_file(self.path)[self.group]

    @cached_property
    def _is_encoded(self) -> bool:
        return _is_encoded(self._part[self._inputs])

    def _row(self, column: str, index: int) -> Any:
        return read_patiently(
            lambda: self._part[column][index],
            lambda: self.name(index),
            again=lambda: self.__dict__.pop("_part", None),
        )

    def _check(self, part: h5py.Group) -> None:
        where = self.group.rstrip("/")
        for name in (self._inputs, self._column):
            if not isinstance(part.get(name), h5py.Dataset):
                raise InputError(f"{self.path}: it has no data set {where}/{name}")
        images, targets = part[self._inputs], part[self._column]
        if not (_is_encoded(images) or (images.ndim >= 1 and images.dtype.kind in "uifb")):
            raise InputError(
                f"{self.path}: {where}/{self._inputs} is {images.shape} of {images.dtype}; it must be (n, "
                "...) numbers, such as (n, height, width, channels) uint8, or (n,) encoded images of "
                "variable-length uint8"
            )
        if targets.shape[:1] != images.shape[:1]:
            raise InputError(
                f"{self.path}: {where}/{self._column} is {targets.shape} of {targets.dtype}; it must be "
                f"{images.shape[:1]} integers, or {images.shape[0]} targets, one for each image"
            )

    def _wish(self, found: h5py.Dataset, wish: TargetWish | None) -> TargetWish | None:
        """What the targets are: as the spec says it, or the file, or what can be nothing else."""
        said = found.attrs.get("kind")
        if said is not None and said not in KINDS:
            raise InputError(
                f"{self.path}: {found.name} says that its kind is {said!r}; there are {', '.join(KINDS)}"
            )
        if said is None and (
            _is_encoded(found) or (found.ndim in (3, 4) and found.dtype.kind in "iu")
        ):
            said = "mask"
        return TargetWish(said) if wish is None and said is not None else wish

    def _open_masks(self, part: h5py.Group, coding: PixelClasses) -> Masks:
        column = part[self._column]
        if not coding.names and "classes" in part:
            ignore = int(column.attrs["ignore"]) if "ignore" in column.attrs else coding.ignore
            names = tuple(part["classes"].asstr()[:])
            coding = PixelClasses(range(len(names)), names, ignore)
        self._masks_are_files = _is_encoded(column)
        return Masks(len(column), coding, self.name, self.mask)

    def _understood(self, part: h5py.Group, wish: TargetWish | None) -> Targets:
        where, found = f"{self.path}: {self.group.rstrip('/')}/{self._column}", part[self._column]
        if self._column == "labels" and found.ndim == 1 and (wish is None or wish.kind == "class"):
            return self._labelled(part, where)
        values = found.asstr()[:] if h5py.check_string_dtype(found.dtype) else found[:]
        names = tuple(part["target_names"].asstr()[:]) if "target_names" in part else ()
        return understand(values, wish, where, self.name, names)

    def _labelled(self, part: h5py.Group, where: str) -> Targets:
        """Labels that are places in a list of classes."""
        found = part["labels"]
        if found.dtype.kind not in "iu":
            raise InputError(
                f"{where} is {found.shape} of {found.dtype}; it must be {found.shape} integers, one for "
                "each image; say data.target: value, if they are numbers to be predicted"
            )
        labels = found[:].astype(np.int64)
        classes = tuple(
            part["classes"].asstr()[:]
            if "classes" in part
            else map(str, range(labels.max(initial=-1) + 1))
        )
        return numbered(labels, classes, where, self.name)


def _is_encoded(column: h5py.Dataset) -> bool:
    """Whether a data set holds files."""
    return column.ndim == 1 and h5py.check_vlen_dtype(column.dtype) == np.uint8


def open_file(path: str | Path) -> h5py.File:
    """For reading, without a lock, which parallel file systems may not have: files are replaced, never changed."""
    return h5py.File(path, "r", locking=False)


def open_hdf5(
    path: str,
    inputs: str = "images",
    targets: str | None = None,
    weights: str = "weights",
    pixels: Mapping[str, int] | None = None,
    *,
    target: TargetWish | None = None,
) -> Opened:
    """The training samples of a file and, where it has some, those for validation and for testing.

    Args:
        path: of the file.
        inputs, targets, weights: names of data sets; ``targets`` is ``labels`` or ``targets`` unless said.
        pixels: the number that each class has in masks; see :class:`preprocess.sources.masks.PixelClasses`.
        target: what the targets are, where the spec says it.

    Raises:
        InputError: not such a file.
    """
    if not os.path.isfile(path):
        raise InputError(f"{path}: no such file")
    if not h5py.is_hdf5(path):
        raise InputError(f"{path} is not an HDF5 file")
    with open_file(path) as file:
        there = [name for name in ("train", "validation", "test") if name in file]
    is_divided = "train" in there
    return open_parts(
        lambda part, masks: HDF5(path, f"/{part}", inputs, targets, weights, masks, target),
        "train" if is_divided else "",
        [name if is_divided and name in there else None for name in ("validation", "test")],
        PixelClasses.told(pixels, target),
    )
