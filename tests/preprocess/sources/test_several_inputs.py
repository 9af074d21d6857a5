"""Sources of several inputs, in each format."""

import csv
import io
import pickle

import h5py
import numpy as np
import pytest

from launch.errors import InputError
from preprocess.base import RandomAccess
from preprocess.moments import compute_standardization
from preprocess.probe import infer_sample_spec
from preprocess.record_pipeline import make_input_pipeline, make_pipeline
from preprocess.records import parse_record_transforms
from preprocess.source import open_data
from tests.preprocess.records import write_tar
from tests.preprocess.samples import encode
from tests.refusals import refused

COUNT = 12
RANDOM = np.random.default_rng(0)
PHOTOS = RANDOM.integers(0, 256, (COUNT, 4, 4, 1), np.uint8)
FACTS = RANDOM.normal(3, 2, (COUNT, 2)).astype(np.float32)
TOKENS = RANDOM.integers(0, 9, (COUNT, 3))
LABELS = np.arange(COUNT) % 3
INPUTS = {"photo": PHOTOS, "facts": FACTS, "tokens": TOKENS}
TRANSFORMS = {"photo": [{"decode": {"mode": "L"}}], "facts": ["standardize"]}
TORN = b"torn"


class Own(RandomAccess):
    """Mappings of arrays."""

    labels = LABELS
    classes = ("0", "1", "2")

    def __init__(self, bad=None):
        self._bad = bad

    def read(self, index):
        inputs = {name: rows[index] for name, rows in INPUTS.items()}
        return inputs | ({"photo": TORN} if index == self._bad else {})

    def name(self, index):
        return f"sample {index}"


def mappings(path, bad=None):
    """Return a source of mappings."""
    return Own(bad)


def as_npy(rows):
    file = io.BytesIO()
    np.save(file, rows)
    return file.getvalue()


def photo_files(bad):
    return [TORN if row == bad else encode(photo) for row, photo in enumerate(PHOTOS)]


def write_npz(folder, bad):
    np.savez(folder / "data.npz", **INPUTS, y=LABELS)
    return "npz", folder / "data.npz", {"inputs": list(INPUTS), "targets": "y"}


def write_npy(folder, bad):
    for name, rows in (INPUTS | {"y": LABELS}).items():
        np.save(folder / f"{name}.npy", rows)
    return "npy", folder, {"inputs": [f"{name}.npy" for name in INPUTS], "targets": "y.npy"}


def write_hdf5(folder, bad):
    with h5py.File(folder / "data.h5", "w") as file:
        files = file.create_dataset("pixels", COUNT, h5py.vlen_dtype(np.uint8))
        for row, content in enumerate(photo_files(bad)):
            files[row] = np.frombuffer(content, np.uint8)
        file["facts"], file["tokens"], file["y"] = FACTS, TOKENS, LABELS
    inputs = {"photo": "pixels", "facts": "facts", "tokens": "tokens"}
    return "hdf5", folder / "data.h5", {"inputs": inputs, "targets": "y"}


