"""Tests of ``fleet convert``."""

import json

import numpy as np
import pytest

from fleet.__main__ import main
from preprocess.sources.hdf5 import open_hdf5
from tests.preprocess.samples import pattern, write


@pytest.fixture
def folder(tmp_path):
    for number, size in enumerate([(4, 6), (8, 4), (5, 5), (4, 4)]):
        write(tmp_path / f"in/train/{'ab'[number % 2]}/{number}.png", pattern(*size, seed=number))
    write(tmp_path / "in/validation/a/0.png", pattern(4, 4))
    return tmp_path


def test_convert_keeps_encoded_files(folder, capsys):
    assert main(["convert", f"{folder}/in", f"{folder}/out.h5"]) == 0
    train, validation, _ = open_hdf5(f"{folder}/out.h5")
    assert train.read(0) == (folder / "in/train/a/0.png").read_bytes()
    assert len(validation) == 1
    assert "4 training images and 1 validation image of 2 classes" in capsys.readouterr().out


def test_decoded_writes_images_of_one_size(folder):
    assert (
        main(["convert", f"{folder}/in", f"{folder}/out.h5", "--decoded", "4", "--mode", "L"]) == 0
    )
    train, _, _ = open_hdf5(f"{folder}/out.h5")
    assert {train.read(index).shape for index in range(4)} == {(4, 4, 1)}
    assert {train.read(index).dtype for index in range(4)} == {np.dtype(np.uint8)}


def test_convert_lists_unreadable_samples(folder, capsys):
    (folder / "in/train/b/1.png").write_bytes(b"no image")
    assert main(["convert", f"{folder}/in", f"{folder}/out.h5", "--decoded", "4", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["train"], report["validation"], report["classes"]) == (3, 1, 2)
    assert [left_out["name"] for left_out in report["left_out"]] == [f"{folder}/in/train/b/1.png"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nowhere", "out.h5"], "nowhere: folder not found"),
        (["in", "nowhere/out.h5"], "cannot write"),
    ],
)
def test_convert_refuses_invalid_paths_in_one_line(folder, words, complaint, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    assert main(["convert", *words]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert complaint in line


@pytest.mark.parametrize("size", ["0", "-4", "big"])
def test_decoded_needs_a_number_of_pixels(folder, size, capsys):
    assert main(["convert", "in", "out.h5", f"--decoded={size}"]) == 2
