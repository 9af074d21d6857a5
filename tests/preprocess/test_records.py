"""Samples of several inputs: transforms by input, and pipelines of records."""

import numpy as np
import pytest

from launch.errors import InputError
from preprocess.base import AUGMENT, RandomAccess, UnreadableSample
from preprocess.chain import Chain
from preprocess.pipeline import Pipeline
from preprocess.probe import infer_sample_spec, probe_samples
from preprocess.record_pipeline import make_pipeline
from preprocess.records import find_inputs, parse_record_transforms
from preprocess.target import TargetSpec
from preprocess.transforms import parse_transforms
from tests.preprocess.samples import encode
from tests.refusals import refused

COUNT = 70
CROP = {"random_crop": {"size": [5, 5], "padding": 1}}
FLIP = {"flip": {"horizontal": True}}


class Photos(RandomAccess):
    """Photos with their depth and some facts; counts how often each is read."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.labels = np.arange(COUNT) % 3
        self.classes = ("a", "b", "c")
        self.photos = rng.integers(0, 256, (COUNT, 8, 8, 3), np.uint8)
        self.facts = rng.integers(-5, 5, (COUNT, 4))
        self.bad = {}
        self.reads = np.zeros(COUNT, int)

    def read(self, index):
        self.reads[index] += 1
        if index in self.bad:
            return self.bad[index]
        photo = self.photos[index]
        return {"photo": photo, "depth": photo[:, :, :1].astype("f4"), "facts": self.facts[index]}

    def name(self, index):
        return f"photo {index}"


class Masks(Photos):
    target = TargetSpec("mask", 3)

    def read_target(self, index):
        return self.photos[index, :, :, 0] % 3


def loaded(source, items, epoch=3, together=(), training=True):
    transforms = parse_record_transforms(items, source, together)
    pipeline = make_pipeline(source, transforms, 7, infer_sample_spec(source, transforms, 7))
    inputs, targets = pipeline.empty(len(source))
    source.reads[:] = 0
    bad = pipeline.load(range(len(source)), epoch, inputs, targets, training)
    return inputs, targets, bad


def test_find_inputs_names_inputs_and_files():
    class Files(Photos):
        def read(self, index):
            return {"file": encode(self.photos[index]), "facts": [1, 2]}

    assert find_inputs(Files()) == {"file": True, "facts": False}


def test_records_are_the_arrays_of_a_source():
    source = Photos()
    inputs, targets, bad = loaded(source, ["decode"])
    np.testing.assert_array_equal(inputs["photo"], source.photos)
    np.testing.assert_array_equal(inputs["facts"], source.facts)
    assert inputs["facts"].dtype == np.int64
    assert (targets.tolist(), bad) == (source.labels.tolist(), [])


def test_records_read_each_sample_once():
    source = Photos()
    loaded(source, {"photo": [CROP], "facts": ["standardize"]})
    assert (source.reads == 1).all()


class Numbers(Photos):
    """Inputs whose numbers travel as others: float64 as float32, booleans as bytes."""

    def read(self, index):
        facts = self.facts[index]
        return {"shares": facts / 8, "flags": facts > 0} | super().read(index)


def test_records_without_transforms_are_copied_alike(monkeypatch):
    copied, targets, _ = loaded(Numbers(), [])
    monkeypatch.setattr(Pipeline, "copy", lambda *_: False)
    prepared, labels, _ = loaded(Numbers(), [])
    assert copied.dtype["flags"].base == np.uint8
    np.testing.assert_array_equal(copied, prepared)
    np.testing.assert_array_equal(targets, labels)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"facts": np.zeros(5, int)}, "is 5 int64; the others are 4 int64"),
        ({"shares": np.full(4, np.nan)}, "has a number that is NaN or infinite"),
        ({"facts": np.array(["a"] * 4)}, "is an array of <U1, not of numbers"),
    ],
)
def test_records_without_transforms_are_checked(bad, reason):
    source = Numbers()
    source.bad[66] = source.read(66) | bad
    inputs, targets, [error] = loaded(source, [])
    assert (error.position, error.reason) == (66, reason)
    assert targets[66] < 0
    assert not inputs["photo"][66].any()
    np.testing.assert_array_equal(inputs["photo"][67], source.photos[67])


def test_records_transform_inputs_as_chains_of_their_own():
    source = Photos()
    inputs, _, _ = loaded(source, {"photo": [CROP, FLIP]})

    class Alone(Photos):
        def read(self, index):
            return self.photos[index]

    transforms = parse_record_transforms({"photo": [CROP, FLIP]}, source)
    chain = Chain(Alone(), parse_transforms([CROP, FLIP]), 7, draws=transforms.draws("photo"))
    for index in range(COUNT):
        alone = chain.augment(chain.prepare(index), index, 3).input
        np.testing.assert_array_equal(inputs["photo"][index], alone)


def test_records_move_inputs_together():
    items = {"photo": [CROP, FLIP, {"color_jitter": {"brightness": 0.5}}], "depth": [CROP, FLIP]}
    source = Photos()
    inputs, _, _ = loaded(source, items | {"photo": [CROP, FLIP]}, together=["photo", "depth"])
    np.testing.assert_array_equal(inputs["photo"][..., :1], inputs["depth"])
    assert len({photo.tobytes() for photo in inputs["photo"]}) == COUNT
    jittered, _, _ = loaded(source, items, together=["photo", "depth"])
    np.testing.assert_array_equal(jittered["depth"], inputs["depth"])


def test_records_draw_apart_without_together():
    inputs, _, _ = loaded(Photos(), {"photo": [CROP, FLIP], "depth": [CROP, FLIP]})
    assert (inputs["photo"][..., :1] != inputs["depth"]).any()


@pytest.mark.parametrize("together", [["photo", "depth"], ["depth", "photo", "target"]])
def test_records_move_masks_with_their_inputs(together):
    source = Masks()
    items = {"photo": [CROP, FLIP], "depth": [CROP, FLIP]}
    inputs, targets, bad = loaded(source, items, together=together)
    inside = targets["target"] != source.target.void
    expected = inputs["photo"][..., 0] % 3
    assert bad == []
    np.testing.assert_array_equal(targets["target"][inside], expected[inside])
    assert 0 < inside.mean() < 1


def test_records_need_to_know_the_input_of_a_mask():
    with refused(InputError, "mask", "together"):
        parse_record_transforms({"photo": [CROP], "depth": [CROP]}, Masks())


@pytest.mark.parametrize(
    ("items", "together", "words"),
    [
        ([CROP], (), ["photo: [...]", "depth: [...]"]),
        ({"image": [CROP]}, (), ["'image'", "photo, depth, facts"]),
        ({"photo": ["flop"]}, (), ["transforms.photo[0]", "flop"]),
        ({"photo": [CROP]}, ("photo", "depth"), ["random_crop", "0 transforms"]),
        ({"photo": [FLIP, CROP], "depth": [CROP, FLIP]}, ("photo", "depth"), ["flip, random_crop"]),
        ({}, ("photo", "height"), ["'height'", "photo, depth, facts"]),
    ],
)
def test_parse_record_transforms_names_mistakes(items, together, words):
    with refused(InputError, *words):
        parse_record_transforms(items, Photos(), together)


def test_together_is_for_several_inputs():
    class Alone(Photos):
        def read(self, index):
            return self.photos[index]

    with refused(InputError, "together", "one input"):
        parse_record_transforms([CROP], Alone(), ["photo"])


def test_probe_refuses_sizes_that_cannot_move_together():
    class Uneven(Photos):
        def read(self, index):
            return {"photo": self.photos[index], "depth": self.photos[index, :7]}

    items = {"photo": [CROP], "depth": [CROP]}
    transforms = parse_record_transforms(items, Uneven(), ["photo", "depth"])
    with refused(InputError, "8 x 8", "7 x 8", "resize"):
        probe_samples(Uneven(), transforms, 1)


def test_records_lack_samples_of_which_one_input_is_bad():
    source = Photos()
    good = source.read(5)
    source.bad = {
        11: good | {"facts": np.array([1, 2])},
        66: good | {"depth": np.full((8, 8, 1), np.nan)},
    }
    inputs, targets, bad = loaded(source, {"photo": [CROP]})
    assert [(sample.position, sample.name) for sample in bad] == [
        (11, "photo 11 (facts)"),
        (66, "photo 66 (depth)"),
    ]
    assert not inputs["photo"][[11, 66]].any()
    assert (targets == -1).nonzero()[0].tolist() == [11, 66]


def test_records_leave_out_unreadable_samples():
    class Torn(Photos):
        def read(self, index):
            if index == 3:
                raise UnreadableSample("photo 3", "is torn")
            return super().read(index)

    _, targets, [bad] = loaded(Torn(), {})
    assert (str(bad), bad.position, targets[3]) == ("photo 3: is torn", 3, -1)


def test_records_refuse_samples_with_other_inputs():
    source = Photos()
    source.bad = {9: {"photo": source.photos[9]}}
    with refused(InputError, "read(9)", "photo, depth, facts"):
        loaded(source, {})


def test_stored_records_become_the_same_samples():
    source = Photos()
    transforms = parse_record_transforms({"photo": [CROP, FLIP], "facts": ["standardize"]}, source)
    sample = infer_sample_spec(source, transforms, 7, keep=True)
    pipeline = make_pipeline(source, transforms, 7, sample)
    source.bad = {4: source.read(4) | {"facts": np.zeros(9)}}
    stored, stored_targets = pipeline.empty_stored(COUNT)
    [bad] = pipeline.load_stored(range(COUNT), stored, stored_targets)
    inputs, targets = pipeline.empty(COUNT)
    pipeline.augment_stored(stored, stored_targets, np.arange(COUNT), 3, inputs, targets)
    expected, expected_targets = pipeline.empty(COUNT)
    pipeline.load(range(COUNT), 3, expected, expected_targets)
    assert bad.position == 4
    np.testing.assert_array_equal(inputs, expected)
    np.testing.assert_array_equal(targets, expected_targets)


def test_records_have_draws_of_their_own():
    transforms = parse_record_transforms({"photo": [CROP]}, Photos())
    assert len({AUGMENT, *map(transforms.draws, ("photo", "depth", "facts"))}) == 4