def write_table(folder, bad):
    with open(folder / "data.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "age", "height", "words", "y"])
        for row, content in enumerate(photo_files(bad)):
            (folder / f"{row}.png").write_bytes(content)
            np.save(folder / f"{row}.npy", TOKENS[row])
            table.writerow([f"{row}.png", *FACTS[row], f"{row}.npy", LABELS[row]])
    inputs = {"photo": {"files": "path"}, "facts": ["age", "height"], "tokens": {"files": "words"}}
    return "table", folder / "data.csv", {"inputs": inputs, "targets": "y"}


def write_webdataset(folder, bad):
    members = []
    for row, content in enumerate(photo_files(bad)):
        members += [
            (f"{row:02}.png", content),
            (f"{row:02}.facts.npy", as_npy(FACTS[row])),
            (f"{row:02}.tokens.npy", as_npy(TOKENS[row])),
            (f"{row:02}.cls", str(LABELS[row]).encode()),
        ]
    write_tar(folder / "data.tar", members)
    inputs = {"photo": "jpg;png", "facts": "facts.npy", "tokens": "tokens.npy"}
    return "webdataset", folder / "data.tar", {"inputs": inputs}


def write_huggingface(folder, bad):
    datasets = pytest.importorskip("datasets")
    columns = {
        "image": [{"bytes": content, "path": None} for content in photo_files(bad)],
        "age": FACTS[:, 0].tolist(),
        "height": FACTS[:, 1].tolist(),
        "words": TOKENS.tolist(),
        "label": LABELS.tolist(),
    }
    features = {
        "image": datasets.Image(),
        "age": datasets.Value("float32"),
        "height": datasets.Value("float32"),
        "words": datasets.Sequence(datasets.Value("int64"), 3),
        "label": datasets.ClassLabel(3),
    }
    datasets.Dataset.from_dict(columns, features=datasets.Features(features)).save_to_disk(
        str(folder / "data")
    )
    inputs = {"photo": "image", "facts": ["age", "height"], "tokens": "words"}
    return "huggingface", folder / "data", {"inputs": inputs, "targets": "label"}


def write_own(folder, bad):
    return f"{__name__}:mappings", "anywhere", {} if bad is None else {"bad": bad}


FORMATS = {
    "npz": write_npz,
    "npy": write_npy,
    "hdf5": write_hdf5,
    "table": write_table,
    "webdataset": write_webdataset,
    "huggingface": write_huggingface,
    "own": write_own,
}


def opened(form, folder, bad=None):
    """Write the data in a format, and open them as another rank does."""
    source, path, options = FORMATS[form](folder, bad)
    data = open_data(source, str(path), None, 0, options)
    return pickle.loads(pickle.dumps(data)).train


def loaded(source, items=TRANSFORMS):
    """Return the records of a source, its targets and the unreadable samples."""
    transforms = parse_record_transforms(items, source)
    pipeline = make_pipeline(source, transforms, 7, infer_sample_spec(source, transforms, 7))
    inputs, targets = pipeline.empty(len(source))
    return inputs, targets, pipeline.load(range(len(source)), 0, inputs, targets)


@pytest.mark.parametrize("form", FORMATS)
def test_inputs_come_back_by_name_and_whole_numbers_whole(form, tmp_path):
    inputs, targets, bad = loaded(opened(form, tmp_path))
    assert bad == []
    assert inputs.dtype.names == ("photo", "facts", "tokens")
    for name, rows in INPUTS.items():
        np.testing.assert_array_equal(inputs[name], rows)
        assert inputs[name].dtype == rows.dtype
    assert targets.tolist() == LABELS.tolist()


@pytest.mark.parametrize("form", ["hdf5", "table", "webdataset", "huggingface", "own"])
def test_sample_lacks_if_one_of_its_inputs_is_torn(form, tmp_path):
    inputs, targets, [bad] = loaded(opened(form, tmp_path, bad=5))
    assert (bad.position, targets[5]) == (5, -1)
    assert "(photo)" in bad.name
    assert not any(inputs[name][5].any() for name in INPUTS)
    np.testing.assert_array_equal(np.delete(inputs["tokens"], 5, 0), np.delete(TOKENS, 5, 0))


@pytest.mark.parametrize("form", FORMATS)
def test_standardize_by_input_uses_its_numbers(form, tmp_path):
    source = opened(form, tmp_path)
    transforms = parse_record_transforms(TRANSFORMS, source)
    part = infer_sample_spec(source, transforms, 7).parts["facts"]
    pipeline = make_input_pipeline(source, transforms, "facts", 7, part)
    [how] = transforms.by_input["facts"]
    affine = compute_standardization("", pipeline, how).affine
    expected = (FACTS - FACTS.mean(0)) / FACTS.std(0)
    np.testing.assert_allclose(affine.apply(FACTS), expected, atol=1e-5)


@pytest.mark.parametrize("form", ["npz", "npy", "hdf5", "table", "huggingface"])
def test_missing_input_is_named(form, tmp_path):
    source, path, options = FORMATS[form](tmp_path, None)
    with refused(InputError, "absent"):
        open_data(source, str(path), None, 0, options | {"inputs": {"photo": "absent"}})


def test_missing_member_of_an_input_is_named(tmp_path):
    source, path, options = write_webdataset(tmp_path, None)
    inputs = options["inputs"] | {"photo": "absent"}
    with refused(InputError, "absent"):
        open_data(source, str(path), None, 0, {"inputs": inputs})


@pytest.mark.parametrize("form", ["npz", "npy", "hdf5"])
def test_inputs_of_other_lengths_are_refused(form, tmp_path, monkeypatch):
    monkeypatch.setitem(INPUTS, "tokens", TOKENS[1:])
    monkeypatch.setitem(globals(), "TOKENS", TOKENS[1:])
    source, path, options = FORMATS[form](tmp_path, None)
    with refused(InputError, "12 rows", "tokens 11"):
        open_data(source, str(path), None, 0, options)
