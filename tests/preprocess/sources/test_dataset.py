"""Map-style datasets as sources: targets, what is refused, and who imports their modules."""

import pickle
import subprocess
import sys

import numpy as np
import pytest

from launch.errors import InputError
from preprocess.base import UnreadableSample
from preprocess.open_source import open_with_features
from preprocess.source import open_data
from preprocess.sources.dataset import DatasetSource, is_dataset
from preprocess.target import TargetWish
from tests.places import ROOT


class Samples:
    """Arrays, each with its target."""

    def __init__(self, inputs, values, **attributes):
        self.inputs = inputs
        self.values = values
        self.reads = 0
        vars(self).update(attributes)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        self.reads += 1
        return self.inputs[index], self.values[index]


ROWS = np.arange(60, dtype=np.float32).reshape(30, 2)
LABELS = [index % 3 for index in range(30)]


def source_of(dataset, target=None):
    return DatasetSource(dataset, target, "my_data:dataset")


def test_dataset_of_classes_is_a_source():
    source = source_of(Samples(ROWS, LABELS))
    assert (len(source), source.classes, source.name(4)) == (
        30,
        ("0", "1", "2"),
        "my_data:dataset[4]",
    )
    assert source.labels.tolist() == LABELS
    assert source.read(4).tolist() == [8.0, 9.0]


def test_dataset_tells_the_names_of_its_classes():
    source = source_of(Samples(ROWS, LABELS, classes=["cat", "dog", "emu", "fox"]))
    assert source.classes == ("cat", "dog", "emu", "fox")


@pytest.mark.parametrize(
    ("targets", "kind", "outputs"),
    [
        (ROWS[:, 0] + 0.5, "value", 1),
        ([float(label) / 7 for label in LABELS], "value", 1),
        (ROWS, "value", 2),
        (np.array([[1, 1, 0], [0, 0, 0]] * 15), "multilabel", 3),
    ],
)
def test_kind_of_target_follows_from_a_dataset(targets, kind, outputs):
    target = source_of(Samples(ROWS, targets)).target
    assert (target.kind, target.outputs) == (kind, outputs)


def test_kind_of_target_may_be_requested():
    source = source_of(Samples(ROWS, LABELS), TargetWish("value"))
    assert source.target.kind == "value"


def test_masks_of_a_dataset_are_read_with_their_inputs():
    images = np.zeros((4, 5, 6, 1), np.uint8)
    masks = np.arange(120).reshape(4, 5, 6) % 2
    dataset = Samples(images, masks)
    source = source_of(dataset)
    assert (source.target.kind, source.target.outputs) == ("mask", 2)
    dataset.reads = 0
    source.read(3)
    assert source.read_target(3).tolist() == masks[3].tolist()
    assert dataset.reads <= 1


def test_told_targets_spare_reading_all_samples():
    dataset = Samples(ROWS, LABELS, targets=LABELS)
    assert source_of(dataset).labels.tolist() == LABELS
    assert dataset.reads < 30


def test_told_targets_that_samples_do_not_have_are_ignored():
    dataset = Samples(ROWS, [2 - label for label in LABELS], targets=LABELS)
    assert source_of(dataset).labels.tolist() == [2 - label for label in LABELS]


def test_dataset_and_its_parts_open_as_the_data_of_a_spec():
    data = open_data(f"{__name__}:train_and_test", None, 0.2, 0)
    assert (len(data.train), len(data.validation), data.test) == (24, 6, None)


def train_and_test(path):
    return Samples(ROWS, LABELS)


def test_dataset_function_may_return_three_parts():
    _, parts = open_with_features(f"{__name__}:three_parts", None, {}, None, ())
    assert [len(part) for part in parts] == [30, 9, 6]


def three_parts(path):
    return tuple(Samples(ROWS[:count], LABELS[:count]) for count in (30, 9, 6))


# ---- what is refused -----------------------------------------------------------------------------


class Random(Samples):
    def __getitem__(self, index):
        return self.inputs[index] + np.random.default_rng().normal(size=2), self.values[index]


class Failing(Samples):
    def __getitem__(self, index):
        raise KeyError(index)


