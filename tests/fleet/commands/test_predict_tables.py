"""Tests of ``fleet predict`` for rows of tables, with a stand-in for Keras."""

import csv
import io
import json
import os

import numpy as np
import pytest
from PIL import Image

from fleet import predictor
from fleet.api import Predictor
from fleet.domain.network import NetworkStatus, Outcome
from fleet.prediction.sample_file import write_sample
from fleet.spec import dump, parse
from fleet.storage.paths import RunPaths
from preprocess.sample import ArraySpec, SampleSpec
from preprocess.source import open_data
from preprocess.sources.table import columns_of
from preprocess.target import target_of
from preprocess.target_kinds import KINDS
from tests.fleet.histories import apply_status, record, results_of

TRAINED = [
    ["age", "height", "fit", "name", "score"],
    [30, 1.5, "true", "x", 2.5],
    [40, 1.25, "false", "y", 3.5],
    [50, 1.75, "true", "x", 4.5],
]
FEATURES = [[30, 1.5, 1], [40, 1.25, 0], [50, 1.75, 1]]


class StandIn:
    """A network whose outputs are its first features."""

    def __init__(self, target):
        self._target = target

    def predict(self, inputs):
        result = inputs.reshape(len(inputs), -1).astype(np.float32)[:, : self._target.outputs]
        return KINDS[self._target.kind].predictions(result)


def write(path, rows, **more):
    with open(path, "w", newline="") as file:
        csv.writer(file, **more).writerows(rows)
    return path


@pytest.fixture
def make_run(tmp_path, monkeypatch):
    """Make a run that was trained on a table, or on other data."""

    def make(
        rows=TRAINED,
        inputs=("age", "height", "fit"),
        targets="score",
        target=None,
        source="table",
        transforms=(),
        stored=True,
        **options,
    ):
        paths = RunPaths(tmp_path / "run")
        data = {
            "source": source,
            "path": str(write(tmp_path / "trained.csv", rows)),
            "transforms": list(transforms),
            "options": {**({"inputs": inputs} if inputs else {}), "targets": targets, **options},
        }
        if target is not None:
            data["target"] = target
        spec = parse({"models": [{"family": "softmax", "name": "net"}], "data": data})
        train = open_data("table", data["path"], None, 0, data["options"]).train
        shape = (4, 4, 3) if transforms else (len(columns_of(train).inputs),)
        sample = SampleSpec(
            ArraySpec(shape, "uint8" if transforms else "float32"),
            target_of(train).outputs,
            target=target_of(train),
        )
        results = results_of(spec, paths)
        apply_status(results, "net", NetworkStatus((record(1),), Outcome("1 epoch")))
        paths.exported("net", ".keras").parent.mkdir(parents=True)
        paths.exported("net", ".keras").write_text("")
        paths.spec.write_text(dump(spec.document))
        write_sample(paths, sample, {"": train.classes}, columns_of(train) if stored else None)
        monkeypatch.setattr(
            predictor, "load_ensemble", lambda spec, files, weights, kind: StandIn(sample.target)
        )
        return paths.root

    return make


def predicted(fleet, run, *words):
    """Return the printed rows without their header, and the header."""
    status, text, columns = fleet("predict", run, *words)
    assert (status, columns) == (0, "With net:\n")
    header, *rows = csv.reader(io.StringIO(text))
    return header, rows


def test_predict_finds_columns_by_name_in_any_order(make_run, tmp_path, fleet):
    run = make_run()
    os.remove(tmp_path / "trained.csv")  # it is no longer needed
    new = write(
        tmp_path / "new.csv",
        [
            ["id", "fit", "score", "height", "age", "remark"],
            ["p7", "false", "", 1.5, 33, ""],
            ["p8", "true", "", 1.25, 44.5, "old"],
        ],
    )
    assert predicted(fleet, run, new) == (["row", "score"], [["0", "33.0"], ["1", "44.5"]])
    prepared = [images for _, images in Predictor(run).prepare([new])]
    assert np.concatenate(prepared).tolist() == [[33, 1.5, 0], [44.5, 1.25, 1]]


