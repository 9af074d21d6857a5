"""Samples in arrays: an ``.npz`` file with the arrays ``x``, ``y`` and perhaps ``w``, or ``.npy`` files of these names.

The arrays of a part of the data may have the name of the part behind theirs, as in ``x_train`` and ``x_test``, or lie
in a file or folder of its name: ``train.npz`` beside ``validation.npz``, ``train/x.npy`` beside ``validation/x.npy``.

Inputs are memory mapped: a rank reads the samples that it wants. Only those of a compressed ``.npz`` file are unpacked
into the memory of each rank that reads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from preprocess.base import InputError, Source, printable
from preprocess.files.npz import ArrayPlace, member_names
from preprocess.fingerprint import SampleIds, describe_rows, identify_by_content
from preprocess.sources.masks import Masks, PixelClasses
from preprocess.sources.targets import (
    TargetedSource,
    Targets,
    flatten_column,
    guess_kind,
    parse_targets,
)
from preprocess.splits import TRAIN, choose_held_out, find_splits, mark_stand_in
from preprocess.target import TargetWish

Opened = tuple[Source, Source | None, Source | None]  # training, validation and test samples


@dataclass(frozen=True)
class ArrayNames:
    """What the arrays are called.

    Attributes:
        must_weigh: whether there must be one of weights.
    """

    inputs: str = "x"
    targets: str = "y"
    weights: str = "w"
    must_weigh: bool = False

    @classmethod
    def from_options(cls, inputs: str, targets: str, weights: str | None) -> ArrayNames:
        """As options say it: None for weights that are called ``w``, where there are such."""
        return cls(inputs, targets, weights or cls.weights, weights is not None)

    def of_part(self, part: str) -> ArrayNames:
        """The names with that of a part behind them, where it has one."""
        if not part:
            return self
        return ArrayNames(
            f"{self.inputs}_{part}",
            f"{self.targets}_{part}",
            f"{self.weights}_{part}",
            self.must_weigh,
        )


class Arrays(TargetedSource):
    """The samples of two arrays, one row each.

    Args:
        places: of arrays, by name.
        names: of those that are wanted.
        target: what the targets are, where the spec says it.
        masks: which number in them is which class.
        origin: of all arrays, for messages.

    Raises:
        InputError: an array is missing, of another length than the others, or does not hold what it should.
    """

    def __init__(
        self,
        places: Mapping[str, ArrayPlace],
        names: ArrayNames,
        target: TargetWish | None,
        masks: PixelClasses,
        origin: str,
    ) -> None:
        for name in (names.inputs, names.targets, *([names.weights] if names.must_weigh else [])):
            if name not in places:
                raise InputError(
                    f"{origin}: no array {name!r}; there are {', '.join(sorted(places)) or 'none'} "
                    "(options: inputs, targets, weights)"
                )
        self._inputs_at = places[names.inputs]
        self._targets_at = places[names.targets]
        self.places = (f"{os.path.realpath(self._inputs_at.path)}:{self._inputs_at.member or ''}",)
        _check_inputs(self._inputs, self._inputs_at)
        count = len(self._inputs)
        values = self._targets
        origin_of_targets = str(self._targets_at)
        if values.shape[:1] != (count,):
            raise InputError(
                f"{origin}: {names.inputs} has {count} rows and {names.targets} "
                f"{values.shape[0] if values.shape else 'none'}; there should be a target for each input"
            )
        kind = guess_kind(values, origin_of_targets) if target is None else target.kind
        if kind == "mask":
            targets: Masks | Targets = Masks(count, masks, self._name_of_mask, self._mask)
        else:
            targets = parse_targets(values, target, origin_of_targets, self.name)
        if names.weights in places:
            weights = np.array(flatten_column(places[names.weights].open()))
        else:
            weights = None
        super().__init__(targets, weights, count)

    def read(self, index: int) -> np.ndarray:
        """The row of a sample; a single number as an array of one."""
        return np.array(self._inputs[index], ndmin=1)

    def name(self, index: int) -> str:
        """The array and the row."""
        return printable(f"{self._inputs_at}[{index}]")

    def sample_ids(self) -> SampleIds:
        """See :mod:`preprocess.fingerprint`."""
        return replace(
            identify_by_content(self, self._inputs.nbytes, "row"),
            facts={"inputs": describe_rows(self._inputs)},
        )

    @cached_property
    def _inputs(self) -> np.ndarray:
        return self._inputs_at.open()

    @cached_property
    def _targets(self) -> np.ndarray:
        return self._targets_at.open()

    def _mask(self, index: int) -> np.ndarray:
        """One of masks (n, height, width) of integers."""
        return np.array(self._targets[index])

    def _name_of_mask(self, index: int) -> str:
        return f"{self._targets_at}[{index}]"


def open_npz(
    path: str,
    inputs: str = ArrayNames.inputs,
    targets: str = ArrayNames.targets,
    weights: str | None = None,
    pixels: Mapping[str, int] | None = None,
    *,
    target: TargetWish | None = None,
) -> Opened:
    """The samples of an ``.npz`` file, or of a folder with ``train.npz``, perhaps ``validation.npz`` and ``test.npz``.

    Args:
        path: of the file or folder.
        inputs, targets, weights: names of arrays.
        pixels: the number that each class has in masks; see :class:`preprocess.sources.masks.PixelClasses`.
        target: what the targets are, where the spec says it.

    Raises:
        InputError: no such file, or arrays that do not fit.
    """
    names = ArrayNames.from_options(inputs, targets, weights)
    masks = PixelClasses.from_options(pixels, target)
    if os.path.isdir(path):
        files = {file.stem: str(file) for file in Path(path).glob("*.npz")}
        parts = find_splits(files, path)
        if TRAIN not in parts:
            raise InputError(
                f"{path}: no train.npz in this folder; it should be there, or the path be that of a file"
            )
        places = {name: _members(files[name]) for name in parts.values()}
        return _open_split_files(places, names, target, masks, files, parts)
    if not os.path.isfile(path):
        raise InputError(f"{path}: no such file")
    return _open_split_arrays(_members(path), names, target, masks, path)


def open_npy(
    path: str,
    inputs: str = ArrayNames.inputs,
    targets: str = ArrayNames.targets,
    weights: str | None = None,
    pixels: Mapping[str, int] | None = None,
    *,
    target: TargetWish | None = None,
) -> Opened:
    """The samples of a folder with ``x.npy``, ``y.npy`` and perhaps ``w.npy``.

    Args:
        path: of the folder; it may hold folders ``train`` and ``validation`` (or val, or test) with such files.
        inputs, targets, weights: names of files, with or without ``.npy``.
        pixels: the number that each class has in masks; see :class:`preprocess.sources.masks.PixelClasses`.
        target: what the targets are, where the spec says it.

    Raises:
        InputError: no such folder, or arrays that do not fit.
    """
    names = ArrayNames.from_options(
        inputs.removesuffix(".npy"),
        targets.removesuffix(".npy"),
        weights and weights.removesuffix(".npy"),
    )
    if os.path.isfile(path):
        raise InputError(
            f"{path} is a file; it must be the folder with {names.inputs}.npy and {names.targets}.npy"
        )
    if not os.path.isdir(path):
        raise InputError(f"{path}: no such folder")
    masks = PixelClasses.from_options(pixels, target)
    folders = {entry.name: entry.path for entry in os.scandir(path) if entry.is_dir()}
    places = {name: files for name, folder in folders.items() if (files := _files(folder))}
    parts = find_splits(places, path)
    if TRAIN in parts:
        return _open_split_files(places, names, target, masks, folders, parts)
    return _open_split_arrays(_files(path), names, target, masks, path)


def _members(path: str) -> dict[str, ArrayPlace]:
    return {name: ArrayPlace(path, name) for name in member_names(path)}


def _files(folder: str) -> dict[str, ArrayPlace]:
    return {file.stem: ArrayPlace(str(file)) for file in Path(folder).glob("*.npy")}


def _open_split_files(
    places: Mapping[str, Mapping[str, ArrayPlace]],
    names: ArrayNames,
    target: TargetWish | None,
    masks: PixelClasses,
    origins: Mapping[str, str],
    parts: Mapping[str, str],
) -> Opened:
    """Parts that have files or folders of their own."""
    return open_splits(
        lambda name, masks: Arrays(places[name], names, target, masks, origins[name]),
        parts[TRAIN],
        choose_held_out(parts),
        masks,
    )


def _open_split_arrays(
    places: Mapping[str, ArrayPlace],
    names: ArrayNames,
    target: TargetWish | None,
    masks: PixelClasses,
    origin: str,
) -> Opened:
    """Parts whose arrays have the name of the part behind theirs."""
    begin = f"{names.inputs}_"
    parts = find_splits(
        [name.removeprefix(begin) for name in places if name.startswith(begin)], origin
    )
    is_plain = names.inputs in places or TRAIN not in parts
    return open_splits(
        lambda name, masks: Arrays(places, names.of_part(name), target, masks, origin),
        "" if is_plain else parts[TRAIN],
        choose_held_out(parts),
        masks,
    )


def open_splits(
    opened: Callable[[str, PixelClasses], TargetedSource],
    train: str,
    held_out: Sequence[str | None],
    masks: PixelClasses,
) -> Opened:
    """The parts of a data set; the masks of all have the classes of those for training.

    Args:
        opened: opens a part, whose masks are coded so.
        train, held_out: the names of the parts; None of one that there is not.
        masks: how they are coded.
    """
    first = opened(train, masks)
    shared = masks if first.masks is None else first.masks.classes
    validation, test = (None if part is None else opened(part, shared) for part in held_out)
    if validation is not None and held_out[0] is not None:
        mark_stand_in(validation, held_out[0], validation.places[0])
    return first, validation, test


def _check_inputs(inputs: np.ndarray, location: ArrayPlace) -> None:
    if inputs.dtype.kind not in "uifb":
        raise InputError(f"{location}: inputs are of type {inputs.dtype}; they should be numbers")
    if not inputs.shape or not inputs.size:
        raise InputError(
            f"{location}: inputs are an array {inputs.shape}; there should be one row for each sample"
        )
