"""From a spec's `data` to training and validation samples."""

import shutil

import numpy as np
import pytest

from launch.errors import InputError
from preprocess.base import Source, check_input_name
from preprocess.source import SOURCES, View, open_data, open_per_target, split
from tests.preprocess.samples import Memory, pattern, write


def memory(labels, classes=("a", "b", "c")):
    return Memory([bytes([number]) for number in range(len(labels))], labels, classes)


# ---- splitting --------------------------------------------------------------------------------


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5, float("nan")])
def test_open_data_fraction_lies_between_0_and_1(fraction):
    with pytest.raises(InputError, match="not a fraction between 0 and 1"):
        split(memory([0, 0, 1, 1]), fraction, 0)


def test_view_reads_and_orders_like_its_source():
    source = memory([0, 1, 2, 0, 1, 2])
    view = View(source, np.array([1, 4, 5]))
    assert isinstance(view, Source)
    assert ([view.read(i) for i in range(3)], view.name(2)) == ([b"\1", b"\4", b"\5"], "sample 5")
    assert view.labels.tolist() == [1, 1, 2]
    indices = [index for index in source.order(3, 2) if index in (1, 4, 5)]
    assert view.indices[view.order(3, 2)].tolist() == indices


# ---- names of inputs ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["weight", "index", "target", "self", "class", "two words", 3])
def test_check_input_name_refuses_what_networks_cannot_take(name):
    with pytest.raises(InputError, match=f"data.inputs: .*{name!r}"):
        check_input_name(name, "data.inputs")


# ---- opening ----------------------------------------------------------------------------------


def test_open_data_fraction_is_held_out_for_validation(folder):
    data = open_data("image_folder", str(folder), 0.4, seed=7)
    assert (len(data.train), len(data.validation), data.classes) == (5, 3, ("cat", "dog"))


def test_validation_may_be_left_out(folder):
    assert open_data("image_folder", str(folder), None, seed=7).validation is None


def test_open_data_one_class_is_not_enough(folder):
    (folder / "dog").rename(folder.parent / "dog")
    with pytest.raises(InputError, match="only one class, 'cat'"):
        open_data("image_folder", str(folder), 0.1, seed=7)


def test_open_data_lists_sources_for_an_unknown_one():
    with pytest.raises(InputError) as caught:
        open_data("imagefolder", "x", None, 0)
    assert all(name in str(caught.value) for name in SOURCES)


@pytest.mark.parametrize(
    "source", sorted(name for name in SOURCES if not name.startswith("builtin:"))
)
def test_open_data_needs_an_existing_path(source, tmp_path):
    with pytest.raises(InputError, match="it needs a path"):
        open_data(source, None, None, 0)
    with pytest.raises(InputError, match=r"nowhere: (file|folder) not found"):
        open_data(source, str(tmp_path / "nowhere"), None, 0)


@pytest.mark.parametrize("part", ["validation", "test"])
@pytest.mark.parametrize("source", sorted(name for name in SOURCES if name.startswith("builtin:")))
def test_built_in_data_is_not_taken_again_for_a_part_at_a_path(source, part, tmp_path):
    with pytest.raises(
        InputError, match=f"data.{part}: .*nowhere: {source} has no other data; give a share"
    ):
        open_data(source, None, **{"validation": None, "seed": 0, part: str(tmp_path / "nowhere")})
    assert not list(tmp_path.iterdir())


def test_open_data_lists_options_for_an_unknown_one(tmp_path):
    with pytest.raises(
        InputError, match="unknown option 'key'; its options: image_key='image/encoded', "
    ):
        open_data("tfrecord", str(tmp_path), None, 0, {"key": 3})
    with pytest.raises(InputError, match="its options: none"):
        open_data("builtin:digits", str(tmp_path), None, 0, {"key": 3})


# ---- test data --------------------------------------------------------------------------------


def test_open_data_holds_out_test_before_validation(folder):
    data = open_data("image_folder", str(folder), 0.4, seed=7, test=0.25)
    names = {
        part: {source.name(index) for index in range(len(source))}
        for part, source in data.splits().items()
    }
    assert {part: len(first) for part, first in names.items()} == {
        "train": 3,
        "validation": 3,
        "test": 2,
    }
    assert len(set.union(*names.values())) == 8
    alone = open_data("image_folder", str(folder), None, seed=7, test=0.25).test
    # for any validation data
    assert {alone.name(index) for index in range(len(alone))} == names["test"]
    second = open_data("image_folder", str(folder), None, seed=8, test=0.5).test
    assert {second.name(index) for index in range(len(second))} != names["test"]


