"""TFRecord files, written here byte by byte from the definition of the format."""

import gzip
import pickle

import numpy as np
import pytest

from launch.errors import InputError
from preprocess.base import UnreadableSample
from preprocess.pipeline import Pipeline
from preprocess.source import open_data
from preprocess.sources.tfrecord import mask_crc
from preprocess.target import TargetSpec, TargetWish
from preprocess.transforms import parse_transforms
from tests.preprocess import records as rec
from tests.preprocess.samples import encode, pattern
from tests.refusals import refused


def opened(path, kind=None, **options):
    return open_data(
        "tfrecord", str(path), None, 0, options, target=kind and TargetWish(kind)
    ).train


def test_images_and_labels_come_back(tmp_path):
    images = [bytes([number]) * 700 * number for number in range(1, 6)]
    rec.write_records(
        tmp_path / "train-00000-of-00002", *(rec.labelled(images[i], 10 + i % 2) for i in range(3))
    )
    rec.write_records(
        tmp_path / "train-00001-of-00002", *(rec.labelled(images[i], 10 + i % 2) for i in (3, 4))
    )
    rec.write_records(tmp_path / "validation-00000-of-00001", rec.labelled(b"v", 11))
    data = open_data("tfrecord", str(tmp_path), 0.1, 0)
    assert [data.train.read(index) for index in range(5)] == images
    assert data.train.labels.tolist() == [0, 1, 0, 1, 0]
    assert (data.classes, data.validation.labels.tolist()) == (("10", "11"), [1])


def test_test_shards_by_pattern_do_not_validate(tmp_path):
    for part, count in (("train", 8), ("test", 3)):
        rec.write_records(
            tmp_path / f"{part}-00000-of-00001", *(rec.labelled(b"x", i % 2) for i in range(count))
        )
    untold = open_data("tfrecord", str(tmp_path), 0.5, 0)
    assert (len(untold.train), len(untold.validation), untold.test) == (8, 3, None)
    assert "is used for validation" in untold.remark
    remark = open_data("tfrecord", str(tmp_path), 0.5, 0, test=str(tmp_path / "test-*"))
    assert (len(remark.train), len(remark.validation), len(remark.test), remark.remark) == (
        4,
        4,
        3,
        "",
    )


def test_they_go_through_the_pipeline_as_files_do(tmp_path):
    images = [pattern(5, 6, seed=number) for number in range(6)]
    rec.write_records(
        tmp_path / "a.tfrecord",
        *(rec.labelled(encode(image), i % 2) for i, image in enumerate(images)),
    )
    pipe = Pipeline.from_source(
        opened(tmp_path / "a.tfrecord"), parse_transforms(["decode"]), seed=0
    )
    batch, labels = pipe.empty(6)
    order = pipe.order(0)
    assert pipe.load(order, 0, batch, labels) == []
    assert np.array_equal(batch, np.stack(images)[order])
    assert labels.tolist() == (order % 2).tolist()


@pytest.mark.parametrize(
    "name",
    ["a.tfrecord", "a.tfrecords", "a.tfrec", "a.tfrecord-00000-of-00001", "train-00000-of-00001"],
)
def test_tfrecord_usual_names_are_known(tmp_path, name):
    rec.write_records(tmp_path / name, rec.labelled(b"x", 0), rec.labelled(b"y", 1))
    assert len(opened(tmp_path)) == 2


def test_tfrecord_features_can_have_other_names(tmp_path):
    rec.write_records(
        tmp_path / "a.tfrecord",
        *(rec.example(jpeg=rec.text(b"image"), animal=rec.text(name)) for name in (b"dog", b"cat")),
    )
    source = opened(tmp_path, image_key="jpeg", label_key="animal")
    assert (source.classes, source.labels.tolist()) == (("cat", "dog"), [1, 0])
    assert source.read(0) == b"image"


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("values", [[-3, 5], [0, 1], [127, 128], [-(1 << 63), (1 << 63) - 1]])
def test_integers_of_any_size_are_labels(tmp_path, packed, values):
    rec.write_records(
        tmp_path / "a.tfrecord",
        *(
            rec.example(
                image__encoded=rec.text(b"x"),
                image__class__label=rec.integers(value, 99, packed=packed),
            )
            for value in values
        ),
    )
    assert opened(tmp_path).classes == tuple(map(str, values))


