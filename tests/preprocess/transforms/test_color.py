"""Transforms of pixel values, on small arrays."""

import numpy as np
import pytest

from launch.errors import InputError
from preprocess.transforms.color import ColorJitter, RandomErasing, RandomGrayscale, Scale
from tests.preprocess.samples import Draws, numbered, pattern


@pytest.mark.parametrize(
    ("jitter", "draw", "expected"),
    [
        (ColorJitter(brightness=1.0), 0.0, [[0, 0, 0], [0, 0, 0]]),  # factor 0
        (ColorJitter(brightness=0.5), 0.5, [[100, 20, 60], [200, 200, 200]]),  # factor 1
        (ColorJitter(brightness=0.5), 1.0, [[150, 30, 90], [255, 255, 255]]),  # factor 1.5
        # from 0, not from -2
        (
            ColorJitter(brightness=3.0),
            0.25,
            [[100, 20, 60], [200, 200, 200]],
        ),
        (ColorJitter(brightness=(1.1, 1.4)), 0.5, [[125, 25, 75], [250, 250, 250]]),  # factor 1.25
        # .299 100 + .587 20 + .114 60
        (
            ColorJitter(saturation=1.0),
            0.0,
            [[48, 48, 48], [200, 200, 200]],
        ),
        # the mean of 48 and 200
        (
            ColorJitter(contrast=1.0),
            0.0,
            [[124, 124, 124], [124, 124, 124]],
        ),
    ],
)
def test_colours_change_by_the_factor_that_was_drawn(jitter, draw, expected):
    image = np.array([[[100, 20, 60], [200, 200, 200]]], np.uint8)
    assert jitter.apply(image, Draws(draw), True)[0].tolist() == expected


def test_scaling_is_the_formula_with_one_rounding_a_step():
    scale = Scale(mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.5))
    image = pattern(4, 4)
    expected = (image / 255 - [0.5, 0.4, 0.3]) / [0.2, 0.25, 0.5]
    scaled = scale.apply(image, None, True)
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("draw", "expected"), [(0.5, [255, 0, 0]), (1.0, [0, 255, 255]), (0.0, [0, 255, 255])]
)
def test_color_jitter_rotates_the_hue(draw, expected):
    red = np.array([[[255, 0, 0]]], np.uint8)
    turned = ColorJitter(hue=0.5).apply(red, Draws(draw), True)[0, 0]
    np.testing.assert_allclose(turned.astype(int), expected, atol=6)  # a hue has 256 steps


@pytest.mark.parametrize("jitter", [ColorJitter(hue=0.5), ColorJitter(saturation=1.0)])
def test_grey_has_no_hue_and_no_saturation_to_change(jitter):
    image = numbered(2, 2)
    assert np.array_equal(jitter.apply(image, Draws(0.0), True), image)


def test_colours_are_changed_in_an_order_that_is_drawn():
    image = np.array([[[100, 20, 60], [250, 200, 10]]], np.uint8)
    jitter = ColorJitter(brightness=0.9, saturation=0.9)
    # Two draws for the order, then one for each factor: 1.9 x brightness clips, so the order shows.
    first, second = (
        jitter.apply(image, Draws(*order, 0.99, 0.99), True) for order in ((0.1, 0.9), (0.9, 0.1))
    )
    assert not np.array_equal(first, second)


@pytest.mark.parametrize(("draw", "is_grey"), [(0.2, True), (0.3, False)])
def test_some_images_lose_their_colours_and_keep_their_channels(draw, is_grey):
    image = pattern(3, 4)
    grey = RandomGrayscale(p=0.3).apply(image, Draws(draw), True)
    assert grey.shape == image.shape
    assert bool((np.ptp(grey, axis=2) == 0).all()) is is_grey


def test_random_erasing_erases_one_window(rng):
    image = np.full((20, 30, 3), 9, np.uint8)
    for _ in range(50):
        erased = RandomErasing(p=1.0, scale=(0.1, 0.2), value=(1, 2, 3)).apply(image, rng, True)
        inside = (erased == [1, 2, 3]).all(axis=2)
        rows, columns = inside.any(axis=1), inside.any(axis=0)
        assert inside.sum() == rows.sum() * columns.sum()
        assert 0.08 <= inside.mean() <= 0.23  # sides are whole pixels
    assert (image == 9).all()


def test_random_erasing_can_fill_with_noise(rng):
    erased = RandomErasing(p=1.0, scale=(1.0, 1.0), ratio=(1.0, 1.0), value="random").apply(
        np.zeros((16, 16, 1), np.uint8), rng, True
    )
    assert len(np.unique(erased)) > 50


def test_color_value_for_each_channel_needs_as_many_channels(rng):
    with pytest.raises(InputError, match="2 numbers of value.*3 channels"):
        RandomErasing(p=1.0, value=(1, 2)).apply(pattern(4, 4), rng, True)


@pytest.mark.parametrize(
    "transform", [ColorJitter(hue=0.2), RandomGrayscale(p=1.0), RandomErasing(p=1.0)]
)
def test_evaluation_leaves_colours_alone(transform):
    image = pattern(4, 4)
    assert np.array_equal(transform.apply(image, None, False), image)
