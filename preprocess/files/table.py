"""Tables of samples: CSV files, and Parquet files if pyarrow is installed."""

from __future__ import annotations

import bz2
import csv
import difflib
import gzip
import json
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np

from launch.errors import InputError, pluralize
from preprocess.base import and_more, first_duplicate

# cells that mean a missing number
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
_DELIMITERS = ",;\t|"  # the most frequent one in the header is the default
_TRUTH = {"true": 1, "false": 0}
# Integers that are codes, such as postal codes: as numbers they would lose their zeros, or
# their last digits.
_CODE = re.compile(r"[+-]?0\d+|[+-]?\d{19,}")
_COMMA = re.compile(r"[+-]?(\d{1,3}(,\d{3})+(\.\d+)?|\d+,\d+)")  # 1,234.5 or 1,5
_INDEX = re.compile(r"Unnamed: 0(\.\d+)?|__index_level_\d+__")  # pandas' names of an index
_NO_VALUE = frozenset({"nan", "<na>", "nat"})  # what libraries write for missing text
_OPENERS: Mapping[str, Callable[..., IO[str]]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
PARQUET = (".parquet", ".pq")


@dataclass(frozen=True)
class Table:
    """The cells of a table.

    Attributes:
        path: the path of the file.
        columns: name -> (rows,) text as objects, or numbers if the file has types.
        missing: name -> (rows,) bool, True without a number; of text, empty cells are missing.
        lines: (rows,) integers: the line of a CSV file, or the row of a Parquet file from 0.
        unit: the noun for a number of ``lines``.
        index: pandas' index columns, which are features only on request.
        lists: name -> the lists of a column of lists, which are labels.
        files: the paths of a table in several files.
        file_of: (rows,) integers, the index in ``files`` of each row; empty for one file.
    """

    path: str
    columns: Mapping[str, np.ndarray]
    missing: Mapping[str, np.ndarray]
    lines: np.ndarray
    unit: str
    index: frozenset[str] = frozenset()
    lists: Mapping[str, Sequence[Sequence[object]]] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    file_of: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.lines)

    def location(self, row: int, column: str | None = None) -> str:
        """Format where a row, or a cell, is."""
        path = self.path
        if self.files:
            path = self.files[self.file_of[row]]
        line = f"{path} {self.unit} {self.lines[row]}"
        if column is None:
            return line
        return f"{line}, column {column!r}"

    def column(self, column: str, role: str) -> np.ndarray:
        """Return a column as it is, possibly with missing values.

        Args:
            column: its name.
            role: the use of the column, for the message.

        Raises:
            InputError: the column does not exist.
        """
        if column not in self.columns:
            near = difflib.get_close_matches(str(column), self.columns, n=1)
            raise InputError(
                f"{self.path}: no column {column!r} for {role}; "
                + (f"near it: {near[0]!r}; " if near else "")
                + f"its columns: {', '.join(self.columns)}"
            )
        return self.columns[column]

    def complete_column(self, column: str, role: str) -> np.ndarray:
        """Return a column that has no missing value; see :meth:`column`.

        Raises:
            InputError: the column does not exist, or a cell has no value.
        """
        cells = self.column(column, role)
        if column in self.lists:
            raise InputError(
                f"{self.path}: column {column!r} holds lists or records, and {role} should be a "
                "number or a text; give each number a separate column (lists of labels are "
                "read with data.target: multilabel)"
            )
        if cells.dtype.kind == "O":
            missing = np.array([not cell.strip() for cell in cells])
        else:
            missing = self.missing[column]
        self._check_complete(column, missing)
        return cells

    def typed_column(self, column: str, role: str, codes: bool = False) -> np.ndarray:
        """Return a complete column as int64, float64, bool or text, whichever fits all cells.

        Args:
            column: its name.
            role: the use of the column, for messages.
            codes: True if integers with leading zeros or too many digits make the column text.

        Raises:
            InputError: some cells are numbers and others text, or two differ only as text.
        """
        cells = self.complete_column(column, role)
        if cells.dtype.kind != "O":
            return cells
        is_number = np.array(list(map(_is_number, cells)), bool)
        if not is_number.any():
            self._check_commas(column, cells)
            truth = [_TRUTH.get(cell.strip().lower()) for cell in cells]
            if None in truth:
                return cells
            return np.array(truth, bool)
        self._check_complete(column, np.array([cell.strip().lower() in MISSING for cell in cells]))
        if not is_number.all():
            is_odd = ~is_number
            if is_number.sum() * 2 < len(cells):
                is_odd = is_number
            odd = int(np.flatnonzero(is_odd)[0])
            usual = int(np.flatnonzero(is_number != is_number[odd])[0])
            raise InputError(
                f"{self.location(odd, column)}: {cells[odd]!r} is "
                f"{'a number' if is_number[odd] else 'not a number'}, unlike {cells[usual]!r} in "
                f"{self.unit} {self.lines[usual]}; a column should hold values of one kind"
            )
        if codes and _are_codes(cells):
            return np.array([cell.strip() for cell in cells], object)
        numbers = _numbers(cells)
        if any(map(_CODE.fullmatch, map(str.strip, cells))):
            self._check_merged(column, cells, numbers)
        return numbers

    def _check_commas(self, column: str, cells: np.ndarray) -> None:
        if all(_COMMA.fullmatch(cell.strip()) for cell in cells):
            raise InputError(
                f"{self.location(0, column)}: {cells[0]!r} is a number with a comma; write "
                "decimals with a point and thousands without a comma, or set data.target: class "
                "if it names a class"
            )

    def _check_merged(self, column: str, cells: np.ndarray, numbers: np.ndarray) -> None:
        """Refuse codes that would become the same number."""
        seen: dict[object, int] = {}
        for row, number in enumerate(numbers.tolist()):
            first = seen.setdefault(number, row)
            texts = [cells[first].strip(), cells[row].strip()]
            if texts[0] != texts[1] and any(map(_CODE.fullmatch, texts)):
                raise InputError(
                    f"{self.location(row, column)}: {texts[1]!r} and {texts[0]!r} in {self.unit} "
                    f"{self.lines[first]} would be the same number; if they are codes, encode "
                    "them, or leave the column out; if they are numbers, write them alike"
                )

    def classes(self, column: str) -> np.ndarray:
        """Return a complete column of class names: integers if all are, so 10 sorts after 9."""
        cells = self.text(column, "classes")
        self._check_complete(
            column, np.array([cell.strip().lower() in _NO_VALUE for cell in cells])
        )
        if all(_is_whole(cell) for cell in cells) and not _are_codes(cells):
            return np.array([int(cell) for cell in cells])
        return np.array(cells)

    def numbers(self, column: str, role: str) -> np.ndarray:
        """Return a complete column of finite numbers, (rows,).

        Raises:
            InputError: a cell is not a finite number.
        """
        cells = self.typed_column(column, role)
        if cells.dtype.kind == "O":
            raise InputError(
                f"{self.location(0, column)}: {cells[0]!r} is not a number, but {role} must be; "
                f"encode it, or leave the column out"
            )
        wrong = np.flatnonzero(~np.isfinite(cells))
        if len(wrong):
            raise InputError(
                f"{self.location(int(wrong[0]), column)}: {cells[wrong[0]]} is not finite"
            )
        return cells

    def text(self, column: str, role: str) -> list[str]:
        """Return a complete column of any type as text."""
        return [str(cell) for cell in self.complete_column(column, role)]

    def _check_complete(self, column: str, missing: np.ndarray) -> None:
        empty = np.flatnonzero(missing)
        if len(empty):
            raise InputError(
                f"{self.location(int(empty[0]), column)}: no value{and_more(empty)}; fill it, or "
                "leave the row out"
            )


