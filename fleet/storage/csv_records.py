"""Records as rows of CSV files: a column per field, and one per metric (pure but for reading).

Columns that only some files need exist only if a record needs them. Whatever is missing is an empty
cell; mappings are JSON.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")

# column that exists only if needed -> field that decides: it is not empty in some record
OPTIONAL = {
    "folds": "folds",
    "deviation": "is_mean",
    "repeats": "repeats",
    "parent": "parent",
    "parent_epoch": "parent",
    "start": "start",
    "violates": "violates",
    "energy_kj": "energy_kj",
}


# Columns whose 0, or whose empty mapping, means that there is none.
_COUNTED_FROM_1 = ("best_epoch", "folds", "repeats", "parent_epoch", "deviation")


def csv_columns(kind: type, records: Sequence[Any]) -> list[str]:
    """Return the columns that records need: fields, then metrics.

    Args:
        kind: type of the records, a dataclass with ``metrics``.
        records: the records.
    """
    unneeded = {
        column
        for column, field in OPTIONAL.items()
        if not any(getattr(record, field, None) for record in records)
    }
    fields = [item.name for item in dataclasses.fields(kind)]
    names = [name for name in fields if name != "metrics" and name not in unneeded]
    return list(dict.fromkeys([*names, *(name for record in records for name in record.metrics)]))


def csv_cells(record: Any, columns: Iterable[str]) -> list[Any]:
    """Return the cells of a record.

    Args:
        record: the record; its ``value`` returns a metric.
        columns: columns of the file.
    """
    fields = {
        name: None if name in _COUNTED_FROM_1 and not value else value
        for name, value in vars(record).items()
    }
    return [csv_cell(fields[name] if name in fields else record.value(name)) for name in columns]


def csv_cell(value: Any) -> Any:
    """Return a value for a cell: None, which is empty, for NaN; JSON for mappings and sequences.

    >>> csv_cell(0.5), csv_cell(float("nan")), csv_cell(None), csv_cell({"width": 8})
    (0.5, None, None, '{"width": 8}')
    """
    if isinstance(value, dict | list | tuple):
        return json.dumps(value)
    return None if value != value else value


def read_csv_records(path: Path, kind: type[T]) -> list[T]:
    """Return the records of a CSV file; columns that are no fields are metrics.

    Args:
        path: path of the file.
        kind: type of the records.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is damaged, or has other columns.
    """
    adapter = TypeAdapter(kind)
    hints = get_type_hints(kind)
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return [adapter.validate_python(_content(row, hints)) for row in csv.DictReader(file)]
    except csv.Error as error:
        raise ValueError(str(error)) from None
    except ValidationError as error:
        mistake = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, mistake['loc']))}: {mistake['msg']}") from None


# What stands for an empty cell; versions before 0.3.0 wrote "nan" for numbers.
_BLANK: Mapping[object, Any] = {str: "", float: math.nan, int: 0}


def _content(row: Mapping[str, str], hints: Mapping[str, Any]) -> dict[str, Any]:
    # Early versions had fewer columns of numbers.
    content: dict[str, Any] = {name: math.nan for name, hint in hints.items() if hint is float}
    content["metrics"] = {}
    for name, cell in row.items():
        if cell == "nan" and hints.get(name) is not str:
            cell = ""
        if name not in hints:
            content["metrics"] |= {name: cell} if cell else {}
        elif get_origin(hints[name]) is dict:
            content[name] = json.loads(cell or "{}")
        else:
            content[name] = cell or _BLANK.get(hints[name])
    return content
