"""Tests of results and histories as data frames, CSV and Parquet."""

import csv
import json
import math
import sys

import pytest

from fleet.__main__ import main
from fleet.api import read_history, read_results
from fleet.export.files import write_csv, write_parquet, write_tables
from fleet.spec import parse
from fleet.storage.checkpoint import read_history as read_file
from fleet.storage.paths import RunPaths
from fleet.storage.results import NetworkResult, Status, Table, mean_of_folds
from tests.fleet.export.conftest import RATE
from tests.fleet.histories import results_of
from tests.places import ROOT


def result(name, drawn, **metrics):
    scores = [math.nan] * 6
    return NetworkResult(name, Status.FINISHED, "2 epochs", 7, 2, 1, *scores, 3.5, drawn, metrics)


ROWS = Table(
    [
        result("a", {"filters": [8, 16], "epochs": "few", "x": 1}, val_mae=0.5),
        result("b", {"x": "y"}),
    ]
)


def test_each_parameter_and_metric_gets_its_own_column():
    columns = ROWS.columns()
    assert {
        name: columns[name]
        for name in ("name", "epochs", "drawn.epochs", "filters", "x", "val_mae")
    } == {
        "name": ["a", "b"],
        "epochs": [2, 2],
        "drawn.epochs": ["few", None],
        "filters": [[8, 16], None],
        "x": [1, "y"],
        "val_mae": [0.5, None],
    }
    mean = mean_of_folds(
        "a", [result("a-fold0", {}, val_mae=1.0), result("a-fold1", {}, val_mae=2.0)]
    ).cells()
    assert (mean["folds"], mean["val_mae"], mean["val_mae_deviation"]) == (
        2,
        1.5,
        pytest.approx(0.5**0.5),
    )


def test_tables_have_a_row_per_network_and_per_epoch(searched):
    assert searched.launch() == 0
    run = searched.folder / "run"
    rows, epochs = read_results(run), read_history(run)
    assert rows.columns()[RATE] == [row.drawn.get(RATE) for row in rows]
    assert (
        len({(row.network, row.epoch) for row in epochs})
        == len(epochs)
        == sum(row.epochs for row in rows)
    )
    for row in rows:
        assert [epoch.val_accuracy for epoch in epochs if epoch.network == row.name] == [
            record.val_accuracy for record in read_file(searched.paths.history(row.name))
        ]
    assert {"network", "epoch", "loss", "val_loss", "gpus", "seconds", "learning_rate"} <= set(
        epochs.columns()
    )


def test_csv_and_parquet_have_all_columns(searched, tmp_path, capsys, monkeypatch):
    run = searched.folder / "run"
    assert main(["export", str(run), "--csv"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        str(run / f"export/{name}.csv") for name in ("results", "history")
    ]
    with open(run / "export/history.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["network"], int(row["epoch"]), float(row["val_loss"])) for row in rows] == [
        (row.network, row.epoch, row.val_loss) for row in read_history(run)
    ]
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(run), "--csv", "."]) == 0
    assert (tmp_path / "history.csv").read_bytes() == (run / "export/history.csv").read_bytes()
    assert searched.paths.foreign_files() == []
    parquet = pytest.importorskip("pyarrow.parquet")
    assert main(["export", str(run), "--parquet", str(tmp_path / "tables")]) == 0
    table = parquet.read_table(tmp_path / "tables/results.parquet").to_pydict()
    assert table["name"] == [row.name for row in read_results(run)]
    assert table[RATE] == read_results(run).columns()[RATE]


def test_tables_of_a_run_without_networks_have_headers(tmp_path):
    run = RunPaths(tmp_path)
    results_of(parse({"models": [], "keep_open": 1}), run).write()
    run.events.write_text("")
    write_tables(run.root, tmp_path / "tables", "csv")
    results, history = (
        (tmp_path / f"tables/{name}.csv").read_text().splitlines()
        for name in ("results", "history")
    )
    assert ([results[0].split(",")[:2], history[0].split(",")[:3]], len(results), len(history)) == (
        [["name", "status"], ["network", "epoch", "loss"]],
        1,
        1,
    )


def test_lists_and_mappings_become_json(tmp_path):
    write_csv(ROWS, tmp_path / "a.csv")
    with open(tmp_path / "a.csv", newline="") as file:
        first, second = csv.DictReader(file)
    assert (json.loads(first["filters"]), first["x"], second["x"], second["val_mae"]) == (
        [8, 16],
        "1",
        "y",
        "",
    )
    parquet = pytest.importorskip("pyarrow.parquet")
    write_parquet(ROWS, tmp_path / "a.parquet")
    rows = parquet.read_table(tmp_path / "a.parquet").to_pydict()
    assert (rows["x"], rows["filters"], rows["val_mae"]) == (
        ["1", "y"],
        ["[8, 16]", None],
        [0.5, None],
    )


def test_tables_convert_to_pandas(searched):
    pytest.importorskip("pandas", reason="pandas is not installed: make test-track has it")
    run = searched.folder / "run"
    rows, epochs = read_results(run).to_pandas(), read_history(run).to_pandas()
    assert list(rows["name"]) == [row.name for row in read_results(run)]
    assert list(epochs.groupby("network")["epoch"].max().items()) == sorted(
        (row.name, row.epochs) for row in read_results(run) if row.epochs
    )


@pytest.mark.long_but_first
@pytest.mark.parametrize("library", ["pandas", "pyarrow"])
def test_missing_library_is_named_with_its_extra(searched, library, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, library, None)
    if library == "pandas":
        with pytest.raises(Exception, match=r"pip install 'fleet-ensemble\[pandas\]'"):
            read_results(searched.folder / "run").to_pandas()
    else:
        assert main(["export", str(searched.folder / "run"), "--parquet"]) == 2
        assert "pip install 'fleet-ensemble[parquet]'" in capsys.readouterr().err


def test_log_of_0_1_0_has_its_epochs():
    assert len(read_history(ROOT / "tests/golden/run_0.1.0")) == 18


@pytest.mark.parametrize("more", [[], ["--csv"], ["--optuna", "x"]])
def test_export_refuses_invalid_arguments_in_one_line(tmp_path, more, capsys):
    assert main(["export", str(tmp_path), *more]) == 2
    assert capsys.readouterr().err.count("\n") == 1