def read_table(path: str, delimiter: str | None = None, names: Sequence[str] = ()) -> Table:
    """Read a table: Parquet if the file ends in ``.parquet`` or ``.pq``, else CSV.

    Args:
        path: the path of the file, or of a folder of files with the same columns. CSV may be
            compressed (``.gz``, ``.bz2``, ``.xz``).
        delimiter: between the cells of a CSV file; detected in its first line by default.
        names: the names of the columns of a CSV file without a header, whose first line holds
            numbers. Without names, a header is required.

    Raises:
        InputError: the file is missing, has no header, a row of another length, and so on.
    """
    if os.path.isdir(path):
        return _concatenate(
            path, [read_table(file, delimiter, names) for file in table_files(path)]
        )
    if not os.path.isfile(path):
        raise InputError(f"{path}: file not found")
    if path.lower().endswith(PARQUET):
        return _read_parquet(path)
    return _read_csv(path, delimiter, names)


def table_files(folder: str) -> list[str]:
    """List the files of a table in a folder: Parquet files, or else CSV files, not hidden.

    Raises:
        InputError: there are none.
    """
    files = sorted(
        os.path.join(parent, name)
        for parent, _, names in os.walk(folder)
        for name in names
        if not any(
            part.startswith((".", "_"))
            for part in (*os.path.relpath(parent, folder).split(os.sep), name)
            if part != "."
        )
    )
    for endings in (PARQUET, (".csv", ".tsv", *(f".csv{ending}" for ending in _OPENERS))):
        matches = [file for file in files if file.lower().endswith(endings)]
        if matches:
            return matches
    raise InputError(f"{folder}: no Parquet or CSV files in this folder")


