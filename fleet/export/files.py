"""Write the tables of a run as CSV or Parquet."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fleet.errors import UserError
from fleet.monitor.run_history import read_history
from fleet.storage.csv_records import csv_cell
from fleet.storage.files import atomic_write
from fleet.storage.results import Table, read_results


def write_csv(table: Table[Any], path: Path) -> None:
    """Write a table as CSV; lists and mappings become JSON."""
    columns = table.columns()
    with atomic_write(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(map(csv_cell, row) for row in zip(*columns.values(), strict=True))


def write_parquet(table: Table[Any], path: Path) -> None:
    """Write a table as Parquet; lists, mappings, and columns of mixed types become JSON.

    Raises:
        UserError: pyarrow is not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UserError("--parquet needs pyarrow: pip install 'fleet-ensemble[parquet]'") from None
    with atomic_write(path, "wb") as file:
        parquet.write_table(
            pyarrow.table({name: unify_types(values) for name, values in table.columns().items()}),
            file,
        )


def unify_types(values: list[Any]) -> list[Any]:
    """Convert the values of a column to one type; missing values become None.

    >>> unify_types([1, None, 0.5]), unify_types([1, [2, 3]]), unify_types(["a", float("nan")])
    ([1.0, None, 0.5], ['1', '[2, 3]'], ['a', None])
    """
    flattened = list(map(csv_cell, values))
    kinds = {_kind(value) for value in flattened if value is not None}
    if len(kinds) > 1:
        return [
            value if value is None or isinstance(value, str) else json.dumps(value)
            for value in flattened
        ]
    if kinds == {float} and any(isinstance(value, float) for value in flattened):
        return [None if value is None else float(value) for value in flattened]
    return flattened


def _kind(value: Any) -> type:
    """Return the type of the column that a value needs; an integer can become a float."""
    if isinstance(value, bool):
        return bool
    if isinstance(value, int | float):
        return float
    return str


FORMATS: Mapping[str, Callable[[Table[Any], Path], None]] = {
    "csv": write_csv,
    "parquet": write_parquet,
}


def write_tables(run: Path, folder: Path, kind: str) -> list[Path]:
    """Write the networks of a run, and all of their epochs.

    Args:
        run: the run's folder.
        folder: the folder to write to.
        kind: one of :data:`FORMATS`.

    Returns:
        The paths of the files.
    """
    written = []
    for name, table in (("results", read_results(run)), ("history", read_history(run))):
        FORMATS[kind](table, path := folder / f"{name}.{kind}")
        written.append(path)
    return written
