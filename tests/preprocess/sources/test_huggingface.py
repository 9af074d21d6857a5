"""Data sets of Hugging Face, as written by the library; skipped if it is not
installed.
"""

import pickle

import numpy as np
import pytest

from launch.errors import InputError
from preprocess.base import UnreadableSample
from preprocess.pipeline import Pipeline
from preprocess.source import open_data
from preprocess.target import TargetSpec, TargetWish
from preprocess.transforms import parse_transforms
from tests.preprocess.samples import encode, pattern

datasets = pytest.importorskip("datasets")
pyarrow = pytest.importorskip("pyarrow")

IMAGES = [pattern(6, 5, seed=seed) for seed in range(8)]


def files(images):
    return [{"bytes": encode(image), "path": None} for image in images]


def saved(path, columns, features=None, **splits):
    """Save a data set with some columns, or its splits: split -> rows."""
    dataset = datasets.Dataset.from_dict(
        columns, features=None if features is None else datasets.Features(features)
    )
    if splits:
        dataset = datasets.DatasetDict(
            {name: dataset.select(list(rows)) for name, rows in splits.items()}
        )
    dataset.save_to_disk(str(path))
    return str(path)


def opened(path, request=None, validation=None, **options):
    data = open_data("huggingface", path, validation, 0, options, target=request)
    return pickle.loads(pickle.dumps(data))  # as sent to other ranks


def test_images_with_classes_and_splits(tmp_path):
    path = saved(
        tmp_path / "data",
        {"image": files(IMAGES), "label": [0, 1] * 4},
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])},
        train=range(5),
        validation=(5, 6),
        test=(7,),
    )
    data = opened(path, validation=0.1)
    assert [len(part) for part in data.splits().values()] == [5, 2, 1]
    assert (data.classes, data.train.labels.tolist()) == (("cat", "dog"), [0, 1, 0, 1, 0])
    assert data.test.name(0) == f"{path}:test[0]"
    pipeline = Pipeline.from_source(data.validation, parse_transforms(["decode"]), 0)
    images, labels = pipeline.empty(2)
    assert not pipeline.load(range(2), 0, images, labels)
    assert np.array_equal(images, IMAGES[5:7])
    assert labels.tolist() == [1, 0]


def test_columns_of_numbers_with_values_and_weights(tmp_path):
    columns = {
        "age": [1.0, 2, 3, 4],
        "dose": [5.0, 6, 7, 8],
        "cure": [0.5, 0.25, 1, 2],
        "trust": [1.0, 2, 0, 1],
    }
    path = saved(tmp_path / "data", columns)
    source = opened(path, inputs=["age", "dose"], targets="cure", weights="trust").train
    assert source.target.kind == "value"
    assert np.array_equal(np.asarray(source.targets).ravel(), np.float32(columns["cure"]))
    assert source.weights.tolist() == columns["trust"]
    assert source.read(2).tolist() == [3, 7]


def test_arrays_with_several_labels(tmp_path):
    features = {
        "x": datasets.Array2D((2, 3), "float32"),
        "labels": datasets.Sequence(datasets.ClassLabel(names=["sun", "rain", "fog"])),
    }
    path = saved(
        tmp_path / "data",
        {"x": np.arange(18.0).reshape(3, 2, 3).tolist(), "labels": [[0, 2], [], [1]]},
        features,
    )
    source = opened(path).train
    assert source.target == TargetSpec("multilabel", 3, ("sun", "rain", "fog"))
    assert np.asarray(source.targets).tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    assert source.read(1).tolist() == [[6, 7, 8], [9, 10, 11]]


def test_images_with_masks(tmp_path):
    masks = [(image[:, :, :1] > 128).astype(np.uint8) for image in IMAGES]
    path = saved(
        tmp_path / "data",
        {"image": files(IMAGES), "mask": files(masks)},
        {"image": datasets.Image(), "mask": datasets.Image()},
    )
    source = opened(path, TargetWish("mask", 2)).train
    assert (source.target.kind, source.target.outputs) == ("mask", 2)
    assert np.array_equal(source.read_target(3), masks[3][:, :, 0])


