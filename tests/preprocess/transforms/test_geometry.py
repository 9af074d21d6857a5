"""Transforms of size, position and direction, on small arrays."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from preprocess.base import UnreadableImage
from preprocess.transforms.geometry import (
    CenterCrop,
    Flip,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    Rotate,
)
from tests.preprocess.samples import Draws, numbered, pattern


def test_center_crop_is_symmetric():
    assert CenterCrop(size=(1, 2)).apply(numbered(3, 4), None, True)[:, :, 0].tolist() == [[5, 6]]


@given(
    height=st.integers(1, 6),
    width=st.integers(1, 6),
    padding=st.integers(0, 3),
    draws=st.tuples(st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True)),
    data=st.data(),
)
def test_geometry_random_crop_is_a_window_of_the_padded_image(height, width, padding, draws, data):
    image = numbered(height, width) + 1
    padded = np.pad(image, ((padding, padding), (padding, padding), (0, 0)))
    size = data.draw(st.tuples(*(st.integers(1, length) for length in padded.shape[:2])))
    window = RandomCrop(size=size, padding=padding).apply(image, Draws(*draws), True)
    top, x = (
        int(draw * (length - cut + 1))
        for draw, length, cut in zip(draws, padded.shape[:2], size, strict=True)
    )
    assert np.array_equal(window, padded[top : top + size[0], x : x + size[1]])


def test_geometry_random_crop_reaches_every_place(rng):
    crop = RandomCrop(size=(1, 1))
    corners = {int(crop.apply(numbered(3, 3), rng, True)[0, 0, 0]) for _ in range(200)}
    assert corners == set(range(9))


@pytest.mark.parametrize("padding", [0, 1, 4])
def test_random_crop_is_the_center_crop_in_evaluation(padding):
    image = numbered(5, 6)
    assert np.array_equal(
        RandomCrop(size=(2, 3), padding=padding).apply(image, None, False),
        CenterCrop(size=(2, 3)).apply(image, None, False),
    )


@pytest.mark.parametrize("crop", [CenterCrop(size=(5, 3)), RandomCrop(size=(6, 3), padding=1)])
def test_crop_of_a_small_image_is_refused(crop, rng):
    with pytest.raises(UnreadableImage, match="3 x 4 pixels is too small"):
        crop.apply(numbered(3, 4), rng, True)


@pytest.mark.parametrize("width", [224, 217, 15])
@pytest.mark.parametrize("channels", [1, 3])
def test_geometry_large_image_is_mirrored_wherever_its_rows_lie(width, channels):
    large = np.random.default_rng(0).integers(0, 256, (2000, 256, channels), np.uint8)
    for image in (
        large[3:1990, 256 - width :],
        large[:, :width],
        large[::2, :width],
        large[::-1, :width],
    ):
        assert np.array_equal(Flip(horizontal=True).apply(image, Draws(0.0), True), image[:, ::-1])


@pytest.mark.parametrize(
    ("flip", "draws", "expected"),
    [
        (Flip(horizontal=True), [0.4], [[1, 0], [3, 2]]),
        (Flip(horizontal=True), [0.5], [[0, 1], [2, 3]]),
        (Flip(vertical=True), [0.4], [[2, 3], [0, 1]]),
        (Flip(horizontal=True, vertical=True), [0.4, 0.4], [[3, 2], [1, 0]]),
    ],
)
def test_geometry_flip_mirrors_half_of_the_images(flip, draws, expected):
    assert flip.apply(numbered(2, 2), Draws(*draws), True)[:, :, 0].tolist() == expected


@pytest.mark.parametrize(("draw", "turns"), [(0.0, -1), (0.5, 0)])
def test_geometry_angle_is_uniform_to_both_sides(draw, turns):
    image = pattern(4, 4)
    assert np.array_equal(
        Rotate(degrees=90).apply(image, Draws(draw), True), np.rot90(image, turns)
    )


def test_geometry_corners_that_a_rotation_brings_in_are_black():
    turned = Rotate(degrees=45).turn(np.full((9, 9, 3), 200, np.uint8), 45)
    assert turned[0, 0].tolist() == [0, 0, 0]
    assert turned[4, 4].tolist() == [200, 200, 200]


def test_resize_to_one_number_keeps_the_aspect_ratio():
    assert Resize(size=4).apply(pattern(8, 20), None, True).shape == (4, 10, 3)
    assert Resize(size=4).apply(pattern(20, 8), None, True).shape == (10, 4, 3)


def test_resizing_averages_what_it_makes_smaller():
    image = np.array([[0, 100], [100, 200]], np.uint8)[:, :, None]
    assert Resize(size=(1, 1)).apply(image, None, True).tolist() == [[[100]]]


@given(height=st.integers(1, 40), width=st.integers(1, 40), seed=st.integers(0, 2**32 - 1))
def test_random_resized_crop_draws_area_and_ratio_in_range(height, width, seed):
    crop = RandomResizedCrop(size=1, scale=(0.3, 0.6), ratio=(0.5, 2.0))
    top, x, h, w = crop.window(height, width, np.random.default_rng(seed))
    assert 0 <= top <= top + h <= height
    assert 0 <= x <= x + w <= width
    assert h >= 1
    assert w >= 1
    exact_enough = min(height, width) >= 20
    if exact_enough and (h, w) != (height, width):
        assert 0.25 <= h * w / (height * width) <= 0.67
        assert 0.4 <= w / h <= 2.5


@given(
    height=st.integers(1, 3000),
    width=st.integers(1, 3000),
    seed=st.integers(0, 2**32 - 1),
    training=st.booleans(),
    size=st.tuples(st.integers(1, 300), st.integers(1, 300)),
    ratio=st.sampled_from([(3 / 4, 4 / 3), (0.5, 0.5)]),
)
def test_geometry_window_is_never_below_the_minimum(height, width, seed, training, size, ratio):
    crop = RandomResizedCrop(size=size, scale=(0.08, 1.0), ratio=ratio)
    min_size = crop.min_size(height, width)
    *_, h, w = crop.window(height, width, np.random.default_rng(seed) if training else None)
    # The remaining part of the window, to within a pixel, if the image is decoded at the smallest
    # sufficient size.
    assert (h + 1) * min_size[0] >= size[0] * height
    assert (w + 1) * min_size[1] >= size[1] * width


def test_random_resized_crop_resizes_the_window():
    image = pattern(12, 10)
    crop = RandomResizedCrop(size=(4, 5), scale=(0.5, 0.5), ratio=(1.0, 1.0))
    # 60 pixels of area, so 8 x 8, at 0.9 of (12 - 8 + 1) rows and 0 of (10 - 8 + 1) columns.
    result = crop.apply(image, Draws(0.3, 0.3, 0.9, 0.0), True)
    expected = Resize(size=(4, 5)).apply(image[4:12, 0:8], None, True)
    assert np.array_equal(result, expected)


def test_random_resized_crop_falls_back_to_the_center():
    crop = RandomResizedCrop(size=3, scale=(1.0, 1.0), ratio=(1.0, 1.0))
    image = pattern(3, 9)
    assert np.array_equal(crop.apply(image, np.random.default_rng(0), True), image[:, 3:6])


def test_random_resized_crop_is_centered_in_evaluation():
    image = pattern(32, 48)
    result = RandomResizedCrop(size=(7, 14)).apply(image, None, False)
    # The largest window twice as wide as high is 24 x 48; 0.875 of it is 21 x 42.
    assert np.array_equal(result, Resize(size=(7, 14)).apply(image[5:26, 3:45], None, True))


@pytest.mark.parametrize("wrong", [{"scale": (0.5, 0.2)}, {"ratio": (2.0, 1.0)}])
def test_geometry_range_begins_below_its_end(wrong):
    with pytest.raises(ValueError, match="the first number should be the smaller"):
        RandomResizedCrop(size=4, **wrong)
