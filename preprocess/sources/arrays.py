"""Samples in arrays: an ``.npz`` file with ``x``, ``y`` and optionally ``w``, or ``.npy`` files.

Arrays of a split may have its name appended, as in ``x_train`` and ``x_test``, or lie in a file or
folder of its name: ``train.npz`` beside ``validation.npz``, ``train/x.npy`` beside
``validation/x.npy``.

Inputs are memory-mapped: a rank reads only the samples that it needs. Only compressed ``.npz``
files are unpacked into the memory of each rank that reads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from launch.errors import InputError, printable
from preprocess.base import INPUT, Source
from preprocess.files.npz import ArrayPlace, member_names
from preprocess.fingerprint import SampleIds, describe_rows, identify_by_content
from preprocess.record_target import parse_each, single_request
from preprocess.sources.input_names import parse_input_names, parse_target_names
from preprocess.sources.masks import Masks, PixelClasses
from preprocess.sources.targets import (
    AnyTargets,
    TargetedSource,
    Targets,
    flatten_column,
    guess_kind,
    parse_targets,
)
from preprocess.splits import TRAIN, choose_held_out, find_splits, mark_stand_in
from preprocess.target import TARGET, Request, TargetWish
from preprocess.target_kinds import KINDS

Opened = tuple[Source, Source | None, Source | None]  # training, validation and test samples


@dataclass(frozen=True)
class ArrayNames:
    """The names of the arrays.

    Attributes:
        inputs: the name of the inputs; of several inputs, the names by which networks know them ->
            the names of their arrays.
        targets: the name of the targets; of several targets, their names -> those of their arrays.
        weights: the name of the weights.
        must_weigh: True if weights are required.
    """

    inputs: str | Mapping[str, str] = "x"
    targets: str | Mapping[str, str] = "y"
    weights: str = "w"
    must_weigh: bool = False

    @classmethod
    def from_options(
        cls,
        inputs: str | Sequence[str],
        targets: str | Sequence[str] | Mapping[str, str],
        weights: str | None,
    ) -> ArrayNames:
        """Create names from options; None for optional weights named ``w``.

        Raises:
            InputError: they are not names, or no name, or one twice.
        """
        return cls(
            parse_input_names(inputs),
            parse_target_names(targets),
            weights or cls.weights,
            weights is not None,
        )

    @property
    def input_places(self) -> dict[str, str]:
        """The names of inputs -> the names of their arrays."""
        if isinstance(self.inputs, str):
            return {INPUT: self.inputs}
        return dict(self.inputs)

    @property
    def target_places(self) -> dict[str, str]:
        """The names of targets -> the names of their arrays."""
        if isinstance(self.targets, str):
            return {TARGET: self.targets}
        return dict(self.targets)

    @property
    def first(self) -> str:
        """The name of the first input's array."""
        return next(iter(self.input_places.values()))

    def of_split(self, split: str) -> ArrayNames:
        """Return the names with a split's name appended, if there is one."""
        if not split:
            return self
        return ArrayNames(
            _append(self.inputs, split),
            _append(self.targets, split),
            f"{self.weights}_{split}",
            self.must_weigh,
        )


def _append(names: str | Mapping[str, str], split: str) -> str | dict[str, str]:
    """Return the name of an array, or of several, of a split."""
    if isinstance(names, str):
        return f"{names}_{split}"
    return {name: f"{array}_{split}" for name, array in names.items()}


