"""Tables of samples: CSV files by the standard library, Parquet files by pyarrow where it is installed."""

from __future__ import annotations

import csv
import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from preprocess.base import InputError, and_more, counted, twice_in

MISSING = frozenset(
    {"", "na", "n/a", "nan", "null", "none", "?"}
)  # what stands among numbers for one that is missing
_DELIMITERS = ",;\t|"  # of these the one that comes most often in the header, unless it is said
_TRUTH = {"true": 1, "false": 0}


@dataclass(frozen=True)
class Table:
    """The cells of a table.

    Attributes:
        path: of the file.
        columns: name -> (rows,) text as objects, or numbers where the file has types.
        missing: name -> (rows,) whether there is no number; of text, an empty one says so.
        lines: (rows,) where each row stands: the line of a CSV file, the row of a Parquet file from 0.
        unit: what a number of ``lines`` is called.
    """

    path: str
    columns: Mapping[str, np.ndarray]
    missing: Mapping[str, np.ndarray]
    lines: np.ndarray
    unit: str

    def __len__(self) -> int:
        return len(self.lines)

    def place(self, row: int, column: str | None = None) -> str:
        """Where a row, or a cell, stands."""
        where = f"{self.path} {self.unit} {self.lines[row]}"
        return where if column is None else f"{where}, column {column!r}"

    def column(self, column: str, what: str) -> np.ndarray:
        """A column as it is, perhaps with cells without a value.

        Args:
            what: it is wanted as, for the message.

        Raises:
            InputError: there is no such column.
        """
        if column not in self.columns:
            near = difflib.get_close_matches(str(column), self.columns, n=1)
            raise InputError(
                f"{self.path}: no column {column!r} for {what}; "
                + (f"near it: {near[0]!r}; " if near else "")
                + f"its columns: {', '.join(self.columns)}"
            )
        return self.columns[column]

    def find(self, column: str, what: str) -> np.ndarray:
        """A column that is complete; see :meth:`column`.

        Raises:
            InputError: there is no such column, or a cell without a value.
        """
        cells = self.column(column, what)
        missing = (
            np.array([not cell.strip() for cell in cells])
            if cells.dtype.kind == "O"
            else self.missing[column]
        )
        self._check_complete(column, missing)
        return cells

    def typed(self, column: str, what: str) -> np.ndarray:
        """A complete column as whole numbers (int64), numbers (float64), booleans or text: what all of its cells are.

        Raises:
            InputError: some cells are numbers and others text.
        """
        cells = self.find(column, what)
        if cells.dtype.kind != "O":
            return cells
        is_number = np.array(list(map(_is_number, cells)), bool)
        if not is_number.any():
            truth = [_TRUTH.get(cell.strip().lower()) for cell in cells]
            return cells if None in truth else np.array(truth, bool)
        self._check_complete(column, np.array([cell.strip().lower() in MISSING for cell in cells]))
        if not is_number.all():
            odd = int(
                np.flatnonzero(is_number if is_number.sum() * 2 < len(cells) else ~is_number)[0]
            )
            usual = int(np.flatnonzero(is_number != is_number[odd])[0])
            raise InputError(
                f"{self.place(odd, column)}: {cells[odd]!r} is "
                f"{'a number' if is_number[odd] else 'no number'}, unlike {cells[usual]!r} in {self.unit} "
                f"{self.lines[usual]}; a column should hold values of one kind"
            )
        return _numbers(cells)

    def numbers(self, column: str, what: str) -> np.ndarray:
        """A complete column of numbers, all of them finite.

        Raises:
            InputError: a cell is none.
        """
        cells = self.typed(column, what)
        if cells.dtype.kind == "O":
            raise InputError(
                f"{self.place(0, column)}: {cells[0]!r} is no number, as {what} should be; encode it, or "
                "leave the column out"
            )
        wrong = np.flatnonzero(~np.isfinite(cells))
        if len(wrong):
            raise InputError(
                f"{self.place(int(wrong[0]), column)}: {cells[wrong[0]]} is not finite"
            )
        return cells

    def text(self, column: str, what: str) -> list[str]:
        """A complete column as text, however its file holds it."""
        return [str(cell) for cell in self.find(column, what)]

    def _check_complete(self, column: str, missing: np.ndarray) -> None:
        empty = np.flatnonzero(missing)
        if len(empty):
            raise InputError(
                f"{self.place(int(empty[0]), column)}: no value{and_more(empty)}; fill it, or leave the "
                "row out"
            )


