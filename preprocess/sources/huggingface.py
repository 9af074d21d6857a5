"""Data sets saved by ``save_to_disk`` of Hugging Face's ``datasets``: memory-mapped Arrow files.

The library is used for nothing else and imported only here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from launch.errors import InputError
from preprocess.base import INPUT, RandomAccess, UnreadableSample, check_input_name
from preprocess.fingerprint import SampleIds, identify_by_content
from preprocess.record_target import parse_each, single_request
from preprocess.sources.arrays import Opened, open_splits
from preprocess.sources.input_names import parse_names, parse_target_names
from preprocess.sources.masks import Masks, PixelClasses
from preprocess.sources.targets import (
    AnyTargets,
    TargetedSource,
    Targets,
    class_targets,
    encode_label_sets,
    flatten_column,
    parse_targets,
    with_names,
)
from preprocess.splits import TRAIN, choose_held_out, find_splits
from preprocess.target import Request, TargetWish
from preprocess.transient_errors import read_file, read_with_retries

# default columns; the first existing one is used
INPUTS = (
    "image",
    "img",
    "x",
    "input",
    "inputs",
)
TARGETS = ("label", "labels", "y", "target", "targets", "mask", "annotation")  # the same


_SMALL = 256  # smaller numbers are float32


class Rows(TargetedSource):
    """The rows of one split.

    Args:
        path: the path of the folder.
        split: None if the folder holds a single data set.
        inputs: one column, or several columns of numbers; of several inputs, their names -> such
            columns.
        targets: a column; of several targets, their names -> their columns.
        weights: a column, or None.
        masks: the classes of mask pixels.
        target: the ``data.target`` of the spec.

    Raises:
        InputError: a column is missing, or has the wrong type.
    """

    input_names: tuple[str, ...] = ()
    _mask_column = ""

    def __init__(
        self,
        path: str,
        split: str | None,
        inputs: tuple[str, ...] | Mapping[str, tuple[str, ...]],
        targets: str | Mapping[str, str],
        weights: str | None,
        masks: PixelClasses,
        target: Request,
    ) -> None:
        self._path = path
        self._split = split
        if isinstance(inputs, tuple):
            self._inputs = {INPUT: inputs}
        else:
            self._inputs = dict(inputs)
            self.input_names = tuple(inputs)
        target_columns = [targets] if isinstance(targets, str) else list(targets.values())
        self.places = (os.path.join(os.path.realpath(path), split or ""),)
        rows = self._rows
        origin = f"{path}{f' ({split})' if split else ''}"
        used = [column for columns in self._inputs.values() for column in columns]
        for column in (*used, *target_columns, *([weights] if weights else [])):
            if column not in rows.column_names:
                raise InputError(
                    f"{origin}: no column {column!r}; its columns: {', '.join(rows.column_names)} "
                    "(options: inputs, targets, weights)"
                )
        if not len(rows):
            raise InputError(f"{origin}: no rows")
        weights_of_rows = None if weights is None else flatten_column(np.asarray(rows[weights][:]))
        parsed: AnyTargets
        if isinstance(targets, str):
            parsed = self._parsed(targets, single_request(target, origin), masks, origin)
        else:
            parsed = parse_each(
                targets,
                target,
                origin,
                lambda name, single: self._parsed(targets[name], single, masks, origin),
            )
        super().__init__(parsed, weights_of_rows, len(rows))

    def _parsed(
        self, column: str, request: TargetWish | None, masks: PixelClasses, origin: str
    ) -> Masks | Targets:
        """Parse the targets in a column."""
        rows = self._rows
        if _is_image(rows.features[column]):
            self._mask_column = column
            return Masks(len(rows), masks, self.name, self.mask)
        return _parse_targets(rows, column, request, f"{origin}, column {column!r}", self.name)

    def read(self, index: int) -> Any:
        """Return the encoded image, or the array of the columns, (columns,) or (...).

        Of several inputs, these by name.
        """
        row = self._row(index)
        if self.input_names:
            return {
                name: self._input(row, columns, index) for name, columns in self._inputs.items()
            }
        return self._input(row, self._inputs[INPUT], index)

    def _input(self, row: Any, columns: Sequence[str], index: int) -> bytes | np.ndarray:
        if len(columns) > 1:
            values = np.array([row[column] for column in columns], np.float64)
            if np.abs(values).max() < _SMALL:
                return values.astype(np.float32)
            return values
        value = row[columns[0]]
        if isinstance(value, dict):
            return _image_bytes(value, self.name(index))
        try:
            return _numbers(value)
        except ValueError as error:
            raise UnreadableSample(self.name(index), f"column {columns[0]!r}: {error}") from None

    @property
    def is_of_columns(self) -> bool:
        """True if the only input is made of several columns of numbers."""
        return not self.input_names and len(self._inputs[INPUT]) > 1

    def mask(self, index: int) -> bytes:
        """Return the encoded image in the targets' column."""
        return _image_bytes(self._row(index)[self._mask_column], self.name(index))

    def _row(self, index: int) -> Any:
        return read_with_retries(
            lambda: self._rows[index],
            lambda: self.name(index),
            again=lambda: self.__dict__.pop("_rows", None),
        )

    def name(self, index: int) -> str:
        """Return the split and the row."""
        return f"{self._path}{f':{self._split}' if self._split else ''}[{index}]"

    def sample_ids(self) -> SampleIds:
        """Return the ids of the samples; see :mod:`preprocess.fingerprint`."""
        nbytes = sum(
            file.stat().st_size for file in Path(self._path, self._split or "").glob("*.arrow")
        )
        ids = identify_by_content(_ComparableRows(self), nbytes, "row")
        facts = {
            f"input {name}" if self.input_names else "inputs": ", ".join(columns)
            for name, columns in self._inputs.items()
        }
        return replace(ids, facts=facts)

    @cached_property
    def _rows(self) -> Any:
        datasets = _library()
        loaded = _load(self._path)
        rows = loaded
        if self._split is not None:
            rows = loaded[self._split]
        for column, feature in rows.features.items():
            if _is_image(feature):  # undecoded: FLEET decodes
                rows = rows.cast_column(column, datasets.Image(decode=False))
        return rows


