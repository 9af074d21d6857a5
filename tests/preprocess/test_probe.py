"""The probe of a data set."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from launch.errors import InputError
from preprocess.probe import PROBES, infer_sample_spec, probe_samples
from preprocess.sample import Affine, ArraySpec, SampleSpec
from preprocess.transforms import parse_transforms
from preprocess.transforms.user import UserTransform
from tests.preprocess.samples import Memory, encode, pattern

IMAGES = [pattern(6, 6, seed=number) for number in range(12)]


def looked_at(samples, transforms, keep=False):
    return infer_sample_spec(Memory(samples), parse_transforms(transforms), 7, keep)


def test_probe_infers_the_transformed_sample():
    transforms = [
        "decode",
        {"random_crop": {"size": [4, 5], "padding": 2}},
        {"scale": {"mean": 0.5}},
    ]
    sample = looked_at(IMAGES, transforms)
    assert sample == SampleSpec(ArraySpec((4, 5, 3), "uint8"), 2, Affine(0.5, 1.0))
    assert looked_at(IMAGES, transforms, keep=True) == replace(
        sample, stored=ArraySpec((6, 6, 3), "uint8")
    )


def test_each_of_a_few_samples_is_read_once():
    class Counting(Memory):
        def read(self, index):
            read.append(index)
            return super().read(index)

    read = []
    infer_sample_spec(
        Counting([IMAGES[0]] * 71),
        parse_transforms(["decode", {"flip": {"horizontal": True}}]),
        7,
        keep=True,
    )
    assert read == list(range(0, 71, 10))
    assert len(read) == PROBES


def test_bad_samples_are_passed_over():
    assert looked_at([None] * 50 + [IMAGES[0]] + [None] * 50, ["decode"]).input.shape == (6, 6, 3)


@pytest.mark.parametrize(
    ("samples", "transforms", "complaint"),
    [
        ([], [], "data set is empty"),
        (
            [None, None],
            [],
            "none of the 2 samples can be used; the first: sample 0: cannot be read",
        ),
        (
            [pattern(6, 6), pattern(6, 8)],
            [],
            "6 x 6 x 3 uint8 and sample 1 is 6 x 8 x 3 uint8; add a resize or a crop",
        ),
        (IMAGES, [{"center_crop": {"size": [7, 7]}}], "6 x 6 pixels is too small"),
        (
            [IMAGES[0][:, :, 0]] * 2,
            ["decode", {"flip": {"horizontal": True}}],
            "flip works on images",
        ),
        ([IMAGES[0].astype("S4")] * 2, [], r"is an array of \|S4, not of numbers"),
        ([np.full(3, np.nan)] * 2, [], "a number that is NaN or infinite"),
        ([encode(IMAGES[0])], [{"flip": {"horizontal": True}}], "the first must be decode"),
        (IMAGES, ["decode", "scale", {"rotate": {"degrees": 3}}], "put scale after it"),
    ],
)
def test_probe_refuses_impossible_transforms(samples, transforms, complaint):
    with pytest.raises(InputError, match=complaint):
        looked_at(samples, transforms)


@pytest.mark.parametrize(
    ("samples", "transforms", "complaint"),
    [
        (
            [pattern(6, 6), pattern(6, 8)],
            [],
            "6 x 6 x 3 uint8 and sample 1 6 x 8 x 3 uint8 before the first random",
        ),
        (
            IMAGES,
            ["scale"],
            "sample 0 is 6 x 6 x 3 float32 before the first random transform; only uint8 is kept",
        ),
    ],
)
def test_probe_refuses_samples_that_cannot_be_stored(samples, transforms, complaint):
    transforms = [*transforms, {"random_crop": {"size": [4, 4]}}]
    looked_at(samples, transforms)
    with pytest.raises(InputError, match=complaint):
        looked_at(samples, transforms, keep=True)


def flat(image, rng, training):
    return image.mean(axis=2)


def text(image, rng, training):
    return image.astype(str)


def test_inputs_may_be_of_any_rank():
    assert infer_sample_spec(
        Memory(IMAGES), [UserTransform(f"{__name__}:flat")], 7
    ).input == ArraySpec((6, 6), "float32")
    assert looked_at([np.arange(5)] * 3, ["decode"]).input == ArraySpec((5,), "int64")


def test_probe_custom_transform_must_return_numbers():
    with pytest.raises(InputError, match="transforms must give numbers"):
        infer_sample_spec(Memory(IMAGES), [UserTransform(f"{__name__}:text")], 7)


def of_16_bits(maximum):
    return encode(Image.fromarray(np.array([[0, maximum]], np.uint16)))


@pytest.mark.parametrize(
    ("samples", "decode", "message"),
    [
        ([of_16_bits(4095), of_16_bits(100)], "decode", "use 12, so decode keeps about 16 of 256"),
        ([of_16_bits(4095), of_16_bits(65535)], "decode", ""),
        ([of_16_bits(4095), encode(IMAGES[0])], "decode", ""),
        ([of_16_bits(4095)] * 2, {"decode": {"bits": 12}}, ""),
    ],
)
def test_probe_warns_of_images_with_few_of_16_bits(samples, decode, message):
    transforms = parse_transforms([decode, {"resize": {"size": [4, 4]}}])
    line = probe_samples(Memory(samples), transforms, 7).remark
    assert message in line
    assert bool(message) == bool(line)


def test_probe_names_the_transform_that_refuses_four_channels():
    images = [pattern(6, 6, channels=4)] * 4
    with pytest.raises(
        InputError, match="decode makes RGB of arrays with 1 or 3 .* samples have 4"
    ):
        looked_at(images, ["decode", {"resize": {"size": 4}}])
    with pytest.raises(InputError, match="^resize works on uint8 images with 1 or 3 .* with 4$"):
        looked_at(images, [{"resize": {"size": 4}}])