def test_open_data_draws_both_splits_independently():
    source = memory([0, 1] * 30)
    assert (
        split(source, 0.3, 1)[1].indices.tolist()
        != split(source, 0.3, 1, "test")[1].indices.tolist()
    )
    with pytest.raises(InputError, match="test: 2 is not a fraction"):
        split(source, 2, 1, "test")


@pytest.mark.parametrize("part", ["validation", "test"])
def test_open_data_split_may_lack_classes_but_not_add_any(folder, part):
    write(folder.parent / "more/dog/9.png", pattern(4, 6))
    options = {"validation": None, "seed": 7, part: str(folder.parent / "more")}
    data = open_data("image_folder", str(folder), **options)
    assert (len(data.train), data.splits()[part].labels.tolist(), data.classes) == (
        8,
        [1],
        ("cat", "dog"),
    )
    write(folder.parent / "more/eel/9.png", pattern(4, 6))
    with pytest.raises(
        InputError, match=f"more: the {part} data has classes that the training data lacks: eel"
    ):
        open_data("image_folder", str(folder), **options)


def parted(folder, *parts):
    """Put the folder as training split beside others."""
    root = folder.parent / "all"
    root.mkdir()
    folder.rename(root / "train")
    for part in parts:
        write(root / part / "cat/9.png", pattern(4, 6))
    return root


def test_open_data_warns_of_test_data_as_validation(folder):
    root = parted(folder, "test")
    data = open_data("image_folder", str(root), 0.5, seed=7)
    assert (len(data.train), len(data.validation), data.test) == (8, 1, None)
    assert f"{root}/test is used for validation" in data.remark
    write(root / "val/cat/8.png", pattern(4, 6))
    assert open_data("image_folder", str(root), 0.5, seed=7).remark == ""


def test_open_data_named_test_split_is_not_validation(folder, monkeypatch):
    root = parted(folder, "test")
    monkeypatch.chdir(root)
    data = open_data("image_folder", str(root), 0.25, seed=7, test="./test")
    assert (len(data.train), len(data.validation), len(data.test), data.remark) == (6, 2, 1, "")


@pytest.mark.parametrize(
    ("test", "role"), [("train", "training"), (".", "training"), ("val", "validation")]
)
def test_test_data_that_chooses_something_is_refused(folder, test, role):
    root = parted(folder, "val")
    with pytest.raises(
        InputError,
        match=f"data.test: .*: this is also {role} data; name separate data, which is not used",
    ):
        open_data("image_folder", str(root), str(root / "val"), seed=7, test=str(root / test))


# ---- one class in two spellings ---------------------------------------------------------------

NFC, NFD = "caf\u00e9", "cafe\u0301"


def classes_of(folder, *names):
    """Make a folder of these classes with one image each."""
    for number, name in enumerate(names):
        write(folder / name / "0.png", pattern(4, 6, seed=number))
    return str(folder)


@pytest.mark.parametrize(
    ("train_name", "test_name"), [(NFC, NFD), (NFD, NFC), ("cat", "cat "), (" cat", "cat")]
)
def test_parts_may_spell_a_class_in_two_ways(tmp_path, train_name, test_name):
    path = classes_of(tmp_path / "a", train_name, "dog")
    data = open_data("image_folder", path, classes_of(tmp_path / "b", "dog", test_name), 0)
    names = [data.validation.name(row).split("/")[-2] for row in range(2)]
    classes = [data.classes[label] for label in data.validation.labels]
    assert dict(zip(names, classes, strict=True)) == {test_name: train_name, "dog": "dog"}


@pytest.mark.parametrize("names", [(NFC, NFD), ("cat", "cat ")])
def test_open_data_one_class_in_two_folders_is_refused(tmp_path, names):
    with pytest.raises(InputError, match="one name in two spellings"):
        open_data("image_folder", classes_of(tmp_path, *names), None, 0)


def test_open_data_one_class_in_two_spellings_is_one_in_tables(tmp_path):
    (tmp_path / "a.csv").write_text(f"x,target\n1,cat\n2,cat \n3,{NFC}\n4,{NFD}\n")
    data = open_data("table", str(tmp_path / "a.csv"), None, 0)
    assert (data.classes, data.train.labels.tolist()) == (("caf\u00e9", "cat"), [1, 1, 0, 0])


