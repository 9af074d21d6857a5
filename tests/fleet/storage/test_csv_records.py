"""Records as rows of CSV files."""

import csv
import math
from dataclasses import dataclass, field

import pytest

from fleet.storage.csv_records import csv_cells, csv_columns, read_csv_records


@dataclass(frozen=True)
class Record:
    name: str
    size: int | None
    drawn: dict[str, int]
    metrics: dict[str, float] = field(default_factory=dict)
    parent: str = ""
    loss: float = 0.0

    def value(self, name):
        return self.metrics.get(name, float("nan"))


PLAIN = Record("a", 7, {"width": 8}, {"auc": 0.5})
EMPTY = Record("", None, {})


def write_records(path, *records):
    columns = csv_columns(Record, records)
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([columns, *(csv_cells(record, columns) for record in records)])


def test_csv_columns_leaves_out_what_no_record_needs():
    assert csv_columns(Record, [PLAIN]) == ["name", "size", "drawn", "loss", "auc"]
    child = Record("b", 1, {}, parent="a")
    assert csv_columns(Record, [PLAIN, child]) == ["name", "size", "drawn", "parent", "loss", "auc"]


def test_read_csv_records_returns_what_was_written(tmp_path):
    write_records(tmp_path / "t.csv", PLAIN, EMPTY)
    assert read_csv_records(tmp_path / "t.csv", Record) == [PLAIN, EMPTY]


def test_read_csv_records_accepts_fewer_columns_of_numbers(tmp_path):
    (tmp_path / "t.csv").write_text("name,size,drawn\na,1,{}\n")
    [record] = read_csv_records(tmp_path / "t.csv", Record)
    assert math.isnan(record.loss)


@pytest.mark.parametrize("text", ["name,size\na,1\n", "name,size,drawn\na,x,{}\n"])
def test_read_csv_records_refuses_other_columns(tmp_path, text):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ValueError, match="drawn|size"):
        read_csv_records(tmp_path / "t.csv", Record)
