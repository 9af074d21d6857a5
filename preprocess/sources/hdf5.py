"""Samples in one HDF5 file: one file for a parallel file system, images possibly decoded.

    /train/images       (n,) variable-length uint8: encoded files; or (n, ...) numbers, such as
                        (n, height, width, channels) uint8
    /train/labels       (n,) integers: the class of each sample; or text, or an enumerated type
    /train/classes      (c,) str: the names of labels or mask pixels; by default, the numbers
    /train/names        (n,) str: where each sample came from; optional
    /train/targets      instead of labels: (n, labels) or (n, values); or masks, (n, height, width)
                        integers, or (n,) variable-length uint8: image files. Its attribute ``kind``
                        may say what they are
    /train/target_names  str: of the labels or values; optional
    /train/targets/NAME  several targets by name; their attributes ``kind`` and ``names`` may say
                        what they are
    /train/weights      (n,) numbers from 0; optional
    /train/groups, /train/strata  (n,) integers: what stays together, and what is divided evenly;
                        optional
    /validation/..., /test/...    the same, if there is such data

A file with ``images`` and ``labels`` at its root is read too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import h5py
import numpy as np

from launch.errors import InputError, printable
from preprocess.base import INPUT, UnreadableSample, and_more
from preprocess.fingerprint import SampleIds, describe_rows, hash_each, identify_by_content
from preprocess.record_target import check_target_name, parse_each, single_request
from preprocess.sources.arrays import Opened, open_splits
from preprocess.sources.hdf5_file import decode_text, find_member, open_file, wrapping_errors
from preprocess.sources.input_names import parse_input_names, parse_target_names
from preprocess.sources.masks import Masks, PixelClasses
from preprocess.sources.targets import (
    AnyTargets,
    TargetedSource,
    Targets,
    class_targets,
    flatten_column,
    parse_targets,
    with_names,
)
from preprocess.splits import TEST, TRAIN, VALIDATION, find_splits, parse_split
from preprocess.target import Request, TargetWish, requested_semantics
from preprocess.target_kinds import KINDS
from preprocess.transient_errors import read_with_retries


class HDF5(TargetedSource):
    """The samples in one group of an HDF5 file.

    Args:
        path: the path of the file.
        group: the group that holds ``images`` and ``labels``, or ``targets``.
        inputs: another name of ``images``; of several inputs, their names -> their data sets.
        targets: another name of ``labels`` or ``targets``; of several targets, their names -> their
            data sets.
        weights: another name of ``weights``.
        masks: the classes of mask pixels.
        target: the ``data.target`` of the spec.

    Raises:
        InputError: the group does not hold such data.
    """

    input_names: tuple[str, ...] = ()
    _mask_column = ""

    def __init__(
        self,
        path: str,
        group: str,
        inputs: str | Mapping[str, str] = "images",
        targets: str | Mapping[str, str] | None = None,
        weights: str = "weights",
        masks: PixelClasses = PixelClasses(),  # noqa: B008
        target: Request = None,
    ) -> None:
        self.path = path
        self.group = group
        if isinstance(inputs, str):
            self._inputs = {INPUT: inputs}
        else:
            self._inputs = dict(inputs)
            self.input_names = tuple(inputs)
        self._first = next(iter(self._inputs.values()))
        self.places = (f"{os.path.realpath(path)}:{group}",)
        with wrapping_errors(path), open_file(path) as file:
            h5_group = find_member(file, group)
            if not isinstance(h5_group, h5py.Group):
                raise InputError(f"{path}: {group} is not a group of data sets")
            columns = _target_columns(h5_group, targets)
            self._check(h5_group, columns)
            count = len(h5_group[self._first])
            weights_of_rows = find_member(h5_group, weights)
            weighed = None if weights_of_rows is None else flatten_column(weights_of_rows[:])
            parsed: AnyTargets
            if isinstance(columns, str):
                single = single_request(target, path)
                parsed = self._parsed(h5_group, columns, single, masks)
            else:
                parsed = parse_each(
                    columns,
                    target,
                    path,
                    lambda name, single: self._parsed(h5_group, columns[name], single, masks, True),
                )
            super().__init__(parsed, weighed, count)
            for name in ("groups", "strata"):
                column = find_member(h5_group, name)
                if column is not None:
                    setattr(self, name, column[:].astype(np.int64))

    def read(self, index: int) -> Any:
        """Read the encoded file or the array, or those of several inputs by name.

        See :class:`~preprocess.base.Source`.
        """
        values = {name: self._read_input(column, index) for name, column in self._inputs.items()}
        if self.input_names:
            return values
        return values[INPUT]

    def _read_input(self, column: str, index: int) -> bytes | np.ndarray:
        value = self._row(column, index)
        if self._are_encoded[column]:
            return value.tobytes()
        return np.array(value, ndmin=1)

    def mask(self, index: int) -> bytes | np.ndarray:
        """Read a mask as it is stored: a file, or (height, width) integers."""
        content = np.asarray(self._row(self._mask_column, index))
        if self._masks_are_files:
            return content.tobytes()
        return content

    def name(self, index: int) -> str:
        """Return the stored name, or the number of the row."""
        if "names" in self._h5_group:
            label: object = decode_text(self._h5_group["names"][index : index + 1])[0]
        else:
            label = index
        return printable(f"{self.path}:{self.group}[{label}]")

    def sample_ids(self) -> SampleIds:
        """Return the ids of the samples; see :mod:`preprocess.fingerprint`."""
        if "names" in self._h5_group:
            names = hash_each(decode_text(self._h5_group["names"][:]))
        else:
            names = None
        ids = identify_by_content(self, os.path.getsize(self.path), "row", names)
        facts = {
            f"input {name}" if self.input_names else "inputs": describe_rows(self._h5_group[column])
            for name, column in self._inputs.items()
        }
        return replace(ids, facts=facts)

    def unreadable(self) -> list[UnreadableSample]:
        """Return the samples left out when the file was made, with their original indices."""
        h5_group = self._h5_group
        if "left_out_at" not in h5_group:
            return []
        return [
            UnreadableSample(name, reason, position)
            for name, reason, position in zip(
                decode_text(h5_group["left_out"][:]),
                decode_text(h5_group["left_out_because"][:]),
                h5_group["left_out_at"][:].tolist(),
                strict=True,
            )
        ]

    @cached_property
    def _h5_group(self) -> h5py.Group:
        return open_file(self.path)[self.group]

    @cached_property
    def _are_encoded(self) -> dict[str, bool]:
        return {column: _is_encoded(self._h5_group[column]) for column in self._inputs.values()}

    def _row(self, column: str, index: int) -> Any:
        return read_with_retries(
            lambda: self._h5_group[column][index],
            lambda: self.name(index),
            again=lambda: self.__dict__.pop("_h5_group", None),
        )

    def _check(self, h5_group: h5py.Group, targets: str | Mapping[str, str]) -> None:
        group = self.group.rstrip("/")
        target_columns = [targets] if isinstance(targets, str) else list(targets.values())
        for name in (*self._inputs.values(), *target_columns):
            column = find_member(h5_group, name)
            if not isinstance(column, h5py.Dataset) or not column.shape:
                raise InputError(f"{self.path}: there is no data set {group}/{name}")
        images = h5_group[self._first]
        for name in self._inputs.values():
            inputs = h5_group[name]
            is_numeric = inputs.ndim >= 1 and _dtype_of_numbers(inputs).kind in "uifb"
            if not (_is_encoded(inputs) or is_numeric):
                raise InputError(
                    f"{self.path}: {group}/{name} is {inputs.shape} of {inputs.dtype}; it "
                    "must be (n, ...) numbers, such as (n, height, width, channels) uint8, or (n,) "
                    "encoded images of variable-length uint8"
                )
            if inputs.shape[0] != images.shape[0]:
                raise InputError(
                    f"{self.path}: {group}/{self._first} has {images.shape[0]} rows and {name} "
                    f"{inputs.shape[0]}; all inputs need the same samples"
                )
        for name in target_columns:
            column = h5_group[name]
            if column.shape[:1] != images.shape[:1]:
                raise InputError(
                    f"{self.path}: {group}/{name} is {column.shape} of {column.dtype}; it "
                    f"must be {images.shape[:1]} integers, or {images.shape[0]} targets, one for "
                    "each image"
                )

    def _parsed(
        self,
        h5_group: h5py.Group,
        name: str,
        request: TargetWish | None,
        masks: PixelClasses,
        is_named: bool = False,
    ) -> Masks | Targets:
        """Parse the targets in a data set.

        Args:
            name: the name of the data set.
            request: what the spec says of them.
            masks: the classes of mask pixels.
            is_named: True if they are one of several targets.
        """
        column = h5_group[name]
        request = self._target_request(column, request)
        if requested_semantics(request).is_of_pixels:
            return self._open_masks(h5_group, name, masks)
        if not is_named:
            return self._understood(h5_group, name, request)
        origin = f"{self.path}: {self.group.rstrip('/')}/{name}"
        names = (
            tuple(decode_text(np.atleast_1d(column.attrs["names"])))
            if ("names" in column.attrs)
            else ()
        )
        is_class = request is None or request.semantics.is_scalar
        if names and is_class and column.ndim == 1 and column.dtype.kind in "iu":
            labels = class_targets(column[:].astype(np.int64), names, origin, self.name)
            return with_names(labels, request, origin)
        values = column[:]
        if _is_text(column):
            values = np.array(decode_text(values.ravel())).reshape(values.shape)
        return parse_targets(values, request, origin, self.name, names)

    def _target_request(
        self, column: h5py.Dataset, request: TargetWish | None
    ) -> TargetWish | None:
        """Return the kind of the targets: from the spec, the file, or their type."""
        kind = column.attrs.get("kind")
        if kind is not None and kind not in KINDS:
            raise InputError(
                f"{self.path}: {column.name} has the kind {kind!r}; it must be one of "
                f"{', '.join(KINDS)}"
            )
        if kind is None and (
            _is_encoded(column) or (column.ndim in (3, 4) and column.dtype.kind in "iu")
        ):
            kind = "mask"
        if request is None and kind is not None:
            return TargetWish(kind)
        return request

    def _open_masks(self, h5_group: h5py.Group, name: str, coding: PixelClasses) -> Masks:
        column = h5_group[name]
        self._mask_column = name
        names = _names(h5_group, "classes")
        if "names" in column.attrs:
            names = tuple(decode_text(np.atleast_1d(column.attrs["names"])))
        if not coding.names and names:
            if "ignore" in column.attrs:
                ignore: int | None = int(column.attrs["ignore"])
            else:
                ignore = coding.ignore
            coding = PixelClasses(range(len(names)), names, ignore)
        self._masks_are_files = _is_encoded(column)
        return Masks(len(column), coding, self.name, self.mask)

    def _understood(self, h5_group: h5py.Group, name: str, request: TargetWish | None) -> Targets:
        origin = f"{self.path}: {self.group.rstrip('/')}/{name}"
        column = h5_group[name]
        is_class = request is None or request.semantics.is_scalar
        members = h5py.check_enum_dtype(column.dtype)
        if is_class and members is not None and column.shape[1:] in ((), (1,)):
            return with_names(
                self._members(flatten_column(column[:]), members, origin), request, origin
            )
        if is_class and name == "labels" and column.ndim == 1 and column.dtype.kind != "b":
            return self._labelled(h5_group, request, origin)
        values = column[:]
        if _is_text(column):
            values = np.array(decode_text(values.ravel())).reshape(values.shape)
        return parse_targets(values, request, origin, self.name, _names(h5_group, "target_names"))

    def _labelled(self, h5_group: h5py.Group, request: TargetWish | None, origin: str) -> Targets:
        """Parse labels that are indices into a list of classes, or names of classes."""
        column = h5_group["labels"]
        classes = _names(h5_group, "classes")
        if _is_text(column):
            texts = decode_text(column[:])
            if not classes:
                return parse_targets(np.array(texts), request, origin, self.name)
            places = {name: position for position, name in enumerate(classes)}
            unknown = [row for row, text in enumerate(texts) if text not in places]
            if unknown:
                raise InputError(
                    f"{origin}: {self.name(unknown[0])} has the class "
                    f"{texts[unknown[0]]!r}{and_more(unknown)}, which is not among the classes: "
                    f"{', '.join(classes[:10])}"
                )
            labels = np.array([places[text] for text in texts], np.int64)
            return with_names(Targets("class", labels, classes), request, origin)
        if column.dtype.kind not in "iu":
            raise InputError(
                f"{origin} is {column.shape} of {column.dtype}; it must be {column.shape} "
                "integers, or names of classes, one for each image; set data.target: value to "
                "predict numbers"
            )
        labels = column[:].astype(np.int64)
        if classes:
            return with_names(class_targets(labels, classes, origin, self.name), request, origin)
        if request is not None and (request.names or request.outputs):
            return parse_targets(labels, request, origin, self.name)
        names = tuple(map(str, range(labels.max(initial=-1) + 1)))
        return class_targets(labels, names, origin, self.name)

    def _members(self, values: np.ndarray, members: Mapping[str, int], origin: str) -> Targets:
        """Parse labels of an enumerated type, whose members are the classes, ascending."""
        names = tuple(sorted(members, key=members.__getitem__))
        numbers = np.array([members[name] for name in names])
        places = np.searchsorted(numbers, values).clip(max=len(numbers) - 1)
        wrong = np.flatnonzero(numbers[places] != values)
        if len(wrong):
            raise InputError(
                f"{origin}: {self.name(int(wrong[0]))} has the target "
                f"{values[wrong[0]]}{and_more(wrong)}, which is not a member of the type: "
                f"{', '.join(names[:10])}"
            )
        return Targets("class", places.astype(np.int64), names)


def _target_columns(
    h5_group: h5py.Group, targets: str | Mapping[str, str] | None
) -> str | dict[str, str]:
    """Return the data set of the targets; of several, their names -> their data sets."""
    if isinstance(targets, Mapping):
        return dict(targets)
    column = targets or "labels"
    if not targets and "targets" in h5_group and "labels" not in h5_group:
        column = "targets"
    member = find_member(h5_group, column)
    if isinstance(member, h5py.Group):
        for name in member:
            check_target_name(name, f"{h5_group.name}/{column}")
        return {name: f"{column}/{name}" for name in member}
    return column


def _is_text(column: h5py.Dataset) -> bool:
    """Return True if a data set holds text."""
    return h5py.check_string_dtype(column.dtype) is not None


def _names(h5_group: h5py.Group, name: str) -> tuple[str, ...]:
    """Return the names in a data set; () if the data set is missing."""
    column = find_member(h5_group, name)
    if column is None:
        return ()
    return tuple(decode_text(np.atleast_1d(column[()])))


def _is_encoded(column: h5py.Dataset) -> bool:
    """Return True if a data set holds files."""
    return column.ndim == 1 and h5py.check_vlen_dtype(column.dtype) == np.uint8


def _dtype_of_numbers(column: h5py.Dataset) -> np.dtype:
    """Return the dtype of a data set's numbers, whose rows may have unequal lengths."""
    return np.dtype(h5py.check_vlen_dtype(column.dtype) or column.dtype)