def test_predict_names_all_missing_columns(make_run, tmp_path, fleet):
    new = write(tmp_path / "new.csv", [["Age", "fit", "score"], [1, 1, 1]])
    status, _, error = fleet("predict", make_run(), new)
    assert (status, error) == (
        2,
        f"fleet predict: {new}: no columns 'age', 'height', which the networks take; its "
        "columns: Age, fit, score\n",
    )


@pytest.mark.parametrize(
    ("cell", "wrong"),
    [
        ("", "line 3, column 'age': no value"),
        ("NA", "no value"),
        ("old", "'old' is not a number"),
        ("inf", "is not finite"),
    ],
)
def test_predict_refuses_invalid_cells(make_run, tmp_path, fleet, cell, wrong):
    new = write(tmp_path / "new.csv", [["age", "height", "fit"], [30, 1.5, 1], [cell, 1.5, 1]])
    status, out, error = fleet("predict", make_run(), new)
    assert (status, out) == (2, None)
    assert wrong in error


def test_table_of_numbers_needs_no_header(make_run, tmp_path, fleet):
    run = make_run()
    assert predicted(fleet, run, write(tmp_path / "new.csv", FEATURES))[1] == [
        ["0", "30.0"],
        ["1", "40.0"],
        ["2", "50.0"],
    ]
    status, _, error = fleet(
        "predict", run, write(tmp_path / "new.csv", [[*row, 7] for row in FEATURES])
    )
    assert status == 2
    assert (
        "4 numbers and no header; without the names of its columns a table should have exactly 3: "
        "age," in error
    )


def test_header_may_have_numbers_as_names(make_run, tmp_path, fleet):
    run = make_run([["0", "1", "score"], [1, 2, 0.5], [3, 4, 1.5]], inputs=None)
    new = write(tmp_path / "new.csv", [["1", "0"], [20, 10]])
    assert predicted(fleet, run, new)[1] == [["0", "10.0"]]
    assert predicted(fleet, run, write(tmp_path / "new.csv", [[20, 10]]))[1] == [["0", "20.0"]]


def test_other_delimiters_and_parquet_files_are_read(make_run, tmp_path, fleet):
    run = make_run()
    rows = [["fit", "height", "age"], [0, 1.5, 33]]
    assert predicted(fleet, run, write(tmp_path / "new.tsv", rows, delimiter="\t"))[1] == [
        ["0", "33.0"]
    ]
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(
        pyarrow.table({"fit": [True], "age": [33], "height": [1.5]}), tmp_path / "new.parquet"
    )
    assert predicted(fleet, run, tmp_path / "new.parquet")[1] == [["0", "33.0"]]


def test_predict_writes_class_and_probability_columns(make_run, tmp_path, fleet):
    run = make_run(inputs=["age", "height"], targets="name")
    new = write(tmp_path / "new.csv", [["height", "age"], [0, 0], [2, 1]])
    header, rows = predicted(fleet, run, new)
    assert header == ["row", "name", "x", "y"]
    assert [row[:2] for row in rows] == [["0", "x"], ["1", "y"]]
    assert [float(cell) for cell in rows[1][2:]] == pytest.approx(
        [1 / (1 + np.e), np.e / (1 + np.e)]
    )
    assert rows[0][2:] == ["0.5", "0.5"]


def test_class_may_have_the_name_of_a_column(make_run, tmp_path, fleet):
    run = make_run(
        [["a", "b", "row"], [1, 2, "row"], [3, 4, "column"]], inputs=["a", "b"], targets="row"
    )
    header, _ = predicted(fleet, run, write(tmp_path / "new.csv", [["a", "b"], [0, 1]]))
    assert header == ["row", "row", "column", "predicted row"]


def test_labels_and_values_have_one_column_each(make_run, tmp_path, fleet):
    new = write(tmp_path / "new.csv", [["a", "b"], [5, -5], [5, 5]])
    labels = [["a", "b", "red", "round"], [1, 2, 1, 0], [3, 4, 1, 1]]
    header, rows = predicted(fleet, make_run(labels, ["a", "b"], ["red", "round"]), new)
    assert header == ["row", "labels", "red", "round"]
    assert [row[1] for row in rows] == ["red", "red;round"]


