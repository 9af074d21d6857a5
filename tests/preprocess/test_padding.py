"""Inputs of unequal length: padding, masks, measured lengths, and the order of an epoch."""

import numpy as np
import pytest

from launch.errors import InputError
from preprocess.base import RandomAccess
from preprocess.length_order import order_by_length, padding_share
from preprocess.padding import Pad, given_lengths, measure_lengths
from preprocess.probe import infer_sample_spec
from preprocess.record_pipeline import make_pipeline
from preprocess.records import parse_record_transforms
from preprocess.sample import cut_rows, longest_rows
from preprocess.sources.arrays import open_npy, open_npz
from preprocess.sources.table import open_table
from preprocess.sources.webdataset import open_webdataset
from preprocess.views import Measured, View
from tests.refusals import refused


class Sentences(RandomAccess):
    """Tokens of unequal length, mostly few."""

    def __init__(self, count=4000):
        rng = np.random.default_rng(0)
        self.sizes = np.clip(rng.lognormal(3, 1, count).astype(int), 1, 512)
        self.labels = np.arange(count) % 2
        self.classes = ("a", "b")

    def read(self, index):
        return {"tokens": np.arange(1, self.sizes[index] + 1), "age": np.float32([index])}

    def name(self, index):
        return f"sentence {index}"


def pipeline_of(source, *pads, seed=1):
    measured = Measured(source, measure_lengths(source, [pad.name for pad in pads]))
    transforms = parse_record_transforms({}, measured, pads=pads)
    return make_pipeline(measured, transforms, seed, infer_sample_spec(measured, transforms, seed))


def test_padded_inputs_have_masks_and_stay_whole():
    source = Sentences(50)
    pipeline = pipeline_of(source, Pad("tokens", 30, value=-1))
    inputs, targets = pipeline.empty(50)
    assert pipeline.load(range(50), 0, inputs, targets) == []
    lengths = np.minimum(source.sizes, 30)
    np.testing.assert_array_equal(inputs["tokens_mask"].sum(axis=1), lengths)
    assert inputs["tokens"].dtype == np.int64
    for row, length in zip(inputs["tokens"].tolist(), lengths.tolist(), strict=True):
        assert row == [*range(1, length + 1), *[-1] * (30 - length)]


@pytest.mark.parametrize(("value", "dtype"), [(0.5, "int64"), (-1, "uint8"), (300, "uint8")])
def test_pad_refuses_values_that_numbers_cannot_hold(value, dtype):
    with refused(InputError, "data.pad: tokens", dtype, f"{value:g}"):
        Pad("tokens", 4, value).apply(np.zeros(3, dtype))


def test_padded_input_may_be_the_only_one():
    class Alone(Sentences):
        def read(self, index):
            return super().read(index)["tokens"]

    transforms = parse_record_transforms(["decode"], Alone(5), pads=[Pad("input", 8)])
    sample = infer_sample_spec(Alone(5), transforms, 1)
    assert sample.input_shape == {"input": (8,), "input_mask": (8,)}


def test_measure_lengths_reads_or_asks():
    source = Sentences(20)
    np.testing.assert_array_equal(measure_lengths(source, ["tokens"])["tokens"], source.sizes)
    source.input_lengths = {"tokens": np.arange(20)}
    np.testing.assert_array_equal(measure_lengths(source, ["tokens"])["tokens"], np.arange(20))
    with refused(InputError, "'words'", "tokens, age"):
        measure_lengths(Sentences(20), ["words"])


@pytest.mark.parametrize("lengths", [np.arange(3), np.arange(20) - 1, np.ones(20)])
def test_given_lengths_are_one_whole_number_a_sample(lengths):
    source = Sentences(20)
    source.input_lengths = {"tokens": lengths}
    with refused(InputError, "input_lengths['tokens']", "(20,) integers"):
        given_lengths(source)


