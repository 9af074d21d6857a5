"""Detection of data that has changed since networks were trained on it."""

import csv
import os
import shutil

import numpy as np
import pytest
from PIL import Image

from fleet.domain.events import DataChanged
from fleet.runtime.startup.fingerprint import find_data_changes
from fleet.storage.checkpoint import find_newest
from preprocess.views import View
from tests.fleet.runtime.runs import Trained

ACCEPT = {"accept_changes": True}


def make_run(folder, data, **train):
    """Return a run of two networks, in a folder with its data."""
    return Trained(
        folder,
        [{"family": "softmax", "name": name} for name in "ab"],
        data,
        train={"batch": {"size": 2}, **train},
    )


def table(path, rows, columns=("a", "b", "target")):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])


def rows(count, scale=1):
    return [(number / 7, number * number, scale * (number % 5 + 0.5)) for number in range(count)]


@pytest.fixture
def tabular(tmp_path):
    table(tmp_path / "x.csv", rows(60))
    run = make_run(
        tmp_path,
        {"source": "table", "path": str(tmp_path / "x.csv"), "validation": 0.2, "transforms": []},
        stopping={"monitor": "val_loss"},
    )
    run.leave_checkpoints()
    return run


def images(folder, classes, count=6, start=0):
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for image in range(start, start + count):
            Image.fromarray(np.full((4, 4), 40 * number + image, np.uint8)).save(
                folder / name / f"{image:03}.bmp"
            )


@pytest.fixture
def pictured(tmp_path):
    images(tmp_path / "photos", ("cat", "dog"))
    run = make_run(
        tmp_path,
        {
            "source": "image_folder",
            "path": str(tmp_path / "photos"),
            "validation": 0.25,
            "transforms": ["decode"],
        },
    )
    run.leave_checkpoints()
    return run


def sides(prepared):
    """Return the bytes of the training and the validation samples, sorted."""

    def contents(view):
        assert isinstance(view, View)
        samples = [view.read(index) for index in range(len(view))]
        return sorted(
            sample if isinstance(sample, bytes) else sample.tobytes() for sample in samples
        )

    return contents(prepared.inputs.data.train), contents(prepared.inputs.data.validation)


def test_data_unchanged_resumes_from_any_path(pictured, monkeypatch):
    before = sides(pictured.prepare())
    shutil.copytree(pictured.folder / "photos", pictured.folder / "moved")
    shutil.rmtree(pictured.folder / "photos")
    for file in (pictured.folder / "moved").rglob("*.bmp"):
        os.utime(file, (1, 1))
    monkeypatch.chdir(pictured.folder)
    pictured.content["data"]["path"] = "moved"
    prepared = pictured.prepare()
    assert (sides(prepared), prepared.past.changes) == (before, ())


@pytest.mark.long_but_first
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda path: table(path, rows(60, scale=10)), "targets of 60 of 60 rows differ"),
        (
            lambda path: table(path, [(b, a, y) for a, b, y in rows(60)], ("b", "a", "target")),
            "columns: a, b, target -> b, a, target",
        ),
        (
            lambda path: table(path, rows(60), ("b", "a", "target")),
            "columns: a, b, target -> b, a, target",
        ),
        (lambda path: table(path, rows(61)), "1 row more"),
        (lambda path: table(path, rows(59)), "1 row fewer"),
        (lambda path: table(path, rows(60)[::-1]), "another order of rows"),
        (
            lambda path: table(path, [*rows(59), (0.25, 3481, 4.5)]),
            "content of 1 of 60 rows differs",
        ),
    ],
)
def test_data_changed_table_is_refused_with_changes(tabular, change, words):
    path = tabular.folder / "x.csv"
    assert find_data_changes(tabular.paths) == []
    change(path)
    message = tabular.refused()
    assert f"{path}: {words}" in message
    assert f"{path}: {words}" in find_data_changes(tabular.paths)[0]
    assert all(way in message for way in ("--accept-changes", "--fresh"))
    tabular.prepare(fresh=True)
    tabular.prepare()