class _ComparableRows(RandomAccess):
    """Rows as they are fingerprinted: those of several columns as float32."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def name(self, index: int) -> str:
        return self._rows.name(index)

    def read(self, index: int) -> bytes | np.ndarray:
        content = self._rows.read(index)
        if self._rows.is_of_columns and isinstance(content, np.ndarray):
            return content.astype(np.float32)
        return content


def open_huggingface(
    path: str,
    inputs: str | Sequence[str] | Mapping[str, str | Sequence[str]] | None = None,
    targets: str | Sequence[str] | Mapping[str, str] | None = None,
    weights: str | None = None,
    pixels: Mapping[str, int] | None = None,
    *,
    target: Request = None,
) -> Opened:
    """Open a data set that ``save_to_disk`` wrote, or its splits.

    Args:
        path: the path of the folder.
        inputs: a column of images or arrays, or a list of columns of numbers; by default the first
            existing one of ``INPUTS``. Of several inputs, a mapping of names to these, or a list of
            columns of which at least one does not hold single numbers.
        targets: a column; by default the first existing one of ``TARGETS``. Of several targets, a
            list of columns, or a mapping of their names to columns.
        weights: a column with the weight of each row.
        pixels: the number of each class in masks; see
            :class:`preprocess.sources.masks.PixelClasses`.
        target: the ``data.target`` of the spec.

    Raises:
        InputError: the library is not installed, or the folder or a column is missing.
    """
    loaded = _load(path)
    splits = dict(loaded) if isinstance(loaded, dict) else {}
    split_names = find_splits(splits, path)
    if splits and TRAIN not in split_names:
        raise InputError(f"{path}: no split train; there are {', '.join(splits)}")
    train_rows = splits[split_names[TRAIN]] if splits else loaded
    columns = train_rows.column_names
    input_columns = _parse_inputs(
        inputs or _find_column(columns, INPUTS, "inputs", path), train_rows.features
    )
    if targets is None:
        target_columns: str | dict[str, str] = _find_column(columns, TARGETS, "targets", path)
    else:
        target_columns = parse_target_names(targets)

    def rows(split: str, masks: PixelClasses) -> Rows:
        return Rows(path, split or None, input_columns, target_columns, weights, masks, target)

    train = split_names[TRAIN] if splits else ""
    return open_splits(
        rows, train, choose_held_out(split_names), PixelClasses.from_request(pixels, target)
    )


def _parse_inputs(
    inputs: str | Sequence[str] | Mapping[str, str | Sequence[str]], features: Mapping[str, Any]
) -> tuple[str, ...] | dict[str, tuple[str, ...]]:
    """Return the columns of the input, or of each of several inputs.

    Args:
        inputs: the option.
        features: the types of the columns.

    Raises:
        InputError: networks cannot use the name of an input, or it is not described by columns.
    """
    if isinstance(inputs, str):
        return (inputs,)
    if isinstance(inputs, Mapping):
        parsed: dict[str, tuple[str, ...]] = {}
        for name, columns in inputs.items():
            check_input_name(name, "options: inputs")
            if isinstance(columns, str):
                parsed[name] = (columns,)
            else:
                parsed[name] = parse_names(columns, f"inputs: {name}")
        return parsed
    names = parse_names(inputs, "inputs")
    if all(name not in features or _is_number(features[name]) for name in names):
        return names
    for name in names:
        check_input_name(name, "options: inputs")
    return {name: (name,) for name in names}


def _is_number(feature: Any) -> bool:
    """Return True if each row of a column holds a single number."""
    kind = str(getattr(feature, "dtype", ""))
    return type(feature).__name__ in ("Value", "ClassLabel") and kind != "string"


def _library() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise InputError(
            f"huggingface: the library datasets cannot be imported ({error}); pip install datasets"
        ) from None
    return datasets


def _load(path: str) -> Any:
    if not os.path.isdir(path):
        raise InputError(f"{path}: folder not found; it must be one that save_to_disk has written")
    try:
        return _library().load_from_disk(path)
    except InputError:
        raise
    except Exception as error:  # of the library, Arrow or the system
        raise InputError(
            f"{path}: not a data set that save_to_disk has written: {error}"
        ) from error


def _find_column(columns: Sequence[str], names: Sequence[str], option: str, path: str) -> str:
    column = next((name for name in names if name in columns), None)
    if column is None:
        raise InputError(
            f"{path}: no column is named {', '.join(names)}; "
            f"set options: {option}; its columns: {', '.join(columns)}"
        )
    return column


def _numbers(value: object) -> np.ndarray:
    array = np.array(value, ndmin=1)
    if array.dtype.kind not in "iufb":
        raise ValueError(f"{type(value).__name__} is neither an image nor an array of numbers")
    return array


def _is_image(feature: object) -> bool:
    return type(feature).__name__ == "Image"


def _image_bytes(value: Any, name: str) -> bytes:
    """Return the bytes of an image that is in a row, or in the file that the row names."""
    record: dict[str, Any] = value if isinstance(value, dict) else {}
    if record.get("bytes") is not None:
        return record["bytes"]
    if record.get("path") is None:
        raise UnreadableSample(name, "no image in this row")
    return read_file(record["path"], lambda: name)


def _parse_targets(
    rows: Any, column: str, request: TargetWish | None, origin: str, name: Any
) -> Targets:
    """Parse the targets of a column, whose features may say what they are."""
    feature = rows.features[column]
    values = rows[column][:]
    missing = next((row for row, value in enumerate(values) if value is None), None)
    if missing is not None:
        raise InputError(f"{origin}: {name(missing)} has no value")
    inner: Any = getattr(feature, "feature", None)
    if hasattr(feature, "names") and (request is None or request.semantics.is_scalar):
        targets = class_targets(np.array(values, np.int64), tuple(feature.names), origin, name)
        return with_names(targets, request, origin)
    are_label_sets = request is None or request.semantics.has_label_sets
    if hasattr(inner, "names") and are_label_sets:
        label_request = TargetWish("multilabel", len(inner.names))
        targets = encode_label_sets(
            [set(labels_of) for labels_of in values], label_request, origin, name
        )
        return with_names(replace(targets, names=tuple(inner.names)), request, origin)
    if isinstance(values[0], list) and (
        any(isinstance(label, str) for labels_of in values for label in labels_of)
        or len(set(map(len, values))) > 1
    ):
        if request is not None and not are_label_sets:
            raise InputError(
                f"{origin}: each row has a list of labels; that is multilabel, not {request.kind}"
            )
        return encode_label_sets([set(labels_of) for labels_of in values], request, origin, name)
    return parse_targets(np.array(values), request, origin, name)