def test_open_data_lone_class_keeps_its_spelling_in_tables(tmp_path):
    (tmp_path / "a.csv").write_text("x,target\n1, cat\n2, dog\n3, cat\n")
    assert open_data("table", str(tmp_path / "a.csv"), None, 0).classes == (" cat", " dog")


# ---- invalid validation data -------------------------------------------------------------


def test_open_data_warns_of_a_large_share(tmp_path):
    for name in range(10):
        for number in range(2):
            write(tmp_path / f"{name}/{number}.png", pattern(4, 6, seed=number))
    data = open_data("image_folder", str(tmp_path), 0.1, 0)
    assert len(data.validation) == 10
    assert "10 of 20 samples are held out (50%), not 10%" in data.remark


@pytest.mark.parametrize(("name", "stand_in_path"), [("eval", False), ("Holdout", True)])
def test_eval_validates_and_holdout_is_test_data(folder, name, stand_in_path):
    shutil.copytree(folder, folder.parent / "all" / "train")
    write(folder.parent / "all" / name / "dog/9.png", pattern(4, 6, seed=99))
    data = open_data("image_folder", str(folder.parent / "all"), 0.5, 0)
    assert (len(data.train), len(data.validation)) == (8, 1)
    assert ("is used for validation" in data.remark) == stand_in_path


@pytest.mark.parametrize("path", [".", "../pets", "cat/.."])
def test_open_data_refuses_training_data_as_validation(folder, path):
    with pytest.raises(InputError, match="data.validation: .*: this is also training data"):
        open_data("image_folder", str(folder), str(folder / path), 0)


@pytest.mark.parametrize("part", ["validation", "test"])
def test_open_per_target_warns_of_a_copy_of_training_data(folder, part):
    more = folder.parent / "more"
    shutil.copytree(folder, more)
    options = {"validation": None, "test": None, part: str(more)}
    [data], _ = open_per_target("image_folder", str(folder), **options, seed=0, division="")
    assert f"data.{part}: {more} is a copy of the training data" in data.remark
    write(more / "dog/9.png", pattern(4, 6, seed=99))
    [data], _ = open_per_target("image_folder", str(folder), **options, seed=0, division="")
    assert f"8 of 9 {part} samples have the same content as training samples" in data.remark


def test_open_per_target_warns_of_copied_rows(tmp_path):
    rows = [f"{number / 7},{number % 2}" for number in range(20)]
    for name, subset in (("a", rows), ("b", rows[::-1]), ("c", rows[3:9])):
        (tmp_path / f"{name}.csv").write_text("\n".join(["x,target", *subset]) + "\n")
    path, copy, subset = (str(tmp_path / f"{name}.csv") for name in "abc")
    [data], _ = open_per_target("table", path, copy, 0, division="")
    assert "b.csv is a copy of the training data" in data.remark
    [data], _ = open_per_target("table", path, subset, 0, division="")
    assert "6 of 6 validation samples have the same content as training samples" in data.remark


def test_rows_of_few_values_may_be_alike(tmp_path):
    for name, count in (("a", 40), ("b", 10)):
        rows = [f"{number % 2},{number % 3},{number % 2}" for number in range(count)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["x,y,target", *rows]) + "\n")
    [data], _ = open_per_target(
        "table", *[str(tmp_path / f"{n}.csv") for n in "ab"], 0, division=""
    )
    assert data.remark == ""


# ---- the user's own ---------------------------------------------------------------------------


def custom(path, count=4):
    return memory([0, 1] * (count // 2), classes=(path, "b"))


def mine_with_validation(path):
    return custom(path), custom(path)


def not_a_source(path):
    return [1, 2, 3]


def test_open_data_passes_path_and_options():
    data = open_data(f"{__name__}:custom", "some path", None, 0, {"count": 6})
    assert (len(data.train), data.classes) == (6, ("some path", "b"))


def test_open_data_custom_source_may_have_validation():
    assert len(open_data(f"{__name__}:mine_with_validation", "p", 0.5, 0).validation) == 4
    assert len(open_data(f"{__name__}:custom", "p", 0.5, 0).validation) == 2


def test_open_data_describes_a_source_in_errors():
    with pytest.raises(InputError, match="returned list, not a source, which has"):
        open_data(f"{__name__}:not_a_source", "p", None, 0)
