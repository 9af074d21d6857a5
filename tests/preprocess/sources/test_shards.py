"""Common features of all shards: finding files, the index, the order of an epoch."""

import os
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.errors import InputError
from preprocess.base import Source, UnreadableSample
from preprocess.sources import shards as module
from preprocess.sources.masks import PixelClasses
from preprocess.sources.shards import Shards, find_shards, load_index, open_shards, shuffle

# ---- the shuffle buffer -----------------------------------------------------------------------


@given(count=st.integers(0, 60), buffer=st.integers(1, 70), seed=st.integers(0, 100))
def test_shuffle_is_a_permutation_within_the_buffer(count, buffer, seed):
    output = shuffle(np.arange(count), buffer, np.random.default_rng(seed))
    assert sorted(output) == list(range(count))
    assert all(position >= item - buffer + 1 for position, item in enumerate(output))


def test_shuffle_with_a_full_buffer_is_uniform():
    rng = np.random.default_rng(0)
    orders = Counter(tuple(shuffle(np.arange(3), 5, rng)) for _ in range(6000))
    assert len(orders) == 6
    assert all(850 < count < 1150 for count in orders.values())  # 1000 +- 5 standard deviations


# ---- finding shards ---------------------------------------------------------------------------


@pytest.fixture
def touch(tmp_path):
    def touch(*names):
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
        return str(tmp_path)

    return touch


def find_names(path, folder):
    return tuple(
        [os.path.relpath(name, folder) for name in part] for part in find_shards(path, r"\.tar$")
    )


@pytest.mark.parametrize(
    ("names", "train", "validation"),
    [
        (["b.tar", "a.tar", "notes.txt", ".c.tar"], ["a.tar", "b.tar"], []),
        (
            ["train-1.tar", "train-0.tar", "val-0.tar"],
            ["train-0.tar", "train-1.tar"],
            ["val-0.tar"],
        ),
        (["train/0.tar", "validation/0.tar", "test/0.tar"], ["train/0.tar"], ["validation/0.tar"]),
        (["train/0.tar", "test/0.tar"], ["train/0.tar"], ["test/0.tar"]),
        (["Training/0.tar", "valid/0.tar", "test/0.tar"], ["Training/0.tar"], ["valid/0.tar"]),
        (["train-0.tar", "dev-0.tar", "test-0.tar"], ["train-0.tar"], ["dev-0.tar"]),
        (["birds-train-0.tar", "birds_VALID-0.tar"], ["birds-train-0.tar"], ["birds_VALID-0.tar"]),
        (["trainval-0.tar", "test-0.tar"], ["trainval-0.tar"], ["test-0.tar"]),
        (["train-0.tar", "more-0.tar"], ["train-0.tar"], []),
        (["bullet-train.tar", "car.tar"], ["bullet-train.tar", "car.tar"], []),
        (["val-0.tar", "val-1.tar"], ["val-0.tar", "val-1.tar"], []),
    ],
)
def test_shards_folder_may_hold_validation_shards_too(touch, names, train, validation):
    folder = touch(*names)
    assert find_names(folder, folder) == (train, validation)


@pytest.mark.parametrize("pattern", ["x-*.tar", "x-{08..10}.tar"])
def test_shards_pattern_selects_files(touch, pattern):
    folder = touch("x-08.tar", "x-09.tar", "x-10.tar", "y.tar")
    assert find_names(f"{folder}/{pattern}", folder) == (["x-08.tar", "x-09.tar", "x-10.tar"], [])


def test_shards_pattern_of_all_splits_trains_on_one(touch):
    folder = touch("birds-train-0.tar", "birds-val-0.tar", "birds-test-0.tar")
    assert find_names(f"{folder}/*.tar", folder) == (["birds-train-0.tar"], ["birds-val-0.tar"])


@pytest.mark.parametrize(
    "names", [("val-0.tar", "test-0.tar"), ("x-train.tar", "x-val.tar", "y.tar")]
)
def test_shards_that_leave_their_part_open_are_refused(touch, names):
    with pytest.raises(InputError, match="train"):
        find_shards(touch(*names), r"\.tar$")


@pytest.mark.parametrize("path", ["", "z*.tar", "x-{08..11}.tar", "a.tar"])
def test_no_shards_is_an_error_that_names_the_place(touch, path):
    folder = touch("x-08.tar.gz")
    with pytest.raises(InputError, match="file not found|no shards here"):
        find_shards(f"{folder}/{path}".rstrip("/"), r"\.tar$")


