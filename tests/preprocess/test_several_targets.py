"""Sources give several targets by name, and they travel as the fields of one row."""

import json
import tarfile
from io import BytesIO

import h5py
import numpy as np
import pytest

from launch.errors import InputError
from preprocess.division import strata_of
from preprocess.packing import write_hdf5
from preprocess.pipeline import Pipeline
from preprocess.probe import infer_sample_spec
from preprocess.record_target import RecordTarget
from preprocess.source import assign_folds, open_data
from preprocess.target import TargetSpec, TargetWish, plain_targets, target_of

COUNT = 12
PRICES = np.arange(COUNT) / 4
KINDS = np.array(["a", "b", "c"])[np.arange(COUNT) % 3]
NAMES = {"targets": ["price", "kind"]}


@pytest.fixture
def npz(tmp_path):
    path = tmp_path / "data.npz"
    inputs = np.random.default_rng(0).random((COUNT, 3), np.float32)
    np.savez(path, x=inputs, price=PRICES, kind=KINDS)
    return str(path)


def opened(source, path, options=None, target=None, validation=None):
    return open_data(source, path, validation, 0, options or {}, target=target)


def rows_of(source):
    """Return all targets of a source as they travel."""
    sample = infer_sample_spec(source, (), 0)
    pipeline = Pipeline(source, (), 0, sample)
    inputs, targets = pipeline.empty(len(source))
    assert not pipeline.load(range(len(source)), 0, inputs, targets)
    return targets


def check(source):
    """Check that a source has the prices and kinds above."""
    target = target_of(source)
    assert isinstance(target, RecordTarget)
    assert {name: part.kind for name, part in target.parts.items()} == {
        "price": "value",
        "kind": "class",
    }
    assert target.parts["kind"].names == ("a", "b", "c")
    rows = rows_of(source)
    np.testing.assert_array_equal(rows["target"]["price"][:, 0], PRICES.astype(np.float32))
    np.testing.assert_array_equal(rows["target"]["kind"], np.arange(COUNT) % 3)


def test_arrays_give_several_targets(npz):
    check(opened("npz", npz, NAMES).train)


def test_mapping_renames_targets_of_arrays(npz):
    source = opened("npz", npz, {"targets": {"cost": "price", "sort": "kind"}}).train
    assert list(target_of(source).parts) == ["cost", "sort"]


def test_hdf5_gives_several_targets(tmp_path):
    path = tmp_path / "data.h5"
    with h5py.File(path, "w") as file:
        file["images"] = np.zeros((COUNT, 3), np.float32)
        file["price"] = PRICES
        file.create_dataset("kind", data=KINDS.tolist(), dtype=h5py.string_dtype())
    check(opened("hdf5", str(path), NAMES).train)


def test_written_hdf5_is_read_without_options(npz, tmp_path):
    write_hdf5({"train": opened("npz", npz, NAMES).train}, tmp_path / "written.h5")
    check(opened("hdf5", str(tmp_path / "written.h5")).train)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "data.csv"
    rows = [f"{row},{row % 5},{PRICES[row]},{KINDS[row]}" for row in range(COUNT)]
    path.write_text("\n".join(["a,b,price,kind", *rows]))
    return str(path)


def test_table_gives_targets_of_columns_of_text_and_numbers(table):
    check(opened("table", table, {**NAMES, "inputs": ["a", "b"]}).train)


def test_columns_of_numbers_stay_one_target(table):
    options = {"inputs": ["a"], "targets": ["price", "b"]}
    assert target_of(opened("table", table, options).train) == TargetSpec(
        "value", 2, ("price", "b")
    )
    requests = {"price": TargetWish("value"), "b": TargetWish("class")}
    target = target_of(opened("table", table, options, requests).train)
    assert str(target) == "price: 1 value, b: 5 classes"


def test_table_joins_columns_of_one_target(table):
    options = {"inputs": ["a"], "targets": {"place": ["b", "price"], "kind": "kind"}}
    target = target_of(opened("table", table, options).train)
    assert str(target) == "place: 2 values, kind: 3 classes"


def test_webdataset_gives_targets_of_members(tmp_path):
    with tarfile.open(tmp_path / "data.tar", "w") as tar:
        for row in range(COUNT):
            buffer = BytesIO()
            np.save(buffer, np.full(3, row, np.float32))
            for name, content in (
                ("npy", buffer.getvalue()),
                ("price.json", json.dumps(float(PRICES[row])).encode()),
                ("cls", KINDS[row].encode()),
            ):
                member = tarfile.TarInfo(f"{row:03}.{name}")
                member.size = len(content)
                tar.addfile(member, BytesIO(content))
    options = {"targets": {"price": "price.json", "kind": "cls"}}
    for _ in range(2):  # the second time from the stored index
        check(opened("webdataset", str(tmp_path / "data.tar"), options).train)


class Own:
    """A user's source with a mapping of targets."""

    def __init__(self, targets):
        self.targets = targets

    def __len__(self):
        return COUNT

    def read(self, index):
        return np.full((4, 4, 1), index, np.uint8)

    def name(self, index):
        return f"own {index}"

    def order(self, seed, epoch):
        return np.arange(COUNT)