class Arrays(TargetedSource):
    """The samples of two arrays, one row each.

    Args:
        places: the locations of arrays, by name.
        names: the names of the arrays to use.
        target: the ``data.target`` of the spec.
        masks: the classes of mask pixels.
        origin: the origin of all arrays, for messages.

    Raises:
        InputError: an array is missing, has another length than the others, or the wrong type.
    """

    input_names: tuple[str, ...] = ()
    _mask_name = ""

    def __init__(
        self,
        places: Mapping[str, ArrayPlace],
        names: ArrayNames,
        target: Request,
        masks: PixelClasses,
        origin: str,
    ) -> None:
        has_targets = not isinstance(target, TargetWish) or target.semantics.exists
        needed = [*names.input_places.values()]
        if has_targets:
            needed += names.target_places.values()
        if names.must_weigh:
            needed.append(names.weights)
        for name in needed:
            if name not in places:
                raise InputError(
                    f"{origin}: no array {name!r}; there are {', '.join(sorted(places)) or 'none'} "
                    "(options: inputs, targets, weights)"
                )
        self._inputs_at = {name: places[array] for name, array in names.input_places.items()}
        first = places[names.first]
        self._targets_at = {
            name: places.get(array, first) for name, array in names.target_places.items()
        }
        self.places = (f"{os.path.realpath(first.path)}:{first.member or ''}",)
        if not isinstance(names.inputs, str):
            self.input_names = tuple(self._inputs_at)
        for name, inputs in self._inputs.items():
            _check_inputs(inputs, self._inputs_at[name])
        count = len(next(iter(self._inputs.values())))
        for name, inputs in self._inputs.items():
            if len(inputs) != count:
                raise InputError(
                    f"{origin}: {names.first} has {count} rows and {name} {len(inputs)}; all "
                    "inputs need the same samples"
                )
        targets: AnyTargets = Targets.missing(count)
        if has_targets and isinstance(names.targets, str):
            single = single_request(target, origin)
            targets = self._parsed(count, names, TARGET, single, masks, origin)
        elif has_targets:
            targets = parse_each(
                names.targets,
                target,
                origin,
                lambda name, single: self._parsed(count, names, name, single, masks, origin),
            )
        if names.weights in places:
            weights = np.array(flatten_column(places[names.weights].open()))
        else:
            weights = None
        super().__init__(targets, weights, count)

    def _parsed(
        self,
        count: int,
        names: ArrayNames,
        name: str,
        target: TargetWish | None,
        masks: PixelClasses,
        origin: str,
    ) -> Masks | Targets:
        """Parse the array of the target ``name``, one for each of ``count`` inputs."""
        values = self._targets[name]
        origin_of_targets = str(self._targets_at[name])
        if values.shape[:1] != (count,):
            raise InputError(
                f"{origin}: {names.first} has {count} rows and {names.target_places[name]} "
                f"{values.shape[0] if values.shape else 'none'}; each input needs a target"
            )
        kind = guess_kind(values, origin_of_targets) if target is None else target.kind
        if KINDS[kind].is_of_pixels:
            self._mask_name = name
            return Masks(count, masks, self._name_of_mask, self._mask)
        return parse_targets(values, target, origin_of_targets, self.name)

    def read(self, index: int) -> Any:
        """Return the row of a sample, (...), or those of several inputs; a number is (1,)."""
        rows = {name: np.array(inputs[index], ndmin=1) for name, inputs in self._inputs.items()}
        if self.input_names:
            return rows
        return rows[INPUT]

    @cached_property
    def input_lengths(self) -> dict[str, np.ndarray]:
        """The length of each row, by input: (samples,) int64; see :mod:`preprocess.padding`."""
        return {
            name: np.array([len(row) for row in inputs])
            if inputs.dtype.hasobject
            else np.full(len(inputs), inputs.shape[1])
            for name, inputs in self._inputs.items()
            if inputs.dtype.hasobject or inputs.ndim > 1
        }

    def name(self, index: int) -> str:
        """Return the array and the row."""
        return printable(f"{next(iter(self._inputs_at.values()))}[{index}]")

    def sample_ids(self) -> SampleIds:
        """Return the ids of the samples; see :mod:`preprocess.fingerprint`."""
        return replace(
            identify_by_content(self, sum(rows.nbytes for rows in self._inputs.values()), "row"),
            facts={
                f"input {name}" if self.input_names else "inputs": describe_rows(rows)
                for name, rows in self._inputs.items()
            },
        )

    @cached_property
    def _inputs(self) -> dict[str, np.ndarray]:
        return {name: location.open() for name, location in self._inputs_at.items()}

    @cached_property
    def _targets(self) -> dict[str, np.ndarray]:
        return {name: location.open() for name, location in self._targets_at.items()}

    def _mask(self, index: int) -> np.ndarray:
        """Return one mask, (height, width) integers."""
        return np.array(self._targets[self._mask_name][index])

    def _name_of_mask(self, index: int) -> str:
        return f"{self._targets_at[self._mask_name]}[{index}]"


def open_npz(
    path: str,
    inputs: str | Sequence[str] = "x",
    targets: str | Sequence[str] | Mapping[str, str] = "y",
    weights: str | None = None,
    pixels: Mapping[str, int] | None = None,
    *,
    target: Request = None,
) -> Opened:
    """Open an ``.npz`` file, or a folder with ``train.npz`` and optional other splits.

    Args:
        path: the path of the file or folder.
        inputs: the name of the inputs' array; or a list of the names of several inputs.
        targets: the name of the targets' array; of several targets, a list of names, or a mapping
            of their names to arrays.
        weights: the name of the weights' array.
        pixels: the number of each class in masks; see
            :class:`preprocess.sources.masks.PixelClasses`.
        target: the ``data.target`` of the spec.

    Raises:
        InputError: the file is missing, or arrays do not fit.
    """
    names = ArrayNames.from_options(inputs, targets, weights)
    masks = PixelClasses.from_request(pixels, target)
    if os.path.isdir(path):
        files = {file.stem: str(file) for file in Path(path).glob("*.npz")}
        splits = find_splits(files, path)
        if TRAIN not in splits:
            raise InputError(
                f"{path}: no train.npz in this folder; add it, or give the path of a file"
            )
        places = {name: _members(files[name]) for name in splits.values()}
        return _open_split_files(places, names, target, masks, files, splits)
    if not os.path.isfile(path):
        raise InputError(f"{path}: file not found")
    return _open_split_arrays(_members(path), names, target, masks, path)


