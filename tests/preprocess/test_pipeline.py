"""From indices to batches: one shape, one type, one augmentation for each (seed, epoch, sample)."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from launch.errors import InputError
from preprocess.base import UnreadableImage
from preprocess.chain import split_transforms
from preprocess.pipeline import Pipeline
from preprocess.source import open_data
from preprocess.transforms import parse_transforms
from tests.examples import examples
from tests.preprocess.samples import Memory, encode, pattern

RANDOM = [
    {"random_crop": {"size": [4, 5], "padding": 2}},
    {"flip": {"horizontal": True}},
    {"rotate": {"degrees": 20}},
    {"color_jitter": {"brightness": 0.5}},
]
IMAGES = [pattern(6, 6, seed=number) for number in range(12)]


def pipeline(samples=IMAGES, transforms=RANDOM, seed=7):
    return Pipeline.from_source(Memory(samples), parse_transforms(transforms), seed)


def load(pipe, indices, epoch=0, training=True):
    """Return images, labels and unreadable samples; the arrays had other content before."""
    images, labels = pipe.empty(len(indices))
    images[:], labels[:] = 77, 77
    bad = pipe.load(indices, epoch, images, labels, training)
    return images, labels, bad


# ---- randomness -------------------------------------------------------------------------------


@settings(max_examples=examples(30), deadline=None)
@given(
    owners=st.lists(st.integers(0, 3), min_size=12, max_size=12),
    epoch=st.integers(0, 1000),
    shuffled=st.permutations(range(12)),
)
def test_load_is_independent_of_process_and_order(owners, epoch, shuffled):
    alone, _, _ = load(pipeline(), range(12), epoch)
    for worker in range(4):
        order = [index for index in shuffled if owners[index] == worker]
        assert np.array_equal(load(pipeline(), order, epoch)[0], alone[order])


def test_augmentation_depends_on_seed_epoch_and_sample():
    same = [IMAGES[0]] * 2
    results = [
        load(pipeline(same, seed=seed), [index], epoch)[0].tobytes()
        for seed, epoch, index in product((1, 2), (0, 1), (0, 1))
    ]
    assert len(set(results)) == 8


def test_evaluation_is_the_same_in_every_epoch():
    pipe = pipeline()
    first, ninth = (load(pipe, range(12), epoch, training=False)[0] for epoch in (0, 9))
    assert np.array_equal(first, ninth)
    assert np.array_equal(load(pipe, [3], training=False)[0][0], IMAGES[3][1:5, 0:5])


def test_pipeline_knows_whether_transforms_are_random():
    assert pipeline().is_random
    assert not pipeline(transforms=[{"center_crop": {"size": [3, 3]}}, "scale"]).is_random


def test_prepare_stops_before_the_first_random_transform():
    transforms = parse_transforms(
        ["decode", {"resize": {"size": 5}}, *RANDOM, {"center_crop": {"size": [2, 2]}}]
    )
    fixed, varying = split_transforms(transforms)
    assert (len(fixed), len(varying)) == (2, len(RANDOM) + 1)
    pipe = pipeline()
    assert np.array_equal(
        pipe.augment_checked(pipe.prepare(3), 3, epoch=5).input, load(pipe, [3], 5)[0][0]
    )


def test_pipeline_order_is_that_of_the_source():
    pipe = pipeline(seed=3)
    assert pipe.samples == 12
    assert pipe.order(4).tolist() == pipe.source.order(3, 4).tolist()


# ---- scale ------------------------------------------------------------------------------------


def keep(image, rng, training):
    return image


def test_pipeline_leaves_the_final_scale_to_the_trainer():
    scale = {"scale": {"mean": 0.5, "std": [0.2, 0.3, 0.4]}}
    late = pipeline(transforms=[scale])
    early = pipeline(transforms=[scale, f"{__name__}:keep"])
    assert (late.sample.input.dtype, early.sample.input.dtype) == ("uint8", "float32")
    assert early.sample.affine is None
    assert np.array_equal(
        late.sample.affine.apply(load(late, range(12))[0]), load(early, range(12))[0]
    )


def test_without_a_scale_there_is_nothing_for_the_trainer_to_do():
    assert pipeline().sample.affine is None


def test_pipeline_scale_for_three_channels_does_not_fit_one():
    for more in ([], [f"{__name__}:keep"]):  # scaled by the trainers, or by the pipeline
        with pytest.raises(
            InputError, match="3 numbers, one for each channel, but samples have 1 channels"
        ):
            pipeline(
                transforms=[{"decode": {"mode": "L"}}, {"scale": {"mean": [0.5, 0.5, 0.5]}}, *more]
            )


# ---- samples that cannot be used --------------------------------------------------------------


def test_pipeline_unreadable_sample_is_black_and_unlabeled():
    images, labels, bad = load(pipeline([*IMAGES[:2], None, IMAGES[3]], ["decode"]), [3, 2, 1])
    [sample] = bad
    assert (sample.name, sample.reason, sample.position) == ("sample 2", "cannot be read", 1)
    assert labels.tolist() == [1, -1, 1]
    assert not images[1].any()
    assert np.array_equal(images[[0, 2]], np.stack([IMAGES[3], IMAGES[1]]))


def test_pipeline_names_a_source_that_is_too_short():
    class Short(Memory):
        def read(self, index):
            if index > 20:
                raise IndexError("unknown record")
            return super().read(index)

    broken = Pipeline(Short([IMAGES[0]] * 30), [], 7, pipeline(transforms=[]).sample)
    with pytest.raises(InputError, match="says that it has 30 samples, and has none at 2"):
        broken.load(range(30), 0, *broken.empty(30))


def test_pipeline_undecodable_file_is_unreadable():
    files = [encode(image) for image in IMAGES]
    files[5] = files[5][:60]
    _, labels, [bad] = load(pipeline(files, ["decode"]), range(12))
    assert (bad.position, labels[5]) == (5, -1)
    assert "cannot be decoded" in str(bad)


@pytest.mark.parametrize(
    "odd", [pattern(6, 7), pattern(6, 6, channels=1), np.zeros((6, 6, 3), np.float32)]
)
def test_pipeline_sample_of_another_shape_is_unreadable(odd):
    pipe = pipeline([*IMAGES, *IMAGES, odd, *IMAGES, *IMAGES], [])  # too late for the probe
    _, _, [bad] = load(pipe, [0, 24])
    assert bad.position == 1
    assert "the others are 6 x 6 x 3 uint8" in bad.reason


def refuse_dark(image, rng, training):
    if image.max() < 10:
        raise UnreadableImage("too dark")
    return image


def test_pipeline_custom_transform_may_refuse_an_image():
    dark = np.zeros((6, 6, 3), np.uint8)
    _, _, [bad] = load(pipeline([*IMAGES, dark], ["decode", f"{__name__}:refuse_dark"]), [12])
    assert str(bad) == "sample 12: too dark"


class Tensor:
    """An array of another library that may not be in host memory."""

    def __init__(self, array):
        self._array = array

    def __array__(self, dtype=None, copy=None):
        if self._array is None:
            raise TypeError("use .cpu() first")
        return self._array


def tensor(image, rng, training):
    return Tensor(image / 2)


def listed(image, rng, training):
    return image.tolist()


def elsewhere(image, rng, training):
    return Tensor(None)


def test_pipeline_custom_transform_may_return_a_tensor():
    images, _, bad = load(pipeline(transforms=[f"{__name__}:tensor"]), [4])
    assert bad == []
    assert np.array_equal(images[0], (IMAGES[4] / 2).astype(np.float32))


@pytest.mark.parametrize(
    ("name", "message"), [("listed", "returned a list"), ("elsewhere", r"use .cpu\(\) first")]
)
def test_pipeline_names_a_transform_without_array(name, message):
    with pytest.raises(InputError, match=f"transform {__name__}:{name} .*{message}"):
        pipeline(transforms=[f"{__name__}:{name}"])


def test_pipeline_source_may_read_tensors_or_images_of_pillow():
    samples = [Tensor(IMAGES[0]), Image.fromarray(IMAGES[1]), memoryview(encode(IMAGES[2]))]
    images, _, bad = load(pipeline(samples, transforms=["decode"]), [0, 1, 2])
    assert bad == []
    assert np.array_equal(images, np.stack(IMAGES[:3]))


def test_pipeline_source_that_reads_no_array_is_named():
    with pytest.raises(InputError, match=r"data.source: read\(0\) returned a dict"):
        pipeline([{"image": IMAGES[0]}] * 2, transforms=[])


def halve(image, rng, training):
    return image / 2


def test_double_precision_becomes_single_on_the_wire():
    pipe = pipeline(transforms=[f"{__name__}:halve"])
    images, _, bad = load(pipe, [4])
    assert (images.dtype, bad) == (np.float32, [])
    assert np.array_equal(images[0], (IMAGES[4] / 2).astype(np.float32))


@pytest.mark.parametrize("dtype", [">i4", ">u2", ">f8", "<i8"])
def test_numbers_travel_in_the_byte_order_of_the_machine(tmp_path, dtype):
    np.savez(tmp_path / "a.npz", x=np.array([[1, 300]] * 4, dtype), y=np.array([0, 1] * 2, ">i8"))
    source = open_data("npz", str(tmp_path / "a.npz"), None, 0).train
    pipeline = Pipeline.from_source(source, (), 0)
    inputs, targets = pipeline.empty(4)
    assert not pipeline.load(range(4), 0, inputs, targets)
    assert inputs.dtype.isnative
    assert targets.dtype.isnative
    assert (inputs[0].tolist(), targets.tolist()) == ([1, 300], [0, 1, 0, 1])
