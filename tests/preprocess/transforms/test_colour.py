"""An image's values, on arrays small enough to see."""

import numpy as np
import pytest

from preprocess.transforms.colour import ColorJitter, Scale
from tests.preprocess.samples import Draws, numbered, pattern


@pytest.mark.parametrize(("jitter", "draw", "expected"), [
    (ColorJitter(brightness=1.0), 0.0, [[0, 0, 0], [0, 0, 0]]),  # factor 0
    (ColorJitter(brightness=0.5), 0.5, [[100, 20, 60], [200, 200, 200]]),  # factor 1
    (ColorJitter(brightness=0.5), 1.0, [[150, 30, 90], [255, 255, 255]]),  # factor 1.5
    (ColorJitter(brightness=3.0), 0.25, [[100, 20, 60], [200, 200, 200]]),  # from 0, not from -2
    (ColorJitter(saturation=1.0), 0.0, [[48, 48, 48], [200, 200, 200]]),  # .299 100 + .587 20 + .114 60
    (ColorJitter(contrast=1.0), 0.0, [[124, 124, 124], [124, 124, 124]]),  # the mean of 48 and 200
])
def test_colours_change_by_the_factor_that_was_drawn(jitter, draw, expected):
    image = np.array([[[100, 20, 60], [200, 200, 200]]], np.uint8)
    assert jitter.apply(image, Draws(draw), True)[0].tolist() == expected


def test_greyscale_has_no_saturation_to_change():
    image = numbered(2, 2)
    assert np.array_equal(ColorJitter(saturation=1.0).apply(image, Draws(0.0), True), image)


def test_scaling_is_the_formula_with_one_rounding_a_step():
    scale = Scale(mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.5))
    image = pattern(4, 4)
    expected = (image / 255 - [0.5, 0.4, 0.3]) / [0.2, 0.25, 0.5]
    scaled = scale.apply(image, None, True)
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled, expected, atol=1e-6)