def open_npy(
    path: str,
    inputs: str | Sequence[str] = "x",
    targets: str | Sequence[str] | Mapping[str, str] = "y",
    weights: str | None = None,
    pixels: Mapping[str, int] | None = None,
    *,
    target: Request = None,
) -> Opened:
    """Open a folder with ``x.npy``, ``y.npy`` and optionally ``w.npy``.

    Args:
        path: the path of the folder; it may hold folders ``train``, ``validation`` and ``test``
            with such files.
        inputs: the name of the inputs' file, with or without ``.npy``; or a list of several.
        targets: the name of the targets' file; or those of several, as for inputs.
        weights: the name of the weights' file.
        pixels: the number of each class in masks; see
            :class:`preprocess.sources.masks.PixelClasses`.
        target: the ``data.target`` of the spec.

    Raises:
        InputError: the folder is missing, or arrays do not fit.
    """
    names = ArrayNames.from_options(
        _without_suffix(inputs), _without_suffix(targets), weights and weights.removesuffix(".npy")
    )
    if os.path.isfile(path):
        raise InputError(
            f"{path} is a file; it must be the folder with {names.first}.npy and "
            f"{next(iter(names.target_places.values()))}.npy"
        )
    if not os.path.isdir(path):
        raise InputError(f"{path}: folder not found")
    masks = PixelClasses.from_request(pixels, target)
    folders = {entry.name: entry.path for entry in os.scandir(path) if entry.is_dir()}
    places = {name: files for name, folder in folders.items() if (files := _files(folder))}
    splits = find_splits(places, path)
    if TRAIN in splits:
        return _open_split_files(places, names, target, masks, folders, splits)
    return _open_split_arrays(_files(path), names, target, masks, path)


def _without_suffix(names: Any) -> Any:
    if isinstance(names, str):
        return names.removesuffix(".npy")
    if isinstance(names, list | tuple):
        return [name.removesuffix(".npy") if isinstance(name, str) else name for name in names]
    if isinstance(names, Mapping):
        return dict(zip(names, _without_suffix(list(names.values())), strict=True))
    return names


def _members(path: str) -> dict[str, ArrayPlace]:
    return {name: ArrayPlace(path, name) for name in member_names(path)}


def _files(folder: str) -> dict[str, ArrayPlace]:
    return {file.stem: ArrayPlace(str(file)) for file in Path(folder).glob("*.npy")}


def _open_split_files(
    places: Mapping[str, Mapping[str, ArrayPlace]],
    names: ArrayNames,
    target: Request,
    masks: PixelClasses,
    origins: Mapping[str, str],
    splits: Mapping[str, str],
) -> Opened:
    """Open splits that have their own files or folders."""
    return open_splits(
        lambda name, masks: Arrays(places[name], names, target, masks, origins[name]),
        splits[TRAIN],
        choose_held_out(splits),
        masks,
    )


def _open_split_arrays(
    places: Mapping[str, ArrayPlace],
    names: ArrayNames,
    target: Request,
    masks: PixelClasses,
    origin: str,
) -> Opened:
    """Open splits whose arrays have the split's name appended."""
    begin = f"{names.first}_"
    splits = find_splits(
        [name.removeprefix(begin) for name in places if name.startswith(begin)], origin
    )
    is_plain = names.first in places or TRAIN not in splits
    return open_splits(
        lambda name, masks: Arrays(places, names.of_split(name), target, masks, origin),
        "" if is_plain else splits[TRAIN],
        choose_held_out(splits),
        masks,
    )


def open_splits(
    opened: Callable[[str, PixelClasses], TargetedSource],
    train: str,
    held_out: Sequence[str | None],
    masks: PixelClasses,
) -> Opened:
    """Open the splits of a data set; masks of all have the classes of the training masks.

    Args:
        opened: opens a split, given its name and mask classes.
        train: the name of the training split.
        held_out: the names of validation and test splits; None if missing.
        masks: the classes of mask pixels.
    """
    first = opened(train, masks)
    shared = masks if first.masks is None else first.masks.classes
    validation, test = (None if split is None else opened(split, shared) for split in held_out)
    if validation is not None and held_out[0] is not None:
        mark_stand_in(validation, held_out[0], validation.places[0])
    return first, validation, test


def _check_inputs(inputs: np.ndarray, location: ArrayPlace) -> None:
    if inputs.dtype.kind not in "uifbO":  # objects: rows of unequal length
        raise InputError(f"{location}: inputs are of type {inputs.dtype}; they should be numbers")
    if not inputs.shape or not inputs.size:
        raise InputError(f"{location}: inputs are an array {inputs.shape}; each sample needs a row")
