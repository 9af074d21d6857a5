"""Tar shards."""

import io
import json
import os
import pickle
import tarfile

import numpy as np
import pytest

from launch.errors import InputError
from preprocess.source import open_data
from preprocess.target import TargetSpec, TargetWish
from tests.preprocess.records import write_tar
from tests.preprocess.samples import encode
from tests.refusals import refused


def opened(path, kind=None, **options):
    return open_data(
        "webdataset", str(path), None, 0, options, target=kind and TargetWish(kind)
    ).train


def members(*samples):
    """Yield the members of samples (key, image, label), with an unused member."""
    return [
        member
        for key, image, label in samples
        for member in ((f"{key}.jpg", image), (f"{key}.json", b"{}"), (f"{key}.cls", label))
    ]


def test_images_and_labels_come_back(tmp_path):
    write_tar(tmp_path / "x-000.tar", members(("0", b"zero", b"3"), ("1", b"one" * 500, b"12\n")))
    write_tar(tmp_path / "x-001.tar", members(("2", b"two", b"3")))
    source = opened(tmp_path / "x-{000..001}.tar")
    assert [source.read(index) for index in range(3)] == [b"zero", b"one" * 500, b"two"]
    assert (source.classes, source.labels.tolist()) == (("3", "12"), [0, 1, 0])
    assert sorted(source.order(1, 1)) == [0, 1, 2]


def test_folders_in_the_tar_and_long_names_are_part_of_the_key(tmp_path):
    write_tar(
        tmp_path / "a.tar",
        members(("a/0", b"a0", b"0"), ("b/0", b"b0", b"1"), ("c" * 150, b"c", b"1")),
    )
    assert [opened(tmp_path).read(index) for index in range(3)] == [b"a0", b"b0", b"c"]


def test_webdataset_label_may_be_the_name_of_a_class(tmp_path):
    write_tar(tmp_path / "a.tar", members(("0", b"x", b"dog"), ("1", b"x", b"cat")))
    assert opened(tmp_path).classes == ("cat", "dog")


def test_webdataset_members_can_have_other_extensions(tmp_path):
    write_tar(
        tmp_path / "a.tar",
        [
            ("0.small.PNG", b"x"),
            ("0.big.png", b"X"),
            ("0.label", b"1"),
            ("1.big.png", b"Y"),
            ("1.label", b"2"),
        ],
    )
    source = opened(tmp_path, image_key="small.png;big.png", label_key="label")
    assert [source.read(index) for index in (0, 1)] == [b"x", b"Y"]


def array(numbers):
    file = io.BytesIO()
    np.save(file, numbers)
    return file.getvalue()


@pytest.mark.parametrize(
    ("extension", "contents", "kind", "expected"),
    [
        ("cls", [b"1.5", b"-2\n"], None, [[1.5], [-2]]),
        ("txt", [b"1.5 2.5", b"3,4"], None, [[1.5, 2.5], [3, 4]]),
        ("json", [b"[0, 1, 1]", b"[1, 1, 0]"], None, [[0, 1, 1], [1, 1, 0]]),
        ("json", [b"[3, 17]", b"[4]"], None, [[1, 0, 1], [0, 1, 0]]),
        ("json", [b"0.5", b"2"], None, [[0.5], [2]]),
        ("npy", [array([1.5, 2.5]), array([3.5, 4.5])], None, [[1.5, 2.5], [3.5, 4.5]]),
        ("cls", [b"7", b"9"], "value", [[7], [9]]),
    ],
)
def test_targets_are_text_json_or_arrays_with_weights(
    tmp_path, extension, contents, kind, expected
):
    write_tar(
        tmp_path / "a.tar",
        [
            member
            for number, content in enumerate(contents)
            for member in (
                (f"{number}.jpg", b"x"),
                (f"{number}.{extension}", content),
                (f"{number}.weight", b"0.5"),
            )
        ],
    )
    source = opened(tmp_path, kind, label_key=extension, weight_key="weight")
    assert (source.targets.tolist(), source.weights.tolist()) == (expected, [0.5, 0.5])


@pytest.mark.parametrize(
    ("extension", "content", "complaint"),
    [
        (
            "json",
            b"{}",
            r"a.tar\[/0\]: its json is not a target: {} is neither a number, nor a text, nor a "
            r"list",
        ),
        ("json", b"[1,", "its json is not a target"),
        ("npy", array(np.zeros(2))[:90], "its npy is not a target"),
    ],
)
def test_webdataset_target_that_cannot_be_read_is_named(tmp_path, extension, content, complaint):
    write_tar(tmp_path / "a.tar", [("0.jpg", b"x"), (f"0.{extension}", content)])
    with pytest.raises(InputError, match=complaint):
        opened(tmp_path, label_key=extension)


@pytest.mark.parametrize("weight", [[], [("0.weight", b"much")]])
def test_webdataset_weight_that_is_missing_or_no_number_is_named(tmp_path, weight):
    write_tar(tmp_path / "a.tar", [("0.jpg", b"x"), ("0.cls", b"0"), *weight])
    with pytest.raises(
        InputError, match=r"a.tar\[/0\]: no weight: its member weight should be a number"
    ):
        opened(tmp_path, weight_key="weight")


def test_inputs_may_be_arrays(tmp_path):
    write_tar(
        tmp_path / "a.tar",
        [
            ("0.npy", array(np.arange(3))),
            ("0.cls", b"0"),
            ("1.npy", array(np.ones(3))),
            ("1.cls", b"1"),
        ],
    )
    source = opened(tmp_path)
    assert [source.read(index).tolist() for index in (0, 1)] == [[0, 1, 2], [1, 1, 1]]