class Damaged(Samples):
    def __getitem__(self, index):
        raise UnreadableSample("file", "is damaged")


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Samples([], []), "the dataset has no samples"),
        (Random(ROWS, LABELS), r"differs from call to call.* data\.transforms"),
        (Failing(ROWS, LABELS), r"my_data:dataset\[0\] failed: KeyError: 0"),
        (Samples(ROWS, LABELS, transform=lambda x: x), "cannot be pickled.* replace lambdas"),
        (Samples(ROWS, [np.zeros(1), np.zeros(2)] * 15), "should have one shape"),
        (Samples(ROWS, [None] * 30), "a number, a tensor or an array as target"),
        (Samples(ROWS, np.eye(3)[LABELS].astype(int)), "set data.target: class or"),
    ],
)
def test_unusable_datasets_are_refused(dataset, message):
    with pytest.raises((InputError, ValueError), match=message):
        source_of(dataset)


class Items(Samples):
    def __getitem__(self, index):
        return self.values


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (np.ones(2), "is a ndarray alone; it should be \\(input, target\\)"),
        ((1, 2, 3), "is a tuple of 3"),
        ({"image": 1, "label": 2}, r"is a mapping \(image, label\)"),
    ],
)
def test_samples_are_an_input_and_a_target(item, message):
    with pytest.raises(InputError, match=message):
        source_of(Items(ROWS, item))


def test_unreadable_samples_of_a_dataset_are_left_to_the_run():
    with pytest.raises(UnreadableSample):
        source_of(Damaged(ROWS, LABELS))


@pytest.mark.parametrize("value", ["text", b"bytes", [1, 2], (1, 2), {1: 2}, np.ones(3), iter(())])
def test_other_objects_are_no_datasets(value):
    assert not is_dataset(value)


# ---- other ranks ---------------------------------------------------------------------------------


def test_dataset_arrives_at_other_ranks_and_is_the_same():
    source = pickle.loads(pickle.dumps(source_of(Samples(ROWS, LABELS))))
    assert source.labels.tolist() == LABELS
    assert source.read(7).tolist() == [14.0, 15.0]


def test_module_of_a_dataset_is_imported_by_ranks_that_read(tmp_path):
    (tmp_path / "own_dataset.py").write_text(
        "import numpy\n"
        "class Dataset:\n"
        "    def __len__(self): return 9\n"
        "    def __getitem__(self, index): return numpy.ones(1), index % 3\n"
        "def dataset(path): return Dataset()\n"
    )
    opening = (
        "import pickle; from preprocess.open_source import open_with_features as open_at;"
        "source = open_at('own_dataset:dataset', None, {}, None, ())[1][0];"
        "sys.stdout.buffer.write(pickle.dumps(source))"
    )
    reading = (
        "import pickle; source = pickle.load(sys.stdin.buffer); name = 'own_dataset';"
        "print(name in sys.modules); source.read(0); print(name in sys.modules)"
    )
    packed = _run(opening, tmp_path)
    assert _run(reading, tmp_path, packed).split() == [b"False", b"True"]


def _run(code, folder, content=b""):
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = [{str(ROOT)!r}, '']; {code}"],
        input=content,
        capture_output=True,
        check=True,
        cwd=folder,
    ).stdout


# ---- PyTorch -------------------------------------------------------------------------------------


@pytest.mark.torch
def test_images_of_tensors_get_their_channels_last():
    import torch

    images = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5)
    read = source_of(torch.utils.data.TensorDataset(images, torch.tensor([0, 1]))).read(1)
    assert read.shape == (4, 5, 3)
    assert np.array_equal(np.moveaxis(read, -1, 0), images[1].numpy())


@pytest.mark.torch
def test_subset_of_a_tensor_dataset_tells_its_targets():
    import torch

    dataset = torch.utils.data.TensorDataset(torch.from_numpy(ROWS), torch.tensor(LABELS))
    subset = torch.utils.data.Subset(dataset, [4, 2, 1])
    assert source_of(subset).labels.tolist() == source_labels(subset)


def source_labels(dataset):
    """Return the classes by number, numbered among the classes that occur."""
    values = [int(dataset[index][1]) for index in range(len(dataset))]
    return [sorted(set(values)).index(value) for value in values]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("iterable", "returned an IterableDataset .* return a Dataset with __len__"),
        ("loader", "returned a DataLoader; it should return its dataset"),
    ],
)
def test_what_has_no_index_is_refused_with_what_to_do(name, message):
    with pytest.raises(InputError, match=message):
        open_data(f"{__name__}:{name}", None, 0.2, 0)


def iterable(path):
    import torch

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(())

    return Stream()


def loader(path):
    import torch

    return torch.utils.data.DataLoader(Samples(ROWS, LABELS))