def test_fields_that_are_not_known_are_passed_over(tmp_path):
    unknown = b"".join(
        [
            rec.varint(9 << 3),
            rec.varint(5),
            rec.varint(10 << 3 | 1),
            bytes(8),
            rec.varint(11 << 3 | 5),
            bytes(4),
        ]
    )
    rec.write_records(
        tmp_path / "a.tfrecord", unknown + rec.labelled(b"x", 0), rec.labelled(b"y", 1) + unknown
    )
    assert [opened(tmp_path).read(index) for index in (0, 1)] == [b"x", b"y"]


# ---- arrays, and targets of other kinds
# -----------------------------------------------------------


@pytest.mark.parametrize(
    ("features", "kind", "expected"),
    [
        ([rec.integers(1, 0, 1), rec.integers(0, 1, 1)], "multilabel", [[1, 0, 1], [0, 1, 1]]),
        ([rec.integers(3, 17), rec.integers(4)], "multilabel", [[1, 0, 1], [0, 1, 0]]),
        ([rec.floats(1.5, 2.5), rec.floats(3.5, -1.0)], None, [[1.5, 2.5], [3.5, -1.0]]),
        ([rec.floats(1.5), rec.floats(3.5)], None, [[1.5], [3.5]]),
        ([rec.integers(7), rec.integers(-9)], "value", [[7], [-9]]),
    ],
)
def test_numbers_are_labels_or_values_with_weights(tmp_path, features, kind, expected):
    rec.write_records(
        tmp_path / "a.tfrecord",
        *(
            rec.example(x=rec.text(b"x"), y=feature, w=rec.floats(weight))
            for feature, weight in zip(features, (0.5, 2.0), strict=True)
        ),
    )
    source = opened(tmp_path, kind, image_key="x", label_key="y", weight_key="w")
    assert (source.targets.tolist(), source.weights.tolist()) == (expected, [0.5, 2.0])
    assert source.target.kind == (kind or "value")


def test_tfrecord_weight_that_is_missing_is_named(tmp_path):
    rec.write_records(tmp_path / "a.tfrecord", rec.labelled(b"x", 0))
    with refused(InputError, "a.tfrecord[0]", "feature 'w'"):
        opened(tmp_path, weight_key="w")


@pytest.mark.parametrize(
    ("feature", "options", "expected"),
    [
        (rec.floats(1.0, 2.0, 3.0, 4.0), {}, np.array([1, 2, 3, 4], np.float32)),
        (rec.floats(1.0, 2.0, 3.0, 4.0), {"shape": [2, 2]}, np.array([[1, 2], [3, 4]], np.float32)),
        (rec.integers(1, -2), {}, np.array([1, -2])),
        (
            rec.text(bytes([1, 2, 3, 4])),
            {"dtype": "uint8", "shape": [2, 2, 1]},
            np.array([[[1], [2]], [[3], [4]]], np.uint8),
        ),
    ],
)
def test_inputs_may_be_arrays(tmp_path, feature, options, expected):
    rec.write_records(
        tmp_path / "a.tfrecord",
        *(rec.example(x=feature, y=rec.integers(label)) for label in (0, 1)),
    )
    source = opened(tmp_path, image_key="x", label_key="y", **options).read(1)
    assert (source.tolist(), source.dtype) == (expected.tolist(), expected.dtype)


def test_tfrecord_array_of_another_shape_is_unreadable(tmp_path):
    rec.write_records(
        tmp_path / "a.tfrecord",
        *(
            rec.example(x=rec.floats(*[1.0] * (3 + label)), y=rec.integers(label))
            for label in (0, 1)
        ),
    )
    source = opened(tmp_path, image_key="x", label_key="y", shape=[3])
    with pytest.raises(
        UnreadableSample, match=r"a.tfrecord\[1\]: it has 4 numbers, not those of shape \(3,\)"
    ):
        source.read(1)


def test_masks_are_encoded_images(tmp_path):
    masks = [np.full((2, 3), number, np.uint8) for number in (0, 4)]
    rec.write_records(
        tmp_path / "a.tfrecord",
        *(
            rec.example(
                image__encoded=rec.text(b"x"),
                image__segmentation__class__encoded=rec.text(encode(mask[:, :, None])),
            )
            for mask in masks
        ),
    )
    source = pickle.loads(pickle.dumps(opened(tmp_path, "mask")))
    assert source.target == TargetSpec("mask", 2, ("0", "4"))
    assert [source.read_target(index).tolist() for index in (0, 1)] == [
        [[0] * 3] * 2,
        [[1] * 3] * 2,
    ]


# ---- damage -----------------------------------------------------------------------------------


