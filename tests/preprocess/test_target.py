"""Targets: what sources may have, what is refused, and how they are stored."""

import numpy as np
import pytest

from launch.errors import InputError
from preprocess.base import UnreadableSample
from preprocess.pipeline import Pipeline
from preprocess.probe import infer_sample_spec
from preprocess.source import open_data
from preprocess.target import TargetSpec, TargetWish, class_target, read_mask
from preprocess.transforms import parse_transforms
from preprocess.transforms.user import UserTransform
from tests.preprocess.samples import Samples

ROWS = np.arange(30, dtype=np.float64).reshape(10, 3)


def source_of(path, **attributes):
    return Samples(ROWS, **attributes)


def opened(validation=None, target_request=None, **attributes):
    return open_data(
        f"{__name__}:source_of", None, validation, 0, attributes, target=target_request
    )


def loaded(source, transforms=(), training=True, epoch=0):
    pipeline = Pipeline.from_source(source, parse_transforms(transforms), 3)
    images, targets = pipeline.empty(len(source))
    bad = pipeline.load(range(len(source)), epoch, images, targets, training)
    return pipeline, images, targets, bad


def test_values_travel_with_a_weight():
    values = np.linspace(-1, 1, 20).reshape(10, 2)
    data = opened(target=TargetSpec("value", 2, ("x", "y")), targets=values, weights=np.arange(10))
    pipeline, rows, targets, bad = loaded(data.train)
    read, weights = pipeline.sample.target.split(targets)
    np.testing.assert_array_equal(rows, ROWS.astype(np.float32))
    np.testing.assert_array_equal(read, values.astype(np.float32))
    assert (weights.tolist(), bad, data.classes) == (list(range(10)), [], ("x", "y"))


def test_target_one_value_may_be_a_number_for_each_sample():
    targets = loaded(opened(target=TargetSpec("value", 1), targets=np.arange(10)).train)
    assert targets[0].sample.target.split(targets[2])[0].tolist() == [
        [float(number)] for number in range(10)
    ]


def test_classes_without_weights_travel_as_plain_labels():
    labels = np.arange(10) % 2
    pipeline, _, targets, _ = loaded(Samples(ROWS, labels=labels, classes=("a", "b")))
    assert (targets.dtype, targets.tolist()) == (np.int64, labels.tolist())
    assert pipeline.sample.target.split(targets) == (targets,)
    assert "target" not in pipeline.sample.identity()


def test_classes_with_weights_are_records():
    source = opened(labels=np.arange(10) % 2, classes=("a", "b"), weights=np.full(10, 0.5)).train
    pipeline, _, targets, _ = loaded(source)
    labels, weights = pipeline.sample.target.split(targets)
    assert (labels.dtype, labels[:3].tolist(), weights[:2].tolist()) == (
        np.int64,
        [0, 1, 0],
        [0.5, 0.5],
    )
    assert pipeline.sample.identity()["target"] == {"kind": "class", "weighted": True}


def test_mark_unusable_works_for_every_kind():
    class Broken(Samples):
        def read(self, index):
            if index == 4:
                raise UnreadableSample(self.name(index), "gone")
            return super().read(index)

    for values in (
        {"labels": np.arange(10) % 2, "classes": ("a", "b")},
        {"target": TargetSpec("value", 1), "targets": np.ones(10)},
    ):
        pipeline, rows, targets, bad = loaded(Broken(ROWS, **values))
        assert pipeline.sample.target.is_usable(targets).tolist() == [
            index != 4 for index in range(10)
        ]
        assert not rows[4].any()
        assert [(sample.name, sample.position) for sample in bad] == [("sample 4", 4)]


