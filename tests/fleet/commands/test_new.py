"""`fleet new` looks at data and writes a spec that can be checked."""

import csv
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from fleet.__main__ import main
from fleet.errors import ExitStatus
from fleet.runtime.startup.data import open_inputs
from fleet.spec import load
from fleet.spec.fit_checks import find_misfits


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_images(folder, size=(40, 30), mode="RGB", count=6, classes=("cat", "dog")):
    rng = np.random.default_rng(0)
    for name in classes:
        (folder / name).mkdir(parents=True)
        for index in range(count):
            shape = (size[1], size[0]) if mode == "L" else (size[1], size[0], 3)
            pixels = rng.integers(0, 256, shape, dtype=np.uint8)
            Image.fromarray(pixels, mode).save(folder / name / f"{index}.png")


def write_table(path, rows=40, columns=("age", "height", "city", "risk"), label=lambda i: i % 2):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for index in range(rows):
            writer.writerow([index * 0.5, 100 + index, f"city {index % 3}", label(index)])


def new(*words):
    return main(["new", *map(str, words)])


def content_of(path):
    return yaml.safe_load(Path(path).read_text())


def checked(path):
    """Return the spec, after the checks of its keys and of its data."""
    spec = load(path)
    inputs = open_inputs(spec)
    has_validation = inputs.data.validation is not None
    assert list(find_misfits(spec, inputs.sample, inputs.epoch_samples, has_validation)) == []
    return spec, inputs


def test_new_digits_writes_the_demo(folder):
    assert new("digits") == ExitStatus.OK
    assert len(load(folder / "digits" / "digits.yaml").networks) == 10


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3)])
def test_new_images_keeps_gray_and_color_images(folder, mode, channels):
    write_images(folder / "pets", (100, 90), mode)
    assert new("images", "pets") == ExitStatus.OK
    spec, inputs = checked("pets.yaml")
    assert inputs.sample.input.shape == (64, 64, channels)
    assert len(inputs.data.classes) == 2
    assert spec.document.models[0].search.max_trials == 12


def test_new_images_keeps_the_size_of_small_equal_images(folder):
    write_images(folder / "pets", size=(16, 16))
    assert new("images", "pets") == ExitStatus.OK
    assert checked("pets.yaml")[1].sample.input.shape == (16, 16, 3)


def test_new_images_of_few_pixels_lists_networks_that_fit(folder):
    write_images(folder / "pets", size=(5, 4))
    assert new("images", "pets") == ExitStatus.OK
    filters = content_of("pets.yaml")["models"][0]["space"]["filters"]
    assert max(map(len, filters)) == 2
    checked("pets.yaml")


def test_new_images_holds_out_a_share_only_without_own_split(folder):
    for split in ("train", "validation"):
        write_images(folder / "divided" / split)
    for split in ("train", "test"):
        write_images(folder / "tested" / split)
    write_images(folder / "whole")
    for name in ("divided", "tested", "whole"):
        assert new("images", name) == ExitStatus.OK
    assert "validation" not in content_of("divided.yaml")["data"]
    assert content_of("tested.yaml")["data"]["test"] == "tested/test"
    assert content_of("whole.yaml")["data"]["validation"] == "10%"
    for name in ("divided", "tested", "whole"):
        checked(f"{name}.yaml")


@pytest.mark.parametrize(
    ("label", "kind"), [(lambda index: index % 2, "class"), (lambda index: index / 7, "value")]
)
def test_new_table_predicts_the_last_column(folder, label, kind):
    write_table(folder / "patients.csv", label=label)
    assert new("table", "patients.csv") == ExitStatus.OK
    spec, inputs = checked("patients.yaml")
    assert inputs.sample.target.kind == kind
    assert spec.document.data.options == {"inputs": ["age", "height"], "targets": "risk"}


def test_new_table_takes_the_named_target(folder):
    write_table(folder / "patients.csv")
    assert new("table", "patients.csv", "--target", "city") == ExitStatus.OK
    assert content_of("patients.yaml")["data"]["options"] == {"targets": "city"}
    checked("patients.yaml")