@pytest.fixture
def damaged(tmp_path):
    """Open two records with one changed byte, or with the end cut off."""

    def damaged(position=None, length=None):
        content = bytearray(
            rec.record(rec.labelled(b"x" * 100, 0)) + rec.record(rec.labelled(b"y" * 100, 1))
        )
        if position is not None:
            content[position] ^= 1
        (tmp_path / "a.tfrecord").write_bytes(content[:length])
        return opened(tmp_path)

    return damaged


def test_tfrecord_damaged_image_is_unreadable_alone(damaged):
    source = damaged(position=12 + 80)
    with pytest.raises(UnreadableSample, match=r"a.tfrecord\[0\]: its checksum is wrong"):
        source.read(0)
    assert source.read(1) == b"y" * 100


def test_tfrecord_damaged_length_is_an_error_at_the_start(damaged):
    with pytest.raises(InputError, match="not a TFRecord at byte 0"):
        damaged(position=0)


@pytest.mark.parametrize("length", [5, 100, 300, 410])
def test_tfrecord_file_that_ends_too_early_is_error_at_start(damaged, length):
    with pytest.raises(InputError, match="the file is not complete"):
        damaged(length=length)


def test_tfrecord_refuses_compressed_files(tmp_path):
    (tmp_path / "a.tfrecord").write_bytes(gzip.compress(rec.record(rec.labelled(b"x", 0))))
    with pytest.raises(InputError, match="is compressed"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (
            rec.example(image=rec.text(b"x"), label=rec.integers(1)),
            "'image/class/label'.*its features: image, label",
        ),
        (rec.example(image__class__label=rec.integers(1)), "no feature 'image/encoded'"),
        (
            rec.example(image__encoded=rec.text(b"x"), image__class__label=rec.integers()),
            "no feature 'image/class/label'",
        ),
        (b"", "its features: none"),
        (b"\x0b", "not a tf.train.Example"),
        (rec.delimited(1, rec.delimited(1, b"\x0a\x7f")), "not a tf.train.Example"),
        (b"\xff" * 20, "not a tf.train.Example"),
    ],
)
def test_tfrecord_lists_the_features_in_errors(tmp_path, message, complaint):
    rec.write_records(tmp_path / "a.tfrecord", rec.labelled(b"x", 0), message)
    with pytest.raises(InputError, match=rf"a.tfrecord\[1\]: .*{complaint}"):
        opened(tmp_path)


def test_tfrecord_image_of_another_kind_is_unreadable(tmp_path):
    rec.write_records(
        tmp_path / "a.tfrecord",
        rec.labelled(b"x", 0),
        rec.example(image__encoded=rec.integers(), image__class__label=rec.integers(1)),
    )
    with pytest.raises(UnreadableSample, match="no feature 'image/encoded' with bytes or numbers"):
        opened(tmp_path).read(1)


def test_labels_of_any_bytes_stay_apart(tmp_path):
    images = [
        rec.example(image__encoded=rec.text(b"x"), image__class__label=rec.text(name))
        for name in (b"\xe9", b"\xe8")
    ]
    rec.write_records(tmp_path / "a.tfrecord", *images)
    assert opened(tmp_path / "a.tfrecord").classes == ("\\xe8", "\\xe9")


def test_tfrecord_missing_numbered_file_is_refused(tmp_path):
    for name in ("train-00000-of-00003", "train-00002-of-00003"):
        rec.write_records(tmp_path / name, rec.labelled(b"x", 0), rec.labelled(b"y", 1))
    with pytest.raises(InputError, match="train-00001-of-00003: file not found"):
        opened(tmp_path)
    assert len(opened(tmp_path / "train-{00002..00002}-of-00003")) == 2


def test_lists_of_labels_may_be_empty_or_text(tmp_path):
    request = TargetWish("multilabel")
    for number, lists in enumerate([[(2, 0), (), (1,)], [(b"sun", b"fog"), (), (b"fog",)]]):
        kind = rec.text if number else rec.integers
        path = tmp_path / f"{number}.tfrecord"
        rec.write_records(
            path, *(rec.example(x=rec.text(b"image"), y=kind(*labels)) for labels in lists)
        )
        keys = {"image_key": "x", "label_key": "y"}
        source = open_data("tfrecord", str(path), None, 0, keys, target=request).train
        names = ("fog", "sun") if number else ("0", "1", "2")
        assert source.classes == names
        first = [1, 1] if number else [1, 0, 1]
        last = [1, 0] if number else [0, 1, 0]
        assert source.targets.tolist() == [first, [0] * len(names), last]


def test_mask_crc_is_inverted_by_readers():
    unmasked = (mask_crc(0x12345678) - 0xA282EAD8) & 0xFFFFFFFF
    assert (unmasked << 15 | unmasked >> 17) & 0xFFFFFFFF == 0x12345678