def test_view_has_the_lengths_of_its_samples():
    source = Measured(Sentences(20), {"tokens": np.arange(20)})
    view = View(source, np.array([3, 5]))
    np.testing.assert_array_equal(view.input_lengths["tokens"], [3, 5])


@pytest.mark.parametrize(
    ("count", "batch"),
    [
        (4000, 8),
        (4000, 24),
        (4000, 32),
        (10000, 8),
        (10000, 48),
        (10000, 64),
        (10000, 128),
        (100000, 100),
    ],
)
def test_order_by_length_pads_less_than_a_tenth(count, batch):
    lengths = Sentences(count).sizes
    permutation = np.random.default_rng(1).permutation(count)
    order = order_by_length(permutation, lengths, np.random.default_rng(2))
    np.testing.assert_array_equal(np.sort(order), np.arange(count))
    share = padding_share(lengths, order, batch)
    assert share < 0.1 < 0.6 < padding_share(lengths, permutation, batch)


@pytest.mark.parametrize("batch", [8, 16, 32, 64, 128])
def test_order_by_length_pads_little_more_than_a_sort(batch):
    lengths = Sentences().sizes
    order = order_by_length(np.arange(4000), lengths, np.random.default_rng(2))
    sorted_share = padding_share(lengths, np.argsort(lengths), batch)
    assert padding_share(lengths, order, batch) < sorted_share + 0.01


def test_order_by_length_ends_with_the_longest():
    lengths = Sentences(10000).sizes
    order = order_by_length(np.arange(10000), lengths, np.random.default_rng(2))
    assert lengths[order[-300:]].min() > np.quantile(lengths, 0.95)


def test_pipeline_orders_by_length_anew_each_epoch():
    pipeline = pipeline_of(Sentences(300), Pad("tokens", 64, varies=True))
    again = pipeline_of(Sentences(300), Pad("tokens", 64, varies=True))
    np.testing.assert_array_equal(pipeline.order(3), again.order(3))
    assert (pipeline.order(3) != pipeline.order(4)).any()
    np.testing.assert_array_equal(np.sort(pipeline.order(3)), np.arange(300))


def test_pipeline_of_one_length_orders_at_random():
    pipeline = pipeline_of(Sentences(300), Pad("tokens", 64))
    np.testing.assert_array_equal(pipeline.order(3), pipeline.source.order(1, 3))


def test_cut_rows_are_views_of_whole_rows():
    pipeline = pipeline_of(Sentences(50), Pad("tokens", 30, varies=True))
    inputs, targets = pipeline.empty(50)
    pipeline.load(range(50), 0, inputs, targets)
    few = inputs[:3]
    lengths = longest_rows(few, ["tokens"])
    cut = cut_rows(few, lengths)
    assert cut["tokens"].shape == cut["tokens_mask"].shape == (3, lengths["tokens"])
    np.testing.assert_array_equal(cut["age"], few["age"])
    np.testing.assert_array_equal(cut["tokens"], few["tokens"][:, : lengths["tokens"]])
    np.testing.assert_array_equal(cut.view(few.dtype), few)


def test_random_inputs_of_padded_arrays_have_masks_of_prefixes():
    sample = pipeline_of(Sentences(50), Pad("tokens", 30)).sample
    inputs = sample.input.random_inputs(np.random.default_rng(0), 100)
    mask = inputs["tokens_mask"]
    assert (np.diff(mask.astype(int), axis=1) <= 0).all()
    assert mask[:, 0].all()
    assert not inputs["tokens"][mask == 0].any()


def rows_of_unequal_length():
    rows = np.empty(6, object)
    rows[:] = [np.arange(1, length + 1) for length in (3, 1, 2, 5, 1, 2)]
    return rows


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_holds_rows_of_unequal_length(save, tmp_path):
    rows = rows_of_unequal_length()
    save(tmp_path / "a.npz", x=rows, y=np.arange(6) % 2)
    source, _, _ = open_npz(str(tmp_path / "a.npz"))
    assert [source.read(index).tolist() for index in range(6)] == [row.tolist() for row in rows]
    np.testing.assert_array_equal(source.input_lengths["input"], [3, 1, 2, 5, 1, 2])