def test_data_accepted_column_order_keeps_old_order(tabular):
    before = sides(tabular.prepare())
    sample = tabular.paths.sample.read_bytes()
    table(tabular.folder / "x.csv", [(b, y, a) for a, b, y in rows(60)], ("b", "target", "a"))
    prepared = tabular.prepare(**ACCEPT)
    assert prepared.past.changes
    assert sides(prepared) == before
    assert tabular.paths.sample.read_bytes() == sample  # fleet predict uses these columns


def test_data_in_unused_columns_may_change(tabular):
    tabular.content["data"]["options"] = {"inputs": ["a", "b"]}
    tabular.prepare(fresh=True)
    tabular.leave_checkpoints()
    table(
        tabular.folder / "x.csv",
        [(*row, "new") for row in rows(60)],
        ("a", "b", "target", "remark"),
    )
    assert tabular.prepare().past.changes == ()


def resized(folder):
    (folder / "cat" / "000.bmp").write_bytes((folder / "cat" / "000.bmp").read_bytes() + b"more")


def repainted(folder):
    content = bytearray((folder / "cat" / "000.bmp").read_bytes())
    content[-1] ^= 1
    (folder / "cat" / "000.bmp").write_bytes(content)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: images(folder, ("cat",), 12, 6), "12 files more in class cat"),
        (lambda folder: (folder / "dog" / "003.bmp").unlink(), "1 file fewer in class dog"),
        (
            lambda folder: (folder / "dog" / "003.bmp").rename(folder / "dog" / "9.bmp"),
            "1 file more and 1 fewer in class dog",
        ),
        (lambda folder: (folder / "cat").rename(folder / "bee"), "classes: cat, dog -> bee, dog"),
        (resized, "content of 1 of 12 files differs"),
        (repainted, "content of 1 of 12 files differs"),
    ],
)
def test_data_changed_image_folder_is_refused(pictured, change, words):
    change(pictured.folder / "photos")
    message = pictured.refused()
    assert f"{pictured.folder / 'photos'}: {words}" in message
    assert "--accept-changes" in message
    assert words in find_data_changes(pictured.paths)[0]


def test_data_accepted_change_is_in_history_and_log(
    tabular,
):
    table(tabular.folder / "x.csv", rows(60, scale=10))
    prepared = tabular.prepare(**ACCEPT)
    event = prepared.past.changes[0]
    assert isinstance(event, DataChanged)
    assert (event.changes, event.epochs) == (
        (f"{tabular.folder / 'x.csv'}: targets of 60 of 60 rows differ",),
        {"a": 2, "b": 2},
    )
    assert [
        (change.network, change.files, change.epochs) for change in prepared.past.changes[1:]
    ] == [
        ("a", ("data",), 2),
        ("b", ("data",), 2),
    ]
    with open(tabular.paths.history("a"), newline="") as file:
        assert [row["accepted"] for row in csv.DictReader(file)] == ["", "data"]
    assert tabular.prepare().past.changes == ()
    table(tabular.folder / "x.csv", rows(60))
    assert "targets of 60 of 60 rows differ" in tabular.refused()


def test_data_accepted_change_restarts_open_epoch(tabular):
    tabular.prepare(fresh=True)
    tabular.leave_checkpoints(position=8, stream_epoch=2)
    table(tabular.folder / "x.csv", rows(61))
    tabular.prepare(**ACCEPT)
    state = find_newest(tabular.paths, "a").state
    assert (state.epoch, state.position, state.stream_epoch) == (2, 0, -1)


def test_data_added_rows_keep_old_samples_in_their_split(tabular):
    trained, judged = map(set, sides(tabular.prepare()))
    new = [(-1 - number, 0.5, 1.5) for number in range(20)]
    table(tabular.folder / "x.csv", [*new[:3], *rows(60)[:30], *new[3:], *rows(60)[30:]])
    after = tabular.prepare(**ACCEPT)
    for _ in range(2):
        now_trained, now_judged = map(set, sides(after))
        assert trained <= now_trained
        assert judged <= now_judged
        assert (len(now_trained), len(now_judged)) == (len(trained) + 16, len(judged) + 4)
        after = tabular.prepare()