def test_new_table_prefers_a_column_named_target(folder):
    write_table(folder / "patients.csv", columns=("target", "height", "city", "risk"))
    assert new("table", "patients.csv") == ExitStatus.OK
    assert content_of("patients.yaml")["data"]["options"]["targets"] == "target"


def test_new_table_says_which_columns_are_left_out(folder):
    write_table(folder / "patients.csv", columns=("id", "height", "city", "risk"))
    assert new("table", "patients.csv") == ExitStatus.OK
    text = Path("patients.yaml").read_text()
    assert "# not a feature: id (numbers the rows)" in text
    assert "# not a feature: city (text)" in text


def test_new_table_leaves_out_columns_that_count_rows(folder):
    columns = ("PassengerId", "height", "city", "risk")
    write_table(folder / "named.csv", columns=columns)
    write_table(folder / "counting.csv", columns=("age", "row_number", "city", "risk"))
    text = (folder / "counting.csv").read_text().splitlines()
    rows = [line.split(",") for line in text[1:]]
    counted = [",".join([row[0], str(i), *row[2:]]) for i, row in enumerate(rows, 1)]
    (folder / "counting.csv").write_text("\n".join([text[0], *counted]))
    for name, inputs in (("named", ["height"]), ("counting", ["age"])):
        assert new("table", f"{name}.csv") == ExitStatus.OK
        assert content_of(f"{name}.yaml")["data"]["options"]["inputs"] == inputs


@pytest.mark.parametrize(
    ("label", "kind"),
    [(lambda index: index * 7, "value"), (lambda index: f"{index % 2}.0", "class")],
)
def test_new_table_decides_what_integers_mean(folder, label, kind):
    write_table(folder / "patients.csv", label=label)
    assert new("table", "patients.csv") == ExitStatus.OK
    assert content_of("patients.yaml")["data"]["target"] == kind
    assert checked("patients.yaml")[1].sample.target.kind == kind


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_new_table_reads_other_delimiters(folder, delimiter):
    write_table(folder / "patients.csv")
    text = (folder / "patients.csv").read_text()
    (folder / "patients.csv").write_text(text.replace(",", delimiter))
    assert new("table", "patients.csv") == ExitStatus.OK
    checked("patients.yaml")


def test_new_table_leaves_out_columns_with_missing_cells(folder):
    write_table(folder / "patients.csv")
    text = (folder / "patients.csv").read_text()
    (folder / "patients.csv").write_text(text.replace("5.0,110", "5.0,"))
    assert new("table", "patients.csv") == ExitStatus.OK
    assert "# not a feature: height (cells are missing)" in Path("patients.yaml").read_text()
    checked("patients.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,y\n1,2\n3,2\n", "all rows have 2 in column 'y'"),
        ("a,y\n", "no rows"),
        ("y\n1\n2\n", "has one column, y"),
        ("n,y\nx,1\nz,2\n", "no column of numbers besides the targets (y): n (text)"),
        ("a,y\n1,\n3,2\n", "no value"),
        ("", "no header"),
    ],
)
def test_new_table_says_why_it_can_not_be_learned(folder, text, message, capsys):
    (folder / "t.csv").write_text(text)
    assert new("table", "t.csv") == ExitStatus.BAD_INPUT
    assert message in capsys.readouterr().err
    assert not (folder / "t.yaml").exists()


def test_new_table_of_few_rows_takes_small_batches(folder):
    write_table(folder / "patients.csv", rows=3)
    assert new("table", "patients.csv") == ExitStatus.OK
    checked("patients.yaml")


def test_new_table_refuses_other_formats(folder, capsys):
    (folder / "t.xlsx").write_bytes(b"PK")
    assert new("table", "t.xlsx") == ExitStatus.BAD_INPUT
    assert "reads tables from CSV and Parquet files" in capsys.readouterr().err


def test_new_images_skips_damaged_files(folder):
    write_images(folder / "pets")
    (folder / "pets/cat/0.png").write_bytes(b"nothing")
    (folder / "pets/dog/5.jpg").write_bytes(b"\xff\xd8\xff")
    assert new("images", "pets") == ExitStatus.OK
    checked("pets.yaml")