@pytest.mark.parametrize(("kind", "options"), [("mask", {}), (None, {"label_key": "mask.png"})])
def test_masks_are_images_in_members_of_their_own(tmp_path, kind, options):
    masks = [np.full((2, 3, 1), number, np.uint8) for number in (0, 4)]
    write_tar(
        tmp_path / "a.tar",
        [
            member
            for number, mask in enumerate(masks)
            for member in ((f"{number}.jpg", b"x"), (f"{number}.mask.png", encode(mask)))
        ],
    )
    source = pickle.loads(pickle.dumps(opened(tmp_path, kind, **options)))
    assert source.target == TargetSpec("mask", 2, ("0", "4"))
    assert [source.read_target(index).tolist() for index in (0, 1)] == [
        [[0] * 3] * 2,
        [[1] * 3] * 2,
    ]


@pytest.mark.parametrize(
    "content", [[("0.jpg", b"x"), ("1.cls", b"1")], [("0.cls", b"1"), ("0.txt", b"x")]]
)
def test_scan_names_a_sample_without_image_or_label(tmp_path, content):
    write_tar(tmp_path / "a.tar", content)
    with pytest.raises(
        InputError, match=r"a.tar\[/0\]: a sample must have an image .* and a label .*this one has"
    ):
        opened(tmp_path)


def test_labels_are_all_numbers_or_all_names(tmp_path):
    write_tar(tmp_path / "a.tar", members(("0", b"x", b"dog"), ("1", b"x", b"1")))
    with pytest.raises(InputError, match="labels are partly numbers and partly text"):
        opened(tmp_path)


@pytest.mark.parametrize("compress", [False, True])
def test_webdataset_refuses_damaged_tar_files(tmp_path, compress):
    if compress:
        with tarfile.open(tmp_path / "a.tar", "w:gz") as tar:
            tar.add(__file__)
    else:
        (tmp_path / "a.tar").write_bytes(b"no tar file" * 100)
    with pytest.raises(InputError, match="not a whole and uncompressed tar file"):
        opened(tmp_path)


def test_webdataset_tar_file_that_ends_too_early_is_refused(tmp_path):
    write_tar(tmp_path / "a.tar", members(("0", b"x" * 2000, b"1"), ("1", b"y" * 2000, b"2")))
    content = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "a.tar").write_bytes(content[:6000])
    with pytest.raises(InputError, match="not a whole"):
        opened(tmp_path)


def test_shards_can_be_pickled_after_reading(
    tmp_path,
):
    write_tar(tmp_path / "0.tar", members(("0", b"image", b"0"), ("1", b"other", b"1")))
    source = opened(tmp_path / "0.tar")
    assert source.read(1) == b"other"
    sent = pickle.loads(pickle.dumps(source))
    for descriptor in source._open.values():
        os.close(descriptor)  # in another process it would be invalid, or that of another file
    source._open.clear()
    assert [sent.read(0), sent.read(1)] == [b"image", b"other"]


def test_shards_members_and_labels_may_be_no_utf8(tmp_path):
    write_tar(tmp_path / "x.tar", members(("a", b"a", b"caf\xe9"), ("b", b"b", b"caf\xe8")))
    path = os.fsencode(tmp_path) + b"/\xe9.tar"
    os.rename(tmp_path / "x.tar", path)
    source = opened(os.fsdecode(path))
    assert source.classes == ("caf\\xe8", "caf\\xe9")
    assert source.name(1) == f"{tmp_path}/\\xe9.tar[1]"
    assert source.read(1) == b"b"
    with open(path, "rb") as file:
        content = file.read()
    with open(path, "wb") as file:
        file.write(content.replace(b"a.cls", b"\xe9.cls"))
    with pytest.raises(InputError) as caught:
        opened(os.fsdecode(path))
    assert str(caught.value).encode()


def test_members_of_one_name_are_several_samples(tmp_path):
    write_tar(tmp_path / "a.tar", members(("photo", b"1", b"0"), ("photo", b"2", b"1")))
    source = opened(tmp_path)
    assert [source.read(index) for index in range(2)] == [b"1", b"2"]
    assert source.labels.tolist() == [0, 1]


def json_tar(path, *labels):
    named = [
        (f"{tar_path}.{end}", data)
        for tar_path, label in enumerate(labels)
        for end, data in (("jpg", b"x"), ("json", json.dumps(label).encode()))
    ]
    write_tar(path, named)


@pytest.mark.parametrize("names", [(), ("sky", "sea", "fog")])
def test_empty_lists_of_labels_keep_the_names_of_the_others(tmp_path, names):
    json_tar(tmp_path / "train-0.tar", [0], [1, 2], [])
    json_tar(tmp_path / "val-0.tar", [2], [0], [2])
    request = TargetWish("multilabel", names=names)
    data = open_data("webdataset", str(tmp_path), None, 0, {"label_key": "json"}, target=request)
    assert data.classes == (names or ("0", "1", "2"))
    assert np.asarray(data.train.targets).tolist() == [[1, 0, 0], [0, 1, 1], [0, 0, 0]]
    assert np.asarray(data.validation.targets).tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 1]]


def test_lists_of_texts_are_labels(tmp_path):
    json_tar(tmp_path / "a.tar", ["sun", "fog"], [], ["fog"])
    source = opened(tmp_path, "multilabel", label_key="json")
    assert source.classes == ("fog", "sun")
    assert source.targets.tolist() == [[1, 1], [0, 0], [1, 0]]


def test_webdataset_refuses_numbers_beyond_the_names(tmp_path):
    json_tar(tmp_path / "a.tar", [0, 1], [-1])
    request = TargetWish("multilabel", names=("sky", "sea"))
    with refused(InputError, "a.tar[1]", "'-1'"):
        open_data("webdataset", str(tmp_path), None, 0, {"label_key": "json"}, target=request)
