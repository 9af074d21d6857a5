"""An image's size, place and direction, on arrays small enough to see."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from preprocess.base import BadImage
from preprocess.transforms.geometry import CenterCrop, Flip, RandomCrop, Resize, Rotate
from tests.preprocess.samples import Draws, numbered, pattern


def test_a_centre_crop_leaves_as_much_on_either_side():
    assert CenterCrop(size=(1, 2)).apply(numbered(3, 4), None, True)[:, :, 0].tolist() == [[5, 6]]


@given(height=st.integers(1, 6), width=st.integers(1, 6), padding=st.integers(0, 3),
       draws=st.tuples(st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True)), data=st.data())
def test_a_random_crop_is_a_window_of_the_padded_image(height, width, padding, draws, data):
    image = numbered(height, width) + 1
    padded = np.pad(image, ((padding, padding), (padding, padding), (0, 0)))
    size = data.draw(st.tuples(*(st.integers(1, length) for length in padded.shape[:2])))
    window = RandomCrop(size=size, padding=padding).apply(image, Draws(*draws), True)
    top, left = (int(draw * (length - cut + 1)) for draw, length, cut
                 in zip(draws, padded.shape[:2], size, strict=True))
    assert np.array_equal(window, padded[top:top + size[0], left:left + size[1]])


def test_a_random_crop_reaches_every_place(rng):
    crop = RandomCrop(size=(1, 1))
    corners = {int(crop.apply(numbered(3, 3), rng, True)[0, 0, 0]) for _ in range(200)}
    assert corners == set(range(9))


@pytest.mark.parametrize("padding", [0, 1, 4])
def test_in_evaluation_a_random_crop_is_the_centre_crop(padding):
    image = numbered(5, 6)
    assert np.array_equal(RandomCrop(size=(2, 3), padding=padding).apply(image, None, False),
                          CenterCrop(size=(2, 3)).apply(image, None, False))


@pytest.mark.parametrize("crop", [CenterCrop(size=(5, 3)), RandomCrop(size=(6, 3), padding=1)])
def test_an_image_that_is_too_small_to_crop_is_bad(crop, rng):
    with pytest.raises(BadImage, match="3 x 4 pixels is too small"):
        crop.apply(numbered(3, 4), rng, True)


@pytest.mark.parametrize(("flip", "draws", "expected"), [
    (Flip(horizontal=True), [0.4], [[1, 0], [3, 2]]),
    (Flip(horizontal=True), [0.5], [[0, 1], [2, 3]]),
    (Flip(vertical=True), [0.4], [[2, 3], [0, 1]]),
    (Flip(horizontal=True, vertical=True), [0.4, 0.4], [[3, 2], [1, 0]]),
])
def test_a_flip_mirrors_half_of_the_images(flip, draws, expected):
    assert flip.apply(numbered(2, 2), Draws(*draws), True)[:, :, 0].tolist() == expected


def test_a_quarter_turn_is_exact():
    image = pattern(5, 5)
    assert np.array_equal(Rotate(degrees=90).turn(image, 90), np.rot90(image))


@pytest.mark.parametrize(("draw", "turns"), [(0.0, -1), (0.5, 0)])
def test_the_angle_is_uniform_to_both_sides(draw, turns):
    image = pattern(4, 4)
    assert np.array_equal(Rotate(degrees=90).apply(image, Draws(draw), True), np.rot90(image, turns))


def test_the_corners_that_a_rotation_brings_in_are_black():
    turned = Rotate(degrees=45).turn(np.full((9, 9, 3), 200, np.uint8), 45)
    assert turned[0, 0].tolist() == [0, 0, 0]
    assert turned[4, 4].tolist() == [200, 200, 200]


def test_one_number_resizes_the_shorter_side_and_keeps_the_proportions():
    assert Resize(size=4).apply(pattern(8, 20), None, True).shape == (4, 10, 3)
    assert Resize(size=4).apply(pattern(20, 8), None, True).shape == (10, 4, 3)


def test_resizing_averages_what_it_makes_smaller():
    image = np.array([[0, 100], [100, 200]], np.uint8)[:, :, None]
    assert Resize(size=(1, 1)).apply(image, None, True).tolist() == [[[100]]]