def test_validation_is_a_share_of_samples_of_any_kind():
    data = opened(0.2, target=TargetSpec("value", 1), targets=np.arange(10.0))
    assert (len(data.train), len(data.validation)) == (8, 2)
    both = sorted([*np.ravel(data.train.targets), *np.ravel(data.validation.targets)])
    assert both == list(range(10))
    for index in range(2):
        number = float(data.validation.targets[index])
        assert data.validation.name(index) == f"sample {number:.0f}"


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (
            {"target": TargetSpec("value", 2), "targets": np.ones((10, 3))},
            r"shape \(10, 3\).*of shape \(10, 2\): 2 values",
        ),
        (
            {"target": TargetSpec("value", 1), "targets": np.array([1.0] * 7 + [np.nan] * 3)},
            r"sample 7 has the target nan \(and 2 more\); it should be finite numbers",
        ),
        (
            {"target": TargetSpec("value", 1), "targets": np.full(10, 1e300)},
            "sample 0 has the target 1e\\+300",
        ),
        ({"target": TargetSpec("value", 1), "targets": ["a"] * 10}, "it should be numbers"),
        (
            {"target": TargetSpec("multilabel", 2), "targets": np.eye(10, 2) * 2},
            "sample 0 has the target 2 0.*0 or 1",
        ),
        (
            {"target": TargetSpec("class", 3), "targets": np.arange(10)},
            r"sample 3 has the target 3 \(and 6 more\)",
        ),
        (
            {"target": "value", "targets": np.ones(10)},
            "its target is str; it should be a preprocess.target.TargetSpec",
        ),
        (
            {
                "target": TargetSpec("value", 1),
                "targets": np.ones(10),
                "weights": np.arange(10) - 1,
            },
            "has the weight -1",
        ),
        (
            {"target": TargetSpec("value", 1), "targets": np.ones(10), "weights": np.ones(9)},
            "10 numbers from 0",
        ),
        (
            {"target": TargetSpec("value", 1), "targets": np.ones(10), "weights": np.zeros(10)},
            "all its weights are 0",
        ),
    ],
)
def test_checked_target_names_the_first_wrong_sample(message, complaint):
    with pytest.raises(InputError, match=complaint):
        opened(**message)


def test_target_request_defines_the_kind():
    numbers = np.arange(10) % 3
    source = opened(target_request=TargetWish("value"), targets=numbers).train
    assert loaded(source)[0].sample.target == TargetSpec("value", 1)
    named = opened(
        target_request=TargetWish("multilabel", names=("x", "y")), targets=np.eye(10, 2)
    ).train
    assert named.target.names == ("x", "y")
    labelled = opened(
        target_request=TargetWish("value"), labels=numbers, classes=("a", "b", "c")
    ).train
    assert labelled.target.kind == "value"


@pytest.mark.parametrize(
    ("target_request", "message", "complaint"),
    [
        (TargetWish("mask"), {"targets": np.ones(10)}, "the number of classes is unknown"),
        (
            TargetWish("value"),
            {"target": TargetSpec("multilabel", 2), "targets": np.eye(10, 2)},
            "but the source has",
        ),
        (TargetWish("value"), {}, "has neither targets nor labels"),
    ],
)
def test_target_request_must_fit_the_data(target_request, message, complaint):
    with pytest.raises(InputError, match=complaint):
        opened(target_request=target_request, **message)


def test_validation_data_of_another_kind_is_refused():
    train = Samples(ROWS, target=TargetSpec("value", 1), targets=np.ones(10))
    validation = Samples(ROWS, labels=np.arange(10) % 2, classes=("a", "b"))
    with pytest.raises(InputError, match="has other targets than the training data: class"):
        open_data(f"{__name__}:pair_of", None, 0.1, 0, {"pair": (train, validation)})


def pair_of(path, pair):
    return pair


# ---- masks -------------------------------------------------------------------------------------


def masked(count=6, height=8, width=10, outputs=200, **attributes):
    """Make images whose red channel is their mask, so that both must move together."""
    random = np.random.default_rng(0)
    masks = [random.integers(0, outputs, (height, width)) for _ in range(count)]
    images = [np.stack([mask, 0 * mask, 0 * mask], axis=2).astype(np.uint8) for mask in masks]
    return Samples(images, target=TargetSpec("mask", outputs, **attributes), masks=masks)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "transforms",
    [
        [{"random_crop": {"size": [5, 6]}}],
        [{"center_crop": {"size": [5, 6]}}],
        [{"flip": {"horizontal": True, "vertical": True}}],
        [{"resize": {"size": [16, 5], "filter": "nearest"}}],
        [
            {
                "random_resized_crop": {
                    "size": [8, 10],
                    "scale": [1, 1],
                    "ratio": [1.25, 1.25],
                    "evaluation": 1.0,
                }
            }
        ],
        [
            {"flip": {"horizontal": True}},
            {"random_crop": {"size": [4, 4]}},
            {"flip": {"vertical": True}},
        ],
    ],
)
def test_target_mask_goes_with_its_image(transforms, training):
    pipeline, images, targets, bad = loaded(masked(), ["decode", *transforms], training, epoch=3)
    masks, weights = pipeline.sample.target.split(targets)
    np.testing.assert_array_equal(masks, images[:, :, :, 0])
    assert (bad, weights.tolist()) == ([], [1.0] * 6)


def test_pixels_from_outside_count_for_nothing():
    pipeline, images, targets, _ = loaded(
        masked(), ["decode", {"random_crop": {"size": [12, 14], "padding": 4}}]
    )
    masks, _ = pipeline.sample.target.split(targets)
    outside = masks == pipeline.sample.target.void
    assert outside.any()
    np.testing.assert_array_equal(masks[~outside], images[:, :, :, 0][~outside])
    assert not images[outside].any()