class WithMask(Own):
    def read_target(self, index):
        return {"area": np.full((4, 4), index % 2)}


def open_own(path=None):
    return Own({"price": PRICES, "kind": KINDS})


def open_with_mask(path=None):
    return WithMask({"price": PRICES})


def test_own_source_gives_a_mapping():
    check(opened(f"{__name__}:open_own", None).train)


def test_own_source_gives_a_mask_among_targets():
    requests = {"area": TargetWish("mask", 2)}
    source = opened(f"{__name__}:open_with_mask", None, target=requests).train
    rows = rows_of(source)["target"]
    assert rows["area"].shape == (COUNT, 4, 4)
    assert rows["area"][3].all()
    assert rows["price"][4, 0] == 1


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ({"cost": TargetWish("value")}, "data.target: cost: .* it has price, kind"),
        (TargetWish("value"), r"like \{price: value, kind: value\}"),
        ({"price": TargetWish("class")}, r"data.target: \{price: value\}"),
        ({"kind": TargetWish("class", 7)}, "data.target: kind: class with 7"),
    ],
)
def test_wrong_requests_are_refused(npz, target, message):
    with pytest.raises(InputError, match=message):
        opened("npz", npz, NAMES, target)


def test_targets_by_name_of_a_single_target_are_refused(npz):
    with pytest.raises(InputError, match="data.options: targets"):
        opened("npz", npz, {"targets": "price"}, {"price": TargetWish("value")})


@pytest.mark.parametrize("name", ["loss", "weight", "two words", "val_x"])
def test_names_that_targets_cannot_have(npz, name):
    with pytest.raises(InputError, match=f"{name!r}"):
        opened("npz", npz, {"targets": [name, "price"]})


def test_validation_data_takes_classes_of_training_data(tmp_path):
    arrays = {"x": np.zeros((COUNT, 2)), "price": PRICES, "kind": KINDS}
    few = {"x_test": np.zeros((2, 2)), "price_test": PRICES[:2], "kind_test": KINDS[1:3]}
    train = {f"{name}_train": array for name, array in arrays.items()}
    np.savez(tmp_path / "data.npz", **train, **few)
    data = opened("npz", str(tmp_path / "data.npz"), NAMES)
    assert target_of(data.validation) == target_of(data.train)
    assert np.asarray(plain_targets(data.validation)["kind"]).tolist() == [1, 2]


def test_held_out_samples_and_folds_follow_the_class_target(npz):
    data = opened("npz", npz, NAMES, validation=0.25)
    assert sorted(np.asarray(plain_targets(data.validation)["kind"])) == [0, 1, 2]
    folds = assign_folds(opened("npz", npz, NAMES).train, 2, 0)
    for members in strata_of(opened("npz", npz, NAMES).train):
        assert np.bincount(folds[members]).tolist() == [2, 2]


def test_identity_of_several_targets_lists_them(npz):
    source = opened("npz", npz, NAMES).train
    identity = infer_sample_spec(source, (), 0).identity()
    assert identity["target"]["targets"] == {
        "price": {"kind": "value", "outputs": 1},
        "kind": {"kind": "class", "outputs": 3},
    }


def test_outputs_lie_side_by_side():
    target = RecordTarget.of(
        {"area": TargetSpec("mask", 2, size=(1, 2)), "kind": TargetSpec("class", 3)}
    )
    parts = target.split_outputs(np.arange(14).reshape(2, 7))
    assert parts["area"].shape == (2, 1, 2, 2)
    assert parts["kind"].tolist() == [[4, 5, 6], [11, 12, 13]]


class Rows:
    """A map-style dataset whose samples are made by a function."""

    def __init__(self, make):
        self.make = make

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return SAMPLES[self.make](index)


SAMPLES = {
    "tuple": lambda index: (
        np.full(3, index, np.float32),
        {"price": PRICES[index], "kind": str(KINDS[index])},
    ),
    "mapping": lambda index: {
        "facts": np.full(3, index, np.float32),
        "age": float(index),
        "price": PRICES[index],
        "kind": str(KINDS[index]),
    },
}


def open_rows(path=None, make="tuple"):
    return Rows(make)


def test_dataset_gives_a_mapping_of_targets():
    check(opened(f"{__name__}:open_rows", None).train)


def test_dataset_of_mappings_has_the_targets_of_the_spec():
    requests = {"price": TargetWish("value"), "kind": TargetWish("class")}
    source = opened(f"{__name__}:open_rows", None, {"make": "mapping"}, requests).train
    assert str(target_of(source)) == "price: 1 value, kind: 3 classes"
    assert {name: array.tolist() for name, array in source.read(2).items()} == {
        "facts": [2, 2, 2],
        "age": [2],
    }


def test_dataset_of_mappings_needs_names_of_targets():
    with pytest.raises(InputError, match=r"name its targets in data.target, like \{kind: class\}"):
        opened(f"{__name__}:open_rows", None, {"make": "mapping"})
