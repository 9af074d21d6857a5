"""Common properties of transforms."""

import numpy as np
import pytest

from launch.errors import InputError
from preprocess.transforms.color import ColorJitter
from preprocess.transforms.geometry import Flip, Resize, Rotate
from tests.preprocess.samples import pattern


@pytest.mark.parametrize(
    "transform", [Flip(horizontal=True), Rotate(degrees=30), ColorJitter(contrast=1.0)]
)
def test_transforms_are_not_random_in_evaluation(transform):
    image = pattern(4, 4)
    assert transform.apply(image, None, False) is image


@pytest.mark.parametrize(
    "transform", [Resize(size=(2, 2)), Rotate(degrees=3), ColorJitter(contrast=0.1)]
)
@pytest.mark.parametrize("image", [np.zeros((4, 4, 3), np.float32), np.zeros((4, 4, 4), np.uint8)])
def test_transforms_list_what_pillow_supports(transform, image, rng):
    with pytest.raises(InputError, match="uint8 images with 1 or 3 channels"):
        transform.apply(image, rng, True)