def _concatenate(folder: str, tables: Sequence[Table]) -> Table:
    """Concatenate tables that have the same columns."""
    first = tables[0]
    for table in tables:
        differs = sorted(set(table.columns) ^ set(first.columns))
        if differs:
            raise InputError(
                f"{table.path}: column {differs[0]!r} is not in both this file and {first.path}; "
                "all files of a table should have the same columns"
            )
    columns = {}
    for name in first.columns:
        cells = [table.columns[name] for table in tables]
        is_text = [column.dtype.kind == "O" for column in cells]
        if any(is_text) and not all(is_text):
            odd = tables[is_text.index(not is_text[0])]
            raise InputError(
                f"{odd.path}: column {name!r} has another type than in {first.path}; it should be "
                f"the same"
            )
        columns[name] = np.concatenate(cells)
    return Table(
        os.path.join(folder, ""),
        columns,
        {name: np.concatenate([table.missing[name] for table in tables]) for name in first.missing},
        np.concatenate([table.lines for table in tables]),
        first.unit,
        frozenset().union(*(table.index for table in tables)),
        {name: [row for table in tables for row in table.lists[name]] for name in first.lists},
        tuple(table.path for table in tables),
        np.repeat(np.arange(len(tables)), list(map(len, tables))),
    )


def _read_csv(path: str, delimiter: str | None, names: Sequence[str]) -> Table:
    if delimiter is not None and (not isinstance(delimiter, str) or len(delimiter) != 1):
        raise InputError(f"{path}: delimiter: {delimiter!r} should be a single character")
    rows: list[list[str]] = []
    lines: list[int] = []
    began = 1
    opened = _OPENERS.get(os.path.splitext(path)[1].lower(), open)
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            delimiter = delimiter or max(_DELIMITERS, key=first.count)
            text = _RecordedLines(file)
            reader = csv.reader(text, delimiter=delimiter)
            header = next(reader, [])
            if names and header and all(map(_is_number, header)) and not set(names) <= set(header):
                file.seek(0)
                reader = csv.reader(text, delimiter=delimiter)
                header = _default_header(path, names, header)
            is_unnamed = len(header) > 1 and not header[0].strip() and any(header)
            if is_unnamed and "Unnamed: 0" not in header:  # written by pandas
                header = ["Unnamed: 0", *header[1:]]
            _check_header(path, header, names)
            text.lines.clear()
            began = reader.line_num + 1
            for cells in reader:
                if len(text.lines) > 1 or (cells and cells[-1].endswith("\n")):
                    _check_quotes(path, began, text.lines, delimiter, rows, cells)
                text.lines.clear()
                began = reader.line_num + 1
                if not cells:  # an empty line
                    continue
                if len(cells) != len(header):
                    raise InputError(
                        f"{path} line {reader.line_num}: {pluralize(len(cells), 'cell')} in a "
                        f"table of {pluralize(len(header), 'column')}"
                    )
                rows.append(cells)
                lines.append(reader.line_num)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: not text in UTF-8 at byte {error.start}; save it as UTF-8"
        ) from error
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be read: {reason}") from error
    except csv.Error as error:
        raise InputError(
            f"{path} line {began}: not a CSV file: {error}; perhaps a quote in this line is not "
            f"closed"
        ) from error
    if not rows:
        raise InputError(f"{path}: no rows below the header")
    columns = {
        name: np.array(cells, object)
        for name, cells in zip(header, zip(*rows, strict=True), strict=True)
    }
    index = frozenset(name for name in header if _INDEX.fullmatch(name))
    table = Table(path, columns, {}, np.array(lines), "line", index)
    if is_unnamed:
        values = set(columns[header[0]].tolist())
        if len(rows) < 2 or len(values) < len(rows):
            raise InputError(
                f"{path} line 1: column 1 has no name and is not an index, which differs from row "
                "to row"
            )
    return table