def test_data_added_and_removed_images_keep_their_split(pictured):
    trained, judged = map(set, sides(pictured.prepare()))
    folder = pictured.folder / "photos"
    (folder / "cat" / "000.bmp").unlink()
    images(folder, ("cat", "dog"), 8, 100)
    now_trained, now_judged = map(set, sides(pictured.prepare(**ACCEPT)))
    assert not trained & now_judged
    assert not judged & now_trained
    assert len(now_judged - judged) == 4


def test_data_change_is_not_accepted_by_fresh_network(tabular):
    table(tabular.folder / "x.csv", rows(61))
    assert "1 row more" in tabular.refused(fresh_network=("a",))
    assert tabular.prepare(fresh_network=("a", "b")).past.changes[0].damage == "--fresh-network"
    tabular.prepare()


def test_data_may_change_before_any_training(tabular):
    tabular.prepare(fresh=True)
    table(tabular.folder / "x.csv", rows(61))
    tabular.prepare()


def test_data_without_fingerprint_gets_one(tabular):
    tabular.paths.data.unlink()
    assert tabular.prepare().past.changes == ()
    table(tabular.folder / "x.csv", rows(61))
    assert "1 row more" in tabular.refused()


def test_data_of_validation_and_test_is_compared(tmp_path):
    for name, count in (("x", 60), ("v", 20), ("t", 20)):
        table(tmp_path / f"{name}.csv", rows(count))
    run = make_run(
        tmp_path,
        {
            "source": "table",
            "path": str(tmp_path / "x.csv"),
            "validation": str(tmp_path / "v.csv"),
            "test": str(tmp_path / "t.csv"),
            "transforms": [],
        },
        stopping={"monitor": "val_loss"},
    )
    run.leave_checkpoints()
    run.prepare()
    table(tmp_path / "v.csv", rows(21))
    table(tmp_path / "t.csv", rows(20, scale=2))
    message = run.refused()
    assert (
        f"{tmp_path / 'v.csv'}: 1 row more; {tmp_path / 't.csv'}: targets of 20 of 20 rows differ:"
        in message
    )


def test_data_added_rows_keep_folds(tabular):
    tabular.content["data"] |= {"validation": None, "folds": 3}
    tabular.prepare(fresh=True)

    def rows_by_fold(prepared):
        train = prepared.inputs.data.train
        return [
            {train.read(row).tobytes() for row in np.flatnonzero(prepared.inputs.folds == fold)}
            for fold in range(3)
        ]

    before = rows_by_fold(tabular.leave_checkpoints())
    table(tabular.folder / "x.csv", [(-1 - number, 0.5, 1.5) for number in range(9)] + rows(60))
    now = rows_by_fold(tabular.prepare(**ACCEPT))
    assert all(old < new for old, new in zip(before, now, strict=True))
    assert [len(new) for new in now] == [23] * 3
    assert rows_by_fold(tabular.prepare()) == now


def test_data_changed_is_not_replayed_unless_accepted(tabular):
    table(tabular.folder / "x.csv", rows(60, scale=10))
    options = {"replay": str(tabular.paths.root), "only": "a"}
    assert "targets of 60 of 60 rows differ" in tabular.refused(**options)
    assert tabular.prepare(**ACCEPT, **options).past.changes == ()


def test_data_accepted_change_decodes_samples_again(pictured):
    pictured.content["data"]["cache"] = "file"
    pictured.prepare(fresh=True)
    pictured.leave_checkpoints()
    repainted(pictured.folder / "photos")  # the last pixel of a black image

    def count_repainted(prepared):
        return sum(
            source.read(index).sum() in (1, 3)
            for source in prepared.inputs.data.splits().values()
            for index in range(len(source))
        )

    assert count_repainted(pictured.prepare(**ACCEPT)) == 1


def test_data_of_custom_source_is_compared_from_outside(tmp_path):
    run = make_run(tmp_path, {"source": "tests.sources:numbered", "path": "60", "transforms": []})
    run.leave_checkpoints()
    run.content["data"]["path"] = "63"
    assert (
        "63: 1 sample more in class a, 1 sample more in class b, 1 sample more in class c:"
        in run.refused()
    )