def test_shards_warn_of_test_data_as_validation(tmp_path):
    for path in ("x-train-0.txt", "x-test-0.txt"):
        (tmp_path / path).write_text("ab")
    train, validation = open_shards(Letters(), str(tmp_path), 1, None, PixelClasses())
    assert (len(train), validation.stand_in_path) == (2, str(tmp_path / "x-test-0.txt"))


# ---- reading ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Letters:
    """A format with one byte per record, which is its label."""

    pattern = "txt$"
    input_names = ()
    target_names = ()
    numbers: bool = False

    def scan(self, shard):
        scans.append(shard)
        with open(shard) as file:
            for offset, letter in enumerate(file.read()):
                yield offset, 1, ord(letter) if self.numbers else letter

    def image(self, record):
        return record


scans: list[str] = []


@pytest.fixture
def paths(tmp_path):
    scans.clear()
    for name, content in [("0.txt", "cab"), ("1.txt", ""), ("2.txt", "ddaab")]:
        (tmp_path / name).write_text(content)
    return [str(tmp_path / name) for name in ("0.txt", "1.txt", "2.txt")]


def test_records_of_all_shards_are_one_sequence(paths):
    source = Shards(paths, Letters())
    assert isinstance(source, Source)
    assert b"".join(source.read(index) for index in range(len(source))) == b"cabddaab"
    assert source.classes == ("a", "b", "c", "d")
    assert source.labels.tolist() == [2, 0, 1, 3, 3, 0, 0, 1]
    assert (source.name(2), source.name(3)) == (f"{paths[0]}[2]", f"{paths[2]}[0]")


def test_shards_sort_numeric_classes_by_number(paths):
    assert Shards(paths, Letters(numbers=True)).classes == ("97", "98", "99", "100")


def test_order_reads_shards_sequentially_within_the_buffer(paths):
    source = Shards(paths, Letters(), buffer=1)
    orders = {tuple(source.order(7, epoch)) for epoch in range(20)}
    assert orders == {(0, 1, 2, 3, 4, 5, 6, 7), (3, 4, 5, 6, 7, 0, 1, 2)}
    assert sorted(Shards(paths, Letters(), buffer=4).order(7, 3)) == list(range(8))


def test_few_files_are_open_at_a_time(paths, monkeypatch):
    monkeypatch.setattr(module, "OPEN_FILES", 1)
    source = Shards(paths, Letters())
    assert [source.read(index) for index in (0, 7, 1, 6)] == [b"c", b"b", b"a", b"a"]
    assert len(source._open) == 1


def test_shards_deleted_file_is_unreadable(paths):
    source = Shards(paths, Letters())
    os.unlink(paths[0])
    with pytest.raises(UnreadableSample, match=r"0.txt\[1\]: cannot be read: No such file"):
        source.read(1)


@pytest.mark.parametrize(("form", "content"), [(Letters(), ""), (Letters(), None)])
def test_shards_without_records_are_refused(tmp_path, form, content):
    if content is not None:
        (tmp_path / "0.txt").write_text(content)
    with pytest.raises(InputError, match="no records in it|no shards"):
        Shards([str(tmp_path / "0.txt")] if content is not None else [], form)


# ---- the index --------------------------------------------------------------------------------


def test_load_index_rescans_changed_shards_only(paths):
    load_index(tuple(paths), Letters())
    load_index(tuple(paths), Letters())
    assert len(scans) == 3
    with open(paths[1], "w") as file:
        file.write("x")
    assert len(load_index(tuple(paths), Letters()).offsets) == 9
    assert len(scans) == 6


def test_other_options_want_another_scan(paths):
    load_index(tuple(paths), Letters())
    assert load_index(tuple(paths), Letters(numbers=True)).values[0] == ord("c")


def test_shards_rebuild_a_damaged_index(paths, tmp_path):
    load_index(tuple(paths), Letters())
    [index_file] = tmp_path.glob(".index-*.npz")
    for damaged in (b"", b"rubbish", index_file.read_bytes()[:200]):
        index_file.write_bytes(damaged)
        assert len(load_index(tuple(paths), Letters()).offsets) == 8


def test_shards_work_without_a_stored_index(paths, tmp_path, monkeypatch):
    def refuse(source, target):
        raise PermissionError

    monkeypatch.setattr(os, "replace", refuse)
    assert len(load_index(tuple(paths), Letters()).offsets) == 8
    assert not list(tmp_path.glob(".index-*"))
