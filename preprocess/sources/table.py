"""Samples listed in a table: rows of features, or files whose paths are in a column.

The table is a CSV or a Parquet file. Paths are relative to its folder. Columns may also give the
split of a row, a group whose rows stay together when some are held out, and a stratum whose rows
are divided evenly.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from launch.errors import InputError, pluralize
from preprocess.base import (
    Source,
    UnreadableImage,
    UnreadableSample,
    and_more,
    check_input_name,
    first_duplicate,
    printable,
)
from preprocess.files.npz import is_npy, parse_npy
from preprocess.files.table import Table, format_names, read_table, table_files
from preprocess.fingerprint import SampleIds, hash_each, hash_rows, identify_files
from preprocess.record_target import check_target_name, parse_each, single_request
from preprocess.sources.arrays import Opened
from preprocess.sources.files import SequentialOrder
from preprocess.sources.image_folder import EXTENSIONS
from preprocess.sources.masks import MaskFiles, PixelClasses
from preprocess.sources.targets import (
    AnyTargets,
    TargetedSource,
    Targets,
    encode_label_sets,
    parse_targets,
)
from preprocess.splits import (
    TRAIN,
    check_numbered,
    choose_held_out,
    find_split_word,
    mark_stand_in,
    parse_split,
)
from preprocess.target import Request, TargetWish, requested_semantics
from preprocess.transient_errors import read_file

# default columns; the first existing one is used
PATH_COLUMNS = (
    "path",
    "file",
    "filename",
    "image",
)
_ENDINGS = frozenset({*EXTENSIONS, ".npy"})  # extensions that a table may omit
_SMALL = 256  # smaller numbers are float32


@dataclass(frozen=True)
class InputColumns:
    """The columns of one of several inputs.

    Attributes:
        name: the name of the input.
        columns: the column of paths, or those of the features.
        are_files: True if it is a column of paths.
    """

    name: str
    columns: tuple[str, ...]
    are_files: bool


_TableTargets: TypeAlias = Targets | MaskFiles | Mapping[str, Targets | MaskFiles]


@dataclass(frozen=True)
class Columns:
    """The roles of a table's columns.

    Attributes:
        inputs: the column of paths, or those of the features.
        is_paths: True if it is a column of paths.
        targets: one column or more.
        weights: a column, or None.
        split: a column, or None.
        group: a column, or None.
        stratify: a column, or None.
        separator: between the labels of a single multilabel column.
        masks: the classes of mask pixels.
        delimiter: between the cells of a CSV file, if given in the options.
        parts: the columns of each of several inputs; empty for one input.
    """

    inputs: tuple[str, ...]
    is_paths: bool
    targets: tuple[str, ...]
    weights: str | None = None
    split: str | None = None
    group: str | None = None
    stratify: str | None = None
    separator: str = ";"
    masks: PixelClasses = field(default_factory=PixelClasses)
    delimiter: str | None = None
    parts: tuple[InputColumns, ...] = ()

    @property
    def non_inputs(self) -> tuple[str, ...]:
        """The columns that are not inputs."""
        return (
            *self.targets,
            *(name for name in (self.weights, self.split, self.group, self.stratify) if name),
        )


class TableRows(TargetedSource):
    """Some rows of a table.

    Args:
        table: all rows.
        rows: (n,) integers, those of this split.
        columns: the roles of the columns.
        targets: the targets of all rows.

    Attributes:
        columns: the roles of the columns.
        row_numbers: (n,) integers, the rows in the table, from 0.
        groups: (n,) integers; samples of one group stay together. Only with a column for it.
        strata: (n,) integers; each is split separately. Only with a column for it.
    """

    def __init__(
        self, table: Table, rows: np.ndarray, columns: Columns, targets: _TableTargets
    ) -> None:
        self._origins = replace(  # without the cells, which other splits have too
            table,
            columns={},
            missing={},
            lists={},
            lines=table.lines[rows],
            file_of=table.file_of[rows] if table.files else table.file_of,
        )
        self.columns = columns
        self.row_numbers = rows
        self.places = (f"{os.path.realpath(table.path)}:{columns.split or ''}{int(rows[0])}",)
        used = {*columns.inputs, *columns.targets, columns.weights}
        self._header = {"columns": ", ".join(name for name in table.columns if name in used)}
        if columns.weights is None:
            weights = None
        else:
            weights = table.numbers(columns.weights, "a weight")[rows]
        selected: AnyTargets
        if isinstance(targets, Mapping):
            selected = {name: target.select(rows) for name, target in targets.items()}
        else:
            selected = targets.select(rows)
        super().__init__(selected, weights, len(rows))
        for name, column in (("groups", columns.group), ("strata", columns.stratify)):
            if column is not None:
                setattr(
                    self, name, np.unique(table.text(column, name), return_inverse=True)[1][rows]
                )

    def _row(self, index: int) -> str:
        return printable(self._origins.location(index))


class FeatureRows(TableRows):
    """Rows of features, (features,) float32 each, or float64 if numbers are large."""

    def __init__(
        self, table: Table, rows: np.ndarray, columns: Columns, targets: _TableTargets
    ) -> None:
        super().__init__(table, rows, columns, targets)
        self._features = _features(table, columns.inputs)[rows]

    def read(self, index: int) -> np.ndarray:
        """Return the features of a row, (features,)."""
        return self._features[index].copy()

    def name(self, index: int) -> str:
        """Return the row."""
        return self._row(index)

    def sample_ids(self) -> SampleIds:
        """Return the ids of the samples, hashes of their features in any column order."""
        columns = sorted(range(len(self.columns.inputs)), key=self.columns.inputs.__getitem__)
        return SampleIds(
            hash_rows(self._features[:, columns].astype(np.float32)),
            unit="row",
            by_content=True,
            facts=self._header,
        )


class FileRows(TableRows):
    """Rows that name a file each: an encoded image, or an array in a ``.npy`` file."""

    def __init__(
        self, table: Table, rows: np.ndarray, columns: Columns, targets: _TableTargets
    ) -> None:
        super().__init__(table, rows, columns, targets)
        self.folder = os.path.dirname(table.path)
        names = table.text(columns.inputs[0], "paths")
        self._files = [names[row] for row in rows]

    def read(self, index: int) -> bytes | np.ndarray:
        """Read the bytes of the file, or its array."""
        return _read_file(os.path.join(self.folder, self._files[index]), self.name(index))

    def name(self, index: int) -> str:
        """Return the row and the file."""
        return f"{self._row(index)}: {self._files[index]}"

    def sample_ids(self) -> SampleIds:
        """Return the ids of the samples, from their files."""
        paths = [os.path.join(self.folder, file) for file in self._files]
        return replace(
            identify_files(list(map(os.path.normpath, self._files)), paths), facts=self._header
        )


class RecordRows(TableRows):
    """Rows of several inputs: features, and files that columns name."""

    def __init__(
        self, table: Table, rows: np.ndarray, columns: Columns, targets: _TableTargets
    ) -> None:
        super().__init__(table, rows, columns, targets)
        self.input_names = tuple(part.name for part in columns.parts)
        self._reader = _RecordReader(table, rows, columns.parts)

    def read(self, index: int) -> Any:
        """Read the features and files of a row, by input."""
        return self._reader.read(index, self._row(index))

    def name(self, index: int) -> str:
        """Return the row and its first file."""
        return self._row(index) + self._reader.describe(index)

    def sample_ids(self) -> SampleIds:
        """Return the ids of the samples: hashes of their features and names of files."""
        reader = self._reader
        hashes = []
        for _, features in sorted(reader.features.items()):
            hashes.append(hash_rows(features.astype(np.float32)))
        for _, names in sorted(reader.files.items()):
            hashes.append(hash_each(map(os.path.normpath, names)))
        seen: dict[str, np.ndarray] = {}
        for name, files in reader.files.items():
            paths = [os.path.join(reader.folder, file) for file in files]
            identified = identify_files(list(map(os.path.normpath, files)), paths)
            seen |= {f"{name} {key}": values for key, values in identified.hashes.items()}
        ids = hash_rows(np.stack(hashes, axis=1))
        return SampleIds(ids, seen, unit="row", by_content=not seen, facts=self._header)


class _RecordReader:
    """Reads the inputs of rows of a table.

    Args:
        table: all rows.
        rows: (n,) integers, the rows to read.
        parts: the columns of each input.

    Attributes:
        features: name -> (n, features) numbers.
        files: name -> n paths.
        folder: the folder of the table.
    """

    def __init__(self, table: Table, rows: np.ndarray, parts: Sequence[InputColumns]) -> None:
        self.folder = os.path.dirname(table.path)
        self.features: dict[str, np.ndarray] = {}
        self.files: dict[str, list[str]] = {}
        self._names = [part.name for part in parts]
        for part in parts:
            if part.are_files:
                names = table.text(part.columns[0], "paths")
                self.files[part.name] = [names[row] for row in rows]
            else:
                self.features[part.name] = _features(table, part.columns)[rows]

    def read(self, index: int, name: str) -> dict[str, bytes | np.ndarray]:
        """Read the inputs of a row, whose name is for errors."""
        inputs: dict[str, bytes | np.ndarray] = {}
        for part in self._names:
            if part in self.features:
                inputs[part] = self.features[part][index].copy()
            else:
                file = self.files[part][index]
                inputs[part] = _read_file(os.path.join(self.folder, file), f"{name}: {file}")
        return inputs

    def describe(self, index: int) -> str:
        """Return the first file of a row after a colon; empty without files."""
        return next((f": {files[index]}" for files in self.files.values()), "")


class NewRows(SequentialOrder):
    """The rows of a table to predict, without targets; columns may be in any order.

    Args:
        path: the path of the table. One of numbers without a header has only the inputs, in their
            order.
        columns: the roles of the training table's columns. If it has no names of inputs, all
            columns without another role are inputs, in their order.
        count: number of inputs.

    Raises:
        InputError: columns are missing, or a cell is not a number.
    """

    def __init__(self, path: str, columns: Columns, count: int) -> None:
        self._path = path
        input_names = columns.inputs or tuple(map(str, range(count)))
        table = read_table(path, columns.delimiter, input_names)
        self.input_names = tuple(part.name for part in columns.parts)
        names = columns.inputs or _by_position(table, columns, count)
        missing = [name for name in names if name not in table.columns]
        if missing:
            raise InputError(
                f"{path}: no column{'s' if len(missing) > 1 else ''} "
                f"{format_names(list(map(repr, missing)))}, which the networks take; its columns: "
                f"{format_names(list(table.columns))}"
            )
        self._length = len(table)
        self._features = None
        self._reader = None
        if columns.parts:
            table = _with_complete_paths(table, columns.parts, must_exist=False)
            self._reader = _RecordReader(table, np.arange(len(table)), columns.parts)
        elif not columns.is_paths:
            self._features = _features(table, names)
        self._files: list[str] = []
        if columns.is_paths:
            folder = os.path.dirname(path)
            files = _complete_paths(folder, table.text(names[0], "paths"))
            self._files = [os.path.join(folder, name) for name in files]

    def __len__(self) -> int:
        return self._length

    def read(self, index: int) -> Any:
        """Return the features of a row, or its file; see :class:`~preprocess.base.Source`."""
        if self._reader is not None:
            return self._reader.read(index, printable(f"{self._path}[{index}]"))
        if self._features is None:
            return _read_file(self._files[index], self.name(index))
        return self._features[index].copy()

    def name(self, index: int) -> str:
        """Return the table and the number of the row, from 0."""
        row = f"{self._path}[{index}]"
        if self._files:
            return printable(f"{row}: {self._files[index]}")
        if self._reader is not None:
            return printable(row + self._reader.describe(index))
        return printable(row)


def columns_of(source: Source) -> Columns | None:
    """Return the roles of columns if a source is a table or a view of one; else None."""
    rows: Source | None = source
    while rows is not None and not isinstance(rows, TableRows):
        rows = getattr(rows, "source", None)
    if rows is None:
        return None
    return rows.columns


def open_table(
    path: str,
    inputs: str | Sequence[str] | Mapping[str, Any] | None = None,
    targets: str | Sequence[str] | Mapping[str, str | Sequence[str]] = "target",
    weights: str | None = None,
    split: str | None = None,
    group: str | None = None,
    stratify: str | None = None,
    separator: str = ";",
    delimiter: str | None = None,
    pixels: Mapping[str, int] | None = None,
    *,
    target: Request = None,
) -> Opened:
    """Open the rows of a CSV or Parquet file.

    Args:
        path: the path of the file, or of a folder of files with the same columns, whose names may
            contain train, validation and test.
        inputs: a column of paths, or a list of columns of features. By default, the first existing
            column of ``PATH_COLUMNS``, or else all columns without another role. Of several inputs,
            a mapping of names to columns, or to {files: COLUMN}.
        targets: a column, or a list of them: of numbers, they are one target of several values
            unless ``data.target`` is a mapping by name. Of several targets, a mapping of names to
            columns, or to lists of columns of numbers.
        weights: a column with the weight of each row.
        split: a column of train, validation or test.
        group: a column; rows with the same value stay together when some are held out.
        stratify: a column; the same share of each of its values is held out.
        separator: between the labels of a row in a single column.
        delimiter: between the cells of a CSV file.
        pixels: the number of each class in masks; see
            :class:`preprocess.sources.masks.PixelClasses`.
        target: the ``data.target`` of the spec.

    Raises:
        InputError: the table is wrong; the message names row and column.
    """
    if os.path.isdir(path):
        check_numbered(table_files(path))
    table = read_table(path, delimiter)
    parts: tuple[InputColumns, ...] = ()
    if isinstance(inputs, Mapping):
        parts = _parse_parts(inputs)
        inputs = tuple(dict.fromkeys(name for part in parts for name in part.columns))
    if isinstance(target, TargetWish) and not target.semantics.exists:
        targets = ()
    target_parts = _parse_target_parts(table, targets, target)
    if isinstance(targets, Mapping):
        targets = tuple(
            dict.fromkeys(name for columns in target_parts.values() for name in columns)
        )
    names, is_paths = _inputs(table, inputs, _as_tuple(targets), (weights, split, group, stratify))
    if parts:
        is_paths = False
        for name in names:
            table.column(name, "inputs")
        table = _with_complete_paths(table, parts)
    columns = Columns(
        names,
        is_paths,
        _as_tuple(targets),
        weights,
        split,
        group,
        stratify,
        separator,
        PixelClasses.from_request(pixels, target),
        delimiter,
        parts,
    )
    if columns.is_paths:
        files = np.array(_files(table, names[0]), object)
        table = replace(table, columns={**table.columns, names[0]: files})
    all_targets: _TableTargets
    if target_parts:
        all_targets = parse_each(
            target_parts,
            target,
            path,
            lambda name, single: _targets(
                table, replace(columns, targets=target_parts[name]), single
            ),
        )
    else:
        all_targets = _targets(table, columns, single_request(target, path))
    form: type[TableRows] = FileRows if columns.is_paths else FeatureRows
    if parts:
        form = RecordRows

    def open_split(name: str | None) -> Source | None:
        if name is None:
            return None
        return form(table, rows_of[name], columns, all_targets)

    rows_of = _split_rows(table, split)
    held_out, tested = choose_held_out({name: name for name in rows_of})
    train = open_split(TRAIN)
    validation = open_split(held_out)
    assert train is not None
    if validation is not None and held_out is not None:
        if split is None:
            location = f"{held_out} in {path}"
        else:
            location = f"{held_out} in column {split!r}"
        mark_stand_in(validation, held_out, location)
    return train, validation, open_split(tested)


def _parse_target_parts(
    table: Table,
    targets: str | Sequence[str] | Mapping[str, str | Sequence[str]],
    request: Request,
) -> dict[str, tuple[str, ...]]:
    """Return the columns of each of several targets by name; empty for one target.

    Args:
        table: the table.
        targets: the option. A list of columns that are not all numbers is several targets, too.
        request: the ``data.target``.

    Raises:
        InputError: a target cannot have such a name, or is not described by columns.
    """
    if isinstance(targets, Mapping):
        parts = {}
        for name, described in targets.items():
            check_target_name(name, "options: targets")
            columns: Any = (described,) if isinstance(described, str) else described
            is_list = isinstance(columns, list | tuple) and columns
            if not is_list or not all(isinstance(column, str) for column in columns):
                raise InputError(
                    f"options: targets: {name}: {described!r}; it should be a column, or a list "
                    "of columns of numbers"
                )
            parts[name] = _as_tuple(columns)
        if not parts:
            raise InputError("options: targets: {}; it should name at least one target")
        return parts
    if isinstance(targets, str) and not isinstance(request, Mapping):
        return {}
    names = _as_tuple(targets)
    are_several = isinstance(request, Mapping) or (
        len(names) > 1 and request is None and not all(_are_numbers(table, name) for name in names)
    )
    if not are_several:
        return {}
    for name in names:
        check_target_name(name, "options: targets")
    return {name: (name,) for name in names}


def _are_numbers(table: Table, column: str) -> bool:
    """Return True if a column holds numbers, or is wrong, which is reported elsewhere."""
    try:
        return table.typed_column(column, "targets").dtype.kind in "iufb"
    except InputError:
        return True


def _parse_parts(inputs: Mapping[str, Any]) -> tuple[InputColumns, ...]:
    """Parse the columns of several inputs.

    Raises:
        InputError: networks cannot use the name of an input, or it is not described by columns.
    """
    parts = []
    for name, described in inputs.items():
        check_input_name(name, "options: inputs")
        are_files = isinstance(described, Mapping)
        columns: Any = described
        if are_files:
            columns = described.get("files") if set(described) == {"files"} else None
        is_list = isinstance(columns, list | tuple) and not are_files
        if not isinstance(columns, str) and not (
            is_list and columns and all(isinstance(column, str) for column in columns)
        ):
            raise InputError(
                f"options: inputs: {name}: {described!r}; it should be a column, a list of columns "
                "of numbers, or {files: COLUMN} for a column of paths"
            )
        parts.append(InputColumns(name, _as_tuple(columns), are_files))
    if not parts:
        raise InputError("options: inputs: {}; it should name at least one input")
    return tuple(parts)


def _with_complete_paths(
    table: Table, parts: Sequence[InputColumns], must_exist: bool = True
) -> Table:
    """Return a table with complete paths in the columns of files of several inputs.

    Args:
        parts: the columns of each input.
        must_exist: True to check that the files exist.
    """
    columns = dict(table.columns)
    folder = os.path.dirname(table.path)
    for part in parts:
        if part.are_files:
            [column] = part.columns
            if must_exist:
                paths = _files(table, column, may_repeat=True)
            else:
                paths = _complete_paths(folder, table.text(column, "paths"))
            columns[column] = np.array(paths, object)
    return replace(table, columns=columns)


def _inputs(
    table: Table,
    inputs: str | Sequence[str] | None,
    targets: Sequence[str],
    other_columns: Sequence[str | None],
) -> tuple[tuple[str, ...], bool]:
    """Return the columns of the inputs, and True if it is one of paths."""
    for column in targets:
        table.column(column, "targets")
    used = (*targets, *other_columns)
    if inputs is not None:
        names = _as_tuple(inputs)
    elif (paths := _path_column(table, used)) is not None:
        names = (paths,)
    else:
        names = tuple(
            name for name in table.columns if name not in used and name not in table.index
        )
    if not names:
        raise InputError(f"{table.path}: no column is left for inputs (options: inputs, targets)")
    both = [name for name in names if name in targets]
    if both:
        raise InputError(
            f"{table.path}: column {both[0]!r} is among the inputs and the targets: nothing would "
            "be left to learn"
        )
    return names, len(names) == 1 and _are_paths(table, names[0])


def _path_column(table: Table, used: Sequence[str | None]) -> str | None:
    """Find the column of paths of a table whose options name none; None without one.

    Raises:
        InputError: a column of that name has a different number in each row, and files of these
            names do not exist.
    """
    for name in PATH_COLUMNS:
        if name not in table.columns or name in used:
            continue
        if _are_paths(table, name):
            return name
        cells = table.typed_column(name, "inputs")
        if cells.dtype.kind in "iu" and len(cells) > 1 and len(np.unique(cells)) == len(cells):
            raise InputError(
                f"{table.location(0, name)}: {cells[0]} is no file beside the table, and the "
                "column holds another number in each row; it should hold paths, or options: "
                "inputs name the columns of features"
            )
    return None


def _are_paths(table: Table, column: str) -> bool:
    """Return True if a column holds text, or numbers that are names of files."""
    cells = table.typed_column(column, "inputs")
    if cells.dtype.kind == "O" or cells.dtype.kind not in "iu":
        return cells.dtype.kind == "O"
    few = table.text(column, "inputs")[:3]
    folder = os.path.dirname(table.path)
    return all(os.path.isfile(os.path.join(folder, name)) for name in _complete_paths(folder, few))


def _complete_paths(folder: str, names: Sequence[str]) -> list[str]:
    """Add missing extensions to paths if exactly one file matches."""
    endings_of: dict[str, dict[str, list[str]]] = {}
    completed = []
    for name in names:
        parent, base = os.path.split(os.path.join(folder, name))
        if parent not in endings_of:
            endings_of[parent] = {}
            for file in sorted(_names_in(parent)):
                endings_of[parent].setdefault(file, []).append("")
                stem, ending = os.path.splitext(file)
                if ending.lower() in _ENDINGS:
                    endings_of[parent].setdefault(stem, []).append(ending)
        endings = endings_of[parent].get(base, [])
        is_plain = len(endings) != 1 or "" in endings
        completed.append(name if is_plain else name + endings[0])
    return completed


def _by_position(table: Table, columns: Columns, count: int) -> tuple[str, ...]:
    """Return the inputs of a table without names: all columns without another role."""
    names = tuple(
        name for name in table.columns if name not in columns.non_inputs and name not in table.index
    )
    if len(names) != count:
        raise InputError(
            f"{table.path}: {pluralize(len(names), 'column')}; the networks take {count}, whose "
            "names are not known, so the table must have exactly these, in order"
        )
    return names


def _features(table: Table, names: Sequence[str]) -> np.ndarray:
    """Stack columns of numbers, (rows, columns): float32, or float64 if numbers are large.

    Large ones, such as seconds since 1970, may differ by less than float32 resolves.
    """
    features = np.stack([table.numbers(name, "a feature") for name in names], axis=1)
    is_small = np.abs(features.astype(np.float64)).max(initial=0) < _SMALL
    return features.astype(np.float32 if is_small else np.float64)


def _as_tuple(names: str | Sequence[str]) -> tuple[str, ...]:
    columns = (names,) if isinstance(names, str) else tuple(names)
    twice = first_duplicate(columns)
    if twice is not None:
        raise InputError(f"column {twice!r} is named twice (options: inputs, targets)")
    return columns


def _files(table: Table, column: str, may_repeat: bool = False) -> list[str]:
    """Return the complete paths in a column; each file must exist and be listed once.

    Args:
        may_repeat: True if rows may share a file.
    """
    folder = os.path.dirname(table.path)
    names = _complete_paths(folder, table.text(column, "paths"))
    seen: dict[str, int] = {}
    for row, name in enumerate(names):
        file = os.path.normpath(os.path.join(folder, name))
        first = seen.setdefault(file, row)
        if first != row and not may_repeat:
            raise InputError(
                f"{table.location(row, column)}: {name} is also in {table.unit} "
                f"{table.lines[first]}; list each file once (options: weights can "
                "make it count for more)"
            )
    names_of = {parent: _names_in(parent) for parent in {os.path.dirname(file) for file in seen}}
    missing = [
        row
        for file, row in seen.items()
        if os.path.basename(file) not in names_of[os.path.dirname(file)]
    ]
    if missing:
        raise InputError(
            f"{table.location(missing[0], column)}: no file "
            f"{names[missing[0]]}{and_more(missing)}; paths are relative to the folder of the table"
        )
    return names


def _names_in(folder: str) -> set[str]:
    try:
        return set(os.listdir(folder or "."))
    except OSError:
        return set()


def _split_rows(table: Table, split: str | None) -> Mapping[str, np.ndarray]:
    """Return the rows of each split, from a column or from file names."""
    if split is None:
        return _split_rows_by_file(table)
    texts = table.text(split, "split")
    part_of_text = {text: parse_split(text) for text in set(texts)}
    for row, text in enumerate(texts):
        if part_of_text[text] is None:
            raise InputError(
                f"{table.location(row, split)}: {text!r} is not a split of the data; it "
                f"must be train, validation or test"
            )
    splits = np.array([part_of_text[text] for text in texts])
    rows_of = {name: np.flatnonzero(splits == name) for name in dict.fromkeys(splits.tolist())}
    if TRAIN not in rows_of:
        raise InputError(f"{table.path}, column {split!r}: no row says train")
    return rows_of


def _split_rows_by_file(table: Table) -> Mapping[str, np.ndarray]:
    """Return the rows of each split by file names; all are training rows by default."""
    parts_of_files = [find_split_word(os.path.relpath(file, table.path)) for file in table.files]
    if len(set(parts_of_files)) < 2:
        return {TRAIN: np.arange(len(table))}
    if None in parts_of_files or TRAIN not in parts_of_files:
        odd = 0
        if None in parts_of_files:
            odd = parts_of_files.index(None)
        raise InputError(
            f"{table.files[odd]}: its name does not contain its split, or no name contains train; "
            "the names of all files must contain train, validation or test, or none"
        )
    splits = np.array(parts_of_files)[table.file_of]
    return {str(name): np.flatnonzero(splits == name) for name in dict.fromkeys(splits.tolist())}


def _targets(table: Table, columns: Columns, request: TargetWish | None) -> Targets | MaskFiles:
    """Parse the targets of all rows."""
    if not columns.targets:
        return Targets.missing(len(table))
    names = columns.targets
    origin = f"{table.path}, {', '.join(map(repr, columns.targets))}"
    semantics = requested_semantics(request)
    if semantics.is_of_pixels:
        if len(names) > 1:
            raise InputError(f"{origin}: masks should be in one column of paths")
        folder = os.path.dirname(table.path)
        masks = [os.path.join(folder, file) for file in _files(table, names[0])]
        return MaskFiles(masks, columns.masks)
    if len(names) == 1:
        if semantics.has_label_sets:
            cells = table.columns[names[0]]  # an empty one has no label
            sets: Sequence[Set[object]] = [
                {label.strip() for label in str(cell).split(columns.separator)} - {""}
                for cell in cells
            ]
            if names[0] in table.lists:
                sets = [set(labels or ()) for labels in table.lists[names[0]]]
            return encode_label_sets(sets, request, origin, table.location)
        if semantics.is_scalar:
            cells = table.classes(names[0])
        else:
            cells = table.typed_column(names[0], "targets", codes=not semantics.is_numeric)
        return parse_targets(cells, request, origin, table.location)
    stacked = np.stack([table.numbers(name, "one of several targets") for name in names], axis=1)
    return parse_targets(stacked, request, origin, table.location, names)


def _read_file(file: str, name: str) -> bytes | np.ndarray:
    """Read the bytes of a file, or its array.

    Raises:
        UnreadableSample: it cannot be read.
    """
    content = read_file(file, lambda: name)
    try:
        if is_npy(content):
            return parse_npy(content)
        return content
    except UnreadableImage as error:
        raise UnreadableSample(name, str(error)) from error