def test_json_has_one_object_per_row(make_run, tmp_path, fleet):
    values = [["a", "b", "x", "y"], [1, 2, 1.5, 0], [3, 4, 1, 1.5]]
    run, new = (
        make_run(values, ["a", "b"], ["y", "x"]),
        write(tmp_path / "new.csv", [["b", "a"], [5, 0.5], [7, 8]]),
    )
    assert predicted(fleet, run, new) == (
        ["row", "y", "x"],
        [["0", "0.5", "5.0"], ["1", "8.0", "7.0"]],
    )
    status, result, _ = fleet("predict", run, new, "--json")
    assert status == 0
    assert result == {
        "networks": {"net": 1.0},
        "names": ["y", "x"],
        "rows": [
            {"table": str(new), "row": 0, "values": {"y": 0.5, "x": 5.0}},
            {"table": str(new), "row": 1, "values": {"y": 8.0, "x": 7.0}},
        ],
    }


def test_rows_of_several_tables_name_their_table(make_run, tmp_path, fleet):
    entry, second = (
        write(tmp_path / f"{name}.csv", FEATURES[:rows])
        for name, rows in (("one", 1), ("other", 2))
    )
    header, rows = predicted(fleet, make_run(), entry, second)
    assert header == ["table", "row", "score"]
    assert [row[:2] for row in rows] == [[str(entry), "0"], [str(second), "0"], [str(second), "1"]]


def test_predictor_names_rows(make_run, tmp_path):
    new = write(tmp_path / "new.csv", FEATURES)
    names, values = Predictor(make_run()).predict_files([new])
    assert names == [f"{new}[{row}]" for row in range(3)]
    assert values.tolist() == [[30], [40], [50]]


def test_columns_without_names_go_by_position(make_run, tmp_path, fleet):
    run = make_run([row[:3] + row[4:] for row in TRAINED], None, stored=False)
    rows = [["a", "b", "c"], [33, 1.5, 0]]
    assert predicted(fleet, run, write(tmp_path / "new.csv", rows))[1] == [["0", "33.0"]]
    assert predicted(fleet, run, write(tmp_path / "new.csv", FEATURES[:1]))[1] == [["0", "30.0"]]
    status, _, error = fleet(
        "predict", run, write(tmp_path / "new.csv", [[*row, 0] for row in rows[:1]] + [[1] * 4])
    )
    assert status == 2
    assert "4 columns; the networks take 3, whose names are not known" in error


def test_table_may_list_files_to_predict(make_run, tmp_path, fleet):
    for name, colour in (("a", "white"), ("b", "black")):
        Image.new("RGB", (8, 8), colour).save(tmp_path / f"{name}.png")
    run = make_run(
        [["file", "red", "green"], ["a.png", 0.5, 1.5], ["b.png", 1.5, 2.5]],
        None,
        ["red", "green"],
        transforms=["decode", {"resize": {"size": [4, 4]}}],
    )
    new = write(tmp_path / "new.csv", [["day", "file"], [1, "b.png"], [2, "a.png"]])
    assert predicted(fleet, run, new) == (
        ["row", "red", "green"],
        [["0", "0.0", "0.0"], ["1", "255.0", "255.0"]],
    )
    status, result, _ = fleet(
        "predict", run, tmp_path / "a.png", "--json"
    )  # files are named one by one as well
    assert (status, result["images"][0]["values"]) == (0, {"red": 255.0, "green": 255.0})
    write(new, [["file"], ["c.png"]])
    assert "c.png" in fleet("predict", run, new)[2]


def test_stored_table_metadata_is_plain_json(make_run):
    run = make_run()
    assert json.loads(RunPaths(run).sample.read_text())["table"] == {
        "inputs": ["age", "height", "fit"],
        "is_paths": False,
        "targets": ["score"],
        "delimiter": None,
    }