def open_hdf5(
    path: str,
    inputs: str | Sequence[str] = "images",
    targets: str | Sequence[str] | Mapping[str, str] | None = None,
    weights: str = "weights",
    pixels: Mapping[str, int] | None = None,
    *,
    target: Request = None,
) -> Opened:
    """Open the training samples of a file and, if it has some, validation and test samples.

    Args:
        path: the path of the file.
        inputs: the name of the inputs' data set; or a list of the names of several inputs.
        targets: the name of the targets' data set; ``labels`` or ``targets`` by default. Of several
            targets, a list of names, or a mapping of their names to data sets.
        weights: the name of the weights' data set.
        pixels: the number of each class in masks; see
            :class:`preprocess.sources.masks.PixelClasses`.
        target: the ``data.target`` of the spec.

    Raises:
        InputError: it is not such a file.
    """
    if not os.path.isfile(path):
        raise InputError(f"{path}: file not found")
    if not h5py.is_hdf5(path):
        raise InputError(f"{path} is not an HDF5 file")
    named_inputs = parse_input_names(inputs)
    named_targets = None if targets is None else parse_target_names(targets)
    if isinstance(named_inputs, str):
        first = named_inputs
    else:
        first = next(iter(named_inputs.values()))
    with wrapping_errors(path), open_file(path) as file:
        members = set(file)
        named = [name for name in members if parse_split(name) is not None]
        groups = find_splits([name for name in named if isinstance(file[name], h5py.Group)], path)
    begin = f"{first}_"
    arrays = find_splits([name[len(begin) :] for name in members if name.startswith(begin)], path)
    is_plain = first in members and TRAIN not in groups
    if TRAIN not in groups and not (is_plain and groups):
        groups = {}

    def opened(name: str, masks: PixelClasses) -> HDF5:
        if groups or not name:
            return HDF5(path, f"/{name}", named_inputs, named_targets, weights, masks, target)
        column = named_targets or ("labels" if f"labels_{name}" in members else "targets")
        targets_of_split: str | dict[str, str] = f"{column}_{name}"
        if not isinstance(column, str):
            targets_of_split = {key: f"{array}_{name}" for key, array in column.items()}
        inputs_of_split: str | dict[str, str] = f"{first}_{name}"
        if not isinstance(named_inputs, str):
            inputs_of_split = {key: f"{array}_{name}" for key, array in named_inputs.items()}
        columns = (targets_of_split, f"{weights}_{name}")
        split = HDF5(path, "/", inputs_of_split, *columns, masks, target)
        split.places = (f"{os.path.realpath(path)}:{first}_{name}",)
        return split

    splits = groups or arrays
    return open_splits(
        opened,
        "" if is_plain else splits.get(TRAIN, ""),
        (splits.get(VALIDATION), splits.get(TEST)),
        PixelClasses.from_request(pixels, target),
    )