def read_table(path: str, delimiter: str | None = None, names: Sequence[str] = ()) -> Table:
    """Read a table; a file that ends in ``.parquet`` or ``.pq`` is one of Parquet, any other one of CSV.

    Args:
        path: of the file.
        delimiter: between the cells of a CSV file; found in its first line where it is not given.
        names: of the columns of a CSV file without a header, which has numbers in its first line. Without them, a
            header must be there.

    Raises:
        InputError: no such file, no header, a row of another length, ...
    """
    if not os.path.isfile(path):
        raise InputError(f"{path}: no such file")
    if path.lower().endswith((".parquet", ".pq")):
        return _read_parquet(path)
    return _read_csv(path, delimiter, names)


def _read_csv(path: str, delimiter: str | None, names: Sequence[str]) -> Table:
    if delimiter is not None and (not isinstance(delimiter, str) or len(delimiter) != 1):
        raise InputError(f"{path}: delimiter: {delimiter!r} should be a single character")
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            delimiter = delimiter or max(_DELIMITERS, key=first.count)
            reader = csv.reader(file, delimiter=delimiter)
            header = next(reader, [])
            if names and header and all(map(_is_number, header)) and not set(names) <= set(header):
                file.seek(0)
                reader, header = (
                    csv.reader(file, delimiter=delimiter),
                    _given_header(path, names, header),
                )
            _check_header(path, header, names)
            for cells in reader:
                if not cells:  # an empty line
                    continue
                if len(cells) != len(header):
                    raise InputError(
                        f"{path} line {reader.line_num}: {counted(len(cells), 'cell')} in a table of "
                        f"{counted(len(header), 'column')}"
                    )
                rows.append(cells)
                lines.append(reader.line_num)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not text in UTF-8 at byte {error.start}; save it so") from error
    except csv.Error as error:
        raise InputError(f"{path} line {reader.line_num}: not a CSV file: {error}") from error
    if not rows:
        raise InputError(f"{path}: no rows below the header")
    columns = {
        name: np.array(cells, object)
        for name, cells in zip(header, zip(*rows, strict=True), strict=True)
    }
    return Table(path, columns, {}, np.array(lines), "line")


def _given_header(path: str, names: Sequence[str], first: Sequence[str]) -> list[str]:
    """The names of the columns of a file without a header."""
    if len(first) != len(names):
        raise InputError(
            f"{path} line 1: {counted(len(first), 'number')} and no header; without the names of its "
            f"columns a table should have exactly {len(names)}: {listed(names)}"
        )
    return list(names)


def listed(names: Sequence[str]) -> str:
    """Some names in a line: the first of many."""
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def _check_header(path: str, header: Sequence[str], names: Sequence[str]) -> None:
    if not any(name.strip() for name in header):
        raise InputError(
            f"{path} line 1: no header; the first line should hold the names of the columns"
        )
    for place, name in enumerate(header):
        if not name.strip():
            raise InputError(f"{path} line 1: column {place + 1} has no name")
        if name in header[:place]:
            raise InputError(
                f"{path} line 1: two columns are named {name!r}: {header.index(name) + 1} and {place + 1}"
            )
    if all(map(_is_number, header)) and not names:
        raise InputError(
            f"{path} line 1: {', '.join(header[:3])} are numbers; the first line should hold the names of "
            "the columns"
        )


def _read_parquet(path: str) -> Table:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError(
            f"{path}: Parquet files are read by pyarrow, which is not installed; pip install pyarrow, or "
            "save the table as CSV"
        ) from None
    try:
        found = parquet.ParquetFile(path).read()
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(f"{path}: not a Parquet file that can be read: {error}") from error
    names = found.column_names
    if (twice := twice_in(names)) is not None:
        raise InputError(f"{path}: two columns are named {twice!r}")
    if not len(found):
        raise InputError(f"{path}: no rows")
    columns, missing = {}, {}
    for name in names:
        column = found.column(name).combine_chunks()
        columns[name], missing[name] = _from_arrow(column, pyarrow)
    return Table(path, columns, missing, np.arange(len(found)), "row")


def _from_arrow(column: object, pyarrow: object) -> tuple[np.ndarray, np.ndarray]:
    """A column as NumPy has it, and where it has no value; one of a type that is no number becomes text."""
    types = pyarrow.types  # type: ignore[attr-defined]
    type_ = column.type  # type: ignore[attr-defined]
    missing = np.asarray(column.is_null())  # type: ignore[attr-defined]
    if types.is_floating(type_):
        cells = column.to_numpy(zero_copy_only=False)  # type: ignore[attr-defined]
        return cells, missing | np.isnan(cells)
    if types.is_integer(type_) or types.is_boolean(type_):
        filled = column.fill_null(False if types.is_boolean(type_) else 0)  # type: ignore[attr-defined]
        return filled.to_numpy(zero_copy_only=False), missing
    texts = ["" if cell is None else str(cell) for cell in column.to_pylist()]  # type: ignore[attr-defined]
    return np.array(texts, object), missing


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
