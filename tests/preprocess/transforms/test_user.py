"""Custom transforms."""

import os
import pickle
import random
import sys

import numpy as np
import pytest

from launch.errors import InputError
from preprocess.base import rng_for
from preprocess.transforms.parse import parse_transform
from preprocess.transforms.user import UserTransform
from tests.preprocess.samples import numbered


def blacken(image, rng, training, size=1):
    image[:size, :size] = 0
    return image


def raises(image, rng, training):
    raise ZeroDivisionError("a bug")


def test_user_transform_receives_parameters_and_a_copy():
    image = np.full((3, 3, 1), 9, np.uint8)
    image.flags.writeable = False
    transform = parse_transform({f"{__name__}:blacken": {"size": 2}})
    assert transform.apply(image, None, True).sum() == 5 * 9
    assert image.sum() == 9 * 9


def test_user_transform_errors_are_not_unreadable_images():
    with pytest.raises(ZeroDivisionError) as caught:
        UserTransform(f"{__name__}:raises").apply(numbered(2, 2), None, True)
    assert caught.value.__notes__ == [f"in the transform {__name__}:raises"]


def untold(image, rng, size):
    return image


@pytest.mark.parametrize(("name", "key"), [("blacken", "sise"), ("untold", "size")])
def test_parameters_that_a_function_does_not_take_are_refused(name, key):
    with pytest.raises(InputError, match=rf"{name}: .*'{key}'; it should take \(image, rng"):
        parse_transform({f"{__name__}:{name}": {key: 2}})


DRAWING = """
import os, random
import numpy as np

def noise(image, rng, training):
    os.chdir("/")
    np.seterr(all="raise")
    return image + np.random.rand() + random.random() + rng.random()
"""


@pytest.fixture
def noise(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "drawing_noise.py").write_text(DRAWING)
    yield UserTransform("drawing_noise:noise")
    sys.modules.pop("drawing_noise", None)


def test_custom_transform_draws_from_its_generator(noise):
    image = np.zeros((2, 2, 1))
    first = noise.apply(image, rng_for(1, 3), True)
    random.seed(8)
    np.random.seed(8)
    changed = pickle.loads(pickle.dumps(noise))
    assert np.array_equal(changed.apply(image, rng_for(1, 3), True), first)
    assert not np.array_equal(changed.apply(image, rng_for(2, 3), True), first)


def test_custom_transform_changes_are_restored(noise):
    before = os.getcwd(), np.geterr()
    noise.apply(np.zeros((2, 2, 1)), rng_for(1, 3), True)
    assert (os.getcwd(), np.geterr()) == before