class _RecordedLines:
    """The lines of a file, recorded as they are read."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self.lines: list[str] = []

    def __iter__(self) -> Iterator[str]:
        for line in self._file:
            self.lines.append(line)
            yield line


def _check_quotes(
    path: str,
    line: int,
    lines: Sequence[str],
    delimiter: str,
    rows: Sequence[Sequence[str]],
    cells: Sequence[str],
) -> None:
    """Refuse a row of several lines that swallowed others because a quote was not closed.

    Args:
        line: where the row begins.
        lines: the lines of the row.
        rows: before it.
        cells: the cells of the row.
    """
    try:
        list(csv.reader(lines, delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise InputError(
            f"{path} line {line}: a quote is opened in this row and not closed ({error}); close "
            "it, or remove it"
        ) from error
    first = rows[0] if rows else cells
    like = [_is_number(cell) for cell in first]
    for offset, inner in enumerate(lines[1:], 1):
        row = next(csv.reader([inner], delimiter=delimiter), [])
        is_row = len(row) == len(like) > 1
        if is_row and [_is_number(cell.strip('"')) for cell in row] == like:
            raise InputError(
                f"{path} line {line}: a quote is opened in this row and not closed in it, so that "
                f"line {line + offset}, which looks like a row, is a part of a cell; close it, or "
                "remove it"
            )


def _default_header(path: str, names: Sequence[str], first: Sequence[str]) -> list[str]:
    """Return the column names of a file without a header."""
    if len(first) != len(names):
        raise InputError(
            f"{path} line 1: {pluralize(len(first), 'number')} and no header; without the names of "
            f"its columns a table should have exactly {len(names)}: {format_names(names)}"
        )
    return list(names)


def format_names(names: Sequence[str]) -> str:
    """Format names in one line, the first of many."""
    text = ", ".join(names[:20])
    if len(names) > 20:
        text += f" and {len(names) - 20} more"
    return text


def _check_header(path: str, header: Sequence[str], names: Sequence[str]) -> None:
    if not any(name.strip() for name in header):
        raise InputError(
            f"{path} line 1: no header; the first line should hold the names of the columns"
        )
    for position, name in enumerate(header):
        if not name.strip():
            raise InputError(f"{path} line 1: column {position + 1} has no name")
        if name in header[:position]:
            raise InputError(
                f"{path} line 1: two columns are named {name!r}: {header.index(name) + 1} and "
                f"{position + 1}"
            )
    if all(map(_is_number, header)) and not names:
        raise InputError(
            f"{path} line 1: {', '.join(header[:3])} are numbers; the first line should hold the "
            "names of the columns"
        )


def _read_parquet(path: str) -> Table:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError(
            f"{path}: Parquet files are read by pyarrow, which is not installed; pip install "
            "pyarrow, or save the table as CSV"
        ) from None
    try:
        content = parquet.ParquetFile(path).read()
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(f"{path}: not a Parquet file that can be read: {error}") from error
    names = content.column_names
    twice = first_duplicate(names)
    if twice is not None:
        raise InputError(f"{path}: two columns are named {twice!r}")
    if not len(content):
        raise InputError(f"{path}: no rows")
    columns = {}
    missing = {}
    lists = {}
    for name in names:
        column = content.column(name).combine_chunks()
        if pyarrow.types.is_nested(column.type):
            lists[name] = column.to_pylist()
            columns[name], missing[name] = (
                np.empty(len(content), object),
                np.asarray(column.is_null()),
            )
            continue
        columns[name], missing[name] = _from_arrow(column, pyarrow)
    index = frozenset(_index_of_pandas(content.schema.metadata or {}, names))
    return Table(path, columns, missing, np.arange(len(content)), "row", index, lists)


def _index_of_pandas(metadata: Mapping[bytes, bytes], names: Sequence[str]) -> list[str]:
    """Return the columns that are the index of a data frame."""
    try:
        index_columns = json.loads(metadata.get(b"pandas", b"{}")).get("index_columns", [])
    except (ValueError, AttributeError):
        index_columns = []
    return [name for name in names if name in index_columns or _INDEX.fullmatch(name)]


def _from_arrow(column: Any, pyarrow: Any) -> tuple[np.ndarray, np.ndarray]:
    """Convert a column to NumPy; return its cells and where values are missing, (rows,) each."""
    types = pyarrow.types
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    type_ = column.type
    if types.is_decimal(type_):
        column = column.cast(pyarrow.float64())
        type_ = column.type
    missing = np.asarray(column.is_null())
    if types.is_floating(type_):
        cells = column.to_numpy(zero_copy_only=False)
        return cells, missing | np.isnan(cells)
    if types.is_integer(type_) or types.is_boolean(type_):
        filled = column.fill_null(False if types.is_boolean(type_) else 0)
        return filled.to_numpy(zero_copy_only=False), missing
    texts = ["" if cell is None else str(cell) for cell in column.to_pylist()]
    return np.array(texts, object), missing


def _are_codes(cells: Iterable[str]) -> bool:
    """Return True if all cells are integers and some of them codes."""
    texts = [cell.strip() for cell in cells]
    return any(map(_CODE.fullmatch, texts)) and all(map(_is_whole, texts))


def _is_whole(text: str) -> bool:
    return re.fullmatch(r"[+-]?[0-9]+", text.strip()) is not None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text  # Python reads 1_000


def _numbers(cells: np.ndarray) -> np.ndarray:
    try:
        return cells.astype(np.int64)
    except (ValueError, OverflowError):
        return cells.astype(np.float64)
