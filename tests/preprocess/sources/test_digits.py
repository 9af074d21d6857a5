"""The embedded data set."""

import shutil

import numpy as np
import pytest

from launch.errors import InputError
from preprocess.decode import decode
from preprocess.source import open_data
from preprocess.sources import digits
from tests.refusals import refused

pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "digits"
    digits.write_digits(folder)
    return folder


def test_digits_are_1797_samples_of_ten_classes(folder):
    data = open_data("builtin:digits", str(folder), None, seed=0)
    assert (len(data.train), len(data.validation)) == (1442, 355)
    assert data.classes == tuple("0123456789")
    assert np.bincount(data.validation.labels).tolist() == [35, 36, 35, 36, 36, 36, 36, 35, 34, 36]


def test_digits_average_to_those_of_scikit_learn(folder):
    from sklearn.datasets import load_digits

    image = decode((folder / "train/0/0000.png").read_bytes(), "L")
    assert image.shape == (32, 32, 1)
    small = image[:, :, 0].reshape(8, 4, 8, 4).mean(axis=(1, 3)) * 16 / 255
    original = load_digits().images[0]
    assert np.corrcoef(small.ravel(), original.ravel())[0, 1] > 0.95


def test_writing_twice_changes_nothing(folder):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.png")}
    digits.write_digits(folder)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.png")} == before


@pytest.fixture
def quick(monkeypatch, folder):
    """Write by copying, which is faster."""

    def copy(data, path):
        shutil.copytree(folder, path, dirs_exist_ok=True)

    monkeypatch.setattr(digits, "_write", copy)
    return copy


def test_write_digits_leaves_nothing_when_interrupted(quick, monkeypatch, tmp_path):
    def interrupted(data, path):
        (path / "train/0").mkdir(parents=True)
        raise KeyboardInterrupt

    monkeypatch.setattr(digits, "_write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        digits.write_digits(tmp_path / "digits")
    assert not (tmp_path / "digits").exists()
    monkeypatch.setattr(digits, "_write", quick)
    train, validation = digits.open_digits(str(tmp_path / "digits"))
    assert len(train) + len(validation) == digits.COUNT
    assert [path.name for path in tmp_path.iterdir()] == ["digits"]  # no temporary file is left


def test_another_process_may_be_faster(quick, monkeypatch, tmp_path):
    def overtaken(data, path):
        monkeypatch.setattr(digits, "_write", quick)
        digits.write_digits(tmp_path / "digits")  # deletes the partial folder
        (path / "train").mkdir()

    monkeypatch.setattr(digits, "_write", overtaken)
    digits.write_digits(tmp_path / "digits")
    assert len(digits.open_digits(str(tmp_path / "digits"))[0]) == 1442


def test_digits_folder_that_is_not_the_digits_is_refused(tmp_path, folder):
    shutil.copytree(folder, tmp_path / "digits")
    (tmp_path / "digits/train/3/0013.png").unlink()
    with refused(InputError, "1796", "1797"):
        digits.open_digits(str(tmp_path / "digits"))


def test_digits_name_a_read_only_folder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot write the digits to .*file/digits"):
        digits.write_digits(tmp_path / "file/digits")