def test_target_rotated_mask_gets_no_new_class():
    source = masked(outputs=2)
    pipeline, _, targets, _ = loaded(source, ["decode", {"rotate": {"degrees": 45}}], epoch=1)
    assert set(np.unique(pipeline.sample.target.split(targets)[0])) == {0, 1, 255}


def test_colours_leave_a_mask_alone():
    source = masked()
    pipeline, _, targets, _ = loaded(source, ["decode", {"color_jitter": {"brightness": 0.5}}])
    np.testing.assert_array_equal(pipeline.sample.target.split(targets)[0], source.masks)


def test_masks_that_are_kept_have_the_size_of_their_images():
    source, transforms = masked(), ["decode", {"random_crop": {"size": [4, 4]}}]
    sample = infer_sample_spec(source, parse_transforms(transforms), 3, keep=True)
    assert (sample.target.size, sample.stored_target.size) == ((4, 4), (8, 10))
    pipeline = Pipeline(source, parse_transforms(transforms), 3, sample)
    stored, kept_targets = (
        np.empty((6, *sample.stored.shape), np.uint8),
        np.empty(6, sample.stored_target.wire),
    )
    assert not pipeline.load_stored(range(6), stored, kept_targets)
    images, targets = pipeline.empty(6)
    assert not pipeline.augment_stored(stored, kept_targets, np.arange(6), 2, images, targets)
    _, full, whole_targets, _ = loaded(source, transforms, epoch=2)
    np.testing.assert_array_equal(images, full)
    np.testing.assert_array_equal(targets["target"], whole_targets["target"])


@pytest.mark.parametrize(
    ("mask", "complaint"),
    [
        (np.zeros((8, 10)), "mask is 8 x 10 of float64; it should be"),
        (
            np.full((8, 10), 7),
            "its mask has 7 in row 0, column 0, not one of the 3 classes, 0 to 2",
        ),
        (np.zeros((7, 10), int), "is 8 x 10 pixels, and its mask 7 x 10"),
    ],
)
def test_read_mask_refuses_a_wrong_mask(mask, complaint):
    source = masked(outputs=3)
    source.masks[2] = mask
    _, _, targets, bad = loaded(source)
    assert [error.name for error in bad] == ["sample 2"]
    assert complaint in bad[0].reason
    assert targets["weight"].tolist() == [1, 1, -1, 1, 1, 1]


def test_pixels_to_ignore_become_void():
    source = masked(count=1, outputs=3, ignore=255)
    source.masks[0][0, 0] = 255
    assert read_mask(source, 0, source.target)[0, 0] == source.target.void


def cut_out(image, rng, training, mask=None):
    image[:2], mask[:2] = 0, 0
    return image, mask


def blind(image, rng, training):
    return image


def test_target_custom_transform_gets_the_mask():
    source = masked(count=2)
    pipeline = Pipeline.from_source(source, [UserTransform(f"{__name__}:cut_out")], 0)
    images, targets = pipeline.empty(2)
    assert not pipeline.load(range(2), 0, images, targets)
    np.testing.assert_array_equal(targets["target"], images[:, :, :, 0])
    with pytest.raises(InputError, match="it should have a parameter mask"):
        infer_sample_spec(source, [UserTransform(f"{__name__}:blind")], 0)


def test_target_knows_its_shape_and_type():
    assert class_target(("a", "b")).wire == np.int64
    assert TargetSpec("mask", 300, size=(4, 5)).wire["target"].base == np.int32
    for spec in (
        class_target(3),
        class_target(3, weighted=True),
        TargetSpec("multilabel", 2),
        TargetSpec("value", 1),
        TargetSpec("mask", 3, size=(2, 2)),
    ):
        targets = spec.random_targets(np.random.default_rng(0), 5)
        assert (targets.dtype, targets.shape) == (spec.wire, (5,))
        assert spec.is_usable(targets).all()
        spec.mark_unusable(targets, 2)
        assert spec.is_usable(targets).tolist() == [True, True, False, True, True]


def test_two_classes_of_one_name_are_refused():
    complaint = "two classes are named 'a'; names must differ"
    with pytest.raises(InputError, match=complaint):
        opened(labels=np.arange(10) % 3, classes=("a", "b", "a"))
    with pytest.raises(InputError, match="two outputs are named 'a'"):
        opened(
            target_request=TargetWish("multilabel", names=("a", "a")),
            targets=np.eye(10, 2, dtype=int),
        )
