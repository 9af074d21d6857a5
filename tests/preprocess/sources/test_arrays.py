"""Samples in .npz and .npy files."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from launch.errors import InputError
from preprocess.base import Source
from preprocess.source import open_data
from preprocess.sources.arrays import open_npy, open_npz
from preprocess.target import TargetSpec, TargetWish
from tests.refusals import refused

X = np.random.default_rng(0).random((6, 2, 3)).astype(np.float32)
LABELS = np.array([0, 1, 0, 2, 1, 2])


@pytest.fixture
def saved(tmp_path):
    def saved(*, compressed=False, name="a.npz", **arrays):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        (np.savez_compressed if compressed else np.savez)(path, **arrays)
        return str(path)

    return saved


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("order", ["C", "F"])
def test_each_row_is_a_sample_with_its_class(saved, compressed, order):
    source, validation, test = open_npz(
        saved(x=np.asarray(X, order=order), y=LABELS, compressed=compressed)
    )
    assert isinstance(source, Source)
    assert (validation, test) == (None, None)
    assert all(np.array_equal(source.read(index), X[index]) for index in range(6))
    assert (source.classes, source.labels.tolist(), len(source)) == (
        ("0", "1", "2"),
        LABELS.tolist(),
        6,
    )


def test_arrays_are_mapped_and_not_sent_to_other_ranks(saved):
    source, _, _ = open_npz(saved(x=np.zeros((1000, 1000)), y=np.arange(1000) % 2))
    assert isinstance(source._inputs["input"], np.memmap)
    source.read(0)
    sent = pickle.dumps(source)
    assert len(sent) < 100_000
    assert pickle.loads(sent).read(999).shape == (1000,)


def test_read_returns_a_copy(saved):
    source, _, _ = open_npz(saved(x=X, y=LABELS))
    source.read(0)[:] = 9
    assert np.array_equal(source.read(0), X[0])


@pytest.mark.parametrize(
    ("y", "target"),
    [
        (np.linspace(0, 1, 6), TargetSpec("value", 1)),
        (np.zeros((6, 1)), TargetSpec("value", 1)),
        (np.zeros((6, 3), np.float32), TargetSpec("value", 3)),
        (np.array([[1, 1, 0]] * 6), TargetSpec("multilabel", 3)),
        (np.ones((6, 1), bool), None),
        (np.array(list("abcabc")), None),
        (np.array([list("a")] * 6), None),
    ],
)
def test_arrays_infer_the_kind_of_targets(saved, y, target):
    source, _, _ = open_npz(saved(x=X, y=y))
    assert getattr(source, "target", None) == target
    assert hasattr(source, "labels") == (target is None)


@pytest.mark.parametrize(
    ("y", "complaint"),
    [
        (
            np.eye(3, dtype=int)[LABELS],
            "a single 1, so they may be classes or labels; set data.target: class or",
        ),
        (
            np.full((6, 2), 7),
            r"array \(6, 2\) of int64, and not all of them 0 or 1; set data.target: value",
        ),
        (np.zeros((6, 2, 2)), r"an array \(6, 2, 2\) of float64; they should be \(n,\) classes,"),
        (np.zeros(6, complex), "of complex128; they should be"),
        (np.array([None] * 6), "a.npz:y: it holds Python objects other than arrays"),
        (
            np.array(["a", "", "b", " ", "a", "b"]),
            r"a.npz:y: .*:x\[1\] has no class \(and 1 more\): an empty text",
        ),
        (np.zeros(5), "x has 6 rows and y 5; each input needs a target"),
    ],
)
def test_targets_that_cannot_be_or_have_two_readings_are_refused(saved, y, complaint):
    with pytest.raises(InputError, match=complaint):
        open_npz(saved(x=X, y=y))


def test_guess_kind_refuses_many_different_integers(saved):
    path = saved(x=np.zeros((50, 1)), y=np.arange(50))
    with pytest.raises(
        InputError, match="50 different integers in 50 targets, so they may be classes or values"
    ):
        open_npz(path)
    assert len(open_npz(path, target=TargetWish("class"))[0].classes) == 50
    assert open_npz(path, target=TargetWish("value"))[0].targets.tolist() == [
        [number] for number in range(50)
    ]


def test_parse_targets_accepts_one_hot_classes(saved):
    path = saved(x=X, y=np.eye(3)[LABELS])
    source, _, _ = open_npz(path, target=TargetWish("class", names=("ant", "bee", "cat")))
    assert (source.labels.tolist(), source.classes) == (LABELS.tolist(), ("ant", "bee", "cat"))


def test_classes_that_the_spec_counts_keep_their_numbers(saved):
    path = saved(x=X, y=np.array([0, 1, 0, 3, 1, 3]))
    source, _, _ = open_npz(path, target=TargetWish("class", 4))
    assert (source.labels.tolist(), len(source.classes)) == ([0, 1, 0, 3, 1, 3], 4)
    with pytest.raises(
        InputError,
        match=r"x\[3\] has the target 3 \(and 1 more\), not one of the 3 classes, 0 to 2",
    ):
        open_npz(path, target=TargetWish("class", 3))


@pytest.mark.parametrize(
    ("y", "target_request", "complaint"),
    [
        (
            [0, 1, 0.5, 1, 0, 1],
            "class",
            r"x\[2\] has the target 0.5, which is not a class: nothing is rounded",
        ),
        (np.eye(6) * 2, "class", r"x\[0\] has the target \[2.0, .*not a single 1 among zeros"),
        (np.zeros(6), "multilabel", r"labels should be \(n, labels\) zeros and ones"),
        (list("abcdef"), "value", r"values should be \(n,\) or \(n, values\) numbers"),
    ],
)
def test_arrays_check_the_targets_of_the_spec(saved, y, target_request, complaint):
    with pytest.raises(InputError, match=complaint):
        open_npz(saved(x=X, y=np.array(y)), target=TargetWish(target_request))


def test_options_name_other_arrays(saved):
    path = saved(images=X, scores=np.arange(6.0), trust=np.arange(6))
    source, _, _ = open_npz(path, inputs="images", targets="scores", weights="trust")
    assert (source.targets.tolist(), source.weights.tolist()) == (
        [[n] for n in range(6)],
        list(range(6)),
    )
    with pytest.raises(
        InputError, match=r"no array 'x'; there are images, scores, trust \(options: inputs, t"
    ):
        open_npz(path)
    with pytest.raises(InputError, match="no array 'w'"):
        open_npz(path, inputs="images", targets="scores", weights="w")


@pytest.mark.parametrize(
    ("names", "lengths"),
    [
        (("train", "test"), (4, 2, None)),
        (("train", "validation", "test"), (4, 2, 2)),
        (("train", "val"), (4, 2, None)),
    ],
)
@pytest.mark.parametrize("layout", ["suffixes", "files"])
def test_arrays_find_splits_by_name(saved, tmp_path, names, lengths, layout):
    arrays = {
        name: (X[:count], LABELS[:count], np.ones(count))
        for name, count in zip(names, (4, 2, 2), strict=False)
    }
    if layout == "suffixes":
        path = saved(
            **{
                f"{letter}_{part}": array
                for part, opened in arrays.items()
                for letter, array in zip("xyw", opened, strict=True)
            }
        )
    else:
        for part, opened in arrays.items():
            path = str(
                Path(
                    saved(name=f"parts/{part}.npz", **dict(zip("xyw", opened, strict=True)))
                ).parent
            )
    parts = open_npz(path)
    assert tuple(None if part is None else len(part) for part in parts) == lengths
    assert all(part.weights.tolist() == [1] * len(part) for part in parts if part is not None)


def test_masks_are_read_lazily_and_hold_classes(saved):
    masks = np.zeros((6, 4, 4), np.uint8)
    masks[3:, :2] = 255
    source, _, _ = open_npz(saved(x=np.zeros((6, 4, 4, 3), np.uint8), y=masks))
    assert source.target == TargetSpec("mask", 2, ("0", "255"))
    assert source.read_target(3).tolist() == [[1] * 4] * 2 + [[0] * 4] * 2
    assert len(pickle.dumps(source)) < 2000
    assert pickle.loads(pickle.dumps(source)).read_target(3).sum() == 8


def test_npy_files_are_a_pair_and_may_have_weights(tmp_path):
    for name, array in (("x", X), ("y", np.arange(6.0)), ("w", np.ones(6))):
        np.save(tmp_path / f"{name}.npy", array)
    source, _, _ = open_npy(str(tmp_path))
    assert isinstance(source._inputs["input"], np.memmap)
    assert np.array_equal(source.read(4), X[4])
    assert (source.name(4), source.weights.tolist()) == (f"{tmp_path}/x.npy[4]", [1] * 6)
    assert len(pickle.loads(pickle.dumps(source))) == 6


def test_npy_files_of_the_parts_may_lie_in_folders(tmp_path):
    for part, count in (("train", 6), ("val", 3)):
        (tmp_path / part).mkdir()
        np.save(tmp_path / part / "a.npy", X[:count])
        np.save(tmp_path / part / "b.npy", LABELS[:count])
    train, validation, _ = open_npy(str(tmp_path), inputs="a.npy", targets="b")
    assert (len(train), len(validation)) == (6, 3)


def test_places_without_such_files_are_named(tmp_path, saved):
    with pytest.raises(InputError, match="nowhere.npz: file not found"):
        open_npz(str(tmp_path / "nowhere.npz"))
    with pytest.raises(InputError, match="no train.npz in this folder"):
        open_npz(str(tmp_path))
    with refused(InputError, "x.npy", "y.npy", "folder"):
        open_npy(saved(x=X, y=LABELS))
    (tmp_path / "text.npz").write_text("no zip file")
    with pytest.raises(InputError, match="text.npz is not an .npz file, or not a whole one"):
        open_npz(str(tmp_path / "text.npz"))


def test_arrays_file_that_ends_too_early_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", LABELS)
    with open(tmp_path / "x.npy", "r+b") as file:
        file.truncate(200)
    with pytest.raises(InputError, match="x.npy: "):
        open_npy(str(tmp_path))


@pytest.mark.parametrize(
    ("x", "complaint"),
    [
        (np.array(["a"] * 6), "inputs are of type <U1; they should be numbers"),
        (np.zeros((0, 3)), r"inputs are an array \(0, 3\)"),
    ],
)
def test_inputs_are_numbers(saved, x, complaint):
    with pytest.raises(InputError, match=complaint):
        open_npz(saved(x=x, y=LABELS[: len(x)]))


# ---- parts of the data ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["valid", "dev", "val", "validation"])
@pytest.mark.parametrize("layout", ["suffix", "npz", "npy"])
def test_array_parts_have_their_usual_names(saved, tmp_path, layout, name):
    parts = {"train": 6, name: 4, "test": 2}
    if layout == "suffix":
        arrays = {f"x_{part}": X[:count] for part, count in parts.items()}
        path = saved(**arrays, **{f"y_{part}": LABELS[:n] for part, n in parts.items()})
        opened = open_npz(path)
    elif layout == "npz":
        for part, count in parts.items():
            saved(name=f"all/{part.title()}.npz", x=X[:count], y=LABELS[:count])
        opened = open_npz(str(tmp_path / "all"))
    else:
        for part, count in parts.items():
            folder = tmp_path / part.upper()
            folder.mkdir()
            np.save(folder / "x.npy", X[:count])
            np.save(folder / "y.npy", LABELS[:count])
        opened = open_npy(str(tmp_path))
    assert [len(part) for part in opened] == [6, 4, 2]


def test_arrays_warn_of_test_data_as_validation(saved):
    path = saved(x_train=X, y_train=LABELS, x_test=X[:3] + 1, y_test=LABELS[:3])
    data = open_data("npz", path, 0.5, 0)
    assert (len(data.validation), data.test) == (3, None)
    assert f"{path}:x_test is used for validation" in data.remark
    data = open_data("npz", path, 0.5, 0, test=path)
    assert ([len(part) for part in data.splits().values()], data.remark) == ([3, 3, 3], "")


def test_classes_of_any_bytes_stay_apart(saved):
    source, _, _ = open_npz(saved(x=X[:3], y=np.array([b"caf\xe9", b"caf\xe8", b"caf\xe9"])))
    assert (source.classes, source.labels.tolist()) == (("caf\\xe8", "caf\\xe9"), [1, 0, 1])


@pytest.mark.parametrize("y", [[[1.0, 0], [0, 1]], [[1.0, 1], [0, 0]], [1.0, 0.0]])
def test_floats_that_are_all_zero_or_one_have_two_readings(saved, y):
    path = saved(x=np.zeros((2, 3)), y=np.array(y))
    with pytest.raises(InputError, match="set data.target"):
        open_npz(path)
    assert open_npz(path, target=TargetWish("value"))[0].targets.size == np.size(y)


@pytest.mark.parametrize(
    ("y", "names", "labels"),
    [
        (["dog", "cat"], ("cat", "dog"), [1, 0]),
        (["dog", "dog"], ("dog", "cat"), [1, 1]),
        ([1, 0], ("dog", "cat"), [1, 0]),
        ([2, 1], ("1", "2", "3"), [1, 0]),
        ([1.0, 0.0], ("dog", "cat"), [1, 0]),
    ],
)
def test_class_names_of_the_spec_are_used(saved, y, names, labels):
    target_request = TargetWish("class", names=names)
    source, _, _ = open_npz(saved(x=np.zeros((2, 3)), y=np.array(y)), target=target_request)
    assert source.labels.tolist() == labels
    assert sorted(source.classes) == sorted(names)


@pytest.mark.parametrize(("y", "names"), [(["dog", "cow"], ("cat", "dog")), ([0, 1], ("1", "2"))])
def test_arrays_refuse_classes_missing_in_the_spec(saved, y, names):
    with pytest.raises(InputError, match="not among"):
        open_npz(saved(x=np.zeros((2, 3)), y=np.array(y)), target=TargetWish("class", names=names))
