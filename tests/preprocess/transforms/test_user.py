"""The user's own functions."""

import numpy as np
import pytest

from preprocess.transforms.parse import parse_transform
from preprocess.transforms.user import UserTransform
from tests.preprocess.samples import numbered


def blacken(image, rng, training, size=1):
    image[:size, :size] = 0
    return image


def raises(image, rng, training):
    raise ZeroDivisionError("a bug")


def test_a_users_function_gets_its_parameters_and_a_copy_to_write_into():
    image = np.full((3, 3, 1), 9, np.uint8)
    image.flags.writeable = False
    transform = parse_transform({f"{__name__}:blacken": {"size": 2}})
    assert transform.apply(image, None, True).sum() == 5 * 9
    assert image.sum() == 9 * 9


def test_an_error_in_a_users_function_is_not_taken_for_a_bad_image():
    with pytest.raises(ZeroDivisionError) as caught:
        UserTransform(f"{__name__}:raises").apply(numbered(2, 2), None, True)
    assert caught.value.__notes__ == [f"in the transform {__name__}:raises"]