def test_new_images_names_classes_and_sizes(folder):
    write_images(folder / "pets")
    assert new("images", "pets") == ExitStatus.OK
    first = Path("pets.yaml").read_text().splitlines()[0]
    assert first == "# 12 images of 2 classes (cat, dog), 40 x 30 pixels, RGB"


def test_new_images_refuses_single_pixels(folder, capsys):
    write_images(folder / "pets", (1, 1))
    assert new("images", "pets") == ExitStatus.BAD_INPUT
    assert "too small for a convolution" in capsys.readouterr().err


def test_new_images_of_one_sample_a_class_holds_out_none(folder):
    write_images(folder / "pets", count=1)
    assert new("images", "pets") == ExitStatus.OK
    assert content_of("pets.yaml")["data"]["validation"] is None
    checked("pets.yaml")


@pytest.mark.parametrize(
    ("data", "name"),
    [("Übung 1", "Ubung_1"), ("数据", "networks"), (".", "here"), ("x" * 200, "x" * 60)],
)
def test_new_names_a_run_that_any_file_system_takes(folder, data, name, monkeypatch):
    (folder / "here").mkdir()
    monkeypatch.chdir(folder / "here")
    write_images(Path(data))
    assert new("images", data) == ExitStatus.OK
    checked(f"{name}.yaml")


def test_new_torch_writes_modules_beside_the_spec(folder):
    write_table(folder / "my patients.v2.csv")
    assert new("torch", "my patients.v2.csv") == ExitStatus.OK
    content = content_of("my_patients.yaml")
    assert content["models"][0]["build"] == "my_patients_networks:mlp"
    assert content["resources"] == {"engine": "torch"}
    compile(Path("my_patients_networks.py").read_text(), "my_patients_networks.py", "exec")


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["images", "table"])
def test_new_torch_passes_check(folder, kind):
    if kind == "images":
        write_images(folder / "pets", count=12)
        assert new("torch", "pets") == ExitStatus.OK
        spec = "pets.yaml"
    else:
        write_table(folder / "patients.csv")
        assert new("torch", "patients.csv") == ExitStatus.OK
        spec = "patients.yaml"
    assert main(["check", spec]) == ExitStatus.OK


def test_new_overwrites_nothing(folder, capsys):
    write_table(folder / "patients.csv")
    (folder / "patients_networks.py").write_text("mine")
    assert new("torch", "patients.csv") == ExitStatus.BAD_INPUT
    assert "patients_networks.py exists" in capsys.readouterr().err
    assert (folder / "patients_networks.py").read_text() == "mine"
    assert not (folder / "patients.yaml").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("images",), "needs the path"),
        (("images", "missing"), "missing: folder not found"),
        (("table", "missing.csv"), "missing.csv: file not found"),
        (("table", "patients.csv", "--target", "rsk"), "did you mean risk?"),
        (("images", "pets", "--target", "risk"), "--target is for tables"),
        (("digits", "--target", "risk"), "--target is for tables"),
        (("table", "texts.csv"), "has no column of numbers besides the targets (risk)"),
        (("table", "files.csv"), "lists files"),
    ],
)
def test_new_refuses_what_it_cannot_describe(folder, capsys, words, message):
    write_images(folder / "pets")
    write_table(folder / "patients.csv")
    (folder / "texts.csv").write_text("city,risk\nRome,1\nOslo,0\n")
    (folder / "files.csv").write_text("path,risk\na.png,1\nb.png,0\n")
    assert new(*words) == ExitStatus.BAD_INPUT
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["image", "pets"], "did you mean images?"),
        (["pets"], "fleet new images pets begins with a folder of images"),
        (["t.csv"], "fleet new table t.csv begins with a table"),
        (["nothing"], "write fleet new digits | images | table | torch"),
        (["digits", "digits.yaml"], "makes a folder"),
    ],
)
def test_new_says_what_to_write_instead(folder, words, message, capsys):
    write_images(folder / "pets")
    write_table(folder / "t.csv")
    assert new(*words) == ExitStatus.BAD_INPUT
    assert message in capsys.readouterr().err