def test_rows_report_a_missing_image_as_unreadable(tmp_path):
    images = tmp_path / "0.png"
    images.write_bytes(encode(IMAGES[0]))
    places = [{"bytes": None, "path": str(tmp_path / f"{row}.png")} for row in range(2)]
    path = saved(
        tmp_path / "data",
        {"image": files(IMAGES[:2]), "label": [0, 1]},
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])},
    )
    # Current versions of the library put files into it.
    file = next((tmp_path / "data").glob("*.arrow"))
    with pyarrow.ipc.open_stream(file.read_bytes()) as opened_file:
        table = opened_file.read_all()
    table = table.set_column(0, table.field(0), pyarrow.array(places, table.field(0).type))
    with pyarrow.ipc.new_stream(file, table.schema) as written:
        written.write_table(table)
    source = opened(path).train
    assert source.read(0) == images.read_bytes()
    with pytest.raises(UnreadableSample, match=r"\[1\].*cannot be read: No such file"):
        source.read(1)


def test_rows_parse_text_as_classes_and_integers_by_spec(tmp_path):
    path = saved(
        tmp_path / "data",
        {"x": [[1.0], [2.0], [3.0], [4.0]], "label": ["b", "a", "b", "a"], "count": [1, 2, 3, 4]},
    )
    assert opened(path).classes == ("a", "b")
    assert opened(path, TargetWish("value"), targets="count").train.target.kind == "value"


@pytest.mark.parametrize(
    ("columns", "options", "complaint"),
    [
        (
            {"x": [[1.0]], "label": [0]},
            {"inputs": "pixels"},
            "no column 'pixels'; its columns: x, label",
        ),
        (
            {"a": [[1.0]], "label": [0]},
            {},
            "no column is named image, .*its columns: a, label",
        ),
        ({"x": [[1.0], [2.0]], "y": [1.5, None]}, {}, r"column 'y': .*\[1\] has no value"),
    ],
)
def test_huggingface_lists_the_columns_in_errors(columns, options, complaint, tmp_path):
    with pytest.raises(InputError, match=complaint):
        opened(saved(tmp_path / "data", columns), **options)


def test_huggingface_refuses_another_folder(tmp_path):
    with pytest.raises(InputError, match="not a data set that save_to_disk has written"):
        opened(str(tmp_path))
    with pytest.raises(InputError, match="no split train; there are test"):
        opened(saved(tmp_path / "data", {"x": [[1.0]], "label": [0]}, test=(0,)))


@pytest.mark.parametrize("name", ["valid", "dev", "val", "Validation"])
def test_hugging_face_splits_have_their_usual_names(tmp_path, name):
    columns = {"x": [[float(row)] for row in range(6)], "label": [0, 1] * 3}
    splits = {"Train": range(3), name: (3, 4), "test": (5,)}
    data = opened(saved(tmp_path / "data", columns, **splits), validation=0.1)
    assert [len(part) for part in data.splits().values()] == [3, 2, 1]


def test_huggingface_warns_of_test_data_as_validation(tmp_path):
    columns = {"x": [[float(row)] for row in range(6)], "label": [0, 1] * 3}
    path = saved(tmp_path / "data", columns, train=range(4), test=(4, 5))
    data = opened(path, validation=0.1)
    assert len(data.validation) == 2
    assert f"{path}/test is used for validation" in data.remark


def test_huggingface_label_below_zero_is_refused(tmp_path):
    features = {
        "x": datasets.Value("float32"),
        "labels": datasets.Sequence(datasets.ClassLabel(names=["cat", "dog"])),
    }
    path = saved(tmp_path / "a", {"x": [1.0, 2], "labels": [[0, 1], [-1]]}, features)
    with pytest.raises(InputError, match=r"\[1\] has the label '-1'"):
        opened(path)


def test_class_names_of_the_spec_are_used(tmp_path):
    features = {"x": datasets.Value("float32"), "label": datasets.ClassLabel(names=["cat", "dog"])}
    path = saved(tmp_path / "a", {"x": [1.0, 2], "label": [0, 1]}, features)
    with pytest.raises(InputError, match="'cat'"):
        opened(path, TargetWish("class", names=("kitten", "dog")))