def test_npy_holds_lists_of_unequal_length(tmp_path):
    rows = np.empty(4, object)
    rows[:] = [[1, 2], [3], [4, 5, 6], [7]]
    np.save(tmp_path / "x.npy", rows)
    np.save(tmp_path / "y.npy", np.arange(4) % 2)
    source, _, _ = open_npy(str(tmp_path))
    assert source.read(2).tolist() == [4, 5, 6]
    assert source.read(2).dtype == np.int64


class Code:
    def __reduce__(self):
        return (print, ("ran",))


@pytest.mark.parametrize("value", [Code(), np.array([Code()], object), ["text"], [[1], [2, 3]]])
def test_npz_refuses_objects_that_are_no_rows(value, tmp_path, capsys):
    rows = np.empty(2, object)
    rows[:] = [np.arange(2), value]
    np.savez(tmp_path / "a.npz", x=rows, y=np.arange(2))
    with refused(InputError, "a.npz:x", "Python objects other than arrays"):
        open_npz(str(tmp_path / "a.npz"))
    assert "ran" not in capsys.readouterr().out


def test_hdf5_holds_rows_of_unequal_length(tmp_path):
    h5py = pytest.importorskip("h5py")
    from preprocess.sources.hdf5 import open_hdf5

    with h5py.File(tmp_path / "a.h5", "w") as file:
        tokens = file.create_dataset("tokens", 6, h5py.vlen_dtype(np.int32))
        tokens[:] = rows_of_unequal_length()
        file["labels"] = np.arange(6) % 2
    source, _, _ = open_hdf5(str(tmp_path / "a.h5"), inputs=["tokens"])
    assert source.read(3)["tokens"].tolist() == [1, 2, 3, 4, 5]
    assert source.read(3)["tokens"].dtype == np.int32


def test_webdataset_holds_rows_of_unequal_length(tmp_path):
    import io
    import tarfile

    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for index, row in enumerate(rows_of_unequal_length()):
            file = io.BytesIO()
            np.save(file, row)
            for suffix, content in (("npy", file.getvalue()), ("cls", b"%d" % (index % 2))):
                info = tarfile.TarInfo(f"{index}.{suffix}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    source, *_ = open_webdataset(str(tmp_path / "a.tar"))
    lengths = measure_lengths(source, ["input"])["input"]
    np.testing.assert_array_equal(lengths, [3, 1, 2, 5, 1, 2])


def test_table_names_files_of_unequal_length(tmp_path):
    lines = ["path,target"]
    for index, row in enumerate(rows_of_unequal_length()):
        np.save(tmp_path / f"{index}.npy", row)
        lines.append(f"{index}.npy,{'ab'[index % 2]}")
    (tmp_path / "a.csv").write_text("\n".join(lines))
    source, _, _ = open_table(str(tmp_path / "a.csv"), inputs={"tokens": {"files": "path"}})
    lengths = measure_lengths(source, ["tokens"])["tokens"]
    np.testing.assert_array_equal(lengths, [3, 1, 2, 5, 1, 2])


def test_huggingface_lists_have_unequal_lengths(tmp_path):
    datasets = pytest.importorskip("datasets")
    from preprocess.sources.huggingface import open_huggingface

    rows = [row.tolist() for row in rows_of_unequal_length()]
    datasets.Dataset.from_dict({"tokens": rows, "label": [0, 1] * 3}).save_to_disk(tmp_path / "a")
    source, _, _ = open_huggingface(str(tmp_path / "a"), inputs=["tokens"])
    lengths = measure_lengths(source, ["tokens"])["tokens"]
    np.testing.assert_array_equal(lengths, [3, 1, 2, 5, 1, 2])
