"""Each transform on arrays small enough to see, and what a spec may say of them."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from preprocess.base import BadImage, InputError
from preprocess.transforms import (
    TRANSFORMS,
    CenterCrop,
    ColorJitter,
    Decode,
    Flip,
    RandomCrop,
    Resize,
    Rotate,
    Scale,
    UserTransform,
    item_schema,
    parse_transform,
    parse_transforms,
    signature,
)
from tests.preprocess.samples import encode, pattern


class Draws:
    """A generator that draws what it is told."""

    def __init__(self, *values):
        self.random = iter(values).__next__


def numbered(height, width, channels=1):
    return np.arange(height * width * channels, dtype=np.uint8).reshape(height, width, channels)


# ---- crops ------------------------------------------------------------------------------------


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


# ---- flip, rotate, colours --------------------------------------------------------------------


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


@pytest.mark.parametrize("transform", [Flip(horizontal=True), Rotate(degrees=30), ColorJitter(contrast=1.0)])
def test_in_evaluation_nothing_is_random(transform):
    image = pattern(4, 4)
    assert transform.apply(image, None, False) is image


# ---- resize, decode, scale --------------------------------------------------------------------


def test_one_number_resizes_the_shorter_side_and_keeps_the_proportions():
    assert Resize(size=4).apply(pattern(8, 20), None, True).shape == (4, 10, 3)
    assert Resize(size=4).apply(pattern(20, 8), None, True).shape == (10, 4, 3)


def test_resizing_averages_what_it_makes_smaller():
    image = np.array([[0, 100], [100, 200]], np.uint8)[:, :, None]
    assert Resize(size=(1, 1)).apply(image, None, True).tolist() == [[[100]]]


def test_decoding_an_array_only_changes_its_channels():
    image = pattern(3, 4)
    assert Decode(mode="RGB").apply(image) is image
    assert Decode(mode="L").apply(image).shape == (3, 4, 1)
    assert Decode(mode="RGB").apply(image[:, :, :1]).shape == (3, 4, 3)


def test_scaling_is_the_formula_with_one_rounding_a_step():
    scale = Scale(mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.5))
    image = pattern(4, 4)
    expected = (image / 255 - [0.5, 0.4, 0.3]) / [0.2, 0.25, 0.5]
    scaled = scale.apply(image, None, True)
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled, expected, atol=1e-6)


@pytest.mark.parametrize("transform", [Resize(size=(2, 2)), Rotate(degrees=3), ColorJitter(contrast=0.1)])
@pytest.mark.parametrize("image", [np.zeros((4, 4, 3), np.float32), np.zeros((4, 4, 4), np.uint8)])
def test_what_pillow_cannot_do_is_an_error_that_says_what_it_can(transform, image, rng):
    with pytest.raises(InputError, match="uint8 images with 1 or 3 channels.*scale comes after it"):
        transform.apply(image, rng, True)


# ---- the user's own ---------------------------------------------------------------------------


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


# ---- what a spec says -------------------------------------------------------------------------


def test_a_spec_gives_names_or_names_with_parameters():
    items = ["decode", {"random_crop": {"size": [32, 24], "padding": 4}}, {"scale": None}]
    assert parse_transforms(items) == (Decode(), RandomCrop(size=(32, 24), padding=4), Scale())


def test_every_wrong_item_is_reported_with_its_place():
    with pytest.raises(InputError) as caught:
        parse_transforms(["decode", "flop", {"rotate": {"angle": 3}}, {"flip": {"horizontal": True}}, 7])
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0] for line in lines] == ["transforms[1]", "transforms[2]", "transforms[4]"]


def test_an_unknown_transform_is_told_all_there_are_with_their_defaults():
    with pytest.raises(InputError) as caught:
        parse_transform("flop")
    assert all(signature(name) in str(caught.value) for name in TRANSFORMS)
    assert "random_crop(size, padding=0)" in str(caught.value)


@pytest.mark.parametrize(("item", "complaint"), [
    ({"rotate": {"angle": 3}}, "no parameter 'angle'; it takes degrees"),
    ("rotate", "'degrees' is missing"),
    ({"rotate": {"degrees": "ten"}}, "'degrees' is 'ten'"),
    ({"rotate": {"degrees": 200}}, "'degrees' is 200"),
    ({"random_crop": {"size": [32, 0]}}, "'size' is [32, 0]; wanted: [height, width] of the crop, in pixels; it takes"),
    ({"random_crop": {"size": 32}}, "'size' is 32; wanted"),
    ({"random_crop": {"size": [True, 3]}}, "'size' is [True, 3]; wanted"),
    ({"resize": {"size": [1, 2, 3]}}, "'size' is [1, 2, 3]; wanted: [height, width], or one number"),
    ({"random_crop": {"size": [3, 3], "padding": -1}}, "'padding' is -1"),
    ({"decode": {"mode": "RGBA"}}, "'mode' is 'RGBA'"),
    ("flip", "in which direction"),
    ("color_jitter", "of what"),
    ({"scale": {"std": 0}}, "'std' is 0"),
    ({"scale": {"std": float("nan")}}, "'std' is nan"),
    ({"scale": {"mean": [0.5, 0.5], "std": [1.0, 1.0, 1.0]}}, "2 means and 3 standard deviations"),
    ({"a": {}, "b": {}}, "a name, or one name with its parameters"),
    ({"flip": [1]}, "a name, or one name with its parameters"),
    ("no_such_module:f", "cannot import 'no_such_module'"),
    (f"{__name__}:nothing", "has no 'nothing'"),
    (f"{__name__}:CONSTANT", "not a function"),
    (":f", "not an import path"),
    ("preprocess:", "not an import path"),
])
def test_a_wrong_item_is_told_what_is_wrong(item, complaint):
    with pytest.raises(InputError) as caught:
        parse_transform(item)
    assert complaint in str(caught.value)


CONSTANT = 3


@pytest.mark.parametrize("items", ["decode", None, {"decode": {}}])
def test_transforms_are_a_list(items):
    with pytest.raises(InputError, match="a list of transforms is wanted"):
        parse_transforms(items)


def test_decode_comes_first():
    with pytest.raises(InputError, match=r"transforms\[1\]: decode comes first"):
        parse_transforms([{"flip": {"horizontal": True}}, "decode"])


def test_decoding_passes_on_the_size_that_is_enough():
    data = encode(pattern(64, 64), "JPEG")
    assert Decode().apply(data, at_least=(16, 16)).shape == (16, 16, 3)


def test_every_parameter_says_what_is_wanted():
    for name in TRANSFORMS:
        for parameter, schema in TypeAdapter(TRANSFORMS[name]).json_schema()["properties"].items():
            assert schema.get("description"), f"{name}.{parameter}"


def test_the_schema_of_an_item_names_all_transforms_and_their_parameters():
    bare, path, mapping = item_schema()["anyOf"]
    assert set(mapping["properties"]) == set(TRANSFORMS)
    assert mapping["properties"]["random_crop"]["required"] == ["size"]
    assert bare["enum"] == ["decode", "scale"]
    assert re.search(path["pattern"], "module:function")


def test_a_module_that_fails_is_told_with_its_place(tmp_path, monkeypatch):
    (tmp_path / "broken_transforms.py").write_text("x = 1\ny = x / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=r"ZeroDivisionError: division by zero \(.*broken_transforms.py, line 2\)"):
        parse_transform("broken_transforms:f")
