"""Decoding as a transform."""

from preprocess.transforms.decoding import Decode
from tests.preprocess.samples import encode, pattern


def test_decoding_an_array_only_changes_its_channels():
    image = pattern(3, 4)
    assert Decode(mode="RGB").apply(image) is image
    assert Decode(mode="L").apply(image).shape == (3, 4, 1)
    assert Decode(mode="RGB").apply(image[:, :, :1]).shape == (3, 4, 3)


def test_decoding_passes_on_the_size_that_is_enough():
    data = encode(pattern(64, 64), "JPEG")
    assert Decode().apply(data, at_least=(16, 16)).shape == (16, 16, 3)
