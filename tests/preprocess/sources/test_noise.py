"""The generated data set."""

import pickle

import numpy as np
import pytest

from launch.errors import InputError
from preprocess.source import open_data


def test_noise_has_the_requested_samples():
    data = open_data(
        "builtin:noise",
        None,
        None,
        seed=0,
        options={"samples": 1000, "validation": 30, "classes": 4, "size": 5},
    )
    assert (len(data.train), len(data.validation), len(data.classes)) == (1000, 30, 4)
    assert np.bincount(data.train.labels).tolist() == [250] * 4
    image = data.train.read(999)
    assert (image.shape, image.dtype) == ((5, 5, 1), np.uint8)
    assert (image == open_data("builtin:noise", None, None, 1, {"size": 5}).train.read(999)).all()
    assert sorted(data.train.order(3, 1)) == list(range(1000))


def test_noise_can_hold_out_a_fraction():
    data = open_data("builtin:noise", None, 0.1, seed=0)
    assert (len(data.train), len(data.validation)) == (900, 100)


def test_noise_pickles_small():
    data = open_data("builtin:noise", None, None, 0, {"samples": 10_000})
    assert len(pickle.dumps(data)) < 110_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "samples: 0 should be a whole number from 1"),
        ({"classes": 1}, "classes: 1 should be a whole number from 2"),
        ({"size": 2.5}, "size: 2.5"),
        ({"pixels": 3}, "unknown option 'pixels'"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(InputError, match=message):
        open_data("builtin:noise", None, None, 0, options)
